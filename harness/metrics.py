"""THE metric table: every number Tilescope prints is defined here once.

A quantity that Nsight Compute has carries ncu's own name. The others are Tilescope's own, in lower case with
underscores; a share is between 0 and 1. Values come from the counts of a launch: a frame with one row per instruction (index `pc`, bytes) and
int64 columns

    executed         warp instructions            requests         warp requests to memory
    threads          thread instructions          sectors          32-byte sectors they touch
    threads_on       those with predicate on      sectors_ideal    those the lanes' bytes would fill, or fewer
    wavefronts       shared-memory wavefronts     lines            128-byte lines they touch
    wavefronts_ideal wavefronts with no conflict  data_wavefronts  passes of global accesses through the data stage
    predicted        wavefronts as Nsight Compute works them out from the addresses, and
    predicted_ideal  its ideal: what `memory_l1_wavefronts_shared` and its like are; the hardware's counters are `wavefronts`

For LDGSTS, requests, sectors and lines are those of its global side, wavefronts those of its shared side. The column
data_wavefronts may be missing: the least that the lanes' bytes allow then stands in for it; for `predicted` the wavefronts do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from . import isa
from .device import Device
from .occupancy import occupancy, static_shared
from .problem import Problem
from .stage import Launch
from .toolchain import Kernel

SECTOR = 32
LINE = 128
WORD = 4
Values = dict[str, float]


@dataclass(frozen=True)
class Metric:
    """One named quantity.

    better  'lower', 'higher', or '' where neither is better in itself
    over    (numerator, denominator) where the metric is scale * numerator / denominator: how it is computed for a
            launch and for several together
    additive  whether launches add up; if not, and not a ratio, it is an attribute of a launch
    """

    name: str
    unit: str
    meaning: str
    better: str = ""
    group: str = ""
    additive: bool = True
    over: tuple[str, str] | None = None
    scale: float = 1.0


def _attribute(name: str, unit: str, meaning: str, better: str = "", group: str = "launch") -> Metric:
    return Metric(name, unit, meaning, better, group, additive=False)


def _ratio(
    name: str, unit: str, meaning: str, better: str, group: str, numerator: str, denominator: str, scale: float = 1.0
) -> Metric:
    return Metric(name, unit, meaning, better, group, additive=False, over=(numerator, denominator), scale=scale)


_T = "l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum"
_DATA = "l1tex__data_{}_mem_shared_op_{}.sum"
REQUESTS_LD, REQUESTS_ST = _T.format("requests", "ld"), _T.format("requests", "st")
SECTORS_LD, SECTORS_ST = _T.format("sectors", "ld"), _T.format("sectors", "st")
WAVEFRONTS_LD, WAVEFRONTS_ST = (_DATA.format("pipe_lsu_wavefronts", op) for op in ("ld", "st"))
CONFLICTS_LD, CONFLICTS_ST = (_DATA.format("bank_conflicts_pipe_lsu", op) for op in ("ld", "st"))
LDGSTS, CONFLICTS_LDGSTS = "smsp__inst_executed_op_ldgsts.sum", _DATA.format("bank_conflicts_pipe_lsu", "ldgsts")
SHARED = "memory_l1_wavefronts_shared"
SHARED_IDEAL = "memory_l1_wavefronts_shared_ideal"
SHARED_EXCESS = "derived__memory_l1_wavefronts_shared_excessive"
L2_SECTORS = "memory_l2_theoretical_sectors_global"
L2_SECTORS_IDEAL = "memory_l2_theoretical_sectors_global_ideal"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
THREADS = "launch__thread_count"
_PIPE = "sm__inst_executed_pipe_{}.sum"
PIPES = {
    "alu": "the ALU pipe",
    "fma": "the FMA pipe, integer multiply-adds included",
    "lsu": "the load/store unit",
    "tensor": "the tensor pipe, which also makes constants (HFMA2.MMA)",
    "uniform": "the uniform datapath",
    "xu": "the pipe for conversions and special functions",
}

_TABLE = (
    Metric("smsp__inst_executed.sum", "inst", "warp instructions executed", "lower", "work"),
    Metric("inst_executed", "inst", "warp instructions executed, as counted in the code itself", "lower", "work"),
    Metric("smsp__thread_inst_executed.sum", "inst", "thread instructions executed", "lower", "work"),
    Metric("thread_inst_executed", "inst", "thread instructions executed, as counted in the code itself", "lower", "work"),
    Metric("smsp__thread_inst_executed_pred_on.sum", "inst", "thread instructions whose predicate was on", "lower", "work"),
    Metric("thread_inst_executed_true", "inst", "thread instructions whose predicate was on, as counted in the code itself", "lower", "work"),
    Metric(FFMA, "inst", "fp32 multiply-adds executed by threads", "", "work"),
    Metric("fma_count", "", "multiply-adds done: m*n*k and what padding adds", "lower", "work"),
    Metric("fma_useful", "", "multiply-adds of the problem itself: fma_count, but at most m*n*k", "", "work"),
    _ratio("ffma_instruction_share", "share", "warp instructions that are multiply-adds", "higher", "work",
           "inst_executed_ffma", "inst_executed"),
    Metric("inst_executed_ffma", "inst", "warp instructions that are fp32 multiply-adds", "", "work"),
    _ratio("register_reads_per_ffma", "registers", "registers an FFMA reads from the register file, those kept by .reuse left out",
           "lower", "work", "register_reads_ffma", "inst_executed_ffma"),
    Metric("register_reads_ffma", "registers", "registers that FFMA warp instructions read from the register file", "lower", "work"),
    Metric("smsp__inst_executed_op_global_ld.sum", "inst", "global load warp instructions", "lower", "coalescing"),
    Metric("smsp__inst_executed_op_global_st.sum", "inst", "global store warp instructions", "lower", "coalescing"),
    Metric(REQUESTS_LD, "requests", "global load requests: a warp instruction with a lane on", "lower", "coalescing"),
    Metric(REQUESTS_ST, "requests", "global store requests", "lower", "coalescing"),
    Metric(SECTORS_LD, "sectors", "32-byte sectors that global loads touch", "lower", "coalescing"),
    Metric(SECTORS_ST, "sectors", "32-byte sectors that global stores touch", "lower", "coalescing"),
    Metric("sectors_ideal_ld", "sectors", "least sectors for what the lanes of global loads ask", "lower", "coalescing"),
    Metric("sectors_ideal_st", "sectors", "least sectors for what the lanes of global stores write", "lower", "coalescing"),
    _ratio("sectors_per_request_ld", "sectors", "sectors per global load request", "lower", "coalescing", SECTORS_LD, REQUESTS_LD),
    _ratio("sectors_per_request_st", "sectors", "sectors per global store request", "lower", "coalescing", SECTORS_ST, REQUESTS_ST),
    _ratio("sectors_per_request_ld_ideal", "sectors", "the least sectors per global load request", "", "coalescing",
           "sectors_ideal_ld", REQUESTS_LD),
    _ratio("sectors_per_request_st_ideal", "sectors", "the least sectors per global store request", "", "coalescing",
           "sectors_ideal_st", REQUESTS_ST),
    Metric(L2_SECTORS, "sectors", "sectors global loads and stores would take from L2 if none hit in L1", "lower", "coalescing"),
    Metric(L2_SECTORS_IDEAL, "sectors", "the least of them for what the lanes ask", "", "coalescing"),
    Metric("global_load_bytes", "bytes", "bytes the lanes ask of global memory", "lower", "coalescing"),
    Metric("global_store_bytes", "bytes", "bytes the lanes store to global memory", "lower", "coalescing"),
    Metric("global_load_sector_bytes", "bytes", "bytes that global loads move, in whole sectors", "lower", "coalescing"),
    Metric("global_store_sector_bytes", "bytes", "bytes that global stores move, in whole sectors", "lower", "coalescing"),
    Metric(_T.format("set_accesses", "ld"), "lines", "128-byte lines that global load requests touch", "lower", "coalescing"),
    Metric(_T.format("set_accesses", "st"), "lines", "128-byte lines that global store requests touch", "lower", "coalescing"),
    _ratio("global_words_loaded_per_thread_per_k", "words", "4-byte words a thread loads from global memory per step along K",
           "lower", "coalescing", "global_load_words_per_k", THREADS),
    Metric("global_load_words_per_k", "words", "4-byte words all threads load from global memory, over K", "lower", "coalescing"),
    Metric("smsp__inst_executed_op_shared_ld.sum", "inst", "shared load warp instructions", "lower", "bank"),
    Metric("smsp__inst_executed_op_shared_st.sum", "inst", "shared store warp instructions", "lower", "bank"),
    Metric("shared_requests_ld", "requests", "shared load requests: a warp instruction with a lane on", "lower", "bank"),
    Metric("shared_requests_st", "requests", "shared store requests", "lower", "bank"),
    Metric(SHARED, "wavefronts", "passes through shared memory, loads and stores", "lower", "bank"),
    Metric(SHARED_IDEAL, "wavefronts", "the least passes for the accesses' width: no bank conflict", "", "bank"),
    Metric(SHARED_EXCESS, "wavefronts", "passes that bank conflicts add", "lower", "bank"),
    Metric(WAVEFRONTS_LD, "wavefronts", "passes of shared loads", "lower", "bank"),
    Metric(WAVEFRONTS_ST, "wavefronts", "passes of shared stores", "lower", "bank"),
    Metric(CONFLICTS_LD, "wavefronts", "passes that bank conflicts add to shared loads", "lower", "bank"),
    Metric(CONFLICTS_ST, "wavefronts", "passes that bank conflicts add to shared stores", "lower", "bank"),
    Metric(LDGSTS, "inst", "copies from global to shared memory, warp instructions", "", "bank"),
    Metric("shared_wavefronts_copy", "wavefronts", "passes of copies into shared memory", "lower", "bank"),
    Metric(CONFLICTS_LDGSTS, "wavefronts", "passes that bank conflicts add to copies into shared memory", "lower", "bank"),
    _ratio("wavefronts_per_request_shared_ld", "wavefronts", "passes per shared load", "lower", "bank", WAVEFRONTS_LD, "shared_requests_ld"),
    _ratio("wavefronts_per_request_shared_st", "wavefronts", "passes per shared store", "lower", "bank", WAVEFRONTS_ST, "shared_requests_st"),
    _ratio("bank_conflict_share", "share", "shared-memory passes that are bank conflicts", "lower", "bank", SHARED_EXCESS, SHARED),
    Metric("shared_words_read", "words", "4-byte words the lanes read from shared memory", "lower", "bank"),
    _ratio("shared_words_read_per_fma", "words", "shared-memory words read per multiply-add", "lower", "bank", "shared_words_read", "fma_count"),
    _ratio("arithmetic_intensity", "FLOP/byte", "useful operations, at most 2*m*n*k, per byte the lanes load from global memory",
           "higher", "memory", "fma_useful", "global_load_bytes", 2),
    _ratio("arithmetic_intensity_sectors", "FLOP/byte",
           "useful operations, at most 2*m*n*k, per byte that global loads move, stores left out", "higher", "memory",
           "fma_useful", "global_load_sector_bytes", 2),
    _attribute("peak_share_bandwidth_cap", "share", "part of fp32 peak that DRAM bandwidth would allow if every byte asked came from DRAM",
               "higher", "memory"),
    Metric("smsp__inst_executed_op_local_ld.sum", "inst", "local load warp instructions: spills and local arrays read back", "lower", "spill"),
    Metric("smsp__inst_executed_op_local_st.sum", "inst", "local store warp instructions: spills and local arrays written", "lower", "spill"),
    _attribute("spill_load_bytes", "bytes", "bytes of spill loads in the code, by ptxas", "lower", "spill"),
    _attribute("spill_store_bytes", "bytes", "bytes of spill stores in the code, by ptxas", "lower", "spill"),
    _attribute("local_bytes_per_thread", "bytes", "local memory a thread has: its stack frame", "lower", "spill"),
    *(Metric(_PIPE.format(name), "inst", f"warp instructions issued to {what}", "", "pipes") for name, what in PIPES.items()),
    _attribute("launch__block_size", "threads", "threads per block"),
    _attribute("launch__grid_size", "blocks", "blocks in the grid"),
    Metric(THREADS, "threads", "threads launched", "", "launch"),
    _attribute("launch__registers_per_thread", "registers", "registers per thread", "lower"),
    _attribute("launch__shared_mem_per_block_static", "bytes", "shared memory per block that the code declares", "lower"),
    _attribute("launch__shared_mem_per_block_dynamic", "bytes", "shared memory per block that the launch adds", "lower"),
    _attribute("launch__shared_mem_per_block_driver", "bytes", "shared memory per block that the driver reserves"),
    _attribute("shared_bytes_per_block", "bytes", "shared memory per block, declared and added", "lower"),
    _attribute("launch__occupancy_limit_warps", "blocks", "blocks per SM that warp slots allow", "higher", "occupancy"),
    _attribute("launch__occupancy_limit_blocks", "blocks", "blocks per SM that block slots allow", "higher", "occupancy"),
    _attribute("launch__occupancy_limit_registers", "blocks", "blocks per SM that registers allow", "higher", "occupancy"),
    _attribute("launch__occupancy_limit_shared_mem", "blocks", "blocks per SM that the largest shared memory allows", "higher", "occupancy"),
    _attribute("sm__maximum_warps_per_active_cycle_pct", "%", "theoretical occupancy: warps an SM holds, of those it could", "", "occupancy"),
    _attribute("launch__waves_per_multiprocessor", "waves", "grid size over the blocks all SMs hold at a time", "", "occupancy"),
)  # fmt: skip
_MEASURED = (
    Metric("gpu__time_duration.sum", "ns", "time of the launch as ncu measured it, alone on the GPU", "lower", "time"),
    _attribute("sm__cycles_elapsed.max", "cycles", "SM cycles from the launch's start to its end", "lower", "time"),
    _attribute("sm__cycles_active.avg", "cycles", "cycles an SM had a warp, on average", "", "occupancy"),
    _attribute("sm__warps_active.avg.pct_of_peak_sustained_active", "%", "achieved occupancy: warps an SM held while it had any",
               "higher", "occupancy"),
    _attribute("smsp__issue_active.avg.pct_of_peak_sustained_active", "%", "cycles in which a scheduler issued an instruction",
               "higher", "pipes"),
    _attribute("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "the busiest part of the SM, of its peak", "higher", "pipes"),
    _attribute("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "%", "the busiest part of the memory system, of its peak",
               "", "memory"),
    Metric("l1tex__data_pipe_lsu_wavefronts.sum", "wavefronts", "passes through the data stage, shared and global", "lower", "memory"),
    _attribute("l1tex__t_sector_hit_rate.pct", "%", "sectors found in L1", "higher", "memory"),
    Metric("lts__t_sectors_op_read.sum", "sectors", "sectors read from L2", "lower", "memory"),
    Metric("lts__t_sectors_op_write.sum", "sectors", "sectors written to L2", "lower", "memory"),
    _attribute("lts__t_sector_hit_rate.pct", "%", "sectors found in L2", "higher", "memory"),
    Metric("dram__bytes_read.sum", "bytes", "bytes read from DRAM", "lower", "memory"),
    Metric("dram__bytes_write.sum", "bytes", "bytes written to DRAM", "lower", "memory"),
)  # fmt: skip
"""What only a GPU can say: caches, traffic and time. ncu's names."""
_TIMED = (
    _attribute("time_ms", "ms", "median time of a product, all of its launches, by CUDA events", "lower", "timing"),
    _attribute("time_ms_lo", "ms", "lower end of the 95 % interval of time_ms", "lower", "timing"),
    _attribute("time_ms_hi", "ms", "upper end of the 95 % interval of time_ms", "lower", "timing"),
    _attribute("tflops", "TFLOPS", "2*m*n*k over time_ms", "higher", "timing"),
    _attribute("rival_ratio", "x", "the rival's time over this one's, of rounds that timed both", "higher", "timing"),
    _attribute("rival_ratio_lo", "x", "lower end of the 95 % interval of rival_ratio", "higher", "timing"),
    _attribute("rival_ratio_hi", "x", "upper end of the 95 % interval of rival_ratio", "higher", "timing"),
    _attribute("clock_mhz", "MHz", "median SM clock while it was timed", "", "timing"),
    _attribute("power_w", "W", "median power of the board while it was timed", "", "timing"),
    _attribute("temperature_c", "degrees C", "highest temperature while it was timed", "", "timing"),
)  # fmt: skip
"""What timing gives, of a whole product."""
METRICS = {metric.name: metric for metric in (*_TABLE, *_MEASURED, *_TIMED)}
COUNTED_IN_CODE = frozenset(
    ("inst_executed", "thread_inst_executed", "thread_inst_executed_true", SHARED, SHARED_IDEAL, L2_SECTORS, L2_SECTORS_IDEAL)
)  # fmt: skip
"""ncu counts these by patching the machine code: free of arbitration, the same each run, and per instruction."""


