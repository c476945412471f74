"""The journal of an experiment that is under way: a line a finished point, on disk before the next point begins.

A process killed at any moment leaves whole lines and at most a part of one, which the next start cuts off. One process at a
time holds a journal; it is removed once the run directory is written.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from . import disk
from .errors import TilescopeError

KEPT = "What was measured is kept: the same command goes on from there."


def hold(descriptor: int, doing: str) -> None:
    """Lock a file or a folder until it is closed. Raises TilescopeError where another process is `doing` the same."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TilescopeError(f"another process is {doing}.", "Wait for it, or end it.") from None
    except OSError:
        pass  # a file system without locks


class Journal:
    """Entries by key, those found on opening included. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Journal:
        """Raises TilescopeError where another process holds the journal, or it cannot be written."""
        with disk.explained(self.path, "OUT"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b", buffering=0)
        try:
            hold(self._file.fileno(), f"running this experiment ({self.path.name} is held)")
        except TilescopeError:
            self._file.close()
            raise
        if not os.fstat(self._file.fileno()).st_nlink:  # it was removed between opening and locking
            self._file.close()
            return self.__enter__()
        self._read()
        return self

    def __exit__(self, *error: object) -> None:
        if not self.entries:
            self.done()
        self._file.close()

    def _read(self) -> None:
        """Take the whole lines in, and cut off whatever follows the last of them that can be read."""
        self._file.seek(0)
        good = 0
        for line in self._file.readall().splitlines(keepends=True):
            try:
                entry = json.loads(line)
                key, data = entry["key"], entry["data"]
            except (ValueError, KeyError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            self.entries[key] = data
            good += len(line)
        self._file.truncate(good)
        self._file.seek(good)

    def add(self, key: str, data: dict[str, Any]) -> None:
        """Write an entry down and wait until the disk has it. Raises TilescopeError where it does not fit; what was there stays."""
        at = self._file.seek(0, os.SEEK_END)
        line = memoryview(json.dumps({"key": key, "data": data}, default=_number).encode() + b"\n")
        with disk.explained(self.path, remedy=KEPT):
            try:
                while line:
                    line = line[self._file.write(line) :]
                os.fsync(self._file.fileno())
            except OSError:
                self._file.truncate(at)
                raise
        self.entries[key] = data

    def done(self) -> None:
        """Remove the journal: its entries are in a run now."""
        self.path.unlink(missing_ok=True)


def _number(value: Any) -> Any:
    """numpy's numbers as Python's."""
    return value.item() if hasattr(value, "item") else str(value)
