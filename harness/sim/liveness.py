"""Which words of a wide load from shared memory are ever read.

The compiler loads an aligned four where three of its words are wanted; the fourth may be one that nobody wrote, and is
none that the kernel reads. By liveness of registers over the control flow, guards taken into account: what is written
and read under one guard is not live before. Where in doubt, a word counts as read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .. import isa
from ..toolchain import Instruction

ALL = 15
"""Every word of a load: bit w is set where word w counts as read."""
_EVERY = (1 << 255) - 1
_LOADS = ("LDS", "LDG", "LDL", "LD", "LDC", "LDSM")
_AWAY = ("BRA", "BRX", "JMP", "JMX", "CALL", "RET")
Live = dict[str, int]  # guard ('' for none) -> registers, as bits, that are read later under it


def words_used(instructions: Sequence[Instruction]) -> dict[int, int]:
    """For each 64- or 128-bit load from shared memory, by its place in the list: the words that are read (see ALL)."""
    wide = [n for n, i in enumerate(instructions) if i.base == "LDS" and isa.access(i).width >= 8]
    if not wide:
        return {}
    reads = [sum({1 << register for register, _, _ in isa.sources(i)}) for i in instructions]
    writes = [_written(i) for i in instructions]
    guards = [_guards(i) for i in instructions]
    at = {i.pc: n for n, i in enumerate(instructions)}
    jumps = {n: at[pc] for n, i in enumerate(instructions) if (pc := _target(i)) in at}
    heads = {target for n, target in jumps.items() if target <= n}
    before: list[Live] = [{} for _ in range(len(instructions) + 1)]
    stable = False
    while not stable:
        stable = True
        for n in range(len(instructions) - 1, -1, -1):
            live = _before(instructions[n], _after(instructions, before, jumps, n), reads[n], writes[n], guards[n])
            stable &= n not in heads or live == before[n]
            before[n] = live
    used = {}
    for n in wide:
        i, read = instructions[n], 0
        for registers in before[n + 1].values():
            read |= registers
        words = (1 << isa.access(i).width // 4) - 1
        m = re.fullmatch(r"R(\d+)", i.operands[0])
        used[n] = read >> int(m[1]) & words if m else 0
    return used


def _target(i: Instruction) -> int | None:
    """Where a branch goes, in bytes. CALL.REL.NOINC counts: the compiler takes it for far branches too."""
    return (
        int(i.operands[-1], 16) if i.base in ("BRA", "CALL") and re.fullmatch(r"0x[0-9a-f]+", i.operands[-1]) else None
    )


def _after(instructions: Sequence[Instruction], before: list[Live], jumps: dict[int, int], n: int) -> Live:
    """What is live behind an instruction."""
    i = instructions[n]
    goes_on = bool(i.predicate) or len(i.operands) > 1 or i.base == "CALL"
    if n in jumps:
        there = before[jumps[n]]
        return _either(there, before[n + 1]) if goes_on else there
    if i.base in _AWAY:
        return {"": _EVERY}
    return before[n + 1] if i.base != "EXIT" or goes_on else {}


def _either(a: Live, b: Live) -> Live:
    return {guard: a.get(guard, 0) | b.get(guard, 0) for guard in {**a, **b}}


def _before(i: Instruction, after: Live, reads: int, writes: int, guards: tuple[str, ...]) -> Live:
    """What is live ahead of an instruction; `guards` are predicates that it may set."""
    if not (reads or writes or guards):
        return after
    live = dict(after)
    for guard in guards:
        for sign in ("@", "@!"):
            live[""] = live.get("", 0) | live.pop(sign + guard, 0)
    if writes:
        for guard in [i.predicate] if i.predicate else list(live):
            live[guard] = live.get(guard, 0) & ~writes
    if reads:
        live[i.predicate] = live.get(i.predicate, 0) | reads
    return {guard: registers for guard, registers in live.items() if registers}


def _guards(i: Instruction) -> tuple[str, ...]:
    """The predicates among an instruction's operands: it may set them."""
    if any(o in ("PR", "UPR") for o in i.operands):
        return tuple(f"{kind}{n}" for kind in ("P", "UP") for n in range(7))
    return tuple(m[1] for o in i.operands if (m := re.fullmatch(r"!?(U?P\d)", o)))


def _written(i: Instruction) -> int:
    """The registers that an instruction surely writes if its guard is true, as bits."""
    m = re.fullmatch(r"R(\d+)", i.operands[0]) if i.operands else None
    if not m or i.base in isa.NO_DESTINATION:
        return 0
    touched = isa.access(i)
    if touched:
        words = max(1, touched.width // 4) if i.base in _LOADS else 0
    else:
        pair = i.base == "IMAD" and ".WIDE" in i.opcode or i.base == "CS2R" and ".32" not in i.opcode
        words = 2 if pair else 1
    return ((1 << words) - 1) << int(m[1])
