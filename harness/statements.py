"""The quantitative statements of the three articles, in our own words, each with how it is checked (harness.ledger).

'beginners' is "Tiled Matrix Multiplication in CUDA", '2D' is "2D Block Tiling: Scaling Matrix Multiplication on NVIDIA
H100", 'deep dive' is "Tiled GEMM: Matrix Multiplication in CUDA". Sections are the articles' own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from . import bounds, device, sim, toolchain
from . import stage as stages
from .claims import FAILS, HOLDS, PARTLY, UNCHECKED
from .ledger import Evidence, Outcome, Statement, arithmetic, claim, held, needs, show, simulated, total
from .problem import Problem
from .sim.engine import load as engine

Check = Callable[[Evidence], Outcome]
LANES = np.arange(32)
BENCHMARK = {  # 2D, section 6: size -> (ms, TFLOPS, cuBLAS ms, cuBLAS TFLOPS, % of cuBLAS), as printed
    512: ("0.0779", "3.44", "0.0163", "16.46", "20.9"),
    1024: ("0.1560", "13.76", "0.0562", "38.19", "36.0"),
    2048: ("0.9721", "17.67", "0.3412", "50.36", "35.1"),
    4096: ("7.4775", "18.38", "2.6448", "51.97", "35.4"),
    8192: ("58.0961", "18.93", "21.0749", "52.17", "36.3"),
}
CLOSE = 0.05
"""Relative difference within which a time on another card of the same architecture counts as the article's."""


# Evidence that several statements share ------------------------------------------------------------------------------


def latency(metric: str, low: float, high: float, why: str) -> Check:
    """Holds where a measured latency in cycles lies in a range."""

    def check(e: Evidence) -> Outcome:
        if e.roofs is None:
            return needs("make roofs", metric)
        found, run = e.roofs
        value = found[metric].value
        return held(low <= value <= high, metric, f"{show(value)} cycles", "roofs", run, why)

    return check


def latency_ratio(e: Evidence) -> Outcome:
    metric = "latency of DRAM / latency of shared memory"
    if e.roofs is None:
        return needs("make roofs", metric)
    found, run = e.roofs
    shared, l2, dram = (found[f"latency of {x}"].value for x in ("shared memory", "L2", "DRAM"))
    why = f"{show(dram)} cycles against {show(shared)}; a load that L2 serves takes {show(l2)}, {show(l2 / shared)} times as long."
    return held(70 <= dram / shared <= 150, metric, f"{show(dram / shared)} times", "roofs", run, why)


def bandwidth_ratio(e: Evidence) -> Outcome:
    metric = "shared-memory bandwidth / DRAM bandwidth"
    d = e.device
    specified = 128 * d.data_wavefronts * d.sms * d.clock_mhz * 1e6 / (d.dram_gbs * 1e9)
    if e.roofs is None:
        return needs(
            "make roofs",
            metric,
            f"{show(specified)} times",
            "device data",
            "Read as bandwidth, the specification gives far less than 100.",
        )
    found, run = e.roofs
    shared = found["shared, 128-bit loads"]
    value = shared.value * d.sms * shared.cycles_mhz * 1e6 / (found["DRAM read"].value * 1e9)
    return held(
        70 <= value <= 150,
        metric,
        f"{show(value)} times",
        "roofs",
        run,
        "Neither in bandwidth nor in latency is the factor near 100.",
    )


def below_peak(limit: float) -> Check:
    """Holds where naive stays below a share of the fp32 peak at every size of the ladder."""

    def check(e: Evidence) -> Outcome:
        metric, peak = "TFLOPS of naive / fp32 peak", e.device.peak_tflops
        profile = e.profile("naive", size=1024)
        allowed = bounds.attainable_tflops(profile.problem, profile.bounds) / peak
        rows = e.times("naive")
        if not len(rows):
            return needs("make ladder", metric, f"at most {allowed:.1%} by the simulator's bounds", "sim")
        shares = rows.tflops / peak
        value = f"{shares.min():.1%} to {shares.max():.1%} at sizes {rows.m.min()} to {rows.m.max()}"
        why = "Caches serve most of the repeated loads, so the roofline of DRAM is not the limit; the data stage of L1 is."
        return held(bool((shares < limit).all()), metric, value, "timing", e.ladder[1], why)

    return check


def roofline(name: str, printed: float, digits: int) -> Check:
    """Peak over bandwidth of a named GPU, FLOP per byte."""
    d = device.find(name)
    value = 1e3 * d.peak_tflops / d.dram_gbs
    return lambda e: held(round(value, digits) == printed, "FLOP per byte at balance", show(value), "device data")


def peak(name: str, tflops: float, gbs: float) -> Check:
    d = device.find(name)
    ok = abs(d.peak_tflops - tflops) < 0.6 and abs(d.dram_gbs - gbs) < 1
    return lambda e: held(
        ok, "fp32 peak, DRAM bandwidth", f"{show(d.peak_tflops)} TFLOPS, {show(d.dram_gbs)} GB/s", "device data"
    )


def peak_memory(name: str, gigabytes: int) -> Check:
    d = device.find(name)
    return lambda e: held(
        round(d.memory_bytes / 1e9) == gigabytes, "memory", f"{d.memory_bytes / 1e9:.0f} GB", "device data"
    )


