"""From counts to at most five sentences a person can act on, costliest first.

A finding's cost is the waste's own time (at the width of the resource it wastes) over the largest bound of the stage,
so that costs compare; the bottleneck's cost is what lies beyond the FMA pipe's time and has no finding of its own. Waste
under LEAST is not worth a sentence, and nothing is reported without a remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from .bounds import Bound, attainable_tflops, bottleneck, bounds, occupancy, total
from .device import Device
from .metrics import WORD, Values, instruction_class, joined, launch_values, lines, totals
from .occupancy import WARP
from .problem import Problem
from .stage import Launch, ceil_div
from .toolchain import Instruction, Kernel
from .words import several

MOST = 5
LEAST = 0.01
SHALLOW = 8
"""Along K: what is not this deep is not a tile, and not worth a split."""
NEAR_PEAK = 0.9
SECTORS_PER_LINE = 4
Profiled = tuple[Launch, Kernel, pd.DataFrame]


@dataclass(frozen=True)
class Finding:
    """A sentence and what to do about it. `file` is empty where no single line is to blame. `cost`: see the module."""

    sentence: str
    remedy: str
    file: str = ""
    line: int = 0
    cost: float = 0.0

    def __post_init__(self) -> None:
        for name, kind in (("file", str), ("line", int), ("cost", float)):  # from numpy's
            object.__setattr__(self, name, kind(getattr(self, name)))


@dataclass(frozen=True)
class _View:
    """What the checks look at: all launches together, and the costliest one."""

    launch: Launch  # the costliest
    kernel: Kernel
    table: pd.DataFrame  # a row per instruction of each launch: counts, static facts, the Instruction, its class
    by_line: pd.DataFrame
    values: Values
    found: list[Bound]
    launches: Sequence[Profiled]
    times: list[float]  # the largest bound of each launch, seconds
    problem: Problem
    device: Device
    sms: int

    @property
    def seconds(self) -> float:
        return bottleneck(self.found).seconds

    def bound(self, name: str) -> Bound:
        return next(b for b in self.found if b.name == name)

    def share(self, work: float, width: float) -> float:
        """Time that `work` at `width` per SM and cycle takes, over the largest bound."""
        return work / width / self.sms / (self.device.clock_mhz * 1e6) / self.seconds

    def at(self, file: str, line: int) -> str:
        return f"{Path(file).name}:{line}" if file else "the code"

    def on_line(self, file: str, line: int) -> pd.DataFrame:
        return self.table[(self.table.file == file) & (self.table.line == line)]


def findings(
    launches: Sequence[Profiled], problem: Problem, device: Device, roofs: Mapping[str, float] | None = None
) -> list[Finding]:
    """At most five findings on a stage's launches (launch, kernel, counts), costliest first; none on a good stage.

    `roofs` as for `bounds`: measured widths, so that findings and bounds speak of the same times.
    """
    if not launches:
        return []
    each = [bounds(launch, kernel, counts, device, roofs) for launch, kernel, counts in launches]
    times = [bottleneck(bound).seconds for bound in each]
    if not any(times):
        return []
    launch, kernel, _ = launches[times.index(max(times))]
    view = _View(
        launch=launch,
        kernel=kernel,
        table=pd.concat([_table(k, counts) for _, k, counts in launches], ignore_index=True),
        by_line=pd.concat([lines(k, counts) for _, k, counts in launches]).groupby(level=["file", "line"]).sum(),
        values=totals([launch_values(*item, problem, device) for item in launches], device),
        found=total(problem, each, device, roofs),
        launches=launches,
        times=times,
        problem=problem,
        device=device,
        sms=max(1, min(device.sms, launch.blocks)),
    )
    found = [f for check in CHECKS for f in check(view) if f.cost >= LEAST]
    return sorted(found, key=lambda f: -f.cost)[:MOST]


def _table(kernel: Kernel, counts: pd.DataFrame) -> pd.DataFrame:
    table = joined(kernel, counts)
    table["instruction"] = pd.Series(kernel.instructions, index=table.index, dtype=object)
    table["class"] = [instruction_class(i) for i in kernel.instructions]
    return table


def _bank_conflicts(v: _View) -> list[Finding]:
    wavefronts = v.values["memory_l1_wavefronts_shared"]
    excess = v.by_line.wavefronts_excess[v.by_line.wavefronts_excess > 0].sort_values(ascending=False)
    if not wavefronts or excess.empty:
        return []
    found = []
    for (file, line), waste in excess.head(2).items():
        rows = v.on_line(file, line)
        worst = (rows.wavefronts - rows.wavefronts_ideal).idxmax()
        row = rows.loc[worst]
        each, ideal = (row[c] / max(1, row.executed) for c in ("wavefronts", "wavefronts_ideal"))
        what = f"a {row.width}-byte {row.kind} takes {each:.3g} wavefronts where {ideal:.3g} would do"
        whole = v.values["derived__memory_l1_wavefronts_shared_excessive"]
        if found or len(excess) == 1:
            start = (
                f"{100 * waste / wavefronts:.0f} % of shared-memory wavefronts are bank conflicts of {v.at(file, line)}"
            )
        else:
            start = (
                f"{100 * whole / wavefronts:.0f} % of shared-memory wavefronts are bank conflicts, "
                f"{100 * waste / whole:.0f} % of them from {v.at(file, line)}"
            )
        found.append(
            Finding(
                f"{start}: {what}.", _unconflict(row, len(rows)), file, line, v.share(waste, v.device.data_wavefronts)
            )
        )
    return found


def _unconflict(row: pd.Series, loads: int) -> str:
    """The remedy for the pattern of conflicts that an access's width and wavefronts give away."""
    words = row.width // WORD
    merged = (
        row.wavefronts_ideal < words * row.requests
    )  # neighbouring lanes read the same words: a broadcast along rows
    if row.kind == "load" and words > 1 and not merged:
        return (
            f"The lanes' {row.width}-byte pieces are not next to each other: give a thread pieces of {words} words that lie "
            f"{words} * (threads across) apart, so that neighbouring threads read neighbouring pieces."
        )
    pad = "one word" if words <= 1 else f"{words} words, which keeps them aligned"
    if row.kind == "load":
        also = ", or store the tile transposed, so that a thread's words are neighbours and load as float4"
        return f"The lanes' rows start in the same bank: pad the tile's rows by {pad}{also if words <= 1 and loads >= 4 else ''}."
    if words > 1:
        return f"The lanes' rows start in the same bank: pad the tile's rows by {pad}, or swizzle them."
    return f"The lanes write down a column, all in one bank: pad the tile's rows by {pad}, or swap which index threadIdx.x walks."


