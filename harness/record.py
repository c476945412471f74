"""Run directories: one record format for profile, time, ladder, tune and experiment.

A run is a directory that is written once, whole, and never changed:

    manifest.json      what was run and on what: `format`, `id`, `kind`, and whatever the kind adds
    runs.parquet       run -> stage, problem, tunables, arch, device, versions, hashes; a row a point
    values.parquet     run, launch, metric, pc, value, unit, source; pc empty: a whole launch; launch empty: all of them
    samples.parquet    of what was timed: every sample; telemetry.parquet: clock, power and temperature meanwhile
    lines.parquet      binary, kernel, pc -> opcode, file, line, text
    sass.txt, kernel.cubin, profile.txt, the kernel's sources and others, as the kind has them
    checksums.sha256   of all of the above, as sha256sum -c reads it
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import math
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import disk
from .environment import ROOT
from .errors import NotRecorded, TilescopeError

if TYPE_CHECKING:
    import pandas as pd

PROFILES = ROOT / "profiles"
FORMAT = 1
CHECKSUMS = "checksums.sha256"
PRINTED = ("profile.txt", "roofs.txt", "ledger.txt")
"""What a verb printed; a run holds one of them."""
PARTIAL = ".partial-"
STALE_SECONDS = 60
"""A temporary younger than this may have an owner that has not locked it yet."""

VALUES = {
    "run": "str",
    "launch": "str",
    "metric": "str",
    "pc": "Int64",
    "value": "float64",
    "unit": "str",
    "source": "str",
}
LINES = {
    "binary": "str",
    "kernel": "str",
    "pc": "Int64",
    "opcode": "str",
    "file": "str",
    "line": "Int64",
    "text": "str",
}


@dataclass(repr=False)
class Run:
    """A recorded run. The frames are read when first asked for."""

    path: Path
    manifest: dict[str, Any]

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.manifest['kind']} in {self.path}>"

    @property
    def id(self) -> str:
        return self.manifest["id"]

    @cached_property
    def runs(self) -> pd.DataFrame:
        return self.table("runs")

    @cached_property
    def values(self) -> pd.DataFrame:
        """Columns of VALUES."""
        return self.table("values")

    @cached_property
    def lines(self) -> pd.DataFrame:
        """Columns of LINES."""
        return self.table("lines")

    def table(self, name: str) -> pd.DataFrame:
        """A Parquet table of the run by name. Raises TilescopeError if it has none or it cannot be read."""
        import pandas as pd

        path = self.path / f"{name}.parquet"
        try:
            return pd.read_parquet(path)
        except FileNotFoundError:
            raise TilescopeError(f"run {self.path} has no table {name}.") from None
        except Exception as e:  # pyarrow raises many kinds
            raise TilescopeError(f"{path} cannot be read: {e}.", "The run is damaged; record it again.") from e

    def text(self, name: str) -> str:
        """The contents of a text file of the run. Raises TilescopeError if it has none."""
        try:
            return (self.path / name).read_text()
        except FileNotFoundError:
            raise TilescopeError(f"run {self.path} has no {name}.") from None

    def printed(self) -> str:
        """What the verb that recorded the run printed. Raises TilescopeError where the run does not hold it."""
        for name in PRINTED:
            if (self.path / name).is_file():
                return self.text(name)
        raise TilescopeError(
            f"run {self.path} does not hold what was printed.",
            f"Its page: make report RUN={shlex.quote(str(self.path))}",
        )


def new_id(*parts: object) -> str:
    """A run's id: UTC start time and a short hash of what was run, of this process and of the moment."""
    now = time.time_ns()
    digest = hashlib.sha256(repr((parts, os.getpid(), now, secrets.token_hex(4))).encode()).hexdigest()[:8]
    return f"{datetime.fromtimestamp(now // 10**9, UTC):%Y%m%dT%H%M%SZ}-{digest}"


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as UTC, ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def destination(out: str | Path | None, stage: str, run: str) -> Path:
    """Where a run will be: `out` itself, or profiles/STAGE/RUN.

    Leaves nothing behind. Raises TilescopeError if something is there already or the place cannot be written, so that this is
    known before the work and not after it.
    """
    named = os.path.realpath(Path(out).expanduser()) if out else None
    path = Path(named) if named else PROFILES / re.sub(r"[^\w.-]", "_", stage).lstrip(".") / run
    with disk.explained(f"OUT={path}", "OUT"):
        _refuse_existing(path)
        disk.probe(path)
    return path


def _refuse_existing(path: Path) -> None:
    if path.is_dir():
        if any(path.iterdir()):
            raise TilescopeError(
                f"OUT={path} exists and is not empty.", "A run is never overwritten: choose a new folder."
            )
        if os.path.ismount(path):
            raise TilescopeError(
                f"OUT={path} is a mount point, which a run cannot replace.", "Choose a folder inside it."
            )
    elif path.is_symlink() or path.exists():
        raise TilescopeError(f"OUT={path} is a file.", "Choose a new folder.")


def frame(columns: Mapping[str, str], data: Any) -> pd.DataFrame:
    """Rows as a frame with exactly these columns and types: VALUES or LINES."""
    import pandas as pd

    table = data if isinstance(data, pd.DataFrame) else pd.DataFrame(data, columns=list(columns))
    return table[list(columns)].astype(dict(columns))


