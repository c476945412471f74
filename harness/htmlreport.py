"""`make report`: recorded runs as one self-contained HTML page, with findings first, that works with no network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import definition, disk, record
from .environment import ROOT
from .errors import TilescopeError

if TYPE_CHECKING:
    from .html.page import Content
    from .record import Run

REPORTS = ROOT / "reports"


def write(run: str | Path | None = None, name: str | None = None, out: str | Path | None = None) -> Path:
    """Write the page of a run (directory or id), or of all runs of an experiment by its name; gives the page's path.

    out: the file, by default reports/NAME.html, or for a run what it is and its id: reports/profile-tiled2d-512-RUN.html; a page
    there is replaced. Raises TilescopeError where there is no such run or experiment, a run is damaged, or the page cannot be
    written.
    """
    from .html.page import render

    if bool(run) == bool(name):
        raise TilescopeError(
            "report needs RUN or NAME, and not both.", "RUN= is a run directory or id, NAME= an experiment."
        )
    runs = [record.load(run)] if run else experiment(str(name))
    stem = _stem(runs[0]) if run else runs[0].path.parent.parent.name
    path = Path(out).expanduser() if out else REPORTS / f"{stem}.html"
    disk.check(path, "OUT", parents=True)
    disk.write(path, render(single(runs[0]) if run else several(stem, runs)), "OUT")
    return path


def _stem(run: Run) -> str:
    """A page's name: the run's kind, stage or experiment, size, and the id, which begins with the date."""
    m = run.manifest
    points = m["points"] if isinstance(m.get("points"), list) else [m["problem"]] if m.get("problem") else []
    timed = list(dict.fromkeys(p["stage"] for p in points if p.get("stage") and p["stage"] != p.get("rival")))
    sizes = list(
        dict.fromkeys(f"{p['m']}" if p["m"] == p["n"] == p["k"] else f"{p['m']}x{p['n']}x{p['k']}" for p in points)
    )
    what = m.get("experiment") or m.get("stage") or (timed[0] if len(timed) == 1 else "")
    words = [m.get("kind"), what, sizes[0] if len(sizes) == 1 else "", run.id]
    return re.sub(r"[^\w.-]", "_", "-".join(filter(None, words)))


def experiment(name: str) -> list[Run]:
    """The runs of an experiment, by its name or the path of its folder, oldest first. Raises TilescopeError if it has none."""
    folder = definition.find(name).parent
    found = sorted(folder.glob("runs/*/manifest.json"))
    if not found:
        raise TilescopeError(f"experiment {name} has no recorded run.", f"Run it: make experiment NAME={name}")
    return [record.load(p.parent) for p in found]


def single(run: Run) -> Content:
    """The page of one run, by its kind; of a kind that has no page of its own, the points and values it holds."""
    from .html import experiments, others, profiles, timings, tuning

    pages = {
        "profile": profiles.page, "ladder": timings.page, "time": timings.page, "roofs": others.roofs, "ledger": others.ledger,
        "experiment": experiments.page, "tune": tuning.page,
    }  # fmt: skip
    content = pages.get(run.manifest.get("kind", ""), others.other)(run)
    content.date = _date(run)
    return content


def _date(run: Run) -> str:
    """The day a run was started."""
    return str(run.manifest.get("started") or "")[:10]


def several(name: str, runs: Sequence[Run]) -> Content:
    """The page of an experiment: what its runs found, a table of all points, a plot to explore them, then run by run."""
    from .html import others

    content = others.several(name, runs)
    content.date = max(map(_date, runs))
    return content
