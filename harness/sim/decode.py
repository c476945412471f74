"""SASS to the engine's bytecode: what every opcode and modifier of an instruction means, or that it is not known.

Operand order and modifiers are those nvdisasm prints. An opcode, modifier or operand form that is not listed here becomes
an UNKNOWN instruction, which is an error when a lane would execute it: nothing is guessed.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..toolchain import Instruction
from .liveness import ALL

RZ, UR0, URZ, SPECIAL, SINK = 255, 256, 319, 320, 336
PT, UP0 = 7, 8
SPECIAL_REGISTERS = {
    name: SPECIAL + i
    for i, name in enumerate(
        "SR_TID.X SR_TID.Y SR_TID.Z SR_CTAID.X SR_CTAID.Y SR_CTAID.Z SR_LANEID SR_VIRTID "
        "SR_EQMASK SR_LTMASK SR_LEMASK SR_GEMASK SR_GTMASK".split()
    )
} | {"SRZ": RZ, "SR_CgaCtaId": RZ}
del SPECIAL_REGISTERS["SR_VIRTID"]


class Source(ctypes.Structure):
    _fields_ = [("row", ctypes.c_int32), ("flip", ctypes.c_uint32), ("add", ctypes.c_uint32)]


class Ins(ctypes.Structure):
    """One bytecode instruction; `engine.c` has the same struct."""

    _fields_ = [
        *((n, ctypes.c_int32) for n in "op dst pdst pdst2 guard guard_not sub width target n uniform slot".split()),
        ("offset", ctypes.c_int64),
        ("s", Source * 4),
        ("ps", ctypes.c_int32 * 4),
        ("pn", ctypes.c_int32 * 4),
    ]


class NotKnown(Exception):
    """An instruction the simulator has no meaning for; says which part of it."""


@dataclass
class Operand:
    """A parsed operand. kind: R, UR, P, UP, B, imm, float, const, mem, special, pr, sb."""

    kind: str
    text: str
    index: int = 0
    bits: int = 0  # bits 32 to 63 of the instruction: the exact value of a float immediate
    negative: bool = False
    inverted: bool = False
    absolute: bool = False
    suffix: str = ""
    bank: int = 0
    offset: int = 0
    register: int | None = None  # base register of a memory or constant operand
    wide: bool = False  # the base register is a 64-bit pair
    unsigned32: bool = False
    uniform: int | None = None
    scale: int = 1


_REGISTER = re.compile(r"^(UR|R|UP|P|B)(\d+|Z|T)((?:\.\w+)*)$")
_INTEGER = re.compile(r"^-?(0x[0-9a-fA-F]+|\d+)$")
_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*(e[-+]?\d+)?|\.\d+(e[-+]?\d+)?|INF|[QS]NAN)$", re.I)


def parse(text: str, word: int) -> Operand:
    """One operand from nvdisasm's text; exact bits of a float come from the instruction word. Raises NotKnown."""
    o = Operand("", text)
    s = text
    if s.startswith("-") and not _INTEGER.match(s) and not _FLOAT.match(s):
        o.negative, s = True, s[1:]
    if s[:1] in "~!":
        o.inverted, s = True, s[1:]
    if s.startswith("|"):
        o.absolute, s = True, s[1:].replace("|", "", 1)
    s = s.replace(".reuse", "")
    if m := _REGISTER.match(s):
        zero = {"R": RZ, "UR": 63, "P": PT, "UP": PT, "B": -1}[m[1]]
        o.kind, o.index, o.suffix = m[1], zero if m[2] in "ZT" else int(m[2]), m[3]
    elif s in ("PR", "UPR"):
        o.kind = "pr"
    elif s.startswith("SR"):
        o.kind = "special"
    elif m := re.match(r"^SB(\d+)$", s):
        o.kind, o.index = "sb", int(m[1])
    elif m := re.match(r"^c\[(0x[0-9a-f]+)\]\[(.*)\]((?:\.\w+)*)$", s):
        o.kind, o.bank, o.suffix = "const", int(m[1], 16), m[3]
        _address(m[2], o)
    elif m := re.match(r"^(?:desc\[UR\d+\])?\[(.*)\]$", s):
        o.kind = "mem"
        _address(m[1], o)
    elif _INTEGER.match(s):
        o.kind, o.index, o.bits = "imm", int(s, 0) & 0xFFFFFFFF, word >> 32 & 0xFFFFFFFF
    elif _FLOAT.match(s):
        o.kind, o.index = "float", word >> 32 & 0xFFFFFFFF
    else:
        raise NotKnown(f"operand {text}")
    return o


