"""The GPU-less backend: executes the compiled machine code (SASS) and counts what the hardware would count."""

from .faults import Fault
from .memory import Arena
from .simulate import LaunchCounts, NotSimulated, Simulation, run, trace

__all__ = ["Arena", "Fault", "LaunchCounts", "NotSimulated", "Simulation", "run", "trace"]
