"""The one exception a person is meant to read."""

from __future__ import annotations

from typing import Any


class TilescopeError(Exception):
    """Bad input or a missing tool: what was wrong and where, then what to do about it.

    The command line prints it as `error: WHAT` and `       REMEDY`, and exits with status 2.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n{self.remedy}" if self.remedy else self.what


class NotCompiled(TilescopeError):
    """nvcc refuses a source, as it stands: on any machine."""


class NotRecorded(TilescopeError):
    """A run was computed but could not be recorded, as on a full disk: `result` is what was computed."""

    def __init__(self, error: TilescopeError, result: Any, remedy: str = "") -> None:
        super().__init__(f"the run was not recorded: {error.what}", f"{error.remedy} {remedy}".strip())
        self.result = result


def nearest(word: str, known: list[str]) -> str:
    """' Did you mean X?' for the nearest of the known words, or nothing."""
    import difflib

    if len(word) < 2:  # every other letter would do
        return ""
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {match[0]}?" if match else ""