def in_ncu(name: str) -> bool:
    """Whether Nsight Compute can be asked for a metric by this name. What it derives from others it cannot."""
    return name in COUNTED_IN_CODE or "__" in name and not name.startswith("derived__")


@lru_cache(maxsize=32)
def instructions(kernel: Kernel) -> pd.DataFrame:
    """Static facts of a kernel's instructions: index pc; base, space, kind, width, pipe, even, odd, file, line. Not to be changed."""
    reads = isa.register_reads(kernel.instructions)
    rows = []
    for instruction, (even, odd) in zip(kernel.instructions, reads, strict=True):
        touched = isa.access(instruction) or isa.Access("", "", 0)
        rows.append((instruction.pc, instruction.base, touched.space, touched.kind, touched.width, isa.pipe(instruction),
                     even, odd, instruction.file, instruction.line))  # fmt: skip
    columns = ["pc", "base", "space", "kind", "width", "pipe", "even", "odd", "file", "line"]
    return pd.DataFrame(rows, columns=columns).set_index("pc")


def joined(kernel: Kernel, counts: pd.DataFrame) -> pd.DataFrame:
    """`instructions` beside the counts of a launch, one row per instruction; what may be missing is filled in."""
    t = instructions(kernel).join(counts.fillna(0))
    if "predicted" not in t:
        t["predicted"], t["predicted_ideal"] = t.wavefronts, t.wavefronts_ideal
    if "data_wavefronts" not in t:
        direct = t.space.isin(("global", "generic")) & t.kind.isin(("load", "store"))
        least = (t.threads_on * t.width / LINE).clip(lower=t.requests)
        t["data_wavefronts"] = least.where(direct & (t.requests > 0), 0)
    return t