def _address(text: str, o: Operand) -> None:
    for term in re.findall(r"[+-]?[^+-]+", text.replace(".reuse", "")):
        sign, t = (-1 if term[0] == "-" else 1), term.lstrip("+-")
        if m := re.match(r"^(UR|R)(\d+|Z)((?:\.\w+)*)$", t):
            if sign < 0:
                raise NotKnown(f"address {text}")
            index = None if m[2] == "Z" else int(m[2])
            if m[1] == "UR":
                o.uniform = index
            else:
                o.register, o.wide, o.unsigned32 = index, ".64" in m[3], ".U32" in m[3]
                if x := re.search(r"\.X(\d+)", m[3]):
                    o.scale = int(x[1])
        elif _INTEGER.match(t):
            o.offset += sign * int(t, 0)
        else:
            raise NotKnown(f"address {text}")


def _operands(i: Instruction) -> Sequence[str]:
    """The operands apart: of LDGSTS nvdisasm prints two addresses with no comma between where neither has a descriptor."""
    if i.base == "LDGSTS" and len(i.operands) and (m := re.match(r"^(\[[^\]]*\])(\[.*\])$", i.operands[0])):
        return (m[1], m[2], *i.operands[1:])
    return i.operands


_COMPARE = ("LT", "LE", "GT", "GE", "EQ", "NE", "F", "T")
_FLOAT_COMPARE = {"LT": 1, "EQ": 2, "LE": 3, "GT": 4, "NE": 5, "GE": 6, "NUM": 7, "NAN": 8,
                  "LTU": 9, "EQU": 10, "LEU": 11, "GTU": 12, "NEU": 13, "GEU": 14}  # fmt: skip
_LOGIC = ("AND", "OR", "XOR")
_ROUND = {"RN": 0, "RP": 1, "RM": 2, "RZ": 3}
_MUFU = ("RCP", "RSQ", "SQRT", "EX2", "LG2", "SIN", "COS", "TANH")
_GLOBAL = {"E", "64", "128", "SYS", "STRONG", "WEAK", "GPU", "CTA", "SM", "CONSTANT", "EF", "EL", "LU", "NA", "LTC64B", "LTC128B", "LTC256B",
           "BYPASS", "ACCESS"}  # fmt: skip


