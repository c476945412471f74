"""A profile with counters of a GPU that is not there: the tables, the JSON, the run directory and the printed section."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pandas as pd
import pytest

import harness
from harness import gpu_report, measured, metrics, ncu, profiling, record, report, timings
from harness.gpu.devices import Gpu
from harness.measurement import Point
from harness.ncu.reading import Counted
from harness.problem import Problem

ARBITRATION = 160
SIZE = 128


H200 = Gpu(0, "NVIDIA H200", "GPU-1", 90, 132, 1980, 4800, 140 * 2**30, 60 * 2**20, 64, 32, 233472, 232448, 1024, 65536, (13, 0))  # fmt: skip


def point(problem: Problem) -> Point:
    """A stage timed alone."""
    return Point("tiled2d", problem, "gpu", samples=[0.01, 0.011, 0.012] * 10, batch=1, sets=2)


def counted(part: profiling.LaunchProfile, change: dict[str, float] | None = None) -> Counted:
    """What a GPU that agrees with the simulator counts of a launch, and what only a GPU counts."""
    values = {n: v for n, v in part.metrics.items() if metrics.in_ncu(n)}
    values |= {
        "gpu__time_duration.sum": 54_000.0,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 12.0,
        "dram__bytes_read.sum": 2.3e5,
        "dram__bytes_write.sum": 1e5,
        "lts__t_sector_hit_rate.pct": 88.0,
        "smsp__issue_active.avg.pct_of_peak_sustained_active": 41.0,
        "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 3.0,
        "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio": 6.0,
        "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": 1.0,
        "smsp__something_new.avg": 3.0,
    }
    values[metrics.WAVEFRONTS_ST] += ARBITRATION
    values[metrics.CONFLICTS_ST] += ARBITRATION
    per_pc = {
        "inst_executed": dict(part.counts.executed.astype(float)),
        metrics.SHARED: dict(part.counts.wavefronts.astype(float)),
    }
    return Counted(
        part.kernel.name, values=values | (change or {}), units={"smsp__something_new.avg": "widgets"}, per_pc=per_pc,
        opcodes={"FFMA": 5.0}, label=part.launch.label,
    )  # fmt: skip


@pytest.fixture(scope="module")
def simulated() -> profiling.Profile:
    return harness.profile("tiled2d", size=SIZE, record=False, backend="sim")


@pytest.fixture
def profiled(simulated: profiling.Profile, monkeypatch: pytest.MonkeyPatch):
    """harness.profile on a gpu backend whose ncu counts what was simulated, but for `change`."""

    def run(change: dict[str, float] | None = None, unavailable: str = "", **more: object) -> profiling.Profile:

        def collect(stage: str, words: list[str], launches: list, options: ncu.Options, **_: object) -> ncu.Collection:
            if unavailable:
                raise ncu.Unavailable(unavailable, "Ask the administrator.")
            assert any(w.startswith("CUBIN=") for w in words)
            found = [counted(p, change) for p in simulated.parts]
            return ncu.Collection(
                found, ("dram__new.sum",), b"NVR", tuple(words), "2025.3.1", options, ["read on a Monday"], 8
            )

        monkeypatch.setattr(
            profiling, "backend_and_device", lambda backend, device, gpu: ("gpu", simulated.device, H200)
        )
        monkeypatch.setattr(
            profiling, "_timed", lambda *_: timings.Timings("t", "time", H200, [point(simulated.problem)], {})
        )
        monkeypatch.setattr(ncu, "collect", collect)
        return harness.profile("tiled2d", size=SIZE, **{"record": False} | more)

    return run


def test_measured_values_stand_beside_the_simulated(profiled) -> None:
    p = profiled()
    table = p.values[(p.values.metric == metrics.SHARED) & p.values.pc.isna() & (p.values.launch == "main")]
    assert dict(zip(table.source, table.value, strict=True)) == dict.fromkeys(("sim", "ncu"), p.totals[metrics.SHARED])
    per_pc = p.values[(p.values.metric == "inst_executed") & p.values.pc.notna()].pivot(
        index="pc", columns="source", values="value"
    )
    assert (per_pc.sim == per_pc.ncu).all() and len(per_pc) > 100
    new = p.values[p.values.metric == "smsp__something_new.avg"]
    assert list(new.unit) == ["widgets"]
    assert p.measured.totals["bank_conflict_share"] == pytest.approx(0.64)


def test_printed(profiled) -> None:
    p = profiled()
    words = report.render(p)
    assert max(map(len, words.splitlines())) <= 100
    section = words[words.index("MEASURED") : words.index("WHAT THE ARTICLES CLAIM")]
    for expected in ("Nsight Compute 2025.3.1", "caches flushed before each pass", "54 us", "12 % achieved",
                     "160 shared-memory wavefronts", "not in this ncu", "dram__new.sum", "L2 88 %", "issue slots 41 %",
                     "short scoreboard 60 %, long scoreboard 30 %, selected 10 %", "read on a Monday"):  # fmt: skip
        assert expected in section, expected
    assert "DIFFER" not in section and section.isascii()
    assert "claimed 64, simulated 64, measured 64 threads" in words


def test_what_l2_kept_is_not_called_the_least_there_can_be() -> None:
    read, written = gpu_report.DRAM_READ, gpu_report.DRAM_WRITE
    once = "each matrix once would be 3 MiB together"
    assert (
        gpu_report._dram({read: 2 * 2**20, written: 0}, 3 * 2**20)
        == f"2 MiB read, 0 B written; {once}, of which L2 kept some"
    )
    assert gpu_report._dram({read: 2 * 2**20, written: 2**20}, 3 * 2**20) == f"2 MiB read, 1 MiB written; {once}"
    assert gpu_report._dram({read: 2 * 2**20}, 3 * 2**20) == f"2 MiB read; {once}"


def test_conflicts_are_those_of_the_code_and_waiting_is_apart(profiled) -> None:
    """As of a stage that copies with cp.async: the code's count holds the copies, the pipe's counters of loads and stores do not."""
    p = profiled()
    v = {metrics.SHARED: 150.0, metrics.SHARED_EXCESS: 0.0, metrics.WAVEFRONTS_LD: 101.0, metrics.WAVEFRONTS_ST: 22.0}
    said = dict(gpu_report._shared_memory(v, copies=30.0))
    assert said["bank conflicts"] == "0 of 150 shared-memory wavefronts (0 %), counted in the code"
    assert said["arbitration"].startswith(
        "3 shared-memory wavefronts more (2 %), in which requests waited for one another: no bank conflicts"
    )
    assert "arbitration" not in dict(gpu_report._shared_memory(v, copies=0.0))
    assert gpu_report._shared_memory({}, 0.0) == [] and p.measured.copies == 0
    one = p.measured.simulated["main"].metrics
    more = replace(
        p.measured,
        simulated={"main": measured.Simulated({**one, metrics.SHARED: one[metrics.SHARED] + 7}, pd.DataFrame())},
    )
    assert more.copies == 7
    assert "wavefronts (64 %), counted in the code" in report.render(p)


def test_a_difference_is_shouted(profiled) -> None:
    words = report.render(profiled({metrics.SECTORS_LD: 12345.0}), width=200)
    assert "1 DIFFER" in words and f"{metrics.SECTORS_LD}: must be equal" in words and "12,345" in words


def test_implausible_values_are_recorded_and_not_used(profiled) -> None:
    p = profiled({metrics.SECTORS_LD: math.nan, "dram__bytes_read.sum": 5.0})
    sources = set(p.values.source[p.values.metric == "dram__bytes_read.sum"])
    assert sources == {"ncu implausible"}
    assert metrics.SECTORS_LD not in p.measured.totals and "dram__bytes_read.sum" not in p.measured.totals
    words = report.render(p)
    assert "implausible" in words and "bytes read from DRAM" not in words.split("MEASURED")[0]


def test_wrong_work_condemns_the_collection(profiled) -> None:
    p = profiled({metrics.FFMA: 5.0})
    assert "ncu" not in set(p.values.source) and "ncu implausible" in set(p.values.source)
    assert p.measured.totals == {}
    report.render(p)


def test_json(profiled) -> None:
    data = json.loads(json.dumps(profiled({metrics.SECTORS_LD: math.nan}).to_json(), allow_nan=False))
    m = data["measured"]
    assert m["ncu"] == "2025.3.1" and m["clock"] == "none" and m["cache"] == "all" and m["passes"] == 8
    assert m["launches"]["main"][metrics.SHARED] == data["totals"][metrics.SHARED]
    assert m["implausible"] == [{"launch": "main", "metric": metrics.SECTORS_LD, "why": "not a number"}]
    assert {c["verdict"] for c in m["comparisons"]} == {"equal", "arbitration", "explained", "implausible"}


def test_the_report_stays_in_the_run(profiled, tmp_path) -> None:
    p = profiled(record=True, out=tmp_path / "run")
    assert (p.path / "report.ncu-rep").read_bytes() == b"NVR"
    run = record.load(p.path)
    assert {"sim", "ncu", "claim"} <= set(run.values.source)
    assert "MEASURED" in run.text("profile.txt")


def test_without_permission_the_profile_goes_on_and_says_so(profiled) -> None:
    p = profiled(unavailable="no permission to read counters.")
    assert p.ok and p.measured is None
    words = report.render(p)
    assert "No hardware counters: no permission" in words.replace("\n", " ") and "Ask the administrator" in words
    assert p.to_json()["notes"] and p.to_json()["measured"] is None


def test_nothing_simulated_still_shows_what_was_measured(profiled) -> None:
    p = profiled()
    alone = replace(p.measured, simulated={}, binary=None)
    page = report.Page(100, False)
    gpu_report.render(page, alone, p.problem)
    assert "nothing was simulated to compare with" in page.text()
    assert alone.comparisons == []


def test_totals_of_several_launches_add_up() -> None:
    one = Counted(
        "k", values={"gpu__time_duration.sum": 5.0, "launch__block_size": 64.0, "only_here__x": 1.0}, label="main"
    )
    two = Counted("k", values={"gpu__time_duration.sum": 7.0, "launch__block_size": 32.0}, label="right")
    collection = ncu.Collection([one, two], (), b"", (), "2025.3.1", ncu.Options())
    assert measured.Measured(collection, {}, {}, None).totals == {
        "gpu__time_duration.sum": 12.0,
        "launch__block_size": 64.0,
    }