def launch_values(launch: Launch, kernel: Kernel, counts: pd.DataFrame, problem: Problem, device: Device) -> Values:
    """Every metric of one launch, by name. Raises TilescopeError where no block fits on the device."""
    t = joined(kernel, counts)
    kinds = {
        "ld": t.space.isin(("global", "generic")) & t.kind.isin(("load", "copy")),
        "st": t.space.isin(("global", "generic")) & (t.kind == "store"),
    }
    shared = {
        "ld": t.space.isin(("shared", "generic")) & (t.kind == "load"),
        "st": t.space.isin(("shared", "generic")) & (t.kind == "store"),
    }
    anywhere = t.space.isin(("global", "generic"))
    ffma = t.base == "FFMA"
    total = t[["executed", "threads", "threads_on", "predicted", "predicted_ideal"]].sum()
    v: Values = {
        "smsp__inst_executed.sum": total.executed,
        "inst_executed": total.executed,
        "smsp__thread_inst_executed.sum": total.threads,
        "thread_inst_executed": total.threads,
        "smsp__thread_inst_executed_pred_on.sum": total.threads_on,
        "thread_inst_executed_true": total.threads_on,
        FFMA: t.threads_on[ffma].sum(),
        "fma_count": t.threads_on[ffma].sum(),
        "fma_useful": min(t.threads_on[ffma].sum(), _cells(launch, problem) * problem.k),
        "inst_executed_ffma": t.executed[ffma].sum(),
        "register_reads_ffma": ((t.even + t.odd) * t.executed)[ffma].sum(),
        SHARED: total.predicted,
        SHARED_IDEAL: total.predicted_ideal,
        SHARED_EXCESS: total.predicted - total.predicted_ideal,
        "shared_wavefronts_copy": t.wavefronts[t.kind == "copy"].sum(),
        LDGSTS: t.executed[t.kind == "copy"].sum(),
        CONFLICTS_LDGSTS: (t.wavefronts - t.wavefronts_ideal)[t.kind == "copy"].sum(),
        L2_SECTORS: t.sectors[anywhere].sum(),
        L2_SECTORS_IDEAL: t.sectors_ideal[anywhere].sum(),
    }
    for op, where in kinds.items():
        word = {"ld": "load", "st": "store"}[op]
        # a generic access asks global memory only where it made a request there
        lane_bytes = (t.threads_on * t.width)[where & ((t.space == "global") | (t.requests > 0))].sum()
        v[f"smsp__inst_executed_op_global_{op}.sum"] = t.executed[(t.space == "global") & (t.kind == word)].sum()
        v[_T.format("requests", op)] = t.requests[where].sum()
        v[_T.format("sectors", op)] = t.sectors[where].sum()
        v[f"sectors_ideal_{op}"] = t.sectors_ideal[where].sum()
        v[f"global_{word}_bytes"] = lane_bytes
        v[f"global_{word}_sector_bytes"] = SECTOR * t.sectors[where].sum()
        v[_T.format("set_accesses", op)] = t.lines[where].sum()
    for op, where in shared.items():
        word = {"ld": "load", "st": "store"}[op]
        v[f"smsp__inst_executed_op_shared_{op}.sum"] = t.executed[(t.space == "shared") & (t.kind == word)].sum()
        v[f"shared_requests_{op}"] = t.requests[where & (t.wavefronts > 0)].sum()
        v[_DATA.format("pipe_lsu_wavefronts", op)] = t.wavefronts[where].sum()
        v[_DATA.format("bank_conflicts_pipe_lsu", op)] = (t.wavefronts - t.wavefronts_ideal)[where].sum()
        v[f"smsp__inst_executed_op_local_{op}.sum"] = t.executed[(t.space == "local") & (t.kind == word)].sum()
    read = shared["ld"] & ((t.space == "shared") | (t.wavefronts > 0))
    on = t.executed.groupby(t["pipe"]).sum()
    for name in PIPES:
        v[_PIPE.format(name)] = on.get(name, 0) + (on.get("fmaheavy", 0) if name == "fma" else 0)
    v["shared_words_read"] = (t.threads_on * t.width)[read].sum() / WORD
    v["global_load_words_per_k"] = v["global_load_bytes"] / WORD / problem.k
    v |= _launch(launch, kernel, device)
    return _finish(v, device)