def conflicts(e: Evidence) -> Outcome:
    profile = e.profile("tiled2d", size=512)
    share = profile.totals["bank_conflict_share"]
    return held(
        share > 0, "bank_conflict_share of tiled2d", f"{share:.0%}", "sim", simulated(profile), "There are none."
    )


def bound_share(stage: str, resource: str, **options: int) -> Callable[[Evidence], tuple[float, str, str]]:
    """(resource's bound over the largest, name of the largest, code) of a simulated stage."""

    def find(e: Evidence) -> tuple[float, str, str]:
        profile = e.profile(stage, **options)
        top = bounds.bottleneck(profile.bounds)
        mine = next(b for b in profile.bounds if b.name == resource)
        return mine.seconds / top.seconds, top.name, simulated(profile)

    return find


def memory_bound(e: Evidence) -> Outcome:
    fma, top, code = bound_share("naive", "FMA pipe", size=1024)(e)
    dram, _, _ = bound_share("naive", "DRAM", size=1024)(e)
    value = f"{top} is the largest bound; FMA pipe {fma:.0%} of it, DRAM {dram:.1%}"
    verdict = PARTLY.format(top, "DRAM") if top not in ("DRAM", "L2") else HOLDS
    why = f"Faster arithmetic would not help, as said, but what binds is how many loads a cycle the SM serves ({top}), not DRAM."
    return Outcome(verdict, "bounds at 1024", value, "sim", code, why)


def full_speed(e: Evidence) -> Outcome:
    share, top, code = bound_share("tiled", "FMA pipe", size=512)(e)
    why = f"With a word of each tile read for every multiply-add, {top} takes {show(1 / share)} times as long as the FMA pipe."
    return held(share > 0.9, "FMA pipe bound / largest bound", f"{share:.0%}", "sim", code, why)


def dram_traffic(e: Evidence) -> Outcome:
    metric, size, tile = "dram__bytes_read.sum", 512, 32
    naive, tiled = e.counters("naive", size), e.counters("tiled", size)
    if not (naive and tiled and naive[0].get(metric) and tiled[0].get(metric)):
        return needs("make profile KERNEL=naive SIZE=512 and KERNEL=tiled SIZE=512, with ncu", metric)
    ratio = naive[0][metric] / tiled[0][metric]
    why = "L2 holds both matrices at this size: each is read from DRAM about once either way. What falls is traffic between L1 and L2."
    return held(
        abs(ratio / tile - 1) < 0.1,
        metric,
        f"{show(ratio)} times less than naive",
        "ncu",
        f"{naive[1]}, {tiled[1]}",
        why,
    )


