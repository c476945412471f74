"""`make index`: every run under profiles/ and experiments/*/runs/ in one table; or, with points, every point of them.

A manifest is read once: what the table says of a run is kept in the cache, by the manifest's path, time and size, since a run
never changes. Points come from the runs' tables directly.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import disk, record
from .errors import TilescopeError
from .toolchain import cache_root

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("run", "kind", "what", "device", "backend", "points", "ok", "started", "ended", "commit", "path")
"""what: the experiment, or the stage and its problem's size; points: rows of its table of runs; path: relative to the checkout."""
POINTS = (
    "run",
    "kind",
    "experiment",
    "stage",
    "m",
    "n",
    "k",
    "tunables",
    "device",
    "backend",
    "sass",
    "ok",
    "started",
    "path",
)
CACHE_FORMAT = 2


def index(points: bool = False, root: Path | None = None) -> pd.DataFrame:
    """Every run, oldest first, columns of COLUMNS; or every point of every run, columns of POINTS.

    Runs that cannot be read are left out, and `attrs["warnings"]` names them, and runs with one id. root: a checkout; by
    default this one. Checksums are not looked at: harness.load does that.
    """
    import pandas as pd

    root = root or record.ROOT
    found = list(_manifests(root))
    described = _described(root, found)
    unreadable = [path for (path, _), row in zip(found, described, strict=True) if row is None]
    runs = pd.DataFrame(list(filter(None, described)), columns=list(COLUMNS))
    runs = runs.sort_values(["started", "run"], ignore_index=True)
    table = _points(root, runs.path, unreadable) if points else runs
    table.attrs["warnings"] = [
        *(f"{os.path.relpath(path, root)} cannot be read: its run is left out." for path in sorted(unreadable)),
        *(f"{run} is the id of {' and of '.join(paths)}." for run, paths in runs.groupby("run").path if len(paths) > 1),
    ]
    return table


def _manifests(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every manifest.json below profiles/ and experiments/*/runs/, with its status."""
    todo = [str(root / "profiles"), *map(str, (root / "experiments").glob("*/runs"))]
    while todo:
        try:
            entries = list(os.scandir(todo.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.name == "manifest.json":
                try:
                    yield entry.path, entry.stat()
                except OSError:
                    pass
            elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                todo.append(entry.path)


def _described(root: Path, found: Sequence[tuple[str, os.stat_result]]) -> list[tuple | None]:
    """A row of COLUMNS for each manifest, or None for one that cannot be read."""
    store = cache_root() / "index.json"
    try:
        kept = json.loads(store.read_bytes())
        known = kept["runs"] if kept["format"] == CACHE_FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        known = {}
    rows, fresh = [], {}
    for path, status in found:
        stamp = [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]
        entry = known.get(path)
        if entry is None or entry[0] != stamp:
            entry = [stamp, _row(path, root)]
        fresh[path] = entry
        rows.append(entry[1] and tuple(entry[1]))
    if fresh != known:
        _keep(store, {"format": CACHE_FORMAT, "runs": {**_elsewhere(known, root), **fresh}})
    return rows


def _elsewhere(known: dict[str, Any], root: Path) -> dict[str, Any]:
    return {path: entry for path, entry in known.items() if not path.startswith(f"{root}{os.sep}")}


def _keep(store: Path, data: dict[str, Any]) -> None:
    """Write the cache, if it can be written."""
    with suppress(TilescopeError):
        disk.write(store, json.dumps(data))


def _row(path: str, root: Path) -> list | None:
    try:
        with open(path, "rb") as f:
            m = json.load(f)
        git = (m.get("environment") or {}).get("git") or {}
        what = m.get("experiment") or _stage(m) or _stages(m) or m["kind"]
        device = ", ".join(m["devices"]) if m.get("devices") else m.get("device")
        count = m["points"] if isinstance(m.get("points"), int) else len(m.get("points") or [None])
        return [
            m["id"], m["kind"], what, device, m.get("backend"), count, m.get("ok"), m.get("started"), m.get("ended"),
            (git.get("commit") or "")[:12], os.path.relpath(os.path.dirname(path), root),
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _stage(m: dict[str, Any]) -> str:
    """The one stage that a run is of, with the size of its problem: 'warptiled 1024', 'tiled 7x8x9'."""
    stage, problem = m.get("stage") or "", m.get("problem")
    return f"{stage} {size(*(problem[x] for x in 'mnk'))}" if stage and problem else stage


def size(m: int, n: int, k: int) -> str:
    """A problem's size as short as it can be said: '1024', or '7x8x9' where M, N and K differ."""
    return str(m) if m == n == k else f"{m}x{n}x{k}"


def _stages(m: dict[str, Any]) -> str:
    """The stages that a run of `time` or `ladder` timed."""
    return ", ".join(dict.fromkeys(p["stage"] for p in m.get("points") or [] if isinstance(p, dict) and "stage" in p))


def _points(root: Path, paths: Iterable[str], unreadable: list[str]) -> pd.DataFrame:
    """Every row of every table of runs that has a stage. Tables that cannot be read are added to `unreadable`."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.string()
    kinds = {"m": pa.int64(), "n": pa.int64(), "k": pa.int64(), "ok": pa.bool_()}
    tables = []
    for path in paths:
        try:
            with pq.ParquetFile(root / path / "runs.parquet") as f:
                have = [c for c in POINTS if c in f.schema_arrow.names]
                if "stage" not in have:
                    continue
                table = f.read(have, use_threads=False)
            place = pa.repeat(path, table.num_rows)
            columns = [
                place if c == "path" else table[c].cast(kinds.get(c, text)) if c in have else pa.nulls(table.num_rows, kinds.get(c, text))
                for c in POINTS
            ]  # fmt: skip
            tables.append(pa.table(columns, names=list(POINTS)))
        except (OSError, pa.ArrowException):
            unreadable.append(str(root / path / "runs.parquet"))
    if not tables:
        return pd.DataFrame(columns=list(POINTS))
    return pa.concat_tables(tables).to_pandas().sort_values(["started", "run"], ignore_index=True)