def _cells(launch: Launch, problem: Problem) -> int:
    """Cells of C that a launch computes: those its tiles cover, or all where it has no tiles."""
    cells = problem.m * problem.n
    if launch.tile is None:
        return cells
    covered, at_once = 0, 2**20
    for start in range(0, launch.blocks, at_once):
        row, column = launch.origins(np.arange(start, min(launch.blocks, start + at_once)))
        high, wide = (
            (size - at).clip(0, tile)
            for size, at, tile in zip((problem.m, problem.n), (row, column), launch.tile, strict=True)
        )
        covered += int((high * wide).sum())
    return min(cells, covered)


def _launch(launch: Launch, kernel: Kernel, device: Device) -> Values:
    held = occupancy(kernel, launch, device)
    static = static_shared(kernel, device)
    return {
        "spill_load_bytes": kernel.spill_loads,
        "spill_store_bytes": kernel.spill_stores,
        "local_bytes_per_thread": kernel.function.frame,
        "launch__block_size": launch.threads,
        "launch__grid_size": launch.blocks,
        THREADS: launch.threads * launch.blocks,
        "launch__registers_per_thread": kernel.function.registers,
        "launch__shared_mem_per_block_static": static,
        "launch__shared_mem_per_block_dynamic": launch.shared,
        "launch__shared_mem_per_block_driver": device.shared_reserved,
        "shared_bytes_per_block": static + launch.shared,
        "launch__occupancy_limit_warps": held.limits["warps"],
        "launch__occupancy_limit_blocks": held.limits["blocks"],
        "launch__occupancy_limit_registers": held.limits["registers"],
        "launch__occupancy_limit_shared_mem": held.limits["shared memory"],
        "sm__maximum_warps_per_active_cycle_pct": held.percent,
        "launch__waves_per_multiprocessor": held.waves,
    }


