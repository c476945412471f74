"""Named GPUs as data: limits for occupancy, pipe widths for bounds. No driver is asked.

Sources: NVIDIA's architecture white papers and data sheets (SMs, boost clock, bandwidth), the CUDA C++ Programming
Guide's table of technical specifications per compute capability (warps, blocks, registers, shared memory).
`verified` says which pipe widths were checked with a probe on that architecture; the others are marked where shown.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import TilescopeError, nearest


@dataclass(frozen=True)
class Device:
    """A GPU. Sizes in bytes, clocks in MHz, bandwidth in GB/s (1e9), widths per SM and cycle."""

    name: str
    title: str
    cc: int  # compute capability times ten: 90
    sms: int
    clock_mhz: float
    dram_gbs: float
    l2_bytes: int
    memory_bytes: int
    max_warps: int
    max_blocks: int
    shared_per_sm: int
    shared_per_block: int  # largest, opted in
    shared_reserved: int  # that the driver takes per block
    fma_lanes: int
    verified: bool  # pipe widths probed on this architecture
    registers_per_sm: int = 65536
    register_unit: int = 256  # allocated per warp in multiples of this
    shared_unit: int = 128
    partitions: int = 4  # schedulers per SM
    alu_lanes: int = 64
    lsu_instructions: int = 1
    data_wavefronts: int = 1
    tag_tags: int = 4  # 128-byte lines looked up per cycle

    @property
    def arch(self) -> str:
        return f"sm_{self.cc}"

    @property
    def peak_tflops(self) -> float:
        """fp32 peak: two operations per FMA lane and cycle."""
        return 2 * self.fma_lanes * self.sms * self.clock_mhz * 1e6 / 1e12


_GIB, _MIB, _KIB = 2**30, 2**20, 2**10
_HOPPER = dict(cc=90, max_warps=64, max_blocks=32, shared_per_sm=228 * _KIB, shared_per_block=227 * _KIB,
               shared_reserved=_KIB, fma_lanes=128, verified=True)  # fmt: skip

DEVICES = {
    d.name: d
    for d in (
        Device("h200", "NVIDIA H200 SXM", sms=132, clock_mhz=1980, dram_gbs=4800, l2_bytes=50 * _MIB,
               memory_bytes=141 * 10**9, **_HOPPER),
        Device("h100", "NVIDIA H100 SXM5 80GB", sms=132, clock_mhz=1980, dram_gbs=3350, l2_bytes=50 * _MIB,
               memory_bytes=80 * 10**9, **_HOPPER),
        Device("a100", "NVIDIA A100 SXM4 80GB", cc=80, sms=108, clock_mhz=1410, dram_gbs=2039, l2_bytes=40 * _MIB,
               memory_bytes=80 * 10**9, max_warps=64, max_blocks=32, shared_per_sm=164 * _KIB,
               shared_per_block=163 * _KIB, shared_reserved=_KIB, fma_lanes=64, verified=False),
        Device("rtx4090", "NVIDIA GeForce RTX 4090", cc=89, sms=128, clock_mhz=2520, dram_gbs=1008, l2_bytes=72 * _MIB,
               memory_bytes=24 * _GIB, max_warps=48, max_blocks=24, shared_per_sm=100 * _KIB,
               shared_per_block=99 * _KIB, shared_reserved=_KIB, fma_lanes=128, verified=False),
        Device("rtx3090", "NVIDIA GeForce RTX 3090", cc=86, sms=82, clock_mhz=1695, dram_gbs=936, l2_bytes=6 * _MIB,
               memory_bytes=24 * _GIB, max_warps=48, max_blocks=16, shared_per_sm=100 * _KIB,
               shared_per_block=99 * _KIB, shared_reserved=_KIB, fma_lanes=128, verified=False),
        Device("t4", "NVIDIA T4", cc=75, sms=40, clock_mhz=1590, dram_gbs=320, l2_bytes=4 * _MIB,
               memory_bytes=16 * _GIB, max_warps=32, max_blocks=16, shared_per_sm=64 * _KIB,
               shared_per_block=64 * _KIB, shared_reserved=0, fma_lanes=64, verified=False),
    )
}  # fmt: skip


def find(name: str) -> Device:
    """A device by name. Raises TilescopeError with the nearest name."""
    device = DEVICES.get(name.lower())
    if device is None:
        raise TilescopeError(
            f"unknown DEVICE {name!r}.{nearest(name.lower(), list(DEVICES))}", f"Known: {', '.join(DEVICES)}."
        )
    return device