def _uncoalesced(v: _View) -> list[Finding]:
    found = []
    waste = v.by_line.sectors_excess
    for (file, line), sectors in waste[waste > 0].sort_values(ascending=False).head(2).items():
        rows = v.on_line(file, line)
        rows = rows[rows.space.isin(("global", "generic")) & (rows.requests > 0)]
        requests, ideal = rows.requests.sum(), rows.sectors_ideal.sum()
        each, least = rows.sectors.sum() / requests, ideal / requests
        kind = "store" if (rows.kind == "store").all() else "load"
        passes = rows.data_wavefronts.sum() - max(requests, ideal / SECTORS_PER_LINE)
        tags = (rows.lines - rows.requests * v.device.tag_tags).clip(lower=0).sum()
        cost = max(v.share(passes, v.device.data_wavefronts), v.share(tags, v.device.tag_tags))
        sentence = (
            f"{v.at(file, line)} {kind}s {each:.3g} sectors per request where {least:.3g} would do: "
            f"{100 * sectors / rows.sectors.sum():.0f} % of the bytes it moves are not asked for."
        )
        found.append(Finding(sentence, _coalesce(v, file, line, kind, each / least), file, line, cost))
    return found


def _coalesce(v: _View, file: str, line: int, kind: str, excess: float) -> str:
    vector = _neighbours(v.on_line(file, line).instruction)
    if (
        vector and v.launch.block[1] == 1
    ):  # in a block of two dimensions an unrolled loop looks the same; its axes are at fault
        verb = "writes" if kind == "store" else "reads"
        return f"A thread {verb} {vector} neighbouring words one at a time: use float4, or let neighbouring threads take neighbouring words."
    p = v.problem
    if excess <= 2 and any(ld % 8 for ld in (p.lda, p.ldb, p.ldc)):
        return "Rows do not start on a 32-byte sector: make the leading dimensions multiples of 8."
    if 1 < v.launch.block[0] < 8:
        return f"A row of the block is {v.launch.block[0]} words, and a sector holds 8: use a wider block and tile."
    return "Neighbouring threads walk down a column: let threadIdx.x walk along the row."


