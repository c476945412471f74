"""The experiments' runs that come with Tilescope: what was counted on an H200 is what the simulator counts now, and every claim is as
its definition expects."""

import json

import pytest

import harness
from harness import definition, experiment_record, frames, htmlreport, metrics, stage, toolchain

NAMES = sorted(p.parent.name for p in definition.EXPERIMENTS.glob("*/experiment.toml"))
RUNS = {
    (name, run.manifest["backend"]): run
    for name in NAMES
    for run in map(harness.load, sorted((definition.EXPERIMENTS / name / "runs").glob("2*")))
}
pytestmark = pytest.mark.skipif(not RUNS, reason="no recorded runs in this checkout")


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_recorded_on_each_of_its_backends(name):
    assert {backend for n, backend in RUNS if n == name} == set(definition.load(name).backends)


@pytest.mark.parametrize("run", RUNS.values(), ids=["-".join(key) for key in RUNS])
def test_claims_are_as_expected(run):
    found = experiment_record.loaded(run)
    assert found.claims and not found.surprises and not found.troubles
    judged = [c for c in found.claims if c.verdict != "not measured"]
    assert len(judged) == len(found.claims) or run.manifest["backend"] == "sim"


@pytest.mark.parametrize("name", [n for n in NAMES if "ncu" in definition.load(n).how.sources])
def test_counters_of_the_code_are_equal(name):
    """Point by point, of the run on the H200 and the run on the simulator."""
    measured, simulated = (experiment_record.loaded(RUNS[name, backend]).measured for backend in ("gpu", "sim"))
    ours = {str(p): p for p in simulated}
    compared = 0
    for point in measured:
        for metric in metrics.COUNTED_IN_CODE:
            theirs = point.value(metric, "ncu")
            if theirs == theirs:
                assert theirs == ours[str(point)].value(metric, "sim"), (point, metric)
                compared += 1
    assert compared >= 4 * sum(p.value("fault", "sim") == 0 for p in measured)


def test_the_machine_code_that_was_measured_is_what_compiles_now():
    """Of the ladder's stages as they are: else the evidence is of another kernel."""
    (run,) = (r for (name, backend), r in RUNS.items() if (name, backend) == ("roofline", "gpu"))
    rows = run.runs.drop_duplicates("stage")
    assert rows.stage.tolist() == stage.names()
    for row in rows.itertuples():
        binary = toolchain.compile(stage.find(row.stage), json.loads(row.tunables), 90)
        assert binary.hash == row.sass or binary.compiler != row.nvcc


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_has_a_page(name, tmp_path):
    page = htmlreport.write(name=name, out=tmp_path / "page.html").read_text()
    assert name in page and "CLAIMS" in page.upper()


def test_what_barriers_found_is_in_its_points():
    """The missing first barrier shows in every launch, the missing second one in none; racecheck finds both."""
    table = frames.points([RUNS["barriers", "gpu"]])
    wide = table[table.tunables != '{"TILE": 4}'].set_index("stage")
    assert (wide.wrong_launches.tiled_no_first_barrier == 1).all() and (
        wide.wrong_launches.tiled_no_second_barrier == 0
    ).all()
    assert (wide.racecheck_hazards[["tiled_no_first_barrier", "tiled_no_second_barrier"]] >= 1).all()
    assert (wide.fault[["tiled_no_first_barrier", "tiled_no_second_barrier"]] == 1).all() and (
        wide.fault.tiled == 0
    ).all()
