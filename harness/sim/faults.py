"""A kernel's misbehaviour, in words: what, at which source line, by which thread of which block, at which address."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..stage import Launch
from ..toolchain import Binary, Instruction, Kernel
from .engine import FAULTS, FaultRecord
from .memory import BASE, READABLE, WRITABLE, Arena

HAZARDS = ("read-after-write", "write-after-read", "write-after-write")


@dataclass
class Fault(Exception):
    """A check that a kernel failed. `thread` and `block` are (x, y, z); `others` are the lines of the other party, if any."""

    kind: str
    message: str
    kernel: str
    file: str = ""
    line: int = 0
    text: str = ""
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None
    address: int | None = None
    other_line: int = 0

    def __str__(self) -> str:
        where = f" at {Path(self.file).name}:{self.line}" if self.file else ""
        who = f", block {self.block}, thread {self.thread}" if self.block is not None else ""
        quoted = f"\n    {self.text}" if self.text else ""
        return f"{self.kind}: {self.message}{where} (kernel {self.kernel}{who}).{quoted}"


def explain(record: FaultRecord, launch: Launch, kernel: Kernel, binary: Binary, arena: Arena) -> Fault:
    """The Fault that an engine's record stands for."""
    instructions = kernel.instructions
    here = instructions[record.pc]
    kind = FAULTS[record.kind]
    thread = _thread(record.warp, record.lane, launch)
    fault = Fault(
        kind=kind,
        message="",
        kernel=kernel.name,
        file=here.file,
        line=here.line,
        text=binary.source_line(here.file, here.line),
        block=_unflatten(record.block, launch.grid),
        thread=thread,
        address=record.address,
    )
    other: Instruction | None = instructions[record.other_pc] if record.other_pc >= 0 else None
    other_thread = _thread(record.other_warp, record.other_lane, launch)
    fault.other_line = other.line if other else 0
    place = arena.describe(record.address)
    word = f"shared memory at byte {record.address:#x}"
    stores = here.base.startswith(("ST", "LDGSTS", "RED", "ATOM"))
    match kind:
        case "global":
            fault.kind = "out of bounds"
            shadow = _shadow(arena, record.address)
            if here.base.startswith("ST") and shadow & READABLE and not shadow & WRITABLE:
                fault.message = f"writes {place}, which is an input"
            elif not here.base.startswith("ST") and shadow & WRITABLE and not shadow & READABLE:
                fault.message = f"reads {place} although beta is 0"
            else:
                fault.message = (
                    f"{'writes' if here.base.startswith('ST') else 'reads'} {place}, address {record.address:#x}"
                )
        case "misaligned":
            fault.kind = "misaligned access"
            fault.message = f"{here.opcode} needs an aligned address and was given {record.address:#x}"
        case "shared":
            fault.kind = "shared out of bounds"
            fault.message = f"{'writes' if stores else 'reads'} byte {record.address:#x} of shared memory, outside the block's allocation"
        case "uninitialised":
            fault.kind = "uninitialised shared read"
            fault.message = f"reads {word}, which no thread of the block has written"
        case "race":
            assert other is not None
            hazard = HAZARDS[record.hazard]
            fault.kind = f"race ({hazard})"
            fault.message = (
                f"{word} is {'written' if _writes(here) else 'read'} here and {'written' if _writes(other) else 'read'} at line {other.line} by thread"
                f" {other_thread} of another warp, with no barrier between: {hazard} hazard"
            )
        case "async":
            assert other is not None
            fault.kind = "missing cp.async wait"
            fault.message = (
                f"{word} is used before the cp.async of line {other.line} (thread {other_thread}) was waited for"
            )
        case "barrier":
            fault.kind = "barrier not reached by all"
            if record.hazard == 1:
                fault.message = f"threads wait at this barrier while thread {other_thread} has already returned"
            else:
                at = f"is at line {other.line}" if other else "waits elsewhere"
                fault.message = f"threads wait at this barrier while thread {other_thread} {at}"
        case "budget":
            fault.kind = "endless loop"
            fault.message = "a warp ran past the instruction budget; its loop does not end"
        case "twice":
            fault.kind = "written twice"
            fault.message = f"writes {place}, which was written before"
        case "deadlock":
            fault.message = "no thread can go on: lanes of a warp wait for one another"
        case "local":
            fault.kind = "local memory out of bounds"
            fault.message = f"local memory at byte {record.address:#x} is outside the thread's frame"
        case "return":
            fault.kind = "bad return"
            fault.message = (
                f"returns to {record.address:#x}, which is no instruction, or lanes return to different places"
            )
    return fault


def _writes(i: Instruction) -> bool:
    return i.base in ("STS", "LDGSTS", "ATOMS", "STSM")


def _shadow(arena: Arena, address: int) -> int:
    word = (address - BASE) // 4
    return int(arena.shadow[word]) if 0 <= word < len(arena.shadow) else 0


def _unflatten(index: int, extent: tuple[int, int, int]) -> tuple[int, int, int]:
    x, rest = index % extent[0], index // extent[0]
    return int(x), int(rest % extent[1]), int(rest // extent[1])


def _thread(warp: int, lane: int, launch: Launch) -> tuple[int, int, int]:
    return _unflatten(warp * 32 + lane, launch.block)
