"""The parts of README that a program writes: text between `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""

from __future__ import annotations

import re
from pathlib import Path

from .errors import TilescopeError
from .toolchain import ROOT

README = ROOT / "README.md"
PICTURE = ROOT / "analysis" / "pictures" / "tiled2d.png"


def fill(name: str, text: str, path: Path = README) -> None:
    """Replace what stands between the markers of a part. Raises TilescopeError where README has no such markers."""
    whole = path.read_text()
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.S)
    if len(pattern.findall(whole)) != 1:
        raise TilescopeError(
            f"{path.name} must hold {begin} ... {end} once.", "Put the two markers where the text belongs."
        )
    changed = pattern.sub(lambda m: f"{begin}\n{text.strip()}\n{end}", whole)
    if changed != whole:
        path.write_text(changed)


def refresh() -> None:
    """Write the printed profile and the picture of README's first command."""
    from . import plots, profiling, report

    profile = profiling.profile("tiled2d", record=False)
    fill("profile", f"```text\n{report.render(profile)}```")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    plots.overview(profile, line="a[i] = As").savefig(PICTURE)
    fill("picture", f"![Which banks a warp reads, and what bounds tiled2d]({PICTURE.relative_to(ROOT)})")