_ADDRESS = re.compile(r"\[([^\]+]*(?:\.64)?(?:\+UR\d+)?)(?:\+?(-?0x[0-9a-f]+))?\]$")


def _neighbours(instructions: Iterable[Instruction]) -> int:
    """The longest run of single-word accesses through one address register whose offsets are 4 bytes apart, if at least 4."""
    offsets: dict[str, set[int]] = {}
    for i in instructions:
        m = next((m for o in i.operands if (m := _ADDRESS.search(o))), None)
        if (
            m
            and i.base in ("LDG", "STG", "LDS", "STS", "LD", "ST")
            and not re.search(r"\.(64|128|[US](8|16))\b", i.opcode)
        ):
            offsets.setdefault(i.base + m[1], set()).add(int(m[2] or "0", 16))
    longest = 0
    for seen in offsets.values():
        for start in seen:
            run = 1
            while start + WORD * run in seen:
                run += 1
            longest = max(longest, run)
    return longest if longest >= 4 else 0


def _narrow(v: _View) -> list[Finding]:
    """Coalesced or broadcast single-word accesses of neighbouring words that could be one 128-bit access."""
    found = []
    for (file, line), row in v.by_line.iterrows():
        if row.wavefronts_excess or row.sectors_excess:
            continue
        rows = v.on_line(file, line)
        run = _neighbours(rows.instruction)
        if not run:
            continue
        rows = rows[rows.width == WORD]
        saved = 0.75 * rows.executed.sum()
        space, kind = rows["space"].iloc[0], rows["kind"].iloc[0]
        found.append(
            Finding(
                f"{v.at(file, line)} {kind}s {run} neighbouring words of {space} memory with {run} instructions.",
                f"{kind.capitalize()} them as float4: {ceil_div(run, 4)} instead of {run}; the address must be a multiple of 16 bytes.",
                str(file),
                int(line),
                v.share(saved, v.device.lsu_instructions),
            )
        )
    return found


def _scalar_copies(v: _View) -> list[Finding]:
    """Words of a tile that a thread fetches one by one, each beside its neighbour's."""
    t = v.table
    loads = t[(t.space == "global") & (t.kind == "load") & (t.width == WORD) & (t.executed > 0)]
    places, moved = [], 0
    for (file, line), rows in loads.groupby(["file", "line"]):
        stored = v.on_line(file, line)
        stored = stored[stored.base == "STS"]
        unrolled = len(rows) >= 4 and rows.executed.nunique() == 1 and not stored.empty
        if unrolled and not (rows.sectors > rows.sectors_ideal).any():
            places.append((len(rows), file, line))
            moved += rows.executed.sum() + stored.executed.sum()
    if not places:
        return []
    where = " and ".join(f"{n} single words at {v.at(file, line)}" for n, file, line in places)
    n, file, line = max(places)
    sentence = f"A thread loads {where}, each beside its neighbour's."
    remedy = f"Let a thread load 4 neighbouring words as float4: {several(ceil_div(n, 4), 'load')} instead of {n}."
    return [Finding(sentence, remedy, file, line, v.share(0.75 * moved, v.device.lsu_instructions))]


