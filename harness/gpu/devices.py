"""The GPUs of this machine, asked of the driver library itself: no context, no PyCUDA, a few milliseconds."""

from __future__ import annotations

import ctypes
import re
import uuid
from dataclasses import dataclass, replace
from functools import cache

from ..device import DEVICES, Device
from ..errors import TilescopeError

LIBRARY = "libcuda.so.1"
_ATTRIBUTES = {
    "clock_khz": 13, "sms": 16, "memory_khz": 36, "bus_bits": 37, "l2_bytes": 38, "threads_per_sm": 39, "major": 75, "minor": 76,
    "shared_per_sm": 81, "registers_per_sm": 82, "shared_per_block": 97, "max_blocks": 106, "shared_reserved": 111,
}  # fmt: skip
"""CUdevice_attribute numbers of cuda.h."""
DRIVER_OF_CUDA = {13: "r580", 12: "r525"}
"""The oldest driver branch for each major version of CUDA (CUDA Toolkit release notes, table of driver versions)."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver describes it. Sizes in bytes, clock in MHz; `cuda` is the driver's CUDA version, (13, 0)."""

    index: int
    name: str
    uuid: str
    cc: int
    sms: int
    clock_mhz: float
    dram_gbs: float
    memory_bytes: int
    l2_bytes: int
    max_warps: int
    max_blocks: int
    shared_per_sm: int
    shared_per_block: int
    shared_reserved: int
    registers_per_sm: int
    cuda: tuple[int, int]

    def __str__(self) -> str:
        return f"GPU {self.index}, {self.name} ({self.uuid})"

    @property
    def device(self) -> Device:
        """Its specification: the named one where it is one of those, else what the driver says, with the pipe widths of its kind."""
        word = re.sub(r"\W", "", self.name).lower()
        for d in DEVICES.values():
            if d.cc == self.cc and d.sms == self.sms and d.name in word:
                return d
        base = next((d for d in DEVICES.values() if d.cc == self.cc), None) or self._unknown()
        return replace(
            base,
            name=re.sub(r"^(nvidia|geforce|quadro|tesla)+", "", word) or word,
            title=self.name,
            sms=self.sms,
            clock_mhz=self.clock_mhz or base.clock_mhz,
            dram_gbs=self.dram_gbs or base.dram_gbs,
            l2_bytes=self.l2_bytes or base.l2_bytes,
            memory_bytes=self.memory_bytes,
        )

    def _unknown(self) -> Device:
        """A device of an architecture that has no entry: limits from the driver, pipe widths as on the latest known one."""
        return Device(
            "", "", cc=self.cc, sms=self.sms, clock_mhz=self.clock_mhz, dram_gbs=self.dram_gbs, l2_bytes=self.l2_bytes,
            memory_bytes=self.memory_bytes, max_warps=self.max_warps, max_blocks=self.max_blocks, shared_per_sm=self.shared_per_sm,
            shared_per_block=self.shared_per_block, shared_reserved=self.shared_reserved, fma_lanes=128, verified=False,
            registers_per_sm=self.registers_per_sm,
        )  # fmt: skip

    def check_runs(self, compiler: str) -> None:
        """Raise TilescopeError where code of this nvcc version ('13.0.88') is too new for the driver."""
        major = int(compiler.split(".")[0]) if compiler else 0
        if major > self.cuda[0]:
            raise TilescopeError(
                f"the driver of {self.name} knows CUDA up to {self.cuda[0]}.{self.cuda[1]}; this code is compiled by nvcc {compiler}.",
                f"Update the driver to {DRIVER_OF_CUDA.get(major, 'a newer one')} or newer, or compile with CUDA {self.cuda[0]}:"
                f" pip install 'cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]=={self.cuda[0]}.*' in another folder, and NVCC=.",
            )


class _Driver:
    """libcuda's functions, each raising TilescopeError where it fails."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise TilescopeError(f"{name}: {self._explained(status)}")

    def _explained(self, status: int) -> str:
        words = ctypes.c_char_p()
        if self.library.cuGetErrorString(status, ctypes.byref(words)) or not words.value:
            return f"CUDA error {status}"
        return f"{words.value.decode()} (CUDA error {status})"

    def number(self, name: str, *arguments: object) -> int:
        found = ctypes.c_int()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value


@cache
def gpus() -> tuple[Gpu, ...]:
    """Every GPU that CUDA_VISIBLE_DEVICES leaves. Raises TilescopeError where there is no driver or no GPU, saying which."""
    try:
        driver = _Driver(ctypes.CDLL(LIBRARY))
    except OSError:
        raise TilescopeError(
            f"there is no NVIDIA driver ({LIBRARY})", "Install NVIDIA's driver, or start the container with --gpus all."
        ) from None
    try:
        driver.call("cuInit", 0)
    except TilescopeError as e:
        raise TilescopeError(
            f"the NVIDIA driver finds no GPU: {e.what}", "Look at nvidia-smi, and at CUDA_VISIBLE_DEVICES if it is set."
        ) from None
    version = driver.number("cuDriverGetVersion")
    count = driver.number("cuDeviceGetCount")
    if not count:
        raise TilescopeError("the NVIDIA driver finds no GPU", "Look at CUDA_VISIBLE_DEVICES if it is set.")
    return tuple(_describe(driver, i, (version // 1000, version % 1000 // 10)) for i in range(count))


def _describe(driver: _Driver, index: int, cuda: tuple[int, int]) -> Gpu:
    handle = driver.number("cuDeviceGet", index)
    name, raw, total = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)(), ctypes.c_size_t()
    driver.call("cuDeviceGetName", name, 256, handle)
    driver.call("cuDeviceGetUuid_v2", raw, handle)
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(total), handle)
    a = {}
    for key, number in _ATTRIBUTES.items():
        try:
            a[key] = driver.number("cuDeviceGetAttribute", number, handle)
        except TilescopeError:
            a[key] = 0
    title = name.value.decode(errors="replace")
    return Gpu(
        index=index, name=title, uuid=f"{'MIG' if ' MIG ' in title else 'GPU'}-{uuid.UUID(bytes=bytes(raw))}",
        cc=10 * a["major"] + a["minor"], sms=a["sms"], clock_mhz=a["clock_khz"] / 1e3,
        dram_gbs=2 * a["memory_khz"] * a["bus_bits"] / 8 / 1e6, memory_bytes=total.value, l2_bytes=a["l2_bytes"],
        max_warps=a["threads_per_sm"] // 32, max_blocks=a["max_blocks"], shared_per_sm=a["shared_per_sm"],
        shared_per_block=a["shared_per_block"], shared_reserved=a["shared_reserved"], registers_per_sm=a["registers_per_sm"], cuda=cuda,
    )  # fmt: skip


def find(choice: str | int | None = None) -> Gpu:
    """A GPU by index or by UUID (or how one begins), the first one for None. Raises TilescopeError naming those there are."""
    found = gpus()
    if choice is None or choice == "":
        return found[0]
    word = str(choice)
    if word.isascii() and word.isdigit() and len(word) <= 3:
        matches = [g for g in found if g.index == int(word)]
    else:
        matches = [
            g for g in found if g.uuid.lower().startswith(word.lower()) or g.uuid[4:].lower().startswith(word.lower())
        ]
    if len(matches) == 1:
        return matches[0]
    raise TilescopeError(
        f"GPU={word}: {'several GPUs begin so' if matches else 'no such GPU'}.", f"Here: {'; '.join(map(str, found))}."
    )
