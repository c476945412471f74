"""On an NVIDIA GPU with Nsight Compute and permission to read counters: the whole way, and agreement with the simulator."""

from __future__ import annotations

import pytest

import harness
from harness import agreement, machine, metrics, ncu, stage
from harness.ncu import reading

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def counters() -> None:
    """Skip where this machine gives no counters."""
    found = ncu.find()
    if found is None:
        pytest.skip("no ncu")
    failure = machine.probe_counters(found)
    if failure:
        pytest.skip(f"no counters: {failure.what}")


@pytest.mark.parametrize("name", stage.names())
def test_every_exact_counter_is_equal(name: str) -> None:
    p = harness.profile(name, size=512, backend="gpu", record=False, counters=ncu.Options(tuple(ncu.invocation.GROUPS)))
    assert p.ok and p.measured, p.notes
    wrong = [c for c in p.measured.comparisons if not c.ok]
    assert not wrong, wrong
    equal = {c.metric for c in p.measured.comparisons if c.verdict == agreement.EQUAL}
    assert metrics.COUNTED_IN_CODE <= equal
    assert not p.measured.marks and p.measured.totals["dram__bytes_read.sum"] > 0


def test_per_line_at_a_ragged_size_with_edge_launches(tmp_path) -> None:
    p = harness.profile(
        "tiled2d", m=1000, n=999, k=1001, backend="gpu", out=tmp_path / "run", counters=ncu.Options(set="full")
    )
    assert [c.label for c in p.measured.collection.launches] == [x.launch.label for x in p.parts]
    for part, counted in zip(p.parts, p.measured.collection.launches, strict=True):
        for metric, table in counted.per_pc.items():
            simulated = agreement.per_instruction(metric, part.counts)
            if simulated is not None:
                assert {pc: v for pc, v in table.items() if v} == {pc: v for pc, v in dict(simulated).items() if v}, (
                    metric
                )
        # Where several lines have one instruction, ncu may name that of a call, nvdisasm that of the inlined function.
        where = {i.pc: i.line for i in part.kernel.instructions}
        apart = [pc for pc, (_, line) in counted.lines.items() if where[pc] != line]
        assert counted.lines and len(apart) <= 0.1 * len(where)
    assert (tmp_path / "run/report.ncu-rep").stat().st_size > 0


def test_a_metric_that_no_ncu_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ncu.invocation.EXTRA, "bank", ("smsp__no_such_thing.sum",))
    p = harness.profile("naive", size=64, backend="gpu", record=False, counters=ncu.Options(("bank",)))
    assert "smsp__no_such_thing.sum" in p.measured.collection.missing
    assert p.measured.totals[metrics.FFMA] == 64**3


def test_ncus_csv_says_the_same(tmp_path) -> None:
    p = harness.profile("naive", size=128, backend="gpu", out=tmp_path / "run")
    (by_module,) = p.measured.collection.launches
    (by_csv,) = reading.read_raw(reading.export(ncu.find(), tmp_path / "run/report.ncu-rep"))
    for name in (
        metrics.FFMA,
        metrics.SHARED,
        "inst_executed",
        "launch__registers_per_thread",
        "gpu__time_duration.sum",
    ):
        assert by_csv.values[name] == pytest.approx(by_module.values[name], rel=1e-4)
    assert by_csv.kernel == by_module.kernel and by_csv.grid is not None