def _bottleneck(v: _View) -> list[Finding]:
    """What binds. Its cost leaves out idle SMs and the wastes that have a finding of their own."""
    worst = bottleneck(v.found)
    useful = v.share(v.values["fma_count"], v.device.fma_lanes)
    if useful >= NEAR_PEAK or worst.name not in MOVES:
        return []
    file, line = _costliest_line(v, worst.name)
    sentence = (
        f"{_NAMES.get(worst.name, worst.name)} bounds it: {attainable_tflops(v.problem, v.found):.3g} TFLOPS of "
        f"{v.device.peak_tflops:.3g} are attainable. A bound, not a time."
    )
    wastes = (_bank_conflicts, _uncoalesced) if worst.name in ("data stage", "tag stage") else ()
    beyond = 1 - useful - sum(f.cost for check in wastes for f in check(v))
    remedy = _less_memory(v) if v.values["memory_l1_wavefronts_shared"] == 0 else MOVES[worst.name](v)
    return [Finding(sentence, remedy, file, line, max(LEAST, beyond))]


_NAMES = {
    "issue": "Instruction issue", "FMA pipe": "The FMA pipe", "FMA heavy half": "Integer multiplication", "ALU pipe": "The ALU pipe",
    "register bank 0": "Register bank 0", "register bank 1": "Register bank 1", "LSU": "The load/store unit",
    "data stage": "The data stage of shared memory and L1", "tag stage": "The tag stage of L1", "DRAM": "DRAM bandwidth",
}  # fmt: skip


def _less_memory(v: _View) -> str:
    if v.values["memory_l1_wavefronts_shared"] == 0:
        return "Keep tiles of A and B in shared memory and reuse them, instead of reading global memory for every multiply-add."
    words = v.values["shared_words_read_per_fma"]
    if words > 1:
        return f"Compute several cells per thread: {words:.3g} shared words are read per multiply-add; TM x TN cells need 1/TM + 1/TN."
    if v.values["bank_conflict_share"] > 0.1:
        return "Remove the bank conflicts first; then compute more cells per thread."
    return f"Compute more cells per thread (larger TM, TN): {words:.3g} shared words are read per multiply-add."


_LESS_INTEGER = (
    "Unroll the inner loop, and move index arithmetic out of it: step pointers instead of computing indices."
)
MOVES: dict[str, Callable[[_View], str]] = {
    "issue": lambda v: (
        "Fewer instructions per multiply-add: wider loads (float4), more cells per thread, index arithmetic out of the loop."
    ),
    "FMA heavy half": lambda v: _LESS_INTEGER,
    "ALU pipe": lambda v: _LESS_INTEGER,
    "register bank 0": lambda v: _fewer_reads(v),
    "register bank 1": lambda v: _fewer_reads(v),
    "LSU": _less_memory,
    "data stage": _less_memory,
    "tag stage": _less_memory,
    "DRAM": lambda v: (
        "The problem itself is bound by bandwidth: a larger one, or several at once, would use the arithmetic."
    ),
}


def _fewer_reads(v: _View) -> str:
    return _REORDER if v.values["ffma_instruction_share"] > 0.5 else _LESS_INTEGER


_REORDER = (
    "Visit the outer product so that consecutive multiply-adds keep one operand (.reuse), as in a snake along its rows."
)


def _costliest_line(v: _View, name: str) -> tuple[str, int]:
    t = v.table
    memory = t.space.isin(("global", "generic", "local"))
    work = {
        "issue": t.executed,
        "FMA heavy half": t.executed.where(t["pipe"] == "fmaheavy", 0),
        "ALU pipe": t.executed.where(t["pipe"] == "alu", 0),
        "register bank 0": t.executed * t.even,
        "register bank 1": t.executed * t.odd,
        "LSU": t.executed.where(t["pipe"] == "lsu", 0),
        "data stage": t.wavefronts + t.lines.where(memory, 0),
        "tag stage": t.lines.where(memory, 0),
    }.get(name)
    if work is None or not work.sum():
        return "", 0
    file, line = work.groupby([t.file, t.line]).sum().idxmax()
    return str(file), int(line)


