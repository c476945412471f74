"""Read a cubin (an ELF file of machine code): per function its code words, registers, shared memory, parameters, constants.

Attribute numbers of `.nv.info` and the layout of parameters are in NVIDIA's `cuobjdump -elf` output; see
docs of each constant below.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from .errors import TilescopeError

PARAM_CBANK = 0x0A  # (symbol, u16 offset of the parameters in constant bank 0, u16 size)
KPARAM_INFO = 0x17  # (index, u16 ordinal, u16 offset, packed size)
REGCOUNT = 0x2F  # (symbol, registers per thread)
FRAME_SIZE = 0x11  # (symbol, bytes of local memory per thread)
INSTRUCTION_BYTES = 16


@dataclass
class Function:
    """One kernel of a cubin. Sizes in bytes; `words` are its 128-bit instruction words in order."""

    name: str
    words: list[int]
    registers: int
    static_shared: int
    frame: int
    param_base: int
    param_bytes: int
    params: list[tuple[int, int]]  # (offset from param_base, size), in order
    constants: dict[int, bytes] = field(default_factory=dict)  # constant bank -> contents


def read(cubin: bytes) -> dict[str, Function]:
    """The kernels of a cubin by name. Raises TilescopeError if the bytes are not a 64-bit ELF file."""
    if cubin[:5] != b"\x7fELF\x02":
        raise TilescopeError("not a cubin: the file does not start as a 64-bit ELF file does.")
    try:
        return _read(cubin)
    except (struct.error, IndexError, ValueError, OverflowError) as e:
        raise TilescopeError(f"damaged cubin: {e}", "Compile it again.") from e


def _read(cubin: bytes) -> dict[str, Function]:
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    raw = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * entry) for i in range(count)]
    names_offset = raw[names_at][4]

    def title(s: tuple) -> str:
        start = names_offset + s[0]
        return cubin[start : cubin.index(b"\0", start)].decode()

    sections = [(title(s), cubin[s[4] : s[4] + s[5]] if s[1] != 8 else b"\0" * s[5]) for s in raw]  # type 8: NOBITS
    by_name = dict(sections)
    symbols = by_name.get(".symtab", b"")

    def section_of(symbol: int) -> str:
        (index,) = struct.unpack_from("<H", symbols, symbol * 24 + 6)
        return sections[index][0] if index < len(sections) else ""

    per_function: dict[tuple[str, int], int] = {}
    for attribute, value in _attributes(by_name.get(".nv.info", b"")):
        if attribute in (REGCOUNT, FRAME_SIZE):
            symbol, number = struct.unpack("<II", value)
            per_function[section_of(symbol), attribute] = number

    functions = {}
    for name, code in sections:
        if not name.startswith(".text."):
            continue
        kernel = name.removeprefix(".text.")
        base = size = 0
        params = []
        for attribute, value in _attributes(by_name.get(f".nv.info.{kernel}", b"")):
            if attribute == PARAM_CBANK:
                base, size = struct.unpack_from("<HH", value, 4)
            elif attribute == KPARAM_INFO:
                _, ordinal, offset, packed = struct.unpack("<IHHI", value)
                params.append((ordinal, offset, packed >> 18))
        constants = {}
        for section, contents in sections:
            m = re.fullmatch(rf"\.nv\.constant(\d+)(\.{re.escape(kernel)})?", section)
            if m:
                constants[int(m[1])] = contents
        functions[kernel] = Function(
            name=kernel,
            words=[int.from_bytes(code[i : i + 16], "little") for i in range(0, len(code), INSTRUCTION_BYTES)],
            registers=per_function.get((name, REGCOUNT), 0),
            static_shared=len(by_name.get(f".nv.shared.{kernel}", b"")),
            frame=per_function.get((name, FRAME_SIZE), 0),
            param_base=base,
            param_bytes=size,
            params=[(offset, size) for _, offset, size in sorted(params)],
            constants=constants,
        )
    return functions


def _attributes(info: bytes) -> list[tuple[int, bytes | int]]:
    """(attribute, value) pairs of a .nv.info section; a value is bytes where its format says it has a size."""
    found: list[tuple[int, bytes | int]] = []
    i = 0
    while i + 4 <= len(info):
        form, attribute, value = info[i], info[i + 1], struct.unpack_from("<H", info, i + 2)[0]
        i += 4
        if form == 4:
            found.append((attribute, info[i : i + value]))
            i += value
        else:
            found.append((attribute, value))
    return found
