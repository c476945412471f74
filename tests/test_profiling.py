"""harness.profile: the issue's reference values, what a Profile holds, what a run keeps, bad input."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import tempfile
from pathlib import Path

import pytest

import harness
from harness import backends, profiling, record, toolchain
from harness import stage as stages
from harness.errors import TilescopeError
from harness.metrics import REQUESTS_LD, REQUESTS_ST, SECTORS_LD, SECTORS_ST, SHARED, SHARED_IDEAL

REFERENCE = {
    ("naive", None): (8388608, 20971520, 8192, 32768),
    ("naive_uncoalesced", None): (8388608, 138412032, 8192, 262144),
    ("tiled", 16): (524288, 2097152, 8192, 32768),
    ("tiled", 32): (262144, 1048576, 8192, 32768),
    ("tiled1d", None): (131072, 524288, 8192, 32768),
    ("tiled2d", None): (131072, 524288, 8192, 262144),
}
"""Global load requests and sectors, store requests and sectors at 512^3, beta = 0: whatever the compiler schedules."""


@pytest.fixture(scope="module")
def tiled2d(tmp_path_factory):
    return harness.profile("tiled2d", size=512, out=tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    return harness.profile(
        "tiled2d", m=100, n=99, k=101, beta=0.5, ldc=120, out=tmp_path_factory.mktemp("runs") / "run"
    )


@pytest.mark.parametrize(("stage", "tile"), REFERENCE)
def test_requests_and_sectors_of_every_stage(stage, tile):
    done = harness.profile(stage, size=512, record=False, **({"tile": tile} if tile else {}))
    assert tuple(done.totals[m] for m in (REQUESTS_LD, SECTORS_LD, REQUESTS_ST, SECTORS_ST)) == REFERENCE[stage, tile]
    assert done.ok and done.path is None


def test_tiled2d_in_the_article_s_style(tiled2d):
    assert (tiled2d.totals[SHARED], tiled2d.totals[SHARED_IDEAL]) == (3276800, 1179648)
    assert tiled2d.parts[0].occupancy.percent == 31.25
    assert tiled2d.to_json()["binary"]["registers"] == 96


def test_json_has_the_issue_s_top_level(ragged):
    data = ragged.to_json()
    wanted = {"stage", "problem", "tunables", "device", "binary", "launches", "totals", "claims", "findings", "error"}
    assert wanted <= set(data)
    assert data["stage"] == "tiled2d" and data["tunables"]["BM"] == 64 and data["device"] == "h200"
    assert {"registers", "shared_bytes", "spills", "hashes"} <= set(data["binary"])
    assert set(data["binary"]["hashes"]) == {"sass", "cubin", "source"}
    for launch in data["launches"]:
        assert {"name", "grid", "block", "metrics", "occupancy", "bounds"} <= set(launch)
    assert {"max", "bound"} <= set(data["error"]) and data["error"]["max"] <= data["error"]["bound"]
    json.dumps(data, allow_nan=False)


def test_totals_are_sums_over_launches(ragged):
    assert [p.launch.label for p in ragged.parts] == ["main", "right", "bottom", "corner"]
    for name in (REQUESTS_LD, SECTORS_ST, SHARED):
        assert ragged.totals[name] == sum(p.metrics[name] for p in ragged.parts)


def test_the_command_line_writes_the_same_json(ragged, tmp_path):
    from harness import cli

    words = "profile tiled2d M=100 N=99 K=101 BETA=0.5 LDC=120".split()
    assert cli.main([*words, f"OUT={tmp_path}/run", f"JSON={tmp_path}/x.json"]) == 0
    assert json.loads((tmp_path / "x.json").read_text()) | {"run": "", "path": ""} == ragged.to_json() | {
        "run": "",
        "path": "",
    }


def test_frames(ragged):
    assert list(ragged.values) == list(record.VALUES)
    assert ragged.launches.set_index("launch").loc["main", REQUESTS_LD] == ragged.parts[0].metrics[REQUESTS_LD]
    per_pc = ragged.values[ragged.values.pc.notna()]
    for part in ragged.parts:
        mine = per_pc[(per_pc.launch == part.launch.label) & (per_pc.metric == "inst_executed")]
        assert mine.value.sum() == part.metrics["inst_executed"]
    total = ragged.values[ragged.values.launch.isna() & ragged.values.pc.isna()]
    assert set(total.source) == {"sim", "claim"}
    assert "fmaf" in "".join(ragged.source_lines.text)
    assert ragged.source_lines.executed.sum() == ragged.totals["inst_executed"]


def test_a_run_keeps_all_of_it_and_nothing_of_the_user(tiled2d):
    run = harness.load(tiled2d.path)
    assert run.id == tiled2d.id
    m = run.manifest
    assert m["kind"] == "profile" and m["stage"] == "tiled2d" and m["ok"] and m["arch"] == "sm_90"
    assert m["environment"]["python"] and m["environment"]["cpu"] and m["started"] <= m["ended"]
    assert len(run.values) == len(tiled2d.values) and run.lines.equals(tiled2d.lines)
    assert run.runs.sass.tolist() == [tiled2d.binary.hash]
    assert "COSTLIEST SOURCE LINES" in run.text("profile.txt") and "FFMA" in run.text("sass.txt")
    again = toolchain.load(run.path / "kernel.cubin")
    assert again.hash == tiled2d.binary.hash
    secrets = [str(stages.KERNELS).encode(), str(Path.home()).encode() + b"/", str(run.path).encode()]
    for file in run.path.iterdir():
        for secret in secrets:
            assert secret not in file.read_bytes(), f"{file.name} holds {secret}"


def test_units_of_every_value_are_recorded(tiled2d):
    assert tiled2d.values.unit.notna().all()


def test_size_or_m_n_k():
    assert profiling.shape(7, None, None, None) == (7, 7, 7)
    assert profiling.shape(None, 5, None, 6) == (5, profiling.SIZE, 6)
    with pytest.raises(TilescopeError, match="both given"):
        profiling.shape(7, 5, None, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kernel": "tild2d"}, "Did you mean tiled2d"),
        ({"size": 0}, "SIZE=0 is less than 1"),
        ({"size": -5}, "less than 1"),
        ({"size": 1.5}, "not an integer"),
        ({"size": True}, "not an integer"),
        ({"m": 0}, "M=0"),
        ({"size": 10**6}, "elements"),
        ({"size": 10**30}, "elements"),
        ({"alpha": math.nan}, "finite"),
        ({"alpha": 1e39}, "finite"),
        ({"lda": 5, "size": 6}, "LDA=5"),
        ({"seed": -1}, "SEED"),
        ({"distribution": "cauchy"}, "distribution"),
        ({"tile": 16}, "unknown tunable tile"),
        ({"bm": 60}, "TM must divide BM"),
        ({"bm": "x"}, "not an integer"),
        ({"bm": 64, "BM": 64}, "given twice"),
        ({"device": "h2000"}, "Did you mean h200"),
        ({"backend": "gpus"}, "Did you mean gpu"),
        ({"nvcc": "/nonexistent/nvcc"}, "no such compiler"),
    ],
)
def test_bad_input(arguments, words, tmp_path):
    kernel = arguments.pop("kernel", "tiled2d")
    with pytest.raises(TilescopeError, match=words):
        harness.profile(kernel, out=tmp_path / "run", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_the_place_is_checked_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "full").write_text("")
    monkeypatch.setattr(toolchain, "compile", lambda *a: pytest.fail("compiled first"))
    with pytest.raises(TilescopeError, match="is a file"):
        harness.profile("tiled", size=8, out=tmp_path / "full")


def test_a_wrong_result_is_a_failed_verdict(tmp_path):
    done = harness.profile("naive_row_of_b", size=48, out=tmp_path / "run")
    assert not done.ok and done.fault is None and done.error.wrong > 0
    assert "WRONG" in harness.load(tmp_path / "run").text("profile.txt")


def test_a_fault_is_a_failed_verdict_with_its_place(tmp_path):
    done = harness.profile("tiled_no_first_barrier", size=64, out=tmp_path / "run")
    assert not done.ok and done.error is None and done.launches.empty
    fault = harness.load(tmp_path / "run").manifest["fault"]
    assert "race" in fault["kind"] and fault["file"] == "kernels/faulty/tiled_no_first_barrier.cu" and fault["line"]
    assert done.values.empty and done.source_lines.empty
    json.dumps(done.to_json(), allow_nan=False)


def test_a_claim_whose_baseline_cannot_run_is_unchecked(monkeypatch):
    def find(name, real=stages.find):
        if name == "naive":
            raise TilescopeError("gone")
        return real(name)

    monkeypatch.setattr(stages, "find", find)
    done = harness.profile("tiled", size=64, record=False)
    compared = [c for c in done.claims if c.against == "naive"]
    assert compared and all(c.verdict == "cannot be checked" for c in compared)


def test_a_claim_that_raises_does_not_stop_the_profile(monkeypatch):
    tiled = stages.find("tiled")
    broken = dataclasses.replace(tiled.claims[0], when=lambda c: 1 / 0, against="naive")
    monkeypatch.setattr(stages, "find", lambda name: dataclasses.replace(tiled, claims=(broken,)))
    [verdict] = harness.profile("tiled", size=32, record=False).claims
    assert verdict.verdict == "cannot be checked" and "ZeroDivisionError" in verdict.why


def test_progress_goes_forward_to_the_end():
    seen = []
    harness.profile("tiled", size=40, record=False, progress=lambda done, what: seen.append(done))
    assert seen[0] == 0 and all(0 <= x <= 1 for x in seen)


def test_large_problems_are_sampled():
    done = harness.profile("tiled2d", m=6400, n=6400, k=400, record=False)
    assert done.parts[0].blocks_run < done.parts[0].launch.blocks == 10000
    assert done.ok and done.totals["fma_count"] == 6400 * 6400 * 400


def test_backends(monkeypatch):
    assert backends.choose("sim") == "sim"
    monkeypatch.setattr(backends, "gpu_missing", lambda: "no GPU")
    assert backends.choose("auto") == "sim"
    with pytest.raises(TilescopeError, match="no GPU"):
        backends.choose("gpu")
    monkeypatch.setattr(backends, "gpu_missing", lambda: "")
    assert backends.choose("auto") == backends.choose("gpu") == "gpu"


def test_importing_harness_is_light():
    import subprocess
    import sys

    code = "import sys, harness; dir(harness); assert not {'numpy', 'pandas'} & set(sys.modules); assert callable(harness.profile)"
    assert subprocess.run([sys.executable, "-c", code], cwd=stages.KERNELS.parent).returncode == 0
    with pytest.raises(AttributeError):
        harness.nothing  # noqa: B018


def test_repr_is_short_and_print_shows_all(ragged):
    assert len(repr(ragged)) < 120 and "ok" in repr(ragged)
    assert "FINDINGS" in str(ragged)
    assert len(repr(harness.load(ragged.path))) < 200


def test_a_recorded_cubin_says_nothing_of_the_machine_it_was_compiled_on():
    for stage in stages.ladder():
        binary = toolchain.compile(stage, stage.configure(), 90)
        code = binary.portable_cubin()
        assert len(code) == len(binary.cubin) and toolchain.machine_code_hash(code) == binary.hash
        for told in (sys.prefix, str(stages.KERNELS), tempfile.gettempdir() + "/", "site-packages"):
            assert told.encode() not in code, (stage.name, told)
