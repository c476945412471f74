"""Run the launches of a compiled stage on the CPU: C, and per-instruction counts.

Counts depend on a block's class alone: its edge shape and its base addresses modulo 128 bytes. One block of each class is
therefore enough at any size; C is computed in full where that is cheap, else on those blocks and a few more.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from .. import isa, parameters
from ..errors import TilescopeError
from ..problem import Operands, Problem
from ..stage import Launch
from ..toolchain import Binary, Kernel
from ..words import several
from . import engine, liveness
from .decode import Decoder
from .engine import COUNTERS, FAULTS, Job
from .faults import Fault, explain
from .memory import BASE, WRITTEN, Arena

FULL_LIMIT = 3_000_000_000
"""Thread instructions up to which `blocks="auto"` computes all of C (about two seconds on two cores)."""
SAMPLE_LIMIT = 800_000_000
"""Thread instructions spent on blocks beyond one a class, to check C where it is not computed in full."""
CLASSIFIED = 2**20
"""Blocks whose class is determined at a time."""
BUDGET = 100_000_000
"""Instructions after which a warp counts as caught in an endless loop, or PER_STEP for each step along K where that is more."""
PER_STEP = 64
STACK = 0x28  # where constant bank 0 holds the initial stack pointer

ARCHITECTURES = (75, 80, 86, 87, 89, 90)
"""Compute capabilities, times ten, whose machine code is understood."""

Progress = Callable[[float, str], None]


class NotSimulated(TilescopeError):
    """The simulator does not know this architecture, or an instruction that was executed. It never guesses."""


@dataclass
class LaunchCounts:
    """Counts of one launch, scaled to all its blocks: a frame indexed by pc (bytes), one column per counter."""

    launch: Launch
    kernel: Kernel
    counts: pd.DataFrame
    blocks_total: int
    blocks_run: int
    classes: int


@dataclass
class Simulation:
    """What a simulation gives.

    c       fp32 (m, ldc) after the run: a view of the arena; where `tiles` is given, cells outside of them mean nothing
    tiles   None where all of C was computed, else int (count, 4): row0, row1, col0, col1 of each tile that was
    """

    launches: list[LaunchCounts]
    c: np.ndarray
    tiles: np.ndarray | None
    seconds: float
    thread_instructions: int


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0))


def run(
    binary: Binary,
    launches: Sequence[Launch],
    problem: Problem,
    operands: Operands,
    *,
    blocks: str = "auto",
    workers: int | None = None,
    progress: Progress | None = None,
    budget: int | None = None,
    arena: Arena | None = None,
) -> Simulation:
    """Execute the launches in order. blocks: 'all', 'sample' (one block a class and some more), 'count' (one block a class),
    or 'auto' ('all' where affordable, else 'sample'). arena: one of the same operands to use again, which ends the life of
    the C that was computed in it before.

    Raises Fault where a kernel fails a check, NotSimulated where the architecture or an instruction is not known.
    """
    if binary.arch not in ARCHITECTURES:
        raise NotSimulated(
            f"not simulated: the simulator does not know the machine code of sm_{binary.arch}.",
            f"Choose a DEVICE from sm_{ARCHITECTURES[0]} to sm_{ARCHITECTURES[-1]}, or use BACKEND=gpu on a machine with such a GPU.",
        )
    if blocks not in ("auto", "all", "sample", "count"):
        raise ValueError(f"blocks={blocks!r}")
    start = time.perf_counter()
    if arena is None:
        arena = Arena(problem, operands)
    else:
        arena.renew()
    prepared = [
        _Prepared(binary, launch, problem, arena, budget or max(BUDGET, PER_STEP * problem.k), workers or cores())
        for launch in launches
    ]
    mapped = all(p.launch.tile is not None for p in prepared)
    note = progress or (lambda fraction, text: None)
    counts: list[np.ndarray] = []
    ran: list[np.ndarray] = []
    if blocks == "all" or not mapped:
        for p in prepared:
            everything = np.arange(p.launch.blocks)
            counts.append(p.run(everything, np.ones_like(everything), note))
            ran.append(everything)
        whole = True
    else:
        for p in prepared:
            counts.append(p.run(p.representatives, p.sizes, note))
            ran.append(p.representatives)
        total = sum(int(c[:, 1].sum()) for c in counts)
        whole = blocks == "auto" and total <= FULL_LIMIT
        if blocks != "count":
            for n, p in enumerate(prepared):
                rest = (
                    np.setdiff1d(np.arange(p.launch.blocks), ran[n])
                    if whole
                    else p.more(counts[n], len(prepared), ran[n])
                )
                p.run(rest, np.zeros_like(rest), note)
                ran[n] = np.concatenate([ran[n], rest])
    tiles = None if whole else np.concatenate([p.tiles(r) for p, r in zip(prepared, ran, strict=True)])
    _check_written(arena, prepared, ran, tiles)
    return Simulation(
        launches=[
            LaunchCounts(
                p.launch, p.kernel, p.frame(c), p.launch.blocks, len(r), len(p.sizes) if mapped else p.launch.blocks
            )
            for p, c, r in zip(prepared, counts, ran, strict=True)
        ],
        c=arena.stored("C"),
        tiles=tiles,
        seconds=time.perf_counter() - start,
        thread_instructions=sum(int(c[:, 1].sum()) for c in counts),
    )


class _Prepared:
    """A launch decoded and laid out for the engine."""

    def __init__(
        self, binary: Binary, launch: Launch, problem: Problem, arena: Arena, budget: int, workers: int
    ) -> None:
        self.binary, self.launch, self.problem, self.arena, self.workers = binary, launch, problem, arena, workers
        self.kernel = binary.kernel(launch.entry)
        self.engine = engine.load()
        function = self.kernel.function
        self.bank0 = _bank0(binary, self.kernel, launch, problem, arena)
        banks = {**function.constants, 0: self.bank0}
        self.decoder = _decoded(self.kernel, tuple((n, len(bank)) for n, bank in banks.items()), self.engine.ops)
        reserved = 1024 if binary.arch >= 90 else 0
        job = self.job = Job()
        job.code, job.ncode, job.nslots = (
            ctypes.addressof(self.decoder.bytecode),
            len(self.kernel.instructions),
            self.decoder.slots,
        )
        self._constants = _aligned(self.decoder.constants(banks))
        job.constants = self._constants.ctypes.data
        self._bank0 = ctypes.create_string_buffer(self.bank0, len(self.bank0))
        job.bank0, job.bank0_bytes = ctypes.addressof(self._bank0), len(self.bank0)
        job.memory, job.shadow = arena.words.ctypes.data, arena.shadow.ctypes.data
        job.base, job.bytes = BASE, arena.words.nbytes
        job.grid[:], job.block[:] = launch.grid, launch.block
        job.shared_low = reserved
        job.shared_high = max(function.static_shared, reserved) + launch.shared
        job.local_words = _frame(function.frame) // 4
        job.budget = budget
        if launch.tile is not None:
            self._classify()

    def _classify(self) -> None:
        """representatives: one block per class; sizes: how many blocks each stands for."""
        found: dict[int, tuple[int, int]] = {}  # key -> first block of the class, blocks in it
        for start in range(0, self.launch.blocks, CLASSIFIED):
            keys = self._keys(np.arange(start, min(self.launch.blocks, start + CLASSIFIED)))
            for key, first, size in zip(*np.unique(keys, return_index=True, return_counts=True), strict=True):
                before = found.get(int(key), (start + int(first), 0))
                found[int(key)] = (before[0], before[1] + int(size))
        self.representatives, self.sizes = np.array(sorted(found.values()), np.int64).T.copy()

    def _keys(self, index: np.ndarray) -> np.ndarray:
        """A number per block, equal for blocks of a class."""
        r0, r1, c0, c1 = self.tiles(index).T
        p, at = self.problem, {name: region.address for name, region in self.arena.regions.items()}
        key = (r1 - r0) * (self.launch.tile[1] + 1) + c1 - c0
        for address in (at["A"] + 4 * r0 * p.lda, at["B"] + 4 * c0, at["C"] + 4 * (r0 * p.ldc + c0)):
            key = key * 32 + address // 4 % 32
        return key

    def tiles(self, index: np.ndarray) -> np.ndarray:
        """(count, 4) row0, row1, col0, col1 of the tiles that blocks own, clipped to C."""
        row, column = (np.asarray(x, np.int64) for x in self.launch.origins(np.asarray(index, np.int64)))
        high, wide = self.launch.tile
        m, n = self.problem.m, self.problem.n
        return np.stack(
            [row.clip(0, m), (row + high).clip(0, m), column.clip(0, n), (column + wide).clip(0, n)], axis=1
        )

    def more(self, counts: np.ndarray, launches: int, ran: np.ndarray) -> np.ndarray:
        """Blocks beyond the representatives, for checking C: the last one and others drawn at random, within SAMPLE_LIMIT."""
        cost = max(1, int(counts[:, 1].sum()) // self.launch.blocks)
        afford = int(np.clip(SAMPLE_LIMIT // launches // cost, 1, 32))
        rng = np.random.default_rng(self.problem.seed)
        drawn = np.unique(np.append(rng.integers(0, self.launch.blocks, afford - 1), self.launch.blocks - 1))
        return np.setdiff1d(drawn, ran)

    def run(self, blocks: np.ndarray, weights: np.ndarray, note: Progress) -> np.ndarray:
        """Execute blocks; counts are summed with the weights. Shape (instructions, counters)."""
        job = self.job
        order = np.argsort(blocks)
        blocks, weights = np.ascontiguousarray(blocks[order], np.int64), np.ascontiguousarray(weights[order], np.int64)
        job.blocks, job.weights, job.nblocks = blocks.ctypes.data, weights.ctypes.data, len(blocks)
        job.next = job.done = job.stop = 0
        job.nworkers = max(1, min(self.workers, len(blocks)))
        label = f"{self.kernel.name} {self.launch.label}"
        counts, record = self.engine.run(
            job, lambda done: note(done, f"simulating {label}, {several(len(blocks), 'block')}")
        )
        match FAULTS[record.kind]:
            case "none":
                return counts
            case "memory":
                raise TilescopeError("out of memory while simulating.", "Choose a smaller size.")
            case "unknown":
                i = self.kernel.instructions[record.pc]
                raise NotSimulated(
                    f"not simulated: {i.text} at {i.pc:#x} ({os.path.basename(i.file)}:{i.line}) of {self.kernel.name}: "
                    f"the simulator does not know {self.decoder.unknown[record.pc]}.",
                    "Report it, with the stage: the simulator never guesses. On a machine with a GPU, BACKEND=gpu runs the stage all the same.",
                )
        raise explain(record, self.launch, self.kernel, self.binary, self.arena)

    def frame(self, counts: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame(
            counts, columns=list(COUNTERS), index=pd.Index([i.pc for i in self.kernel.instructions], name="pc")
        )


def trace(
    binary: Binary, launch: Launch, problem: Problem, operands: Operands, *, block: int = 0, limit: int = 100_000
) -> pd.DataFrame:
    """What every lane of one block reads and writes, in the order executed (warp by warp between two barriers).

    Columns: step (memory instruction), pc, phase (barriers passed), warp, thread, opcode, line, space, op, address (bytes),
    word (0 for the first 4 bytes of a wide access), value (fp32). At most `limit` memory instructions.
    """
    arena = Arena(problem, operands)
    p = _Prepared(binary, launch, problem, arena, BUDGET, 1)
    records = np.zeros(limit, engine.TRACE)
    p.job.trace, p.job.ntrace, p.job.traced = records.ctypes.data, limit, 0
    p.run(np.array([block]), np.array([1]), lambda fraction, text: None)
    records = records[: p.job.traced]
    phases = {epoch: n for n, epoch in enumerate(np.unique(records["epoch"]))}
    rows = []
    for step, r in enumerate(records):
        instruction = p.kernel.instructions[r["pc"]]
        access = isa.access(instruction)
        for lane in range(32):
            if not int(r["mask"]) >> lane & 1:
                continue
            for word in range(max(1, access.width // 4)):
                rows.append(
                    (step, instruction.pc, phases[r["epoch"]], int(r["warp"]), int(r["warp"]) * 32 + lane, instruction.opcode, instruction.line,
                     access.space, access.kind, int(r["address"][lane]) + 4 * word, word, r["value"][word, lane].view(np.float32))
                )  # fmt: skip
    columns = ["step", "pc", "phase", "warp", "thread", "opcode", "line", "space", "op", "address", "word", "value"]
    return pd.DataFrame(rows, columns=columns)


@lru_cache(maxsize=64)
def _decoded(kernel: Kernel, sizes: tuple[tuple[int, int], ...], ops: tuple[str, ...]) -> Decoder:
    """A kernel's bytecode, for all launches of it: decoding takes longer than executing a small one."""
    return Decoder(kernel.instructions, dict(sizes), ops, liveness.words_used(kernel.instructions))


