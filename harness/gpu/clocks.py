"""What the GPU's clock, power and temperature did meanwhile, through NVML. Without NVML: no readings, and a flag that says so."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from ..measurement import CAPPED, THROTTLED, Point, Telemetry
from .devices import Gpu

PERIOD = 0.02
"""Seconds between readings."""
IDLE_PERCENT = 5
"""Utilisation up to which a GPU counts as idle."""
REASONS = {
    0x4: CAPPED,  # software power cap
    0x80: THROTTLED,  # hardware power brake
    0x8: THROTTLED,  # hardware slowdown
    0x20: THROTTLED,  # software thermal slowdown
    0x40: THROTTLED,  # hardware thermal slowdown
    0x2: "locked-clock",  # applications clocks setting
}
"""Bits of NVML's clocks-event reasons (nvml.h, nvmlClocksEventReasons) and the flag each of them raises."""


class Monitor:
    """NVML's view of a GPU. Every method works without NVML, and then knows nothing."""

    def __init__(self, gpu: Gpu) -> None:
        self.handle: Any = None
        self.trouble = ""
        try:
            import pynvml

            pynvml.nvmlInit()
            self.nvml = pynvml
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        except Exception as e:  # the package missing, no library, no permission, an unknown UUID
            self.trouble = str(e) or type(e).__name__

    def _ask(self, *names: str, arguments: tuple = (), default: Any = math.nan) -> Any:
        """The first of NVML's functions that this version has and this GPU answers."""
        for name in names if self.handle is not None else ():
            try:
                return getattr(self.nvml, name)(self.handle, *arguments)
            except Exception:  # NVMLError, or a function this version does not have
                continue
        return default

    def clock_mhz(self) -> float:
        return float(self._ask("nvmlDeviceGetClockInfo", arguments=(1,)))  # NVML_CLOCK_SM

    def max_clock_mhz(self) -> float:
        return float(self._ask("nvmlDeviceGetMaxClockInfo", arguments=(1,)))

    def application_mhz(self) -> float:
        """The clock that applications were set to, NaN where none was: the GPU's default is no such setting."""
        now = float(self._ask("nvmlDeviceGetApplicationsClock", arguments=(1,)))
        usual = float(self._ask("nvmlDeviceGetDefaultApplicationsClock", arguments=(1,)))
        return math.nan if now == usual else now

    def mig(self) -> bool:
        """Whether the GPU is split by MIG."""
        return bool(self._ask("nvmlDeviceGetMigMode", default=(0, 0))[0])

    def power_w(self) -> float:
        """Board power, W: an average over up to a second on recent GPUs."""
        return float(self._ask("nvmlDeviceGetPowerUsage")) / 1e3

    def temperature_c(self) -> float:
        return float(self._ask("nvmlDeviceGetTemperature", arguments=(0,)))  # NVML_TEMPERATURE_GPU

    def reasons(self) -> int:
        """NVML's reasons for the present clock, as bits."""
        return int(
            self._ask("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons", default=0)
        )

    def driver(self) -> str:
        """The driver's version, '580.159.04', or nothing."""
        if self.handle is None:
            return ""
        try:
            found = self.nvml.nvmlSystemGetDriverVersion()
        except Exception:
            return ""
        return found.decode() if isinstance(found, bytes) else str(found)

    def busy(self, patience: float = 2.0) -> str:
        """What else keeps the GPU busy, in words, or nothing. Ask before putting work on it.

        NVML's figure is of up to the last second: what ended just before is waited out, up to `patience` s.
        """
        deadline = time.monotonic() + patience
        while (load := getattr(self._ask("nvmlDeviceGetUtilizationRates", default=None), "gpu", 0)) > IDLE_PERCENT:
            if time.monotonic() > deadline:
                mine = os.getpid()
                others = [p for p in self._ask("nvmlDeviceGetComputeRunningProcesses", default=[]) if p.pid != mine]
                return f"the GPU is {load} % busy" + (f" with {len(others)} other processes" if others else "")
            time.sleep(0.2)
        return ""

    def cool(self, target: float, note: Callable[[str], None], patience: float = 180.0) -> bool:
        """Wait until the GPU is at most `target` degrees C warm; whether it got there within the patience (s)."""
        start = time.monotonic()
        while (now := self.temperature_c()) > target:
            if time.monotonic() - start > patience:
                return False
            note(f"waiting for the GPU to cool from {now:.0f} to {target:g} degrees C")
            time.sleep(0.5)
        return True


class Sampler:
    """Reads the GPU's state from a thread while the block runs. One sampler can be entered again: readings add up."""

    def __init__(self, monitor: Monitor, period: float = PERIOD) -> None:
        self.monitor, self.period, self.telemetry = monitor, period, Telemetry()
        self._start = time.monotonic()

    def __enter__(self) -> Sampler:
        self._stop = threading.Event()
        self._thread = None
        if self.monitor.handle is not None:
            self._thread = threading.Thread(target=self._run, name="tilescope-nvml", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._read()
            self._stop.wait(self.period)

    def _read(self) -> None:
        t, m = self.telemetry, self.monitor
        t.seconds.append(time.monotonic() - self._start)
        t.clock_mhz.append(m.clock_mhz())
        t.power_w.append(m.power_w())
        t.temperature_c.append(m.temperature_c())
        t.reasons.append(m.reasons())


def flag(point: Point) -> None:
    """Raise a point's flags for what its telemetry shows. One reading in twenty is let pass: the clock's steps show as such."""
    t = point.telemetry
    if not any(math.isfinite(c) for c in t.clock_mhz):
        point.flag("no-telemetry")
        return
    for bit, name in REASONS.items():
        if sum(bool(r & bit) for r in t.reasons) > len(t.reasons) / 20:
            point.flag(name)
