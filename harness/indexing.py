"""`make index`: every run under profiles/ and experiments/*/runs/ in one table; or, with points, every point of them.

A manifest is read once: what the table says of a run is kept in the cache, by the manifest's path, time and size, since a run
never changes. Points come from the runs' tables directly.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import record
from .toolchain import cache_root

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("run", "kind", "what", "device", "backend", "points", "ok", "started", "ended", "commit", "path")
"""what: the stage or the experiment; points: rows of its table of runs; path: relative to the checkout."""
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
CACHE_FORMAT = 1


def index(points: bool = False, root: Path | None = None) -> pd.DataFrame:
    """Every run, oldest first, columns of COLUMNS; or every point of every run, columns of POINTS. Damaged runs are left out.

    root: a checkout; by default this one. Checksums are not looked at: harness.load does that.
    """
    import pandas as pd

    root = root or record.ROOT
    found = list(_manifests(root))
    if points:
        return _points(root, [Path(path).parent for path, _ in found])
    rows = list(filter(None, _described(root, found)))
    return pd.DataFrame(rows, columns=list(COLUMNS)).sort_values(["started", "run"], ignore_index=True)


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
        stamp = [status.st_mtime_ns, status.st_size, status.st_ino]
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
    part = store.with_name(f".{store.name}.{os.getpid()}")
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(data))
        os.replace(part, store)
    except OSError:
        part.unlink(missing_ok=True)


def _row(path: str, root: Path) -> list | None:
    try:
        with open(path, "rb") as f:
            m = json.load(f)
        git = (m.get("environment") or {}).get("git") or {}
        what = m.get("experiment") or m.get("stage") or _stages(m) or m["kind"]
        device = ", ".join(m["devices"]) if m.get("devices") else m.get("device")
        count = m["points"] if isinstance(m.get("points"), int) else len(m.get("points") or [None])
        return [
            m["id"], m["kind"], what, device, m.get("backend"), count, m.get("ok"), m.get("started"), m.get("ended"),
            (git.get("commit") or "")[:12], os.path.relpath(os.path.dirname(path), root),
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _stages(m: dict[str, Any]) -> str:
    """The stages that a run of `time` or `ladder` timed."""
    return ", ".join(dict.fromkeys(p["stage"] for p in m.get("points") or [] if isinstance(p, dict) and "stage" in p))


def _points(root: Path, folders: Sequence[Path]) -> pd.DataFrame:
    """Every row of every table of runs that has a stage."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.string()
    kinds = {"m": pa.int64(), "n": pa.int64(), "k": pa.int64(), "ok": pa.bool_()}
    tables = []
    for folder in folders:
        try:
            with pq.ParquetFile(folder / "runs.parquet") as f:
                have = [c for c in POINTS if c in f.schema_arrow.names]
                if "stage" not in have:
                    continue
                table = f.read(have, use_threads=False)
            place = pa.repeat(os.path.relpath(folder, root), table.num_rows)
            columns = [
                place if c == "path" else table[c].cast(kinds.get(c, text)) if c in have else pa.nulls(table.num_rows, kinds.get(c, text))
                for c in POINTS
            ]  # fmt: skip
            tables.append(pa.table(columns, names=list(POINTS)))
        except (OSError, pa.ArrowException):
            continue
    if not tables:
        return pd.DataFrame(columns=list(POINTS))
    return pa.concat_tables(tables).to_pandas().sort_values(["started", "run"], ignore_index=True)
