"""What repeated times say: medians with bootstrap intervals, paired ratios, when to stop, and verdicts. No GPU needed.

Intervals are percentile bootstraps of the median (B. Efron, R. Tibshirani, An Introduction to the Bootstrap, 1993,
section 13.3), with a fixed seed, so that recorded samples give the recorded interval again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
RESAMPLES = 2000
PRECISION = 0.005
"""Half width of a ratio's interval, relative to the ratio, at which measuring may stop."""
TOLERANCE = 0.01
"""Two times closer than this count as the same."""
VERDICTS = ("FASTER", "SAME", "SLOWER", "AMBIGUOUS")


@dataclass(frozen=True)
class Estimate:
    """A median and its 95 % interval; NaN where there was no sample, lo = hi = value where there was one."""

    value: float
    lo: float
    hi: float

    @property
    def half_width(self) -> float:
        """Half of the interval, relative to the value; infinite where the value is not positive."""
        return (self.hi - self.lo) / 2 / self.value if self.value > 0 else math.inf

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.lo:.4g}, {self.hi:.4g}]"


NOTHING = Estimate(math.nan, math.nan, math.nan)


def median(samples: Sequence[float] | np.ndarray, seed: int = 0) -> Estimate:
    """The median of samples with its interval. Samples that are not finite are left out."""
    x = np.asarray(samples, np.float64)
    x = x[np.isfinite(x)]
    if not x.size:
        return NOTHING
    middle = float(np.median(x))
    return _interval(middle, np.median(_resampled(x, seed), axis=1))


def ratio(samples: Sequence[float] | np.ndarray, rival: Sequence[float] | np.ndarray, seed: int = 0) -> Estimate:
    """Rival's time over this one's, above 1 where this one is faster, from rounds that measured both.

    The median of the rounds' own ratios: what drifts slowly (clock, temperature) moves both members of a round.
    """
    a, b = np.asarray(samples, np.float64), np.asarray(rival, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{a.size} samples cannot be paired with {b.size}")
    return median(b / a, seed)


def unpaired_ratio(
    samples: Sequence[float] | np.ndarray, rival: Sequence[float] | np.ndarray, seed: int = 0
) -> Estimate:
    """Rival's median time over this one's, from samples taken apart. Of a measurement and itself it is 1, with no doubt."""
    a, b = (np.asarray(x, np.float64) for x in (samples, rival))
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    if not a.size or not b.size:
        return NOTHING
    if np.array_equal(a, b):
        return Estimate(1.0, 1.0, 1.0)
    draws = np.median(_resampled(b, seed), axis=1) / np.median(_resampled(a, seed + 1), axis=1)
    return _interval(float(np.median(b) / np.median(a)), draws)


def _resampled(x: np.ndarray, seed: int) -> np.ndarray:
    return x[np.random.default_rng(seed).integers(0, x.size, (RESAMPLES, x.size))]


def _interval(value: float, draws: np.ndarray) -> Estimate:
    lo, hi = np.quantile(draws, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Estimate(value, float(lo), float(hi))


def settled(times: Sequence[float], window: int = 5, tolerance: float = 0.01) -> bool:
    """Whether the last `window` times lie within a tolerance of one another, and show no trend beyond half of it.

    A clock that still ramps up, or a cache that still fills, shows as a trend.
    """
    if len(times) < window:
        return False
    last = np.asarray(times[-window:], np.float64)
    middle = float(np.median(last))
    if not middle > 0:
        return False
    slope = float(np.polyfit(np.arange(window), last, 1)[0]) * (window - 1)
    return float(np.ptp(last)) <= tolerance * middle and abs(slope) <= tolerance / 2 * middle


def verdict(found: Estimate, tolerance: float = TOLERANCE) -> str:
    """One of VERDICTS, from the interval of (rival's time / this one's time)."""
    if not (math.isfinite(found.lo) and math.isfinite(found.hi)):
        return "AMBIGUOUS"
    if found.lo > 1 + tolerance:
        return "FASTER"
    if found.hi < 1 / (1 + tolerance):
        return "SLOWER"
    if found.lo >= 1 / (1 + tolerance) and found.hi <= 1 + tolerance:
        return "SAME"
    return "AMBIGUOUS"
