"""Where a person's results go: whether that can be written is known before the work, and it is written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import TilescopeError

FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is full",
    errno.EFBIG: "files may not be that large here (ulimit -f)",
}
"""What is wrong where there is too little room, by errno."""
ELSE = {
    errno.ENOTDIR: "a file stands where its folder must be",
    errno.EISDIR: "it is a folder",
}


@contextmanager
def explained(what: str | Path, option: str = "", remedy: str = "") -> Iterator[None]:
    """Turns an OSError of the block into a TilescopeError: what cannot be written, why, and the remedy: room, or another place with
    OPTION=, and what else is given."""
    try:
        yield
    except OSError as e:
        why = FULL.get(e.errno) or ELSE.get(e.errno) or e.strerror or e
        if e.errno in FULL:
            usual = f"Make room, or choose another disk with {option}=." if option else "Make room."
        else:
            usual = f"Choose a writable place with {option}=." if option else ""
        raise TilescopeError(f"cannot write {what}: {why}.", f"{usual} {remedy}".strip()) from e


def check(target: str | Path, option: str, parents: bool = False) -> None:
    """Raises TilescopeError where OPTION=target is no file that can be written. parents: `write` makes its folder."""
    path = Path(target).expanduser()
    with explained(f"{option}={target}", option):
        if path.is_dir():
            raise OSError(errno.EISDIR, "")
        if path.exists() and not os.access(path, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        if path.is_file() or not path.exists():
            probe(Path(os.path.realpath(path)), parents)


def probe(path: Path, parents: bool = True) -> None:
    """Raises OSError where nothing can be written beside a path, or, where its folder is still to be made, in what is there of the
    folders above. Leaves nothing behind."""
    folder = next(p for p in path.parents if p.exists()) if parents else path.parent
    try:
        with _temporary(folder, b"\0"):
            pass
    except FileNotFoundError:
        why = f"{folder} takes no new files" if folder.is_dir() else f"there is no folder {folder}"
        raise FileNotFoundError(errno.ENOENT, why) from None


def write(target: str | Path, data: str | bytes, option: str = "") -> None:
    """Write a file, and the folders above it: all of it or nothing. A device or a pipe is written to and never replaced, a link
    followed. Raises TilescopeError where it cannot be written."""
    path = Path(target).expanduser()
    data = data.encode() if isinstance(data, str) else data
    with explained(f"{option}={target}" if option else path, option):
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        path = Path(os.path.realpath(path))
        with above(path), _temporary(path.parent, data) as part:
            os.replace(part, path)


@contextmanager
def above(path: Path) -> Iterator[None]:
    """Makes the folders above a path; where the block fails, those that were not there are gone again."""
    made = [p for p in path.parents if not p.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


@contextmanager
def _temporary(folder: Path, data: bytes) -> Iterator[Path]:
    """A file in a folder that holds the data; gone after the block, unless it has another name by then."""
    part = folder / f".{os.urandom(6).hex()}"
    try:
        part.write_bytes(data)
        yield part
    finally:
        with suppress(OSError):
            part.unlink()
