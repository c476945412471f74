"""The parts of README that a program writes: text between `<!-- NAME:begin -->` and `<!-- NAME:end -->`."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from . import disk
from .errors import TilescopeError
from .toolchain import ROOT

if TYPE_CHECKING:
    import pandas as pd

README = ROOT / "README.md"
PICTURE = ROOT / "analysis" / "pictures" / "tiled2d.png"


def fill(name: str, text: str, path: Path = README) -> None:
    """Replace what stands between the markers of a part. Raises TilescopeError where README has no such markers or cannot be written."""
    try:
        whole = path.read_text()
    except OSError as e:
        raise TilescopeError(f"cannot read {path}: {e.strerror}.") from e
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.S)
    if len(pattern.findall(whole)) != 1:
        raise TilescopeError(
            f"{path.name} must hold {begin} ... {end} once.", "Put the two markers where the text belongs."
        )
    changed = pattern.sub(lambda m: f"{begin}\n{text.strip()}\n{end}", whole)
    if changed != whole:
        disk.write(path, changed)


BOUNDS = ROOT / "profiles/recorded/h200/bounds_4096.csv"


def bound_and_time(size: int = 4096) -> pd.DataFrame:
    """Of every stage on the recorded H200: the bottleneck, its bound and the measured time in ms, and their ratio."""
    from . import survey
    from .ledger import Evidence

    table = survey.ladder(Evidence("h200"), size)
    table = table.assign(bound_ms=2e-9 * size**3 / table.attainable, measured_ms=table.ms)
    table["measured_over_bound"] = table.measured_ms / table.bound_ms
    return table[["stage", "bottleneck", "bound_ms", "measured_ms", "measured_over_bound"]]


def refresh() -> None:
    """Write the printed profile and the picture of README's first command, bounds beside recorded times, and recorded searches."""
    from . import device, plots, profiling, record, report, tune

    profile = profiling.profile("tiled2d", record=False)
    fill("profile", f"```text\n{report.render(profile)}```")
    table = bound_and_time()
    disk.write(BOUNDS, table.to_csv(index=False, float_format="%.4g"))
    rows = "\n".join(
        f"| `{r.stage}` | {r.bottleneck} | {r.bound_ms:.3g} | {r.measured_ms:.4g} | {r.measured_over_bound:.2f} |"
        for r in table.itertuples()
    )
    fill(
        "bounds", f"| | bottleneck | at least, ms | measured, ms | measured / bound |\n|---|---|---:|---:|---:|\n{rows}"
    )
    shipped = record.PROFILES / "recorded"
    fill("searches", tune.markdown([run for run in tune.searches(device.find("h200")) if shipped in run.path.parents]))
    picture = io.BytesIO()
    plots.overview(profile, line="a[i] = As").savefig(picture, format=PICTURE.suffix[1:])
    disk.write(PICTURE, picture.getvalue())
    fill("picture", f"![Which banks a warp reads, and what bounds tiled2d]({PICTURE.relative_to(ROOT)})")