def _finish(v: Values, device: Device | None) -> Values:
    """Fill in the ratios; all values as floats, in table order."""
    for metric in _TABLE:
        if metric.over:
            above, below = (v[name] for name in metric.over)
            v[metric.name] = metric.scale * above / below if below else math.nan
    if device is not None:
        v["peak_share_bandwidth_cap"] = bandwidth_cap(v["arithmetic_intensity"], device)
    return {name: float(v[name]) for name in METRICS if name in v}


def derived(measured: Values, useful: float | None = None) -> Values:
    """Measured values with the metrics that follow from them, by the same formulas as the simulated ones.

    useful: multiply-adds of the problem that the launch does, which no counter tells from those on padding.
    """
    v = dict(measured)
    if SHARED in v and SHARED_IDEAL in v:
        v[SHARED_EXCESS] = v[SHARED] - v[SHARED_IDEAL]
    if FFMA in v:
        v["fma_count"] = v[FFMA]
        if useful is not None:
            v["fma_useful"] = min(v[FFMA], useful)
    for op, word in (("ld", "load"), ("st", "store")):
        if _T.format("sectors", op) in v:
            v[f"global_{word}_sector_bytes"] = SECTOR * v[_T.format("sectors", op)]
    for metric in _TABLE:
        if metric.over and all(name in v for name in metric.over):
            above, below = (v[name] for name in metric.over)
            v[metric.name] = metric.scale * above / below if below else math.nan
    return v