def _frame(frame: int) -> int:
    """Bytes of local memory simulated per thread: the frame, and room for what a called function pushes."""
    return -(-frame // 16) * 16 + 256


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts at a multiple of 64 bytes."""
    buffer = np.zeros(array.size + 16, array.dtype)
    start = (-buffer.ctypes.data % 64) // array.itemsize
    view = buffer[start : start + array.size].reshape(array.shape)
    view[:] = array
    return view


def _bank0(binary: Binary, kernel: Kernel, launch: Launch, problem: Problem, arena: Arena) -> bytes:
    """Constant bank 0: block and grid size, stack pointer, and the kernel's parameters."""
    function = kernel.function
    bank = bytearray(function.constants.get(0, b""))
    bank += b"\0" * (function.param_base + function.param_bytes - len(bank))
    struct.pack_into("<6I", bank, 0, *launch.block, *launch.grid)
    if len(bank) >= STACK + 4:
        struct.pack_into("<I", bank, STACK, _frame(function.frame))
    block = parameters.pack(function, launch, problem, {name: region.address for name, region in arena.regions.items()})
    bank[function.param_base : function.param_base + len(block)] = block
    return bytes(bank)


def _check_written(arena: Arena, prepared: list[_Prepared], ran: list[np.ndarray], tiles: np.ndarray | None) -> None:
    """Every cell that the blocks run own must have been written, and no other. Raises Fault."""
    cells = arena.marks("C")
    name = prepared[0].kernel.name
    if tiles is None:
        if cells.min() < WRITTEN:
            row, column = _first(cells, lambda part: part < WRITTEN)
            others = sum(int(np.count_nonzero(part < WRITTEN)) for part in cells) - 1
            also = f" and {others:,} other cell{'s' * (others != 1)} of C are" if others else " is"
            raise Fault("not written", f"C[{row}][{column}]{also} never written", name)
        return
    for p, blocks in zip(prepared, ran, strict=True):
        for b, (r0, r1, c0, c1) in zip(blocks, p.tiles(blocks), strict=True):
            mine = cells[r0:r1, c0:c1]
            if mine.size and mine.min() < WRITTEN:
                row, column = _first(mine, lambda part: part < WRITTEN)
                raise Fault(
                    "not written",
                    f"C[{r0 + row}][{c0 + column}], which block {b} of launch {p.launch.label} owns, is not written",
                    p.kernel.name,
                )
            mine &= ~np.uint8(WRITTEN)
    if cells.max() >= WRITTEN:
        row, column = _first(cells, lambda part: part >= WRITTEN)
        raise Fault("outside its tile", f"C[{row}][{column}] is written by a block that does not own it", name)


def _first(cells: np.ndarray, wanted: Callable[[np.ndarray], np.ndarray]) -> tuple[int, int]:
    """(row, column) of the first cell that is wanted, looked for row by row."""
    return next((row, int(np.argmax(found))) for row, part in enumerate(cells) if (found := wanted(part)).any())
