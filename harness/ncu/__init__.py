"""Nsight Compute: build its command, run it, read its report into the tables."""

from .collecting import Collection, collect
from .failures import Unavailable
from .invocation import REASONS, STALL, Ncu, Options, command, find, groups, quoted
from .reading import Counted, read
from .sanity import Marks, check, why

__all__ = [
    "REASONS", "STALL", "Collection", "Counted", "Marks", "Ncu", "Options", "Unavailable", "check", "collect", "command", "find", "groups",
    "quoted", "read", "why",
]  # fmt: skip