class Decoder:
    """Turns the instructions of one kernel into bytecode, which serves every launch of it.

    `bytecode` is an array of Ins, `unknown` maps an index of the bytecode to why its instruction has no meaning here, `slots`
    counts memory-access patterns to remember. `sizes` are the bytes of each constant bank; `used` is liveness.words_used.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        sizes: Mapping[int, int],
        ops: Sequence[str],
        used: Mapping[int, int] | None = None,
    ) -> None:
        self.ops = {name: i for i, name in enumerate(ops)}
        self.sizes = sizes
        self.at = {i.pc: n for n, i in enumerate(instructions)}
        self.rows: dict[int | tuple[int, int], int] = {}  # a value, or (bank, byte) where a launch has it
        self.unknown: dict[int, str] = {}
        self.slots = 0
        self.bytecode = (Ins * len(instructions))()
        for n, instruction in enumerate(instructions):
            self.e = self.bytecode[n]
            self.used = (used or {}).get(n, ALL)
            try:
                self._encode(instruction)
            except NotKnown as e:
                self.e.op = self.ops["UNKNOWN"]
                self.unknown[n] = str(e)

    def constants(self, banks: Mapping[int, bytes]) -> np.ndarray:
        """The constants of a launch with these banks: (n, 32), lane vectors that the bytecode refers to."""
        table = np.zeros((max(1, len(self.rows)), 32), np.uint32)
        for key, row in self.rows.items():
            table[row] = struct.unpack_from("<I", banks[key[0]], key[1])[0] if isinstance(key, tuple) else key
        return table

    def _encode(self, i: Instruction) -> None:
        e = self.e
        e.pdst = e.pdst2 = -1
        e.guard, e.dst = PT, SINK
        for k in range(4):
            e.s[k].row = RZ
            e.ps[k], e.pn[k] = PT, 0
        if i.predicate:
            m = re.match(r"^@(!?)(U?P)(\d|T)$", i.predicate)
            if not m:
                raise NotKnown(f"predicate {i.predicate}")
            e.guard = (PT if m[3] == "T" else int(m[3])) + (UP0 if m[2] == "UP" else 0)
            e.guard_not = bool(m[1])
        name, *mods = i.opcode.split(".")
        handler = getattr(self, f"_{name}", None)
        if handler is None and name.startswith("U") and (handler := getattr(self, f"_{name[1:]}", None)):
            e.uniform = 1
        if handler is None:
            raise NotKnown(f"opcode {name}")
        operands = [parse(t, i.word) for t in _operands(i)]
        self.mods = list(mods)
        try:
            handler(operands)
        except (IndexError, KeyError, ValueError) as e:
            raise NotKnown(f"form {i.text}") from e
        if self.mods:
            raise NotKnown(f"modifier .{self.mods[0]} of {name}")

    # Modifiers: each handler takes those it gives a meaning to; what is left over is not known.
    def _take(self, *names: str) -> str:
        """The one of these modifiers that is present, or '' ; it is taken off the list."""
        for name in names:
            if name in self.mods:
                self.mods.remove(name)
                return name
        return ""

    def _op(self, name: str) -> None:
        self.e.op = self.ops[name]

    def _constant(self, value: int) -> int:
        return self._constant_row(value & 0xFFFFFFFF)

    def _constant_row(self, key: int | tuple[int, int]) -> int:
        return ~self.rows.setdefault(key, len(self.rows))

    def _row(self, o: Operand, word: int = 0) -> int:
        match o.kind:
            case "R":
                return RZ if o.index == RZ else o.index + word
            case "UR":
                return URZ if o.index == 63 else UR0 + o.index + word
            case "imm" | "float":
                return self._constant(o.index if word == 0 else (0xFFFFFFFF if o.index >> 31 else 0))
            case "const":
                if o.register is not None or o.uniform is not None or o.bank not in self.sizes:
                    raise NotKnown(f"constant {o.text}")
                at = o.offset + 4 * word
                if at + 4 > self.sizes[o.bank]:
                    raise NotKnown(f"constant {o.text} outside its bank")
                return self._constant_row((o.bank, at))
            case "special":
                if o.text not in SPECIAL_REGISTERS:
                    raise NotKnown(f"special register {o.text}")
                return SPECIAL_REGISTERS[o.text]
        raise NotKnown(f"operand {o.text}")

    def _int(self, k: int, o: Operand, word: int = 0) -> None:
        if o.absolute or o.suffix:
            raise NotKnown(f"operand {o.text}")
        s = self.e.s[k]
        s.row = self._row(o, word)
        s.flip = 0xFFFFFFFF if o.negative or o.inverted else 0
        s.add = 1 if o.negative else 0

    def _float(self, k: int, o: Operand) -> None:
        if o.kind == "imm":  # a float that is a whole number is printed as one
            o.kind, o.index = "float", o.bits
        if o.inverted or o.suffix:
            raise NotKnown(f"operand {o.text}")
        s = self.e.s[k]
        s.row = self._row(o)
        s.flip = 0x80000000 if o.negative else 0
        s.add = 0x7FFFFFFF if o.absolute else 0xFFFFFFFF

    def _dst(self, o: Operand) -> None:
        if o.kind not in ("R", "UR") or o.suffix and not o.suffix.startswith(".B"):
            raise NotKnown(f"destination {o.text}")
        row = self._row(o)
        self.e.dst = SINK if row in (RZ, URZ) else row

    def _predicate(self, o: Operand) -> int:
        if o.kind not in ("P", "UP"):
            raise NotKnown(f"predicate {o.text}")
        return o.index + (UP0 if o.kind == "UP" else 0)

    def _in(self, k: int, o: Operand) -> None:
        self.e.ps[k], self.e.pn[k] = self._predicate(o), o.inverted

    def _memory(self, o: Operand, k: int = 0) -> None:
        """Address of a shared or local operand: sources k (register) and k+1 (uniform register), scale, offset."""
        if o.kind != "mem" or o.wide:
            raise NotKnown(f"address {o.text}")
        e = self.e
        e.s[k].row = RZ if o.register is None else o.register
        e.s[k + 1].row = RZ if o.uniform is None else UR0 + o.uniform
        e.sub, e.offset = o.scale, o.offset

    def _global(self, o: Operand) -> None:
        if o.kind != "mem" or o.scale != 1:
            raise NotKnown(f"address {o.text}")
        e = self.e
        wide = o.wide or (o.register is not None and not o.unsigned32 and o.uniform is None and self._extended)
        if o.register is not None:
            e.s[0].row = o.register
            e.s[1].row = o.register + 1 if wide else RZ
            if not wide and not o.unsigned32:
                raise NotKnown(f"address {o.text}")
        if o.uniform is not None:
            e.s[2].row, e.s[3].row = UR0 + o.uniform, UR0 + o.uniform + 1
        e.offset = o.offset

    def _width(self) -> int:
        size = self._take("128", "64", "U8", "S8", "U16", "S16")
        return {"128": 16, "64": 8, "U8": 1, "S8": -1, "U16": 2, "S16": -2}.get(size, 4)

    def _slot(self, n: int = 1) -> None:
        self.e.slot = self.slots
        self.slots += n

    # Moves and integer arithmetic
    def _MOV(self, o: list[Operand]) -> None:
        self._op("MOV")
        self._dst(o[0])
        self._int(0, o[1])
        self.e.n = 1

    def _S2R(self, o: list[Operand]) -> None:
        self._MOV(o)

    def _S2UR(self, o: list[Operand]) -> None:
        self._MOV(o)
        self.e.uniform = 1

    def _CS2R(self, o: list[Operand]) -> None:
        self._MOV(o)
        if not self._take("32"):
            self._int(1, o[1]) if o[1].text == "SRZ" else self._refuse(o[1])
            self.e.n = 2

    def _refuse(self, o: Operand) -> None:
        raise NotKnown(f"operand {o.text}")

    def _LDC(self, o: list[Operand]) -> None:
        words = 2 if self._take("64") else 1
        self._dst(o[0])
        self.e.n = words
        if o[1].kind == "const" and o[1].register is not None:
            if o[1].bank != 0:
                raise NotKnown(f"constant {o[1].text}")
            self._op("LDC")
            self.e.s[0].row, self.e.offset = o[1].register, o[1].offset
        else:
            self._op("MOV")
            for w in range(words):
                self._int(w, o[1], w)

    def _IADD3(self, o: list[Operand]) -> None:
        self._dst(o[0])
        extended = self._take("X")
        rest = o[1:]
        outs = []
        while rest and rest[0].kind in ("P", "UP"):
            outs.append(self._predicate(rest.pop(0)))
        for k in range(3):
            self._int(k, rest[k])
        ins = rest[3:]
        if outs or extended:
            self._op("IADD3C")
            self.e.pdst = outs[0] if outs else -1
            self.e.pdst2 = outs[1] if len(outs) > 1 else -1
            self.e.n = len(ins) if extended else 0
            for k, p in enumerate(ins[:2]):
                self._in(k, p)
        else:
            self._op("IADD3")

    def _VIADD(self, o: list[Operand]) -> None:
        self._op("IADD3")
        self._dst(o[0])
        self._int(0, o[1])
        self._int(1, o[2])

    def _IMAD(self, o: list[Operand]) -> None:
        self._dst(o[0])
        rest = o[1:]
        out = self._predicate(rest.pop(0)) if rest[0].kind in ("P", "UP") else -1
        wide, high = self._take("WIDE"), self._take("HI")
        self._take("MOV", "SHL", "IADD")
        unsigned, extended = self._take("U32"), self._take("X")
        for k in range(3):
            self._int(k, rest[k])
        if wide or high:
            self._op("IMADWIDE" if wide else "IMADHI")
            if rest[2].inverted or high and extended or rest[2].negative and (out >= 0 or extended):
                raise NotKnown(f"form {'.WIDE' if wide else '.HI'} with {rest[2].text}")
            self._int(3, rest[2], 1)  # the addend is a pair, negated as one
            self.e.sub, self.e.width, self.e.pdst = not unsigned, rest[2].negative, out
        elif not extended and rest[1].kind == "imm" and rest[1].index == 1 and not rest[1].negative:
            self._op("IADD3")
            self._int(1, rest[2])
            self.e.s[2].row, self.e.s[2].flip, self.e.s[2].add = RZ, 0, 0
        elif not extended and (self.e.s[0].row in (RZ, URZ) or self.e.s[1].row in (RZ, URZ)):
            self._op("MOV")
            self._int(0, rest[2])
            self.e.n = 1
        else:
            self._op("IMAD")
        if out >= 0 and not wide:
            raise NotKnown("carry of IMAD")
        if extended:
            self._in(0, rest[3])
            self.e.n = 1

    def _LEA(self, o: list[Operand]) -> None:
        self._dst(o[0])
        rest = o[1:]
        if rest[0].kind in ("P", "UP"):
            self.e.pdst = self._predicate(rest.pop(0))
        self._int(0, rest[0])
        self._int(1, rest[1])
        if not self._take("HI"):
            self._op("LEA")
            self.e.sub = rest[2].index & 31
            return
        if self.e.pdst >= 0:
            raise NotKnown("carry of LEA.HI")
        self._op("LEAHI")
        extended, self.e.width = self._take("X"), bool(self._take("SX32"))
        more = [x for x in rest[2:] if x.kind not in ("P", "UP")]
        if len(more) == 2:
            self._int(2, more[0])
        elif not self.e.width:
            raise NotKnown("LEA.HI without a high word")
        self.e.sub = more[-1].index & 31
        if extended:
            self._in(0, rest[-1])
            self.e.n = 1

    def _SHF(self, o: list[Operand]) -> None:
        self._op("SHF")
        self._dst(o[0])
        for k in range(3):
            self._int(k, o[1 + k])
        right = self._take("R", "L") == "R"
        kind = self._take("U32", "S32", "U64", "S64")
        self.e.sub = (
            right
            | (2 if self._take("HI") else 0)
            | (4 if kind.startswith("S") else 0)
            | (8 if self._take("W") else 0)
            | (16 if kind.endswith("64") else 0)
        )

    def _LOP3(self, o: list[Operand]) -> None:
        self._take("LUT")
        self._op("LOP3")
        rest = list(o)
        if rest[0].kind in ("P", "UP"):
            self.e.pdst = self._predicate(rest.pop(0))
        self._dst(rest[0])
        for k in range(3):
            self._int(k, rest[1 + k])
        self.e.sub = rest[4].index
        if len(rest) > 5:
            self._in(0, rest[5])
            self.e.n = 1

    def _PLOP3(self, o: list[Operand]) -> None:
        self._take("LUT")
        self._op("PLOP3")
        self.e.pdst, self.e.pdst2 = self._predicate(o[0]), self._predicate(o[1])
        for k in range(3):
            self._in(k, o[2 + k])
        self.e.sub, self.e.width = o[5].index, o[6].index

    def _ISETP(self, o: list[Operand]) -> None:
        self._op("ISETP")
        self.e.pdst, self.e.pdst2 = self._predicate(o[0]), self._predicate(o[1])
        self._int(0, o[2])
        self._int(1, o[3])
        self._in(0, o[4])
        unsigned = self._take("U32")
        self.e.sub = _COMPARE.index(self._take(*_COMPARE)) + (8 if unsigned else 0)
        self.e.n = _LOGIC.index(self._take(*_LOGIC))
        if self._take("EX"):
            self.e.width = 1
            self._in(1, o[5])

    def _IMNMX(self, o: list[Operand]) -> None:
        self._op("IMNMX")
        self.e.sub = not self._take("U32")
        self._dst(o[0])
        self._int(0, o[1])
        self._int(1, o[2])
        self._in(0, o[3])

    _VIMNMX = _IMNMX

    def _VIADDMNMX(self, o: list[Operand]) -> None:
        """The lesser (predicate true) or greater of a sum of two and a third."""
        self._IMNMX([o[0], o[1], o[3], o[4]])
        self._int(2, o[2])

    def _SEL(self, o: list[Operand]) -> None:
        self._op("SEL")
        self._dst(o[0])
        self._int(0, o[1])
        self._int(1, o[2])
        self._in(0, o[3])

    def _FSEL(self, o: list[Operand]) -> None:
        self._op("SEL")
        self._dst(o[0])
        for k in range(2):
            self._float(k, o[1 + k])
            if o[1 + k].absolute:
                raise NotKnown(f"operand {o[1 + k].text}")
            self.e.s[k].add = 0  # a sign flip alone is the integer form with nothing added
        self._in(0, o[3])

    def _byte(self, o: Operand) -> int:
        m = re.match(r"^\.B(\d)$", o.suffix) if o.suffix else None
        if o.suffix and not m:
            raise NotKnown(f"operand {o.text}")
        o.suffix = ""
        return 8 * int(m[1]) if m else 0

    def _P2R(self, o: list[Operand]) -> None:
        self._op("P2R")
        self.e.sub = self._byte(o[0]) + (8 * int(b[1]) if (b := self._take("B1", "B2", "B3")) else 0)
        self._dst(o[0])
        self._int(0, o[2])
        self.e.offset = o[3].index

    def _UP2UR(self, o: list[Operand]) -> None:
        self._P2R(o)
        self.e.uniform, self.e.n = 1, UP0

    def _R2P(self, o: list[Operand]) -> None:
        self._op("R2P")
        self.e.sub = self._byte(o[1])
        self._int(0, o[1])
        self.e.offset = o[2].index

    def _PRMT(self, o: list[Operand]) -> None:
        self._op("PRMT")
        self._dst(o[0])
        for k in range(3):
            self._int(k, o[1 + k])
            if self.e.s[k].flip:
                raise NotKnown(f"operand {o[1 + k].text}")

    def _unary(self, op: str, o: list[Operand]) -> None:
        self._op(op)
        self._dst(o[0])
        self._int(0, o[-1])

    def _POPC(self, o: list[Operand]) -> None:
        self._unary("POPC", o)

    def _FLO(self, o: list[Operand]) -> None:
        self.e.sub = (0 if self._take("U32") else 1) | (2 if self._take("SH") else 0)
        self._unary("FLO", o)

    def _BREV(self, o: list[Operand]) -> None:
        self._unary("BREV", o)

    def _IABS(self, o: list[Operand]) -> None:
        self._unary("IABS", o)

    def _BMSK(self, o: list[Operand]) -> None:
        self._op("BMSK")
        self.e.sub = bool(self._take("W"))
        self._dst(o[0])
        self._int(0, o[1])
        self._int(1, o[2])

    def _SGXT(self, o: list[Operand]) -> None:
        self._op("SGXT")
        self.e.sub = (0 if self._take("U32") else 1) | (2 if self._take("W") else 0)
        self._dst(o[0])
        self._int(0, o[1])
        self._int(1, o[2])

    def _I2F(self, o: list[Operand]) -> None:
        self.e.width = _ROUND[self._take(*_ROUND) or "RN"]
        self._take("F32")
        self.e.sub = self._take("U32", "S32") != "U32"
        self._unary("I2F", o)

    _I2FP = _I2F

    def _F2I(self, o: list[Operand]) -> None:
        self._op("F2I")
        self._dst(o[0])
        self._float(0, o[1])
        for m in ("FTZ", "NTZ", "F32"):
            self._take(m)
        self.e.sub = self._take("U32", "S32") != "U32"
        self.e.width = {"": 0, "CEIL": 1, "FLOOR": 2, "TRUNC": 3}[self._take("CEIL", "FLOOR", "TRUNC")]

    def _MUFU(self, o: list[Operand]) -> None:
        self._op("MUFU")
        self.e.sub = _MUFU.index(self._take(*_MUFU))
        self._dst(o[0])
        self._float(0, o[1])

    # Floating point
    def _FFMA(self, o: list[Operand]) -> None:
        self.e.sub = bool(self._take("FTZ"))
        self._op("FFMAM" if self.e.sub or any(x.negative or x.absolute for x in o[1:4]) else "FFMA")
        self._dst(o[0])
        for k in range(3):
            self._float(k, o[1 + k])

    def _FMUL(self, o: list[Operand]) -> None:
        self._op("FMUL")
        self.e.sub = bool(self._take("FTZ"))
        self._dst(o[0])
        for k in range(2):
            self._float(k, o[1 + k])

    def _FADD(self, o: list[Operand]) -> None:
        self._FMUL(o)
        self._op("FADD")

    def _FSETP(self, o: list[Operand]) -> None:
        self._op("FSETP")
        self.e.pdst, self.e.pdst2 = self._predicate(o[0]), self._predicate(o[1])
        self._float(0, o[2])
        self._float(1, o[3])
        self._in(0, o[4])
        self.e.sub = _FLOAT_COMPARE[self._take(*_FLOAT_COMPARE)]
        self.e.n = _LOGIC.index(self._take(*_LOGIC))

    def _FCHK(self, o: list[Operand]) -> None:
        self._op("FCHK")
        self.e.pdst = self._predicate(o[0])
        self._int(0, o[1])
        self._int(1, o[2])

    def _FMNMX(self, o: list[Operand]) -> None:
        self._op("FMNMX")
        self._dst(o[0])
        self._float(0, o[1])
        self._float(1, o[2])
        self._in(0, o[3])

    def _HFMA2(self, o: list[Operand]) -> None:
        """Only the idiom that puts a constant into a register: HFMA2.MMA R, -RZ, RZ, high, low."""
        self._take("MMA")
        if len(o) != 5 or any(x.kind != "R" or x.index != RZ for x in o[1:3]):
            raise NotKnown("HFMA2 other than a constant move")
        self._op("MOV")
        self._dst(o[0])
        high, low = (int(np.float16(_number(x.text)).view(np.uint16)) for x in o[3:5])
        self.e.s[0].row, self.e.n = self._constant(high << 16 | low), 1

    # Across lanes
    def _R2UR(self, o: list[Operand]) -> None:
        self._op("R2UR")
        self.e.uniform = 1
        self._dst(o[0])
        self._int(0, o[-1])
        if self.e.s[0].flip:
            raise NotKnown(f"operand {o[-1].text}")

    def _VOTE(self, o: list[Operand]) -> None:
        self._op("VOTE")
        self.e.sub = ("ANY", "ALL", "EQ").index(self._take("ANY", "ALL", "EQ"))
        rest = list(o)
        if rest[0].kind in ("R", "UR"):
            self._dst(rest.pop(0))
        self.e.pdst = self._predicate(rest[0])
        self._in(0, rest[1])

    def _VOTEU(self, o: list[Operand]) -> None:
        self._VOTE(o)
        self.e.uniform = 1

    def _SHFL(self, o: list[Operand]) -> None:
        self._op("SHFL")
        modes = ("IDX", "UP", "DOWN", "BFLY")
        self.e.sub = modes.index(self._take(*modes))
        self.e.pdst = self._predicate(o[0])
        self._dst(o[1])
        for k in range(3):
            self._int(k, o[2 + k])

    # Memory
    def _global_access(self, op: str, address: Operand, data: Operand | None) -> None:
        self._op(op)
        self._slot()
        self._extended = "E" in self.mods
        self.e.width = self._width()
        self.mods = [m for m in self.mods if m not in _GLOBAL]
        if self.e.width not in (4, 8, 16):
            raise NotKnown("global access of less than 4 bytes")
        self._global(address)
        if data is not None:
            self._data(data, op)

    def _data(self, o: Operand, op: str) -> None:
        """The register loaded into, or stored from: a store of RZ keeps RZ, a load into RZ is dropped."""
        if o.kind != "R":
            raise NotKnown(f"operand {o.text}")
        self.e.dst = o.index if o.index != RZ or op.startswith("ST") else SINK

    def _LDG(self, o: list[Operand]) -> None:
        if len(o) != 2:
            raise NotKnown(f"operand {o[-1].text}")
        self._global_access("LDG", o[1], o[0])

    def _STG(self, o: list[Operand]) -> None:
        self._global_access("STG", o[0], o[1])

    _LD, _ST = _LDG, _STG  # generic: in the stages' code they address global memory, and are checked to do so

    def _LDGSTS(self, o: list[Operand]) -> None:
        if len(o) != 2:
            raise NotKnown(f"operand {o[-1].text}")
        self._global_access("LDGSTS", o[1], None)
        self._slot(2)
        to = o[0]
        if to.kind != "mem" or to.wide:
            raise NotKnown(f"address {to.text}")
        e = self.e
        e.ps[0] = RZ if to.register is None else to.register
        e.ps[1] = RZ if to.uniform is None else UR0 + to.uniform
        e.ps[2], e.pn[0] = to.scale, to.offset

    def _shared_access(self, op: str, address: Operand, data: Operand) -> None:
        self._op(op)
        self._slot()
        width = self._width()
        self.e.width, self.e.n = abs(width), width < 0
        self._take("U")
        self._memory(address)
        self._data(data, op)

    def _LDS(self, o: list[Operand]) -> None:
        self._shared_access("LDS", o[1], o[0])
        self.e.target = self.used

    def _STS(self, o: list[Operand]) -> None:
        self._shared_access("STS", o[0], o[1])

    def _local_access(self, op: str, address: Operand, data: Operand) -> None:
        self._op(op)
        self.e.width = self._width()
        self._take("LU")
        if self.e.width < 4:
            raise NotKnown("local access of less than 4 bytes")
        self._memory(address)
        self._data(data, op)

    def _LDL(self, o: list[Operand]) -> None:
        self._local_access("LDL", o[1], o[0])

    def _STL(self, o: list[Operand]) -> None:
        self._local_access("STL", o[0], o[1])

    def _LDGDEPBAR(self, o: list[Operand]) -> None:
        self._op("COMMIT")

    def _DEPBAR(self, o: list[Operand]) -> None:
        """DEPBAR.LE SB0, n waits until at most n groups of cp.async are under way; others order what is in order here."""
        self._take("LE")
        if o and o[0].kind == "sb" and o[0].index == 0:
            self._op("WAIT")
            self.e.sub = o[1].index
        else:
            self._op("NOP")

    def _nop(self, o: list[Operand]) -> None:
        self._op("NOP")
        self.mods = []

    _NOP = _YIELD = _MEMBAR = _ERRBAR = _CGAERRBAR = _CCTL = _NANOSLEEP = _nop

    # Control flow
    def _target(self, o: Operand) -> None:
        if o.kind != "imm" or o.index not in self.at:
            raise NotKnown(f"target {o.text}")
        self.e.target = self.at[o.index]

    def _BRA(self, o: list[Operand]) -> None:
        self._take("U")
        if self._take("DIV"):
            self._op("BRADIV")
            self._int(0, o[0])
        else:
            self._op("BRA")
            for k, p in enumerate(o[:-1]):
                self._in(k, p)
            self.e.n = len(o) - 1
        self._target(o[-1])

    def _CALL(self, o: list[Operand]) -> None:
        if not self._take("REL"):
            raise NotKnown("CALL other than .REL")
        self._take("NOINC")
        self._op("CALL")
        self._target(o[-1])

    def _RET(self, o: list[Operand]) -> None:
        if not self._take("REL"):
            raise NotKnown("RET other than .REL")
        self._take("NODEC")
        self._op("RET")
        self._int(0, o[0])
        self.e.offset = o[1].index if len(o) > 1 else 0

    def _EXIT(self, o: list[Operand]) -> None:
        if o:
            raise NotKnown(f"operand {o[0].text}")
        self._op("EXIT")

    def _BAR(self, o: list[Operand]) -> None:
        self._take("DEFER_BLOCKING")
        if self._take("SYNC") != "SYNC" or len(o) != 1 or o[0].kind != "imm" or o[0].index != 0:
            raise NotKnown("barrier other than __syncthreads()")
        self._op("BAR")

    def _convergence(self, op: str, o: Operand) -> None:
        if o.kind != "B" or not 0 <= o.index < 16:
            raise NotKnown(f"operand {o.text}")
        self._op(op)
        self._take("RECONVERGENT")
        self.e.dst = o.index

    def _BSSY(self, o: list[Operand]) -> None:
        self._convergence("BSSY", o[0])

    def _BSYNC(self, o: list[Operand]) -> None:
        self._convergence("BSYNC", o[-1])

    def _BREAK(self, o: list[Operand]) -> None:
        if len(o) > 1:
            raise NotKnown(f"operand {o[0].text}")
        self._convergence("BREAK", o[-1])

    def _BMOV(self, o: list[Operand]) -> None:
        if self._take("32") != "32":
            raise NotKnown("BMOV other than .32")
        self.e.sub = bool(self._take("CLEAR"))
        if o[0].kind == "B":
            self._op("WRITEB")
            self.e.width = o[0].index
            self._int(0, o[1])
        else:
            self._op("READB")
            self._dst(o[0])
            self.e.width = o[1].index

    def _WARPSYNC(self, o: list[Operand]) -> None:
        self._op("WARPSYNC")
        if self._take("ALL"):
            self.e.s[0].row = self._constant(0xFFFFFFFF)
        else:
            self._int(0, o[-1])


def _number(text: str) -> float:
    return float(re.sub(r"[QS]NAN", "nan", text, flags=re.I).replace("+", ""))
