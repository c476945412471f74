"""Tilescope: what a CUDA matrix-multiplication kernel does with the hardware, on a machine with a GPU or without one.

    profile = harness.profile("tiled2d", size=512)    profile.values, profile.lines: frames; profile.to_json(): a dict
    verdicts = harness.verify("tiled2d", BM=128)
    timings = harness.time("tiled2d", sizes=[1024])   on a GPU: timings.table, timings.samples; harness.ladder() for all stages
    found = harness.experiment("traffic")             found.table, found.claims; harness.reproduce(run) measures a recorded one again
    runs = harness.index()                            every recorded run in one frame; harness.trace("tiled", tile=2)
    run = harness.load("profiles/tiled2d/...")        run.manifest, run.runs, run.values, run.lines

Nothing is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparison import compare
    from .errors import NotRecorded, TilescopeError
    from .experiments import experiment
    from .indexing import index
    from .profiling import profile
    from .record import load
    from .reproduction import reproduce
    from .timings import ladder, time
    from .tracing import trace
    from .verification import verify

__all__ = [
    "NotRecorded", "TilescopeError", "compare", "experiment", "index", "ladder", "load", "profile", "reproduce", "time", "trace", "verify",
]  # fmt: skip
_HOMES = {
    "profile": "profiling", "verify": "verification", "load": "record", "TilescopeError": "errors", "NotRecorded": "errors", "time": "timings",
    "ladder": "timings", "compare": "comparison", "experiment": "experiments", "reproduce": "reproduction", "index": "indexing",
    "trace": "tracing",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