def _registers(v: _View) -> list[Finding]:
    """The register-file limit, where it and not memory is what holds the multiply-adds back."""
    bank = max((v.bound(f"register bank {n}") for n in (0, 1)), key=lambda b: b.seconds)
    fma = v.bound("FMA pipe")
    worst = bottleneck(v.found)
    if (
        worst.name == bank.name
        or bank.seconds < 0.8 * v.seconds
        or bank.seconds < 1.05 * max(fma.seconds, v.bound("issue").seconds)
    ):
        return []
    file, line = _costliest_line(v, bank.name)
    reads = v.values["register_reads_per_ffma"]
    sentence = (
        f"An FFMA at {v.at(file, line)} reads {reads:.3g} registers on average, so {bank.name} needs {bank.seconds / fma.seconds:.2f} "
        "times what the FMA pipe needs."
    )
    return [Finding(sentence, _REORDER, file, line, (bank.seconds - fma.seconds) / v.seconds)]


def _integer_overhead(v: _View) -> list[Finding]:
    issue = v.bound("issue")
    if issue.seconds < 0.5 * v.seconds:
        return []
    integer = v.table.executed.where(v.table["class"].isin(("integer", "move", "compare and select", "uniform")), 0)
    share = integer.sum() / v.table.executed.sum()
    if share < 0.15:
        return []
    file, line = integer.groupby([v.table.file, v.table.line]).sum().idxmax()
    sentence = f"{100 * share:.0f} % of the instructions issued are index arithmetic and moves, most of them at {v.at(file, line)}."
    return [Finding(sentence, _LESS_INTEGER, file, int(line), share * issue.seconds / v.seconds)]


def _spills(v: _View) -> list[Finding]:
    local = v.table[v.table.space == "local"]
    executed = int(local.executed.sum())
    if not executed:
        return []
    file, line = local.executed.groupby([local.file, local.line]).sum().idxmax()
    sentence = (
        f"{executed:,} warp instructions spill to or read back local memory, most of them at {v.at(file, line)}: "
        f"{v.kernel.function.frame} bytes per thread do not fit its {v.kernel.function.registers} registers."
    )
    remedy = "Use smaller TM or TN, allow more registers with __launch_bounds__, or give arrays constant indices by unrolling."
    return [Finding(sentence, remedy, str(file), int(line), max(LEAST, v.share(executed, v.device.lsu_instructions)))]


def _low_occupancy(v: _View) -> list[Finding]:
    """Too few warps for too little independent work each.

    A scheduler needs some 4 independent FFMAs (their latency in cycles); a warp brings as many as it has accumulators.
    """
    held = occupancy(v.kernel, v.launch, v.device)
    warps = held.warps / v.device.partitions
    accumulators = {
        i.operands[0]
        for i in v.kernel.instructions
        if i.base == "FFMA" and i.operands[0] == i.operands[-1].removesuffix(".reuse")
    }
    independent = warps * max(1, len(accumulators))
    if held.percent >= 50 or warps >= 2 and independent >= 16:
        return []
    what = {
        "registers": (
            f"{several(v.kernel.function.registers, 'register')} per thread",
            "Use fewer registers: smaller TM or TN.",
        ),
        "shared memory": (
            f"{v.values['shared_bytes_per_block']:,.0f} bytes of shared memory per block",
            "Use smaller tiles: less BK, or BM and BN.",
        ),
        "blocks": (f"blocks of only {several(v.launch.threads, 'thread')}", "Use larger blocks."),
        "warps": (f"blocks of {several(v.launch.threads, 'thread')}", "Use smaller blocks."),
    }
    cause, remedy = what[held.limiters[0]]
    sentence = f"Occupancy is {held.percent:.3g} %: {cause} allow {several(held.blocks, 'block')}, {several(held.warps, 'warp')}, on an SM."
    return [Finding(sentence, remedy, cost=max(LEAST, 1 - min(1.0, independent / 16)))]