def barriers_per_phase(e: Evidence) -> Outcome:
    profile = e.profile("tiled", size=256)
    part = profile.parts[0]
    executed = sum(part.counts.executed[i.pc] for i in part.kernel.instructions if i.base == "BAR")
    warps = part.launch.blocks * part.launch.threads // 32
    return held(
        executed / warps / (256 // 32) == 2,
        "barriers per warp and phase",
        show(executed / warps / 8),
        "sim",
        simulated(profile),
    )


def fault(stage: str, *kinds: str) -> Check:
    """Holds where the simulator stops a faulty stage for one of these reasons, given by how they begin."""

    def check(e: Evidence) -> Outcome:
        profile = e.profile(stage, size=64)
        kind = profile.fault.kind if profile.fault else "no fault"
        return held(
            kind.startswith(kinds),
            f"fault of {stage}",
            kind,
            "sim",
            simulated(profile),
            "The simulator finds nothing wrong.",
        )

    return check


def wrong_result(stage: str) -> Check:
    def check(e: Evidence) -> Outcome:
        profile = e.profile(stage, size=64)
        ok = profile.fault is None and profile.error is not None and not profile.error.ok
        return held(ok, f"C of {stage}", "wrong" if ok else "right, or a fault", "sim", simulated(profile))

    return check


def square_hides(e: Evidence) -> Outcome:
    square, oblong = (
        e.profile("naive_mixed_axes", size=64, BX=16, BY=16),
        e.profile("naive_mixed_axes", size=64, BX=32, BY=8),
    )
    value = f"16x16: {'right' if square.ok else 'wrong'}; 32x8: {'right' if oblong.ok else 'wrong'}"
    return held(square.ok and not oblong.ok, "C of naive_mixed_axes", value, "sim", simulated(square))


def same_answer(e: Evidence) -> Outcome:
    """naive and tiled on the same inputs, to the bit."""
    problem = Problem(96, 96, 96)
    results = {}
    for name in ("naive", "tiled"):
        stage = stages.find(name)
        binary = toolchain.compile(stage, stage.configure(), e.device.cc)
        results[name] = sim.run(binary, stage.plan(problem, stage.configure()), problem, problem.operands()).c
    differ = int((results["naive"].view(np.uint32) != results["tiled"].view(np.uint32)).sum())
    return held(
        differ == 0,
        "cells of C that differ, 96^3, normal inputs",
        str(differ),
        "sim",
        why="The order of summation differs.",
    )


def fma_total(e: Evidence) -> Outcome:
    naive, tiled = (
        e.profile(s, size=512, **t).totals["fma_count"] for s, t in (("naive", {}), ("tiled", {"TILE": 16}))
    )
    return held(naive == tiled == 512**3, "fma_count", f"{show(naive)} and {show(tiled)}", "sim")


def example(k: int, expected: tuple[int, ...]) -> Check:
    """C[0..1, 0..1] of the 4 x 4, TILE = 2 example after the first k steps, by the compiled stage."""

    def check(e: Evidence) -> Outcome:
        stage = stages.find("tiled")
        tunables = stage.configure({"TILE": 2})
        problem = Problem(4, 4, k, lda=4)
        operands = problem.operands()
        numbers = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
        operands.a[:], operands.b[:] = numbers, numbers[:k]
        binary = toolchain.compile(stage, tunables, e.device.cc)
        found = sim.run(binary, stage.plan(problem, tunables), problem, operands).c[:2, :2].ravel()
        value = ", ".join(map(show, found))
        return held(
            tuple(found) == expected, "C[0,0], C[0,1], C[1,0], C[1,1]", value, "sim", f"sass {binary.hash[:12]}"
        )

    return check


def tile_contents(phase: int, expected: tuple[tuple[int, ...], tuple[int, ...]]) -> Check:
    """As and Bs of block (0, 0) in a phase of the example, row by row."""
    m = np.arange(1, 17).reshape(4, 4)
    k = slice(2 * phase, 2 * phase + 2)
    found = tuple(m[:2, k].ravel().tolist()), tuple(m[k, :2].ravel().tolist())
    return lambda e: held(
        found == expected, "As; Bs", "; ".join(" ".join(map(str, x)) for x in found), "hand arithmetic"
    )


def wavefronts(pitch: int, expected: int, what: str, lanes: np.ndarray | None = None) -> Check:
    """Passes of a 32-bit shared load whose lane i reads word i * pitch (or words of `lanes`)."""
    words = LANES * pitch if lanes is None else lanes

    def check(e: Evidence) -> Outcome:
        found = engine().access(4 * words, 0xFFFFFFFF, 4, "load")["wavefronts"]
        return held(found == expected, f"wavefronts, {what}", str(found), "sim")

    return check


def registers_only(stage: str, **options: int) -> Check:
    """Holds where a stage spills nothing and keeps nothing in local memory."""

    def check(e: Evidence) -> Outcome:
        profile = e.profile(stage, size=512, **options)
        names = ("spill_store_bytes", "spill_load_bytes", "local_bytes_per_thread")
        values = [profile.totals[n] for n in names]
        registers = profile.totals["launch__registers_per_thread"]
        return held(
            not any(values),
            ", ".join(names),
            f"{', '.join(map(show, values))}; {show(registers)} registers",
            "sim",
            simulated(profile),
        )

    return check


def no_checks(e: Evidence) -> Outcome:
    """The main launch of tiled2d: every lane of every global load is on, and no load is predicated."""
    profile = e.profile("tiled2d", m=1000, n=1000, k=1000)
    part = profile.parts[0]
    loads = [i for i in part.kernel.instructions if i.base == "LDG"]
    executed = {i.pc: part.counts.executed[i.pc] for i in loads}
    ran = [i for i in loads if executed[i.pc]]
    off = sum(32 * executed[i.pc] - part.counts.threads_on[i.pc] for i in ran)
    return held(
        off == 0, "lanes of global loads that are off, main launch at 1000^3", show(off), "sim", simulated(profile)
    )


def load_width(e: Evidence) -> Outcome:
    kernel = e.profile("tiled2d", size=512).parts[0].kernel
    wide = sorted({i.opcode for i in kernel.instructions if i.base == "LDG"})
    return held(
        not any("64" in o or "128" in o for o in wide), "global load opcodes of tiled2d", ", ".join(wide), "sim"
    )


def no_tensor_cores(e: Evidence) -> Outcome:
    profile = e.profile("tiled2d", size=512)
    count = sum(i.base in ("HMMA", "IMMA", "HGMMA") for k in profile.binary.kernels.values() for i in k.instructions)
    return held(count == 0, "tensor-core instructions in tiled2d", str(count), "sim", simulated(profile))


def unrolled(e: Evidence) -> Outcome:
    """A whole patch of multiply-adds at a time, and none of its arrays indexed at run time (that would be local memory)."""
    profile = e.profile("tiled2d", size=512)
    count = sum(i.base == "FFMA" for i in profile.parts[0].kernel.instructions)
    ok = count >= 64 and count % 64 == 0 and not profile.totals["local_bytes_per_thread"]
    return held(
        ok, "FFMA instructions in tiled2d's main kernel", f"{count} = {count / 64:g} * 64", "sim", simulated(profile)
    )


def settles(e: Evidence) -> Outcome:
    profile = e.profile("tiled2d", size=2048)
    waves = profile.totals["launch__waves_per_multiprocessor"]
    blocks = profile.totals["launch__grid_size"]
    held_blocks = profile.parts[0].occupancy.blocks * e.device.sms
    why = f"At 2048 there are {show(blocks)} blocks for {show(held_blocks)} places: the GPU is not yet full once over."
    return held(waves >= 1, "launch__waves_per_multiprocessor at 2048", show(waves), "sim", simulated(profile), why)


def printed_range(low: float, high: float, column: int, sizes: tuple[int, ...], digits: int = 1) -> Check:
    """Whether the article's own table lies in the range that its text gives."""
    values = {n: float(BENCHMARK[n][column]) for n in sizes}
    out = {n: v for n, v in values.items() if not low <= round(v, digits) <= high}
    value = ", ".join(show(v) for v in values.values())
    why = f"The article's own table has {', '.join(f'{show(v)} at {n}' for n, v in out.items())}."
    return lambda e: held(
        not out, f"the article's table, sizes {', '.join(map(str, sizes))}", value, "hand arithmetic", why=why
    )


def on_this_device(column: str, printed: dict[int, float], unit: str) -> Check:
    """The ladder's tiled2d against figures that an article gives by size; `column` of ladder.csv."""

    def check(e: Evidence) -> Outcome:
        rows = e.times("tiled2d")
        rows = rows[rows.m.isin(list(printed))]
        if not len(rows):
            return needs("make ladder", f"{column} of tiled2d on {e.device.name}")
        scale = 100.0 if unit == "%" else 1.0
        seen = {int(r.m): scale * float(getattr(r, column)) for r in rows.itertuples()}
        value = ", ".join(f"{show(v)} {unit} at {n} (article {printed[n]:g})" for n, v in seen.items())
        far = [n for n, v in seen.items() if not math.isclose(v, printed[n], rel_tol=CLOSE)]
        why = f"On the {e.device.title}, not the article's H100, and with our own kernel of that design."
        return held(not far, f"{column} of tiled2d on {e.device.name}", value, "timing", e.ladder[1], why)

    return check


def table_row(size: int) -> list[Statement]:
    """The statements that one row of the 2D article's benchmark table makes."""
    ms, tflops, cublas_ms, cublas_tflops, percent = BENCHMARK[size]
    flops = 2 * size**3

    def consistent(e: Evidence) -> Outcome:
        pairs = [
            (_span(ms, lambda t: flops / t / 1e9), tflops),
            (_span(cublas_ms, lambda t: flops / t / 1e9), cublas_tflops),
        ]
        ratio = [100 * float(cublas_ms) / float(ms), 100 * float(tflops) / float(cublas_tflops)]
        ok = all(_meet(span, text) for span, text in pairs) and any(abs(r - float(percent)) < 0.1 for r in ratio)
        value = f"{show(flops / float(ms) / 1e9)} and {show(flops / float(cublas_ms) / 1e9)} TFLOPS, {show(ratio[0])} %"
        return held(
            ok,
            "TFLOPS and % from the printed times",
            value,
            "hand arithmetic",
            why="The printed figures do not follow from one another.",
        )

    def rival(e: Evidence) -> Outcome:
        rows = e.times("cublas")
        rows = rows[rows.m == size]
        if not len(rows):
            return needs("make ladder", f"tflops of cublas on {e.device.name}")
        value = float(rows.tflops.iloc[0])
        why = f"On the {e.device.title} and with its cuBLAS, not the article's."
        return held(
            math.isclose(value, float(cublas_tflops), rel_tol=CLOSE),
            "tflops of cublas",
            f"{show(value)} TFLOPS",
            "timing",
            e.ladder[1],
            why,
        )

    said = f"at {size}"
    return [
        Statement(f"2d-table-{size}", "2D", "6", f"{said}: times, TFLOPS and share of cuBLAS agree with one another", (str(size), *BENCHMARK[size]), consistent),
        Statement(f"2d-tflops-{size}", "2D", "6", f"{said}: {tflops} TFLOPS in {ms} ms", (ms, tflops),
                  on_this_device("tflops", {size: float(tflops)}, "TFLOPS")),
        Statement(f"2d-cublas-{size}", "2D", "6", f"{said}: cuBLAS reaches {cublas_tflops} TFLOPS in {cublas_ms} ms",
                  (cublas_ms, cublas_tflops), rival),
        Statement(f"2d-percent-{size}", "2D", "6", f"{said}: {percent} % of cuBLAS", (percent,),
                  on_this_device("ratio", {size: float(percent)}, "%")),
    ]  # fmt: skip


def _span(text: str, of: Callable[[float], float]) -> tuple[float, float]:
    """What a function gives for the numbers that round to a printed (decreasing function)."""
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return of(float(text) + half), of(float(text) - half)


def _meet(span: tuple[float, float], text: str) -> bool:
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return span[0] <= float(text) + half and float(text) - half <= span[1]


def no_t4(e: Evidence) -> Outcome:
    rows = e.times("tiled1d")
    seen = ", ".join(f"{100 * r.ratio:.1f} % at {r.m}" for r in rows.itertuples())
    return Outcome(
        UNCHECKED, "ratio of tiled1d", f"on {e.device.name}: {seen}" if seen else "", "timing" if seen else "",
        e.ladder[1] if seen else "", "The statement is about a T4; the recorded GPU is another.",
    )  # fmt: skip


def against_cublas(stage: str, percent: float) -> Check:
    def check(e: Evidence) -> Outcome:
        rows = e.times(stage)
        rows = rows[rows.m >= 1024]
        if not len(rows):
            return needs("make ladder", f"ratio of {stage} on {e.device.name}")
        best, fastest = 100 * rows.ratio.max(), rows.tflops.max()
        value = f"{show(fastest)} TFLOPS, {show(best)} %"
        why = f"On the {e.device.title}, not the article's H100, and with our own kernel of that design."
        ok = math.isclose(best, percent, rel_tol=CLOSE) and math.isclose(fastest, 18.93, rel_tol=CLOSE)
        return held(ok, f"best of {stage}", value, "timing", e.ladder[1], why)

    return check


def known(ok: bool, metric: str, value: str, source: str) -> Check:
    return lambda e: held(ok, metric, value, source)


def many_threads(e: Evidence) -> Outcome:
    d = e.device
    cores, threads = d.fma_lanes * d.sms, 1024**2
    return held(
        cores > 1000,
        f"fp32 lanes of {d.name}; threads of naive at 1024",
        f"{show(cores)}; {show(threads)}",
        "device data",
    )


def cells_per_thread(stage: str, expected: float) -> Check:
    """C's cells over the threads launched, at 512."""

    def check(e: Evidence) -> Outcome:
        profile = e.profile(stage, size=512)
        value = 512**2 / profile.totals["launch__thread_count"]
        return held(value == expected, "cells of C per thread", show(value), "sim", simulated(profile))

    return check


def capacity(e: Evidence) -> Outcome:
    sizes = sorted({d.shared_per_sm // 1024 for d in device.DEVICES.values()})
    ok = sizes[0] >= 48 and sizes[-1] == 228
    return held(ok, "shared memory per SM of the known GPUs, KiB", ", ".join(map(str, sizes)), "device data")


def lanes_in_use(tile: int) -> Check:
    def check(e: Evidence) -> Outcome:
        profile = e.profile("tiled", size=64, TILE=tile)
        lanes = profile.totals["thread_inst_executed"] / profile.totals["inst_executed"]
        return held(lanes == min(32, tile * tile), "lanes of a warp in use", show(lanes), "sim", simulated(profile))

    return check


def stores_per_thread(e: Evidence) -> Outcome:
    profile = e.profile("tiled", size=512)
    words = profile.totals["global_store_bytes"] / 4 / profile.totals["launch__thread_count"]
    return held(words == 1, "words stored per thread", show(words), "sim", simulated(profile))


def reuse(tile: int) -> Check:
    """Words that lanes read from shared memory, over words that they load from global memory."""

    def check(e: Evidence) -> Outcome:
        profile = e.profile("tiled", **AT[tile])
        value = profile.totals["shared_words_read"] / (profile.totals["global_load_bytes"] / 4)
        return held(value == tile, "shared words read / global words loaded", show(value), "sim", simulated(profile))

    return check


def example_threads(e: Evidence) -> Outcome:
    stage = stages.find("tiled")
    (launch,) = stage.plan(Problem(4, 4, 4), stage.configure({"TILE": 2}))
    value = f"{launch.blocks} blocks of {launch.threads} threads"
    return held((launch.blocks, launch.threads) == (4, 4), "launch of tiled at 4 x 4, TILE=2", value, "hand arithmetic")


def grid_of_1000(e: Evidence) -> Outcome:
    stage = stages.find("tiled")
    (launch,) = stage.plan(Problem(1000, 1000, 1000), stage.configure())
    return held(
        launch.grid == (32, 32, 1),
        "grid of tiled at 1000, TILE=32",
        f"{launch.grid[0]} x {launch.grid[1]} blocks",
        "hand arithmetic",
    )


def right(stage: str, **options: int) -> Check:
    """Holds where C is right by float64."""

    def check(e: Evidence) -> Outcome:
        profile = e.profile(stage, **options)
        return held(
            profile.ok,
            f"C of {stage} at {profile.problem}",
            "right" if profile.ok else "wrong",
            "sim",
            simulated(profile),
        )

    return check


def unused_share(e: Evidence) -> Outcome:
    found = below_peak(0.05)(e)
    return replace(found, metric=f"1 - {found.metric}") if found.verdict == FAILS else found


# The statements ------------------------------------------------------------------------------------------------------

_BEGINNERS = (
    ("cores", "intro", "a GPU has thousands of cores, and runs thousands to millions of threads", ("thousands", "millions"), many_threads),
    ("dot-product", "1", "a cell of C takes a whole row of A and a whole column of B", ("0", "width-1"),
     claim("naive", "a thread loads 2 words per step", size=512)),
    ("row-major", "2", "cell (row, col) lies at row * width + col; in column-major order at col * height + row", ("i * width + j",),
     known(np.ravel_multi_index((3, 5), (8, 11)) == 3 * 11 + 5 and np.ravel_multi_index((3, 5), (8, 11), order="F") == 5 * 8 + 3,
           "place of (3, 5) in 8 x 11", "38 and 43", "hand arithmetic")),
    ("one-cell", "3", "a thread computes one cell of C", ("one",), cells_per_thread("naive", 1.0)),
    ("mixed-axes", "4", "x mixed with y in the row index goes unnoticed only where blocks are square", ("square",), square_hides),
    ("row-of-b", "5", "B[col * width + k] walks along a row of B and is wrong", ("k",), wrong_result("naive_row_of_b")),
    ("no-k", "5", "B[row * width + col] reads one cell over and over and is wrong", ("k",), wrong_result("naive_no_k")),
    ("hundreds", "5", "a read of global memory costs hundreds of cycles", ("hundreds",),
     latency("latency of DRAM", 100, 1000, "It is outside 100 to 1000 cycles.")),
    ("n-times", "5", "each value of A, and of B, is read N times from global memory", ("N times",), claim("naive", "every element of A is asked for", size=512)),
    ("memory-bound", "5", "naive is memory bound: faster arithmetic would not help", ("most of its time",), memory_bound),
    ("hundredfold-latency", "6", "shared memory has about 100 times lower latency than global memory", ("100x",), latency_ratio),
    ("once-per-block", "6", "each value is loaded once per block", ("once",), claim("tiled", "one element of A and one of B", size=512, TILE=16)),
    ("sixteenfold", "6", "with 16 x 16 tiles requests to slow memory drop by about 16", ("16", "16x"),
     claim("tiled", "requests to slow memory fall", size=512, TILE=16)),
    ("reuse-16", "6", "with 16 x 16 tiles each loaded value is used 16 times", ("16", "16×16"), reuse(16)),
    ("same-math", "6", "tiling does not change the number of multiply-adds", ("not cheaper",), fma_total),
    ("tile-16", "7", "a block of a 16 x 16 tile has 256 threads, one for each cell", ("16", "16x16"), claim("tiled", "a block has TILE x TILE", size=512, TILE=16)),
    ("hundredfold-speed", "7", "shared memory is about 100 times faster", ("100x",), bandwidth_ratio),
    ("once-per-tile", "7", "global memory is read once per tile, everything else comes from shared memory", ("once",),
     claim("tiled", "input traffic falls", size=512, TILE=16)),
    ("two-barriers", "7", "a phase has two barriers", ("two",), barriers_per_phase),
    ("first-barrier", "7", "without the first barrier a thread reads what is not there yet", ("first",), fault("tiled_no_first_barrier", "race (read-after-write", "uninitialised")),
    ("second-barrier", "7", "without the second barrier a thread overwrites what is still read", ("second",), fault("tiled_no_second_barrier", "race (write-after-read")),
    ("same-answer", "8", "naive and tiled give exactly the same answer", ("exact same",), same_answer),
)  # fmt: skip

_2D = (
    ("t4", "intro", "1D tiling reached about 42 % of cuBLAS on a T4", ("42%", "T4"), no_t4),
    ("nineteen", "intro", "2D tiling reached nearly 19 TFLOPS, about 36 % of cuBLAS, on an H100", ("19", "36%", "8192"), against_cublas("tiled2d", 36.0)),
    ("eight-by-one", "1", "a 1D thread computes 8 rows of one column", ("8", "1"), cells_per_thread("tiled1d", 8.0)),
    ("sixty-four", "1", "a 2D thread computes 8 x 8 = 64 cells", ("8", "64"), cells_per_thread("tiled2d", 64.0)),
    ("nine-reads", "1", "1D: 9 shared reads for 8 multiply-adds, roughly 1.1 each", ("8", "1", "9", "1.1"), claim("tiled1d", "words of A and 1 of B", size=512)),
    ("sixteen-reads", "1", "2D: 16 shared reads for 64 multiply-adds, 0.25 each", ("8", "16", "64", "0.25"),
     claim("tiled2d", "words from shared memory for", size=512)),
    ("fourfold", "1", "that is 4 times less shared-memory bandwidth", ("4x",), claim("tiled2d", "a 4x reduction", size=512)),
    ("tile-4096", "2", "a block's tile has 64 x 64 = 4096 cells", ("64", "4096", "8"), arithmetic("cells", 64 * 64, 4096)),
    ("threads-512", "2", "1D: 4096 / 8 = 512 threads a block", ("512", "8", "4096"), claim("tiled1d", "a block has BM * BN / TM", size=512)),
    ("threads-64", "2", "2D: 4096 / 64 = 64 threads a block", ("64", "4096"), claim("tiled2d", "a block has BM * BN / (TM * TN)", size=512)),
    ("two-warps", "2", "64 threads are two warps", ("two", "64"), arithmetic("warps", 64 / 32, 2)),
    ("tile-512", "3", "each tile has 64 * 8 = 512 elements", ("64", "8", "512"), arithmetic("elements", 64 * 8, 512)),
    ("eight-loads", "3", "a thread loads 512 / 64 = 8 values of each tile, 64 apart", ("512", "64", "8"), claim("tiled2d", "64 threads load 8 values", size=512)),
    ("unrolled", "4", "the loops over the rows and columns of the 64 cells are unrolled completely", ("8", "64"), unrolled),
    ("in-registers", "4", "the 64 sums stay in registers throughout", ("64",), registers_only("tiled2d")),
    ("thousand", "5", "1000 is 15 full blocks (960) and 40 left over", ("1000", "64", "15", "960", "40"),
     claim("tiled2d", "1000 x 1000 has 15", m=1000, n=1000, k=1000)),
    ("zero-checks", "5", "the main kernel checks no bounds", ("zero", "64"), no_checks),
    ("edges", "5", "zero padding at the edges leaves the result right", ("0.0",), right("tiled2d", m=1000, n=1000, k=1000)),
    ("few-blocks", "6", "at 512 there are too few blocks for 132 SMs", ("512", "132"), claim("tiled2d", "at 512 x 512 there are 64", size=512)),
    ("settles", "6", "from 2048 on occupancy is stable", ("2048",), settles),
    ("eighteen", "6", "from 2048 on throughput is 18 to 19 TFLOPS", ("2048", "18", "19"), printed_range(18, 19, 1, (2048, 4096, 8192), 2)),
    ("reliably", "6", "between 35 % and 36.3 % of cuBLAS from 1024 to 8192", ("1024", "8192", "35%", "36.3%"), printed_range(35, 36.3, 4, (1024, 2048, 4096, 8192))),
    ("reliably-here", "6", "the same on the GPU at hand", ("35%", "36.3%"),
     on_this_device("ratio", {n: float(BENCHMARK[n][4]) for n in (1024, 2048, 4096, 8192)}, "%")),
    ("cuda-cores", "6", "no tensor cores are used", ("19",), no_tensor_cores),
    ("h100-memory", "6", "the GPU is an H100 with 80 GB", ("80GB",), peak_memory("h100", 80)),
    ("micro-tile", "next", "the loads of the 8 x 8 patch should avoid bank conflicts, which they do not yet", ("8x8",), conflicts),
    ("narrow-loads", "next", "global loads are 32 bits wide", ("32-bit", "128-bit"), load_width),
)  # fmt: skip

AT: dict[int, dict[str, int]] = {2: {"size": 64, "TILE": 2}, 16: {"size": 512, "TILE": 16}, 32: {"size": 512}}
"""Problems that stand for the tile sizes of the deep dive's table: blocks of 4 threads take long to simulate."""
_INTENSITY = tuple(
    (f"intensity-{tile}", "2", f"TILE = {tile}: {tile}x less traffic, {tile / 4:.2f} FLOP per byte", (f"{tile}x", f"{tile / 4:.2f}"),
     claim("tiled", "arithmetic intensity is TILE/4", **AT[tile]))
    for tile in (2, 16, 32)
)  # fmt: skip
_TRAFFIC = tuple(
    (f"traffic-{tile}", "2", f"TILE = {tile}: input traffic falls {tile}-fold", (f"{tile}x",),
     claim("tiled", "input traffic falls", **AT[tile]))
    for tile in (2, 16, 32)
)  # fmt: skip

_DEEP_DIVE = (
    ("five-percent", "intro", "naive reaches less than 5 % of peak", ("5%",), below_peak(0.05)),
    ("naive-intensity", "1", "2N operations for 8N bytes: 0.25 FLOP per byte", ("2N", "8N", "4", "0.25"), claim("naive", "arithmetic intensity is 0.25", size=512)),
    ("uncoalesced-intensity", "1", "the formula does not ask how lanes walk: it gives 0.25 for strided lanes too", ("0.25",),
     claim("naive_uncoalesced", "arithmetic intensity is 0.25", size=64)),
    ("h100", "1", "an H100 SXM5 has about 67 TFLOPS fp32 and 3,350 GB/s", ("67", "3,350"), peak("h100", 67, 3350)),
    ("h100-balance", "1", "its balance is about 20 FLOP per byte", ("67,000", "3,350", "20"), roofline("h100", 20, 0)),
    ("rtx4090", "1", "an RTX 4090 has about 82.6 TFLOPS fp32 and 1,008 GB/s", ("82.6", "1,008"), peak("rtx4090", 82.6, 1008)),
    ("rtx4090-balance", "1", "its balance is about 82 FLOP per byte", ("82,600", "1,008", "82"), roofline("rtx4090", 82, 0)),
    ("cap-h100", "1", "bandwidth caps naive at about 1.25 % of the H100's peak", ("1.25%", "0.25"), claim("naive", "caps it at 1.25", size=64, device="h100")),
    ("cap-rtx4090", "1", "bandwidth caps naive at about 0.3 % of the RTX 4090's peak", ("0.3%",), claim("naive", "caps it at 0.3", size=64, device="rtx4090")),
    ("n-squared", "1", "N^2 threads ask for every element of A and B N times", ("N²", "N"), claim("naive", "every element of A is asked for", size=512)),
    ("neighbours", "1", "neighbours in a row load the same row of A, each by its own load", ("1",), claim("naive", "a thread loads 2 words per step", size=512)),
    ("one-each", "2", "a thread loads one element of A and one of B per phase", ("one",), claim("tiled", "one element of A and one of B", size=512)),
    ("phases", "2", "there are N / TILE phases", ("N / TILE", "1", "0"), barriers_per_phase),
    ("bytes-per-phase", "2", "a block loads 2 * TILE^2 * 4 = 8 TILE^2 bytes a phase", ("2", "4", "8"), arithmetic("bytes at TILE=32", 2 * 32**2 * 4, 8 * 32**2)),
    ("flops-per-phase", "2", "and does 2 TILE^3 operations", ("2",), arithmetic("operations at TILE=32", 32**2 * 2 * 32, 2 * 32**3)),
    ("naive-row", "2", "naive is the row of 1x and 0.25", ("1×", "0.25"), claim("naive", "arithmetic intensity is 0.25", size=512)),
    *_INTENSITY,
    *_TRAFFIC,
    ("reuse", "2", "each loaded element is used TILE times", ("TILE",), reuse(32)),
    ("ninety-seven", "2", "TILE = 32 takes 96.9 % off the input traffic", ("32", "96.9%"), claim("tiled", "96.9 %", size=512)),
    ("dram-factor", "9", "tiling cuts DRAM traffic by TILE", ("TILE",), dram_traffic),
    ("sixteen-threads", "3", "the 4 x 4 example has 4 blocks of 4 threads, 16 in all", ("4", "2", "16"), example_threads),
    ("example-blocks", "5", "its grid is 2 x 2 = 4 blocks", ("2", "4"), claim("tiled", "the 4 x 4 example runs as 4 blocks", size=4, TILE=2)),
    ("footprint-2", "4.1", "TILE = 2: 16 bytes a tile, 32 in all", ("2", "4", "16", "32"), claim("tiled", "As and Bs take", size=64, TILE=2)),
    ("footprint-32", "4.1", "TILE = 32: 4 KB a tile, 8 KB in all", ("32", "4 KB", "8 KB"), claim("tiled", "As and Bs take", size=512)),
    ("capacity", "4.1", "an SM has 48 to 228 KB of shared memory", ("48 KB", "228 KB"), capacity),
    ("in-register", "4.2", "the sum of a thread stays in a register", ("0",), registers_only("tiled")),
    ("two-phases", "4.3", "4 / 2 = 2 phases", ("4", "2"), arithmetic("phases", 4 / 2, 2)),
    ("consecutive", "4.4", "neighbouring lanes read words 4 bytes apart: 4 sectors a request where a warp spans a row", ("1", "4", "32"),
     claim("tiled", "a warp that spans a tile row", size=512)),
    ("four-lanes", "4.4", "with TILE = 2 only four threads of a warp take part", ("2", "four"), lanes_in_use(2)),
    ("raw", "4.5", "the first barrier prevents a read before the write", ("0", "3", "2"), fault("tiled_no_first_barrier", "race (read-after-write", "uninitialised")),
    ("peak-mac", "4.6", "the inner loop keeps the multiply-add pipe at its peak", ("peak",), full_speed),
    ("war", "4.7", "the second barrier prevents a write before the read", ("0", "3", "1"), fault("tiled_no_second_barrier", "race (write-after-read")),
    ("one-store", "4.8", "a thread stores one word", ("single",), stores_per_thread),
    ("store-coalesced", "4.8", "a warp that spans a row stores 4 sectors a request", ("coalesced",), total("tiled", "sectors_per_request_st", 4.0, size=512)),
    ("phase-0-tiles", "5", "phase 0: As = 1 2 5 6 and Bs = 1 2 5 6", ("1", "2", "5", "6"), tile_contents(0, ((1, 2, 5, 6), (1, 2, 5, 6)))),
    ("phase-0-sums", "5", "after phase 0: 11, 14, 35, 46", ("11", "14", "35", "46", "10", "12", "30", "36"), example(2, (11, 14, 35, 46))),
    ("phase-1-tiles", "5", "phase 1: As = 3 4 7 8 and Bs = 9 10 13 14", ("3", "4", "7", "8", "9", "10", "13", "14"),
     tile_contents(1, ((3, 4, 7, 8), (9, 10, 13, 14)))),
    ("phase-1-sums", "5", "at the end: 90, 100, 202, 228", ("90", "100", "202", "228", "27", "52", "56", "63", "104", "70", "112"), example(4, (90, 100, 202, 228))),
    ("bit-level", "5", "the result is right to the bit", ("bit",), example(4, (90, 100, 202, 228))),
    ("arrays", "6", "each matrix of the example is 16 floats", ("16",), arithmetic("floats", 4 * 4, 16)),
    ("ragged-grid", "7.1", "N = 1000 with TILE = 32 needs the grid rounded up", ("1000", "32"), grid_of_1000),
    ("zero-padding", "7.1", "zeros beyond the edge add nothing", ("0.0", "0"), right("tiled", m=100, n=72, k=50)),
    ("banks", "7.2", "shared memory has 32 banks of 4 bytes: 32 words in a row take one pass, 32 words of one bank take 32", ("32", "4"),
     wavefronts(32, 32, "32 words of one bank")),
    ("broadcast", "7.2", "one address for all lanes is served at no cost", ("exact same",), wavefronts(0, 1, "one word for all lanes")),
    ("conflict-free", "7.2", "As by broadcast and Bs over 32 banks: no conflicts", ("32", "31", "i mod 32"), claim("tiled", "As is read by broadcast", size=512)),
    ("distinct-banks", "7.2", "lanes 0 to 31 of a row of Bs are in 32 banks", ("0..31", "32"), wavefronts(1, 1, "32 words in a row")),
    ("padding", "7.2", "one element of padding frees the columns of a 32-wide tile of conflicts", ("1",), wavefronts(33, 1, "a column of a tile of pitch 33")),
    ("cp-async", "8", "cp.async needs compute capability 8.0", ("8.0",), known(True, "PTX ISA, cp.async", "requires sm_80 or higher", "documentation")),
    ("tma", "8", "the tensor memory accelerator came with Hopper", ("Hopper",),
     known(True, "PTX ISA, cp.async.bulk.tensor", "requires sm_90 or higher", "documentation")),
    ("no-waste", "9", "consecutive lanes on consecutive words move no byte in vain", ("consecutive",), total("tiled", "sectors_per_request_ld", 4.0, size=512)),
    ("ninety-five", "9", "naive wastes more than 95 % of the compute capacity, for its intensity of 0.25", ("95%", "0.25"), unused_share),
    ("intensity-summary", "9", "tiling raises intensity to TILE / 4", ("4",), claim("tiled", "arithmetic intensity is TILE/4", size=512)),
)  # fmt: skip

STATEMENTS: tuple[Statement, ...] = (
    *(Statement(f"beginners-{key}", "beginners", *rest) for key, *rest in _BEGINNERS),
    *(Statement(f"2d-{key}", "2D", *rest) for key, *rest in _2D),
    *(s for size in BENCHMARK for s in table_row(size)),
    *(Statement(f"deep-{key}", "deep dive", *rest) for key, *rest in _DEEP_DIVE),
)