def bandwidth_cap(intensity: float, device: Device) -> float:
    """Share of fp32 peak that DRAM bandwidth allows at an arithmetic intensity in FLOP/byte (the roofline)."""
    return min(1.0, intensity * device.dram_gbs * 1e9 / (device.peak_tflops * 1e12))


def totals(launches: Sequence[Values], device: Device | None = None) -> Values:
    """The metrics of several launches together.

    Counts add up, ratios are computed from the sums, and an attribute of a launch is the first launch's. The
    bandwidth cap follows from the total's intensity where the device is given.
    """
    if not launches:
        return {}
    first = launches[0]
    together = {n: sum(v[n] for v in launches) if METRICS[n].additive else value for n, value in first.items()}
    return _finish(together, device)


def lines(kernel: Kernel, counts: pd.DataFrame) -> pd.DataFrame:
    """Counts per source line: index (file, line), in file order.

    Columns: those of the counts (`executed` are warp instructions), with requests, sectors and lines those of global
    memory only; data_wavefronts; `even` and `odd` register reads per bank; `sectors_excess`, `wavefronts_excess`.
    """
    t = joined(kernel, counts)
    outside = ~t.space.isin(("global", "generic"))
    t.loc[outside, ["requests", "sectors", "sectors_ideal", "lines"]] = 0
    t["even"] *= t.executed
    t["odd"] *= t.executed
    table = t.groupby(["file", "line"])[[*dict.fromkeys([*counts.columns, "data_wavefronts", "even", "odd"])]].sum()
    table["sectors_excess"] = table.sectors - table.sectors_ideal
    table["wavefronts_excess"] = table.wavefronts - table.wavefronts_ideal
    return table


