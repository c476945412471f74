"""How many blocks of a launch one SM holds at a time, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass

from .device import Device
from .errors import TilescopeError
from .stage import Launch, ceil_div
from .toolchain import Kernel

WARP = 32
MAX_THREADS = 1024


@dataclass(frozen=True)
class Occupancy:
    """Theoretical occupancy: blocks per SM that each resource allows, and what follows.

    limiters  the resources whose limit is the least: of 'warps', 'blocks', 'registers', 'shared memory'
    percent   warps an SM holds, of those it could
    waves     blocks of the grid over the blocks that all SMs hold at a time
    """

    limits: dict[str, int]
    blocks: int
    warps: int
    percent: float
    waves: float

    @property
    def limiters(self) -> tuple[str, ...]:
        return tuple(name for name, limit in self.limits.items() if limit == self.blocks)

    @property
    def limiter(self) -> str:
        return " and ".join(self.limiters)


def static_shared(kernel: Kernel, device: Device) -> int:
    """Bytes of `__shared__` arrays per block. From sm_90 on the cubin's section begins with the driver's reserve."""
    size = kernel.function.static_shared
    return max(0, size - device.shared_reserved) if device.cc >= 90 else size


def occupancy(kernel: Kernel, launch: Launch, device: Device) -> Occupancy:
    """Theoretical occupancy of a launch, by NVIDIA's occupancy calculator (cuda_occupancy.h).

    Registers are allocated per warp in units, from the register file of the partition the warp is on; shared memory
    in units, together with the driver's reserve. Raises TilescopeError where not even one block fits.
    """
    warps = ceil_div(launch.threads, WARP)
    per_warp = ceil_div(max(1, kernel.function.registers) * WARP, device.register_unit) * device.register_unit
    wanted = static_shared(kernel, device) + launch.shared
    shared = ceil_div(wanted + device.shared_reserved, device.shared_unit) * device.shared_unit
    limits = {
        "warps": device.max_warps // warps if launch.threads <= MAX_THREADS else 0,
        "blocks": device.max_blocks,
        "registers": device.registers_per_sm // device.partitions // per_warp * device.partitions // warps,
        "shared memory": device.shared_per_sm // shared if shared else device.max_blocks,
    }
    if wanted > device.shared_per_block:
        limits["shared memory"] = 0
    blocks = min(limits.values())
    if blocks == 0:
        raise TilescopeError(
            f"{launch.entry} cannot run on {device.name}: {_excess(launch, kernel, wanted, device)}",
            "Choose smaller tiles.",
        )
    return Occupancy(
        limits=limits,
        blocks=blocks,
        warps=blocks * warps,
        percent=100.0 * blocks * warps / device.max_warps,
        waves=launch.blocks / (device.sms * blocks),
    )


def _excess(launch: Launch, kernel: Kernel, shared: int, device: Device) -> str:
    if launch.threads > MAX_THREADS:
        return f"a block has {launch.threads} threads; {MAX_THREADS} is the most."
    if shared > device.shared_per_block:
        return f"a block needs {shared:,} bytes of shared memory; {device.shared_per_block:,} is the most."
    return f"a block of {launch.threads} threads needs {kernel.function.registers} registers each; an SM has {device.registers_per_sm:,}."
