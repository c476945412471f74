"""Static facts about one SASS instruction: what memory it touches, which pipe issues it, which registers it reads.

Opcodes: NVIDIA's CUDA Binary Utilities, instruction set reference. Pipes: the pipeline table of the Nsight Compute
Profiling Guide ("Metrics Decoder"). Register banks: measured, see `register_reads`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .toolchain import Instruction


@dataclass(frozen=True)
class Access:
    """Memory an instruction touches.

    space  'global', 'shared', 'local', 'generic' (decided by the address) or 'constant'
    kind   'load', 'store', 'copy' (global to shared, LDGSTS) or 'atomic'
    width  bytes per lane
    """

    space: str
    kind: str
    width: int


_ACCESS = {
    "LDG": ("global", "load"),
    "STG": ("global", "store"),
    "LDGSTS": ("global", "copy"),
    "ATOMG": ("global", "atomic"),
    "REDG": ("global", "atomic"),
    "LDS": ("shared", "load"),
    "LDSM": ("shared", "load"),
    "STS": ("shared", "store"),
    "STSM": ("shared", "store"),
    "ATOMS": ("shared", "atomic"),
    "LDL": ("local", "load"),
    "STL": ("local", "store"),
    "LD": ("generic", "load"),
    "ST": ("generic", "store"),
    "ATOM": ("generic", "atomic"),
    "RED": ("generic", "atomic"),
    "LDC": ("constant", "load"),
    "ULDC": ("constant", "load"),
}
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "U64": 8, "S64": 8, "F64": 8, "128": 16}


def access(instruction: Instruction) -> Access | None:
    """The memory an instruction touches, or None. A width with no modifier is 4 bytes."""
    if instruction.base not in _ACCESS:
        return None
    space, kind = _ACCESS[instruction.base]
    modifiers = instruction.opcode.split(".")[1:]
    if instruction.base in ("LDSM", "STSM"):  # 8x8 matrices of 16-bit elements: 4 bytes per lane and matrix
        width = 4 * int(modifiers[-1]) if modifiers[-1] in ("2", "4") else 4
    else:
        width = next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 4)
    return Access(space, kind, width)


_PIPES = {
    "fma": "FFMA FMUL FADD FFMA32I FMUL32I FADD32I",
    "fmaheavy": "IMAD IMAD32I IMUL IMUL32I IDP IDP4A VIADD HFMA2 HADD2 HMUL2 HFMA2_32I HADD2_32I HMUL2_32I",
    "alu": "IADD3 IADD IADD32I LOP3 LOP LOP32I SHF SHL SHR LEA ISETP SEL MOV MOV32I IMNMX VIMNMX VIADDMNMX IABS PRMT BMSK SGXT "
    "FSETP FSEL FMNMX FCHK FSET PLOP3 PSETP P2R R2P HSETP2 HMNMX2 F2FP I2FP I2IP ISCADD VABSDIFF VABSDIFF4 VOTE CS2R",
    "xu": "MUFU I2F F2I F2F FRND I2I POPC FLO BREV F2IP",
    "fp64": "DFMA DADD DMUL DSETP DMNMX",
    "tensor": "HMMA IMMA DMMA BMMA HGMMA IGMMA QGMMA BGMMA",
    "lsu": "LDG STG LDGSTS ATOMG REDG LDS LDSM STS STSM ATOMS LDL STL LD ST ATOM RED S2R SHFL CCTL CCTLL MEMBAR ERRBAR "
    "FENCE MATCH QSPC LDGDEPBAR ARRIVES MOVM UBLKCP UTMALDG UTMASTG SYNCS",
    "adu": "BAR LDC BRX JMX R2UR S2UR",
    "cbu": "EXIT BSSY BSYNC BREAK CALL RET JMP WARPSYNC YIELD BMOV KILL RPCMOV BPT",
    "none": "BRA NOP DEPBAR NANOSLEEP ULDC UMOV WARPGROUP",
    "tex": "TEX TLD TLD4 TMML TXD TXQ SULD SUST SUATOM SURED",
}
_PIPE_OF = {opcode: pipe for pipe, opcodes in _PIPES.items() for opcode in opcodes.split()}


def pipe(instruction: Instruction) -> str:
    """The pipe that issues an instruction, by ncu's names (cc 7.5 to 9.0).

    'fma' takes either half of the FMA pipe, 'fmaheavy' (integer multiply-add, packed half) one half only. 'none' is
    what ncu counts in no pipe, 'other' an opcode not in the table. On an H200, sums of executed instructions by this
    table equal `sm__inst_executed_pipe_{alu,fma,lsu,tensor,uniform,xu}.sum` ('fma' there is fma + fmaheavy).
    """
    base = instruction.base
    if base == "HFMA2" and ".MMA" in instruction.opcode:
        return "tensor"
    if base == "S2R" and any("CTAID" in o.upper() for o in instruction.operands):
        return "adu"
    return _PIPE_OF.get(base, "uniform" if base.startswith("U") else "other")


_REGISTER = re.compile(r"(?<![A-Za-z0-9_])R(\d+)((?:\.\w+)*)")
_BARE_REGISTER = re.compile(r"U?R(\d+|Z)(\.\w+)*")
_PREDICATE = re.compile(r"!?U?P(\d|T|R)")
_UNARY = {"MOV", "MUFU", "I2F", "F2I", "F2F", "FRND", "POPC", "FLO", "BREV", "IABS", "I2I", "R2UR", "F2FP", "I2FP"}
"""One source, held in the second operand slot."""
NO_DESTINATION = set("ISETP FSETP DSETP HSETP2 FCHK PSETP R2P RET BRX JMX WARPSYNC BAR NANOSLEEP".split())


def sources(instruction: Instruction) -> tuple[tuple[int, int, bool], ...]:
    """Registers an instruction reads: (register, operand slot, kept by its .reuse flag). RZ and uniform registers are none.

    A 64- or 128-bit operand gives every register it spans. Slots count the operands after the destination,
    predicates left out.
    """
    operands = [o for o in instruction.operands if not _PREDICATE.fullmatch(o)]
    if operands and instruction.base not in NO_DESTINATION and _BARE_REGISTER.fullmatch(operands[0]):
        operands = operands[1:]
    found = []
    for slot, operand in enumerate(operands):
        for number, suffix in _REGISTER.findall(operand):
            for n in range(int(number), int(number) + _span(instruction, operand, slot, suffix)):
                found.append((n, 1 if instruction.base in _UNARY else slot, ".reuse" in suffix))
    return tuple(found)


def _span(instruction: Instruction, operand: str, slot: int, suffix: str) -> int:
    """Registers a source operand spans."""
    if "[" in operand:
        return 2 if ".64" in suffix else 1
    touched = access(instruction)
    if touched and touched.kind in ("store", "atomic"):
        return max(1, touched.width // 4)
    if instruction.base == "IMAD" and ".WIDE" in instruction.opcode:
        return 2 if slot == 2 else 1
    if instruction.base in ("DFMA", "DADD", "DMUL", "DSETP", "DMNMX"):
        return 2
    if instruction.base == "HMMA":
        a, b = {"16816": (4, 2), "1688": (2, 1), "884": (2, 2)}.get(instruction.opcode.split(".")[1], (1, 1))
        return (a, b, 4 if ".F32" in instruction.opcode else 2)[slot] if slot < 3 else 1
    return 1


def register_reads(instructions: Sequence[Instruction]) -> list[tuple[int, int]]:
    """Fresh register-operand reads per instruction, by bank: (even registers, odd registers).

    Each of the two banks (register number mod 2) gives a scheduler one operand a cycle. A `.reuse` flag keeps an operand
    in a cache with a place for each operand slot and bank: an instruction that names the same register in the same slot
    gets it free, and a read of another register of that bank through that slot drives it out. A register named twice is
    read once. In program order, as if no other warp came between.

    Source: loops measured on an H200 (times follow max(issued, reads of a bank)); the cache as in R. Huerta et al.,
    "Analyzing Modern NVIDIA GPU cores", arXiv:2503.20481.
    """
    reads = []
    kept: dict[tuple[int, int], int] = {}
    for instruction in instructions:
        operands = sources(instruction)
        fresh = {register for register, slot, _ in operands if kept.get((slot, register & 1)) != register}
        odd = sum(register & 1 for register in fresh)
        reads.append((len(fresh) - odd, odd))
        for register, slot, keep in operands:
            if keep:
                kept[slot, register & 1] = register
            else:
                kept.pop((slot, register & 1), None)
    return reads
