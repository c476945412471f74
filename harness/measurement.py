"""What a timing gives, as data: passed from the process that holds the GPU, recorded, compared. No GPU needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from . import statistics
from .accuracy import Accuracy
from .problem import Problem
from .statistics import Estimate

THROTTLED, CAPPED = "throttled", "power-capped"
FLAGS = {
    THROTTLED: "the GPU slowed its clock for heat or a fault in its power supply",
    CAPPED: "the GPU held its clock down to stay within its power limit",
    "locked-clock": "the clock is set by an application's setting, not by the load",
    "unsettled": "times still drifted when the warm-up ended",
    "time-limit": "the interval was still wider than asked when the time was up",
    "few-rounds": "fewer than 5 rounds: the interval says little",
    "busy": "other work was on the GPU",
    "no-telemetry": "NVML gave no clock, power and temperature",
    "unheld": "launches could not be queued behind the blocking kernel: times hold launch overhead",
    "part-cold": "so small that the sets of inputs that are rotated do not fill twice the L2",
    "zeros": "inputs are zeros, which draws less power than data does and so runs at a higher clock",
    "accumulates": "beta is not 0: C grew from launch to launch while it was timed",
    "wrong": "C is wrong: not timed",
    "damage": "it wrote outside of C: not timed",
    "fault": "the kernel failed: not timed",
}
"""Every flag that a point may carry, and what it means."""


@dataclass
class Telemetry:
    """The GPU's state during the samples, one entry a reading: seconds from the start, MHz, W, degrees C, NVML's reasons as bits."""

    seconds: list[float] = field(default_factory=list)
    clock_mhz: list[float] = field(default_factory=list)
    power_w: list[float] = field(default_factory=list)
    temperature_c: list[float] = field(default_factory=list)
    reasons: list[int] = field(default_factory=list)

    @property
    def clock(self) -> float:
        """Median SM clock, MHz; NaN without a reading."""
        return _median(self.clock_mhz)

    @property
    def power(self) -> float:
        """Median power, W."""
        return _median(self.power_w)

    @property
    def temperature(self) -> float:
        """Highest temperature, degrees C."""
        return max((t for t in self.temperature_c if math.isfinite(t)), default=math.nan)


def _median(values: Sequence[float]) -> float:
    finite = [v for v in values if math.isfinite(v)]
    return float(np.median(finite)) if finite else math.nan


@dataclass
class Point:
    """One contender timed on one problem, beside a rival where there was one.

    stage      its name, or the library's
    backend    'gpu' for a stage, 'cublas' or 'cublaslt'
    samples    ms per product, one a round; rival_samples: the rival's in the same rounds, empty without one
    baseline   this is the rival that others are timed beside; its ratio is 1
    batch      products per sample
    cold       rotating sets (their number in `sets`), or one set that stays in cache
    accuracy   C against float64, before timing and after it, the worse one; exact: integer inputs, to the bit
    damage     what was written outside of C, in words; fault: how the kernel failed
    detail     the library's version, or the algorithm it chose
    """

    stage: str
    problem: Problem
    backend: str
    tunables: dict[str, int] = field(default_factory=dict)
    sass: str = ""
    samples: list[float] = field(default_factory=list)
    rival: str = ""
    rival_samples: list[float] = field(default_factory=list)
    baseline: bool = False
    batch: int = 0
    cold: bool = True
    sets: int = 0
    telemetry: Telemetry = field(default_factory=Telemetry)
    flags: list[str] = field(default_factory=list)
    accuracy: Accuracy | None = None
    exact: Accuracy | None = None
    damage: str = ""
    fault: str = ""
    detail: str = ""

    @cached_property
    def ms(self) -> Estimate:
        """Milliseconds per product."""
        return statistics.median(self.samples)

    @cached_property
    def ratio(self) -> Estimate:
        """The rival's time over this one's; above 1 where this one is faster."""
        return statistics.ratio(self.samples, self.rival_samples) if self.rival else statistics.NOTHING

    @cached_property
    def changed(self) -> str:
        """The tunables that are not the stage's own, as one types them; nothing for a library."""
        from .stage import changed

        return changed(self.stage, self.tunables) if self.backend == "gpu" else ""

    @property
    def tflops(self) -> float:
        return self.problem.flops / self.ms.value / 1e9 if self.ms.value > 0 else math.nan

    @property
    def wrong(self) -> bool:
        """Whether a verdict failed: C is not right, or memory outside of it was written."""
        return bool(self.damage) or any(a is not None and not a.ok for a in (self.accuracy, self.exact))

    @property
    def ok(self) -> bool:
        return not self.wrong and not self.fault

    @property
    def error(self) -> str:
        """One line for a table: the largest error over its bound, or what is wrong."""
        if self.fault:
            return self.fault.splitlines()[0]
        if self.damage:
            return self.damage
        for found in (self.exact, self.accuracy):
            if found is not None and not found.ok:
                return str(found)
        return f"{self.accuracy.share:.2g} of bound" if self.accuracy else ""

    def flag_wrong(self) -> None:
        """Raise the flags that a failed verdict calls for."""
        if self.damage:
            self.flag("damage")
        if any(a is not None and not a.ok for a in (self.accuracy, self.exact)):
            self.flag("wrong")

    def flag(self, name: str) -> None:
        if name not in FLAGS:
            raise ValueError(f"unknown flag {name}")
        if name not in self.flags:
            self.flags.append(name)