def write(
    path: Path,
    manifest: Mapping[str, Any],
    tables: Mapping[str, pd.DataFrame],
    files: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Write a run directory at `path` (from `destination`): all of it or none, and never over another.

    manifest: must hold `id` and `kind`; `format` is added. tables: runs, values, lines, and others a kind may have.
    files: other contents by name. Raises TilescopeError where the disk is full or the place cannot be written. What was computed is
    recorded with `save`.
    """
    contents: dict[str, bytes] = {"manifest.json": _json({"format": FORMAT, **manifest})}
    for name, table in tables.items():
        contents[f"{name}.parquet"] = _parquet(table)
    for name, data in (files or {}).items():
        contents[name] = data.encode() if isinstance(data, str) else data
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    contents[CHECKSUMS] = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode()

    with disk.explained(f"OUT={path}", "OUT"), disk.above(path), _partial(path.parent) as work:
        for name, data in contents.items():
            _write_file(work / name, data)
        _sync(work)
        try:
            os.rename(work, path)
        except OSError as e:
            if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise TilescopeError(
                f"OUT={path} was written by another run meanwhile.", "A run is never overwritten: choose a new folder."
            ) from e
        _sync(path.parent)
    return path


@contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """A locked temporary folder for a run; gone after the block, unless it has another name by then."""
    _sweep(folder)
    work = folder / f"{PARTIAL}{secrets.token_hex(6)}"
    lock = -1
    try:
        work.mkdir()
        lock = _lock(work)
        yield work
    finally:
        if lock >= 0:
            os.close(lock)
        shutil.rmtree(work, ignore_errors=True)


def save(
    result: Any,
    path: Path,
    manifest: Mapping[str, Any],
    tables: Mapping[str, pd.DataFrame],
    files: Mapping[str, str | bytes] | None = None,
    remedy: str = "",
) -> None:
    """`write` what was computed, and set its `path`. Raises NotRecorded, which holds it, where that fails; remedy: what else helps."""
    try:
        result.path = write(path, manifest, tables, files)
    except TilescopeError as e:
        raise NotRecorded(e, result, remedy) from e


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(plain(data), indent=1, allow_nan=False) + "\n").encode()


def plain(data: Any) -> Any:
    """Data that JSON can hold: numpy numbers as Python's, NaN and infinity as None, tuples and arrays as lists."""
    if isinstance(data, Mapping):
        return {str(k): plain(v) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain(x) for x in data]
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if hasattr(data, "tolist"):
        return plain(data.tolist())
    return data if data is None or isinstance(data, (bool, int, str)) else str(data)


def _parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False, compression="zstd")
    return buffer.getvalue()


def _write_file(path: Path, data: bytes) -> None:
    with open(path, "xb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock(folder: Path) -> int:
    """An open, locked descriptor of a folder: held as long as its writer lives. -1 where the file system has no locks."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd


def _sweep(folder: Path) -> None:
    """Remove temporaries whose writer has died."""
    for stale in folder.glob(f"{PARTIAL}*"):
        try:
            if time.time() - stale.stat().st_mtime < STALE_SECONDS:
                continue
            lock = _lock(stale)
        except OSError:
            continue
        if lock >= 0:
            shutil.rmtree(stale, ignore_errors=True)
            os.close(lock)


def load(run: str | Path, check: bool = True) -> Run:
    """A recorded run, by its directory or its id (or the hash that the id ends in).

    check: compare every file with its checksum. Raises TilescopeError for a run that is missing, truncated, altered, or
    made by a newer version.
    """
    path = locate(run)
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        number = int(manifest["format"])
    except FileNotFoundError:
        raise TilescopeError(f"{path} is not a run: it has no manifest.json.") from None
    except OSError as e:
        raise TilescopeError(f"cannot read run {path}: {e.strerror}.") from e
    except (ValueError, KeyError, TypeError):
        raise TilescopeError(f"run {path} is damaged: its manifest.json cannot be read.", "Record it again.") from None
    if number > FORMAT:
        raise TilescopeError(
            f"run {path} was made by a newer Tilescope (record format {number}; this one reads up to {FORMAT}).",
            "Update the checkout.",
        )
    if check:
        verify(path)
    return Run(path, manifest)


def verify(path: Path) -> None:
    """Compare every file of a run with its checksum. Raises TilescopeError naming the files that are missing or altered."""
    try:
        sums = [line.split("  ", 1) for line in (path / CHECKSUMS).read_text().splitlines()]
        expected = {name: digest for digest, name in sums}
    except (OSError, ValueError):
        raise TilescopeError(
            f"run {path} is damaged: {CHECKSUMS} is missing or cannot be read.", "Record it again."
        ) from None
    wrong = [] if "manifest.json" in expected else [f"manifest.json is not in {CHECKSUMS}"]
    for name, digest in expected.items():
        try:
            data = (path / name).read_bytes()
        except OSError:
            wrong.append(f"{name} is missing")
            continue
        if hashlib.sha256(data).hexdigest() != digest:
            wrong.append(f"{name} was altered or cut short")
    if wrong:
        raise TilescopeError(f"run {path} is damaged: {'; '.join(wrong)}.", "Record it again, or restore it.")


def locate(run: str | Path) -> Path:
    """The directory of a run given by path, id, or the hash at the id's end. Raises TilescopeError if there is none, or several."""
    path = Path(run).expanduser()
    if path.is_dir():
        return path
    name = str(run)
    found = [] if "/" in name or not name else [p for p in runs() if p.name == name or p.name.endswith(f"-{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise TilescopeError(f"several runs are called {name}: {', '.join(map(str, found))}.", "Give the directory.")
    raise TilescopeError(
        f"no run {name}.", "Give a run directory, or the id of a run in profiles/ or experiments/*/runs/."
    )


def runs() -> list[Path]:
    """Directories of every run under profiles/ and experiments/*/runs/, oldest id first."""
    manifests = [*PROFILES.glob("**/manifest.json"), *ROOT.glob("experiments/*/runs/*/manifest.json")]
    found = (m.parent for m in manifests if not any(part.startswith(PARTIAL) for part in m.parts))
    return sorted(found, key=lambda p: p.name)
