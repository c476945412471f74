"""Nsight Compute: build its command, run it, read its report into the tables."""

from .collecting import Collection, collect
from .invocation import Ncu, Options, command, find, groups, launch_words, quoted
from .failures import Unavailable
from .sanity import check, why
from .reading import Counted, read

__all__ = [
    "Collection", "Counted", "Ncu", "Options", "Unavailable", "check", "collect", "command", "find", "groups", "launch_words",
    "quoted", "read", "why",
]  # fmt: skip