def _small_grid(v: _View) -> list[Finding]:
    """SMs without work: launches of fewer blocks than SMs, and the last round of the costliest launch."""
    sms, whole = v.device.sms, sum(v.times)
    found = []
    others = [
        (i, time) for i, time in zip(v.launches, v.times, strict=True) if i[0] is not v.launch and i[0].blocks < sms
    ]
    if others:
        blocks, share = sum(i[0].blocks for i, _ in others), sum(time for _, time in others) / whole
        idle = sum(time * (1 - i[0].blocks / sms) for i, time in others) / whole
        sentence = f"{several(len(others), 'small launch', 'es')} of {several(blocks, 'block')} in all, for {sms} SMs: they take {100 * share:.0f} % of the bound's time."
        remedy = "Run them in one launch with the main one, or beside it in other streams; tiles that divide the matrices need none."
        found.append(Finding(sentence, remedy, cost=idle))
    blocks, rounds = v.launch.blocks, ceil_div(v.launch.blocks, sms)
    idle = 1 - blocks / sms / rounds
    cost = idle * max(v.times) / whole
    if blocks < sms:
        sentence = f"{several(blocks, 'block')} on {sms} SMs: {100 * idle:.0f} % of the GPU has nothing to do."
        found.append(Finding(sentence, _more_blocks(v.problem, blocks), cost=cost))
    elif idle >= 0.1:
        sentence = f"{several(blocks, 'block')} on {sms} SMs: the busiest get {rounds}, so {100 * idle:.0f} % of the time the others wait for them."
        found.append(
            Finding(sentence, f"Choose tiles so that the number of blocks is near a multiple of {sms}.", cost=cost)
        )
    return found


def _more_blocks(problem: Problem, blocks: int) -> str:
    """The remedy for too few blocks: smaller tiles where a block's share of C is more than a cell a lane, and a split of K where
    K is at least a tile deep."""
    ways = []
    if problem.m * problem.n > WARP * blocks:
        ways.append("use smaller BM and BN")
    if problem.k >= SHALLOW:
        ways.append("split K over several blocks")
    larger = "a larger problem would fill it."
    remedy = f"{', or '.join(ways)}; {larger}" if ways else larger
    return remedy[0].upper() + remedy[1:]


def _padding(v: _View) -> list[Finding]:
    done, needed = v.values["fma_count"], v.problem.m * v.problem.n * (v.problem.k + bool(v.problem.beta))
    if not done or done < 1.1 * needed:
        return []
    waste = 1 - needed / done
    sentence = f"{_part(waste)} of the multiply-adds work on padding: the tiles reach beyond the edges of the matrices."
    return [Finding(sentence, "Use smaller tiles for this shape, or for its edges.", cost=waste)]


def _part(share: float) -> str:
    """A share in percent; 100 % only where it is all."""
    percent = 100 * share
    return f"{percent:.0f} %" if percent < 99.5 or share >= 1 else f"{min(percent, 99.99):.2f} %"


def _idle_lanes(v: _View) -> list[Finding]:
    if v.launch.threads % WARP == 0:
        return []
    idle = 1 - v.launch.threads / WARP / ceil_div(v.launch.threads, WARP)
    sentence = (
        f"A block has {several(v.launch.threads, 'thread')}: {100 * idle:.0f} % of the lanes of its warps do not exist."
    )
    return [Finding(sentence, f"Make the block a multiple of {WARP} threads.", cost=idle)]


CHECKS: tuple[Callable[[_View], list[Finding]], ...] = (
    _bank_conflicts, _uncoalesced, _bottleneck, _registers, _integer_overhead, _spills, _narrow, _scalar_copies, _low_occupancy, _small_grid, _padding,
    _idle_lanes,
)  # fmt: skip
