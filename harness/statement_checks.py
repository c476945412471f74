"""How the articles' statements are checked (harness.statements): functions that make a check, and checks that stand alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from . import bounds, device, sim, toolchain
from . import stage as stages
from .claims import FAILS, HOLDS, PARTLY, UNCHECKED
from .ledger import Evidence, Outcome, held, needs, show, simulated
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
AT: dict[int, dict[str, int]] = {2: {"size": 64, "TILE": 2}, 16: {"size": 512, "TILE": 16}, 32: {"size": 512}}
"""Problems that stand for the tile sizes of the deep dive's table: blocks of 4 threads take long to simulate."""


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


def consistent(size: int) -> Check:
    """Whether a row of the article's table follows from its own times, within rounding."""
    ms, tflops, cublas_ms, cublas_tflops, percent = BENCHMARK[size]

    def rate(t: float) -> float:
        return 2 * size**3 / t / 1e9

    ratio = 100 * float(cublas_ms) / float(ms)
    pairs = ((_span(ms, rate), tflops), (_span(cublas_ms, rate), cublas_tflops))
    ok = all(_meet(span, text) for span, text in pairs) and abs(ratio - float(percent)) < 0.1
    value = f"{show(rate(float(ms)))} and {show(rate(float(cublas_ms)))} TFLOPS, {show(ratio)} %"
    return lambda e: held(
        ok, "TFLOPS and % from the printed times", value, "hand arithmetic", why="They do not follow from one another."
    )


def cublas(size: int) -> Check:
    """The ladder's cuBLAS against the article's."""
    printed = float(BENCHMARK[size][3])

    def check(e: Evidence) -> Outcome:
        rows = e.times("cublas")
        rows = rows[rows.m == size]
        if not len(rows):
            return needs("make ladder", f"tflops of cublas on {e.device.name}")
        value = float(rows.tflops.iloc[0])
        why = f"On the {e.device.title} and with its cuBLAS, not the article's."
        ok = math.isclose(value, printed, rel_tol=CLOSE)
        return held(ok, "tflops of cublas", f"{show(value)} TFLOPS", "timing", e.ladder[1], why)

    return check


def _span(text: str, of: Callable[[float], float]) -> tuple[float, float]:
    """What a function gives for the numbers that round to a printed (decreasing function)."""
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return of(float(text) + half), of(float(text) - half)


def _meet(span: tuple[float, float], text: str) -> bool:
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return span[0] <= float(text) + half and float(text) - half <= span[1]


def no_t4(e: Evidence) -> Outcome:
    rows = e.times("tiled1d")
    seen = ", ".join(f"{100 * r.ratio:.1f} % at {r.m}" for r in rows.dropna(subset=["ratio"]).itertuples())
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
