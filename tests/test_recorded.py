"""What an H200 recorded, against the simulator on the very machine code: in total, per instruction and per source line."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import harness
from harness import agreement, bounds, device, metrics, readme, roofs, sanitize, sim, stage, toolchain
from harness.ncu import reading
from harness.problem import Problem

RECORDED = Path(__file__).parents[1] / "profiles" / "recorded" / "h200"
PROFILES = sorted(p.parent for p in RECORDED.glob("*/report.ncu-rep"))
DATA = Path(__file__).parent / "data"
H200 = device.find("h200")
PER_PC = {
    "inst_executed": "executed",
    "thread_inst_executed": "threads",
    "thread_inst_executed_true": "threads_on",
    "memory_l1_wavefronts_shared": "predicted",
    "memory_l1_wavefronts_shared_ideal": "predicted_ideal",
    "memory_l2_theoretical_sectors_global": "sectors",
    "memory_l2_theoretical_sectors_global_ideal": "sectors_ideal",
}
"""ncu's per-instruction metric -> the simulator's counter."""
PIPES = ("thread_inst_executed",)
"""Only where the metrics of `pipes` were collected."""
pytestmark = pytest.mark.skipif(not PROFILES, reason="no recorded profiles in this checkout")
_done: dict[Path, SimpleNamespace] = {}


def recorded(path: Path) -> SimpleNamespace:
    """A recorded profile: its run, the counters in its report, and the simulation of its cubin."""
    if path not in _done:
        run = harness.load(path)
        given = run.manifest["problem"]
        problem = Problem(**given)
        name = run.manifest["stage"]
        s = stage.find(str(DATA / name / f"{name}.py") if (DATA / name).is_dir() else name)
        binary = toolchain.load(path / "kernel.cubin")
        launches = s.plan(problem, run.manifest["tunables"])
        done = sim.run(binary, launches, problem, problem.operands(), blocks="count")
        _done[path] = SimpleNamespace(
            run=run, problem=problem, binary=binary, done=done, counted=reading.read(path / "report.ncu-rep")[0]
        )
    return _done[path]


def test_every_stage_is_recorded():
    stages = [json.loads((p / "manifest.json").read_text())["stage"] for p in PROFILES]
    assert set(stages) >= set(stage.names()) and len(PROFILES) >= 11


@pytest.mark.parametrize("path", PROFILES, ids=[p.name for p in PROFILES])
def test_totals(path):
    r = recorded(path)
    assert len(r.counted) == len(r.done.launches)
    for counted, simulated in zip(r.counted, r.done.launches, strict=True):
        ours = metrics.launch_values(simulated.launch, simulated.kernel, simulated.counts, r.problem, H200)
        compared = {
            c.metric: c for c in agreement.compare(simulated.launch.label, ours, metrics.derived(counted.values))
        }
        assert all(c.ok for c in compared.values()), [c for c in compared.values() if not c.ok]
        for name in ("inst_executed", "thread_inst_executed", "thread_inst_executed_true", "memory_l1_wavefronts_shared",
                     "memory_l2_theoretical_sectors_global"):  # fmt: skip
            if name in counted.values or name not in PIPES:
                assert counted.values[name] == ours[name], name
        assert len(compared) >= 30


@pytest.mark.parametrize("path", PROFILES, ids=[p.name for p in PROFILES])
def test_every_instruction_and_line(path):
    r = recorded(path)
    for counted, simulated in zip(r.counted, r.done.launches, strict=True):
        counts, kernel = simulated.counts, simulated.kernel
        line_of = {pc: line for pc, (_, line) in counted.lines.items()}
        for name, column in PER_PC.items():
            if name in PIPES and name not in counted.values:
                continue
            ours = {pc: float(n) for pc, n in counts[column].items() if n}
            theirs = {pc: n for pc, n in counted.per_pc.get(name, {}).items() if n}
            assert theirs == ours, name
            if line_of:  # recorded with its source
                assert _by_line(theirs, line_of) == _by_line(ours, line_of), name
        # At the first instructions of an inlined function ncu names the line of the call, nvdisasm that of the function.
        apart = [i for i in kernel.instructions if line_of.get(i.pc, i.line) != i.line]
        assert len(apart) <= 0.1 * len(kernel.instructions)


def _by_line(values: dict[int, float], line_of: dict[int, int]) -> dict[int, float]:
    found: dict[int, float] = {}
    for pc, value in values.items():
        found[line_of[pc]] = found.get(line_of[pc], 0.0) + value
    return found


@pytest.mark.parametrize("path", PROFILES, ids=[p.name for p in PROFILES])
def test_the_bound_is_below_the_measured_time(path):
    r = recorded(path)
    found = bounds.total(
        r.problem,
        [bounds.bounds(x.launch, x.kernel, x.counts, H200, roofs.recorded_widths(H200)) for x in r.done.launches],
        H200,
        roofs.recorded_widths(H200),
    )
    values = r.run.values
    measured = values[(values.source == "timing") & (values.metric == "time_ms")].value.item()
    assert bounds.bottleneck(found).seconds * 1e3 <= measured


def test_bounds_and_times_at_4096():
    """No stage is faster than its bound, and the file says what is computed now."""
    table = readme.bound_and_time()
    assert list(table.stage) == stage.names() and (table.measured_over_bound >= 1).all()
    kept = pd.read_csv(readme.BOUNDS)
    assert kept.stage.tolist() == table.stage.tolist() and kept.bottleneck.tolist() == table.bottleneck.tolist()
    assert kept.measured_over_bound.to_numpy() == pytest.approx(table.measured_over_bound.to_numpy(), rel=1e-3)


def sanitized(name: str) -> str:
    return (RECORDED / "sanitizer" / f"{name}.txt").read_text()


def verdicts(name: str) -> dict[tuple[str, str], str]:
    """Verdict by tool and problem."""
    found = re.findall(r"^ +(\w+check) +(\S.*?) +\d+ +(clean|found)$", sanitized(name), re.M)
    return {(tool, problem): verdict for tool, problem, verdict in found}


@pytest.mark.parametrize("name", stage.names())
def test_every_stage_is_clean_under_compute_sanitizer(name):
    """Every tool, on the problems that together execute every instruction of the stage (test_sanitize)."""
    problems = sanitize.problems(stage.find(name).configure())
    assert verdicts(name) == {(tool, str(p)): "clean" for tool in sanitize.TOOLS for p in problems}


FAULTY = sorted(p.stem for p in stage.KERNELS.glob("faulty/*.py"))
RACES = ("race (read-after-write)", "race (write-after-read)", "race (write-after-write)", "missing cp.async wait")


@pytest.mark.parametrize("name", FAULTY)
def test_the_simulator_finds_what_compute_sanitizer_finds(name):
    """Problem by problem: races where racecheck finds any and nowhere else, on its lines; and each access that memcheck calls invalid.

    The simulator finds more: reads past an array that stay within what the driver allocated, reads of shared memory never written, and
    threads that miss a barrier, which compute-sanitizer lets pass.
    """
    s = stage.find(name)
    chosen = s.configure()
    binary, said = toolchain.compile(s, chosen, 90), verdicts(name)
    for p in sanitize.problems(chosen):
        kind, lines = "", set()
        try:
            sim.run(binary, s.plan(p, chosen), p, p.operands())
        except sim.Fault as fault:
            kind, lines = fault.kind, {fault.line, fault.other_line} - {0}
        racecheck, memcheck = (said[tool, str(p)] == "found" for tool in ("racecheck", "memcheck"))
        assert racecheck == (kind in RACES), p
        assert kind == "out of bounds" or not memcheck, p
        if racecheck or memcheck:
            assert lines <= {int(line) for line in re.findall(r"\.cuh?:(\d+)", sanitized(name))}, p


def test_ncus_csv_says_what_its_report_says():
    """`ncu --import ... --csv --page raw` of tiled2d at 512, as an H200's ncu wrote it."""
    path = next(p for p in PROFILES if p.name == "tiled2d-512")
    (counted,) = reading.read_raw((Path(__file__).parent / "data/ncu_raw_h200.csv").read_text())
    report = recorded(path).counted[0]
    exact = [n for n in ("inst_executed", "launch__registers_per_thread", "launch__occupancy_limit_warps",
                         "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "smsp__inst_executed_op_shared_ld.sum",
                         "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "launch__shared_mem_per_block_static") if n in counted.values]  # fmt: skip
    assert len(exact) >= 5 and counted.kernel == "tiled2d" and counted.grid == (8, 8, 1) and counted.block == (64, 1, 1)
    assert {n: counted.values[n] for n in exact} == {n: report.values[n] for n in exact}


def test_recorded_roofs_are_plausible():
    found = json.loads((RECORDED / "roofs/manifest.json").read_text())["roofs"]
    assert len(found) == 32
    for r in found:
        assert (r["high"] - r["low"]) / r["value"] < 0.1, r["name"]
        assert 0.94 * r["clock_mhz"] < r["cycles_mhz"] < 1.005 * r["clock_mhz"], r["name"]
    value = {r["name"]: r["value"] for r in found}
    latencies = [value[f"latency of {x}"] for x in ("FMA", "shared memory", "L1", "L2", "DRAM")]
    assert latencies == sorted(latencies) and 0.5 * H200.dram_gbs < value["DRAM read"] < H200.dram_gbs
    assert 120 < value["FMA"] <= 128 and 3.5 < value["issue"] <= 4


def test_every_stage_was_verified_on_the_gpu():
    """The whole pack and every square up to 64, with the machine code that compiles now."""
    table = pd.read_csv(RECORDED / "verify.csv")
    assert list(dict.fromkeys(table.stage)) == stage.names() and (table.backend == "gpu").all()
    assert (table.failed == 0).all() and (table.error_share <= 1).all()
    assert (table[table.group == "squares from 1"].cases == 64).all() and (
        table[table.group == "random"].cases == 30
    ).all()
    for s in stage.ladder():
        mine = table[table.stage == s.name].iloc[0]
        binary = toolchain.compile(s, s.configure(), 90)
        assert mine.sass == binary.hash or mine.nvcc != binary.compiler


SEARCHES = {path.name: path for path in sorted(RECORDED.glob("tune-*"))}


@pytest.mark.parametrize("path", SEARCHES.values(), ids=SEARCHES)
def test_the_bounds_dropped_no_winner(path):
    run = harness.load(path)
    found = pd.read_csv(path / "candidates.csv")
    timed = found[found.state == "timed"]
    dropped = found[(found.state == "bounds") | found.sampled]
    assert len(dropped) == run.manifest["counts"]["bounds"] and not run.manifest["winners_dropped"]
    assert timed.ms.min() == timed[~timed.sampled].ms.min() == run.manifest["winner"]["ms"]
    assert len(dropped) == 0 or timed.sampled.sum() >= 4
    assert (timed.bound_ms <= timed.ms).all()


def test_the_goals_of_warptiled():
    """Of cuBLAS: 0.98 at 2048 and above; 0.9 at 1024, with the tile that a search found; and at 4097 and 4095x4093x4091."""
    table = pd.read_csv(RECORDED / "ladder/ladder.csv")
    mine = table[table.stage == "warptiled"]
    own = mine[mine.changed.isna()].set_index("m").ratio
    assert (own[[2048, 4096, 8192]] >= 0.98).all() and mine[mine.m == 1024].ratio.max() >= 0.9
    for name, m in (("warptiled-4097-time", 4097), ("warptiled-4095x4093x4091-time", 4095)):
        times = pd.DataFrame(harness.load(RECORDED / name).manifest["points"])
        assert times[(times.stage == "warptiled") & (times.m == m)].ratio.item() >= 0.9