_CLASSES = {
    "fma": "other fp32", "fmaheavy": "integer", "alu": "integer", "uniform": "uniform", "lsu": "other", "adu": "control",
    "cbu": "control", "none": "control", "tensor": "tensor", "xu": "conversion and special", "fp64": "fp64",
}  # fmt: skip
CLASSES = ("multiply-add", "other fp32", "integer", "move", "compare and select", "uniform", "global load", "global store", "shared load",
           "shared store", "local", "constant", "copy", "atomic", "tensor", "conversion and special", "fp64", "control", "other")  # fmt: skip


def instruction_class(instruction: isa.Instruction) -> str:
    """What an instruction is for, one of CLASSES. `IMAD.MOV` and a constant made by HFMA2 are moves."""
    touched, base, modifiers = isa.access(instruction), instruction.base, instruction.opcode.split(".")[1:]
    if base == "FFMA":
        return "multiply-add"
    if touched:
        if touched.space in ("local", "constant"):
            return touched.space
        if touched.kind in ("copy", "atomic"):
            return touched.kind
        return f"{'global' if touched.space == 'generic' else touched.space} {touched.kind}"
    if base in ("MOV", "MOV32I", "UMOV", "CS2R", "S2R", "S2UR", "R2UR") or base == "IMAD" and "MOV" in modifiers:
        return "move"
    if base == "HFMA2" and "MMA" in modifiers and instruction.operands[1:3] == ("-RZ", "RZ"):
        return "move"
    if base in ("ISETP", "FSETP", "SEL", "FSEL", "PLOP3", "P2R", "R2P", "IMNMX", "VIMNMX", "FMNMX"):
        return "compare and select"
    return _CLASSES.get(isa.pipe(instruction), "other")


def instruction_classes(kernel: Kernel, counts: pd.DataFrame) -> pd.DataFrame:
    """Warp instructions by class: index class, columns executed and share (of all), largest first, none empty."""
    classes = pd.Series([instruction_class(i) for i in kernel.instructions], index=counts.index)
    executed = counts.executed.groupby(classes).sum().sort_values(ascending=False)
    executed = executed[executed > 0].rename_axis("class")
    return pd.DataFrame({"executed": executed, "share": executed / max(1, executed.sum())})
