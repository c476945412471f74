"""Pictures: each one function from frames to a matplotlib Figure, with units in the axes and the device in the caption.

Colours are from Okabe and Ito's palette, which colour-blind readers can tell apart and print keeps apart; what matters
is written beside the mark as well. `caption` says what was measured or simulated, and on what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from . import stage as stages
from .accesses import BANKS, KEYS, LANES
from .errors import TilescopeError
from .frames import contenders

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .device import Device
    from .profiling import Profile

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#999999"
SKY, YELLOW, PINK, AMBER = "#56B4E9", "#F0E442", "#CC79A7", "#E69F00"
CYCLE = (BLUE, ORANGE, GREEN, AMBER, SKY, PINK, "#000000", GREY)
MARKS = "osD^vPX*"
LIBRARIES = ("cublas", "cublaslt")
VERDICTS = {
    "holds": BLUE, "holds in part": SKY, "does not hold": ORANGE, "cannot be checked": GREY, "needs a GPU run": "#dddddd",
}  # fmt: skip
"""Colour of each verdict of harness.ledger."""
WORDS = ((1, SKY), (2, AMBER), (4, ORANGE), (8, "#8c3a00"), (16, "#4d1f00"), (32, "#000000"))
"""Colour by how many words a bank must serve: one is free, each more is a wavefront more."""


def _figure(
    width: float, height: float, columns: int = 1, rows: int = 1, caption: str = "", **options: object
) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    if caption:
        figure.supxlabel(caption, fontsize=8, color="#555555", wrap=True)
    return figure, list(axes.flat)


def _plain(ax: Axes, **labels: str) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_axisbelow(True)
    ax.set(**labels)


def _some(table: pd.DataFrame, what: str) -> None:
    """Raises TilescopeError where a frame is empty."""
    if table.empty:
        raise TilescopeError(f"nothing to draw: no {what}.")


def _names(
    ax: Axes, names: Sequence[str], x: Sequence[float], y: Sequence[float], line: float = 13, width: float = 90
) -> None:
    """Names beside points, moved down where they would lie on one another. line, width: of a name, in pixels."""
    ax.figure.draw_without_rendering()  # so that the limits are known
    placed: list[np.ndarray] = []
    at = ax.transData.transform(np.column_stack([np.asarray(x, float), np.asarray(y, float)]))
    for n in np.argsort(-at[:, 1], kind="stable"):
        spot = at[n].copy()
        for other in placed:
            if abs(other[0] - spot[0]) < width and other[1] - line < spot[1]:
                spot[1] = min(spot[1], other[1] - line)
        placed.append(spot)
        down = (spot[1] - at[n][1]) * 72 / ax.figure.dpi
        ax.annotate(names[n], (x[n], y[n]), (7, down - 3), textcoords="offset points", fontsize=7.5)


def ladder(table: pd.DataFrame, caption: str = "") -> Figure:
    """TFLOPS of every stage, a panel a size, with 95 % intervals and cuBLAS's share; libraries are grey.

    table: columns of harness.timings.COLUMNS. Raises TilescopeError where no row has a time.
    """
    table = table.dropna(subset=["ms"])
    _some(table, "timed stage")
    sizes = list(dict.fromkeys(zip(table.m, table.n, table.k, strict=True)))
    table = contenders(table)
    names = list(dict.fromkeys(table.stage))
    figure, axes = _figure(2.3 + 2.1 * len(sizes), 1.3 + 0.3 * len(names), len(sizes), caption=caption, sharey=True)
    for ax, size in zip(axes, sizes, strict=True):
        mine = table[(table.m == size[0]) & (table.n == size[1]) & (table.k == size[2])].drop_duplicates("stage")
        at = [names.index(name) for name in mine.stage]
        low, high = mine.tflops * (1 - mine.ms / mine.ms_hi), mine.tflops * (mine.ms / mine.ms_lo - 1)
        colours = [GREY if name in LIBRARIES else BLUE for name in mine.stage]
        bars = ax.barh(at, mine.tflops, xerr=[low, high], color=colours, error_kw={"capsize": 2, "elinewidth": 1})
        texts = [
            f"{x:.3g}" + (f" ({100 * r:.3g} %)" if np.isfinite(r) else "")
            for x, r in zip(mine.tflops, mine.ratio, strict=True)
        ]
        ax.bar_label(bars, texts, padding=4, fontsize=7)
        title = f"{size[0]:,}" if len(set(size)) == 1 else "x".join(map(str, size))
        _plain(ax, xlabel="TFLOPS", title=title, xlim=(0, 1.75 * table.tflops.max()))
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    figure.suptitle("TFLOPS by size; in brackets the speed in percent of cuBLAS's", fontsize=10)
    return figure


def roofline(
    points: pd.DataFrame, device: Device, widths: Mapping[str, float] | None = None, caption: str = ""
) -> Figure:
    """Stages under the roofs of a device, log-log.

    points: name, intensity (FLOP per byte that global loads move), tflops, and kind ('measured' or 'bound').
    widths: measured roofs: 'DRAM' and 'L2' in GB/s, 'FMA pipe' in lanes per SM and cycle; for those that are missing the
    device's data are drawn, dashed.
    """
    points = points.dropna(subset=["intensity", "tflops"])
    _some(points, "point with an intensity and a speed")
    widths = widths or {}
    peak = device.peak_tflops * widths.get("FMA pipe", device.fma_lanes) / device.fma_lanes
    figure, (ax,) = _figure(8, 4.8, caption=caption)
    low, high = points.intensity.min() / 4, max(points.intensity.max() * 4, 4e3 * peak / device.dram_gbs)
    x = np.geomspace(low, high, 200)
    for name, rate, colour in (("DRAM", widths.get("DRAM", device.dram_gbs), ORANGE), ("L2", widths.get("L2"), AMBER)):
        if rate:
            how = "measured" if name in widths else "data sheet"
            ax.plot(
                x,
                np.minimum(rate * x / 1e3, peak),
                color=colour,
                ls="-" if name in widths else "--",
                label=f"{name} {rate:,.0f} GB/s, {how}",
            )
    how = "measured" if "FMA pipe" in widths else "by its clock"
    ax.axhline(
        peak, color="#000000", ls="-" if "FMA pipe" in widths else "--", lw=1, label=f"fp32 {peak:.1f} TFLOPS, {how}"
    )
    for kind, face in (("bound", "none"), ("measured", BLUE)):
        mine = points[points.kind == kind]
        label = {"bound": "at most, by the largest bound", "measured": "measured"}[kind]
        if len(mine):
            ax.scatter(mine.intensity, mine.tflops, s=42, facecolors=face, edgecolors=BLUE, zorder=3, label=label)
    for _, both in points.groupby("name"):
        ax.plot(both.intensity, both.tflops, color=BLUE, lw=0.7, ls=":")
    _plain(
        ax, xscale="log", yscale="log", xlabel="FLOP per byte that global loads move", ylabel="TFLOPS", title="Roofline"
    )
    ax.set_ylim(points.tflops.min() / 3, peak * 1.6)
    ax.grid(color="#e5e5e5", lw=0.5)
    ax.legend(fontsize=8, loc="lower right")
    lowest = points.loc[points.groupby("name").tflops.idxmin()]
    _names(ax, list(lowest.name), list(lowest.intensity), list(lowest.tflops))
    return figure


def banks(
    before: pd.DataFrame,
    after: pd.DataFrame | None = None,
    titles: Sequence[str] = ("before", "after"),
    caption: str = "",
) -> Figure:
    """Bank by lane, a panel for each line's costliest shared access: which banks each lane wants, and how crowded they are.

    before, after: frames of harness.accesses.shared; a row of panels each.
    """
    from matplotlib.patches import Patch

    tables = [before] if after is None else [before, after]
    for table in tables:
        _some(table, "access to shared memory")
    groups = [list(table.groupby(KEYS)) for table in tables]
    columns = max(map(len, groups))
    figure, axes = _figure(3 * columns, 3.4 * len(tables), columns, len(tables), caption=caption)
    for row, (title, found) in enumerate(zip(titles, groups, strict=False)):
        panels = axes[row * columns : (row + 1) * columns]
        for ax in panels[len(found) :]:
            ax.set_visible(False)
        for ax, ((file, line, op), access) in zip(panels, found, strict=False):
            _lanes_by_bank(ax, access)
            one = access.iloc[0]
            ax.set_title(
                f"{Path(file).name}:{line} {op}\n{_short(one.text, 36)}\n{_times(one.wavefronts, one.ideal, 'wavefront')}",
                fontsize=8,
            )
        panels[0].set_ylabel(f"{title}\nlane of the warp")
    most = max(int(table.words.max()) for table in tables)
    handles = [Patch(color=c, label=f"{w} word{'s' * (w > 1)}") for w, c in WORDS if w == 1 or w < 2 * most]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=len(handles),
        fontsize=8,
        title="a bank serves at a time",
        title_fontsize=8,
    )
    return figure


def _lanes_by_bank(ax: Axes, access: pd.DataFrame) -> None:
    from matplotlib.colors import BoundaryNorm, ListedColormap

    grid = np.full((LANES, BANKS), np.nan)
    grid[access.lane.to_numpy(), access.bank.to_numpy()] = access.words.to_numpy()
    edges = [0.5, *(w - 0.5 for w, _ in WORDS[1:]), 64.5]
    ax.pcolormesh(np.arange(BANKS + 1) - 0.5, np.arange(LANES + 1) - 0.5, grid, cmap=ListedColormap([c for _, c in WORDS]),
                  norm=BoundaryNorm(edges, len(WORDS)), edgecolors="white", linewidth=0.2)  # fmt: skip
    ax.set(xlim=(-0.5, BANKS - 0.5), ylim=(LANES - 0.5, -0.5), xlabel="bank")
    ax.set_xticks(range(0, BANKS, 8))
    ax.set_yticks(range(0, LANES, 8))
    ax.set_aspect("equal")
    ax.tick_params(labelsize=7)


def _times(count: float, ideal: float, what: str) -> str:
    return f"{count:.0f} {what}{'s' if count != 1 else ''}" + (
        f", {ideal:.0f} would do" if count > ideal else ": as few as can be"
    )


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 3].rstrip() + "..."


def sectors(accesses: Mapping[str, pd.DataFrame], caption: str = "") -> Figure:
    """Lane by sector, a panel for each line's costliest access to global memory: which 32-byte sectors a warp touches.

    accesses: frames of harness.accesses.global_, a row of panels each, by the stage's name. Sectors stand in the order of their
    addresses, without the gaps between them; the darker, the more of a sector's bytes the warp uses.
    """
    groups = {name: list(table.groupby(KEYS)) for name, table in accesses.items()}
    for table in accesses.values():
        _some(table, "access to global memory")
    columns = max(map(len, groups.values()))
    figure, axes = _figure(3 * columns, 3 * len(groups), columns, len(groups), caption=caption)
    for row, (name, found) in enumerate(groups.items()):
        panels = axes[row * columns : (row + 1) * columns]
        for ax in panels[len(found) :]:
            ax.set_visible(False)
        for ax, ((_, line, op), access) in zip(panels, found, strict=False):
            one = access.iloc[0]
            grid = np.full((LANES, max(8, int(one.sectors))), np.nan)
            grid[access.lane.to_numpy(), access.sector.to_numpy()] = access.used.to_numpy() / 32
            picture = ax.pcolormesh(grid, cmap="Blues", vmin=-0.4, vmax=1, edgecolors="white", linewidth=0.2)
            ax.set(ylim=(LANES, 0), xlabel="sector, by address")
            ax.set_yticks([0, 8, 16, 24, 31])
            ax.tick_params(labelsize=7)
            asked = access.drop_duplicates("sector").used.sum()
            ax.set_title(
                f"line {line} {op}\n{_short(one.text, 36)}\n{_times(one.sectors, one.ideal, 'sector')}; {100 * asked / 32 / one.sectors:.3g} % used",
                fontsize=8,
            )
        panels[0].set_ylabel(f"{name}\nlane of the warp")
    bar = figure.colorbar(
        picture, ax=axes, location="top", shrink=0.4, aspect=30, boundaries=np.linspace(0, 1, 33), ticks=[0, 0.5, 1]
    )
    bar.set_label("part of a sector's 32 bytes that the warp uses", fontsize=8)
    return figure


def line_costs(lines: pd.DataFrame, most: int = 12, caption: str = "") -> Figure:
    """The costliest source lines: share of an SM's cycles, by harness.report.costliest (columns file, line, text, cycles)."""
    lines = lines[lines.cycles > 0]
    _some(lines, "line that took cycles")
    share = 100 * lines.cycles / lines.cycles.sum()
    top = lines.assign(share=share).nlargest(most, "cycles").iloc[::-1]
    figure, (ax,) = _figure(9, 1.2 + 0.3 * len(top), caption=caption)
    bars = ax.barh(range(len(top)), top.share, color=BLUE)
    ax.bar_label(bars, [f"{x:.3g} %" for x in top.share], padding=3, fontsize=8)
    names = [f"{_short(t, 60)}   {Path(f).name}:{n}" for t, f, n in zip(top.text, top.file, top.line, strict=True)]
    ax.set_yticks(range(len(top)), names, fontsize=7.5, family="monospace")
    _plain(ax, xlabel="% of an SM's cycles, all lines added up", xlim=(0, 1.15 * top.share.max()))
    return figure


def steps(table: pd.DataFrame, unit: str, what: str, caption: str = "") -> Figure:
    """From rung to rung: what each stage adds to its parent, as a waterfall, with the factor.

    table: stage, parent (None or '' for the first), value, and lo and hi of an interval where there is one; parents first.
    """
    table = table.dropna(subset=["value"]).reset_index(drop=True)
    _some(table, "stage with a value")
    known = dict(zip(table.stage, table.value, strict=True))
    at = {name: n for n, name in enumerate(table.stage)}
    figure, (ax,) = _figure(max(6.0, 1.05 * len(table) + 2), 4.2, caption=caption)
    for row in table.itertuples():
        base = known.get(row.parent, 0.0) if row.parent else 0.0
        gain = row.value - base
        ax.bar(row.Index, gain, bottom=base, width=0.62, color=GREY if not base else BLUE if gain >= 0 else ORANGE)
        if base:
            ax.plot([at[row.parent] + 0.31, row.Index + 0.31], [base, base], color="#555555", lw=0.8, ls=":")
        if "lo" in table and np.isfinite(row.lo):
            ax.errorbar(row.Index, row.value, [[row.value - row.lo], [row.hi - row.value]], color="#000000", capsize=3)
        factor = f"\nx {row.value / base:.3g}" if base else ""
        ax.annotate(
            f"{row.value:.3g}{factor}",
            (row.Index, max(row.value, base)),
            (0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    ax.set_xticks(range(len(table)), table.stage, rotation=25, ha="right")
    _plain(ax, ylabel=f"{what}, {unit}", title="What each rung adds to its parent")
    ax.set_ylim(min(0.0, table.value.min()), 1.2 * table.value.max())
    return figure


def ledger(table: pd.DataFrame, caption: str = "") -> Figure:
    """The articles' statements by verdict: a bar for each article. table: columns of harness.ledger.COLUMNS."""
    from .ledger import short_verdict

    _some(table, "statement")
    counts = pd.crosstab(table.article, table.verdict.map(short_verdict)).reindex(columns=list(VERDICTS), fill_value=0)
    counts = counts.loc[list(dict.fromkeys(table.article))[::-1]]
    figure, (ax,) = _figure(9, 1.4 + 0.5 * len(counts), caption=caption)
    left = np.zeros(len(counts))
    for verdict, colour in VERDICTS.items():
        if not counts[verdict].sum():
            continue
        bars = ax.barh(
            counts.index,
            counts[verdict],
            left=left,
            color=colour,
            edgecolor="white",
            label=f"{verdict}: {counts[verdict].sum()}",
        )
        dark = colour in (BLUE, ORANGE)
        ax.bar_label(
            bars,
            [str(n) if n else "" for n in counts[verdict]],
            label_type="center",
            color="white" if dark else "black",
            fontsize=8,
        )
        left += counts[verdict].to_numpy()
    _plain(ax, xlabel="statements")
    figure.legend(loc="outside upper center", ncols=len(VERDICTS), fontsize=8)
    return figure


def claimed(table: pd.DataFrame, caption: str = "") -> Figure:
    """Found over claimed, a row a claim and metric: 1 is what the article says.

    table: claim, metric (may be missing), claimed, simulated, and measured where there is such a value (else NaN).
    """
    table = table[(table.claimed > 0) & (table.simulated > 0)].reset_index(drop=True)
    _some(table, "claim with a value above 0")
    figure, (ax,) = _figure(10.5, 1.3 + 0.27 * len(table), caption=caption)
    ax.axvline(1, color="#000000", lw=0.8)
    for source, colour, mark in (("simulated", BLUE, "o"), ("measured", ORANGE, "x")):
        if source in table and table[source].notna().any():
            ax.scatter(
                table[source] / table.claimed, table.index, color=colour, marker=mark, s=36, zorder=3, label=source
            )
    labels = [_short(x, 64) for x in table.claim]
    if "metric" in table:
        labels = [f"{x}  [{_short(m, 44)}]" for x, m in zip(labels, table.metric, strict=True)]
    ax.set_yticks(table.index, labels, fontsize=7)
    ax.invert_yaxis()
    _plain(ax, xscale="log", xlabel="found / claimed")
    ratios = table.simulated / table.claimed
    reach = max(2.2, ratios.max() * 1.3, 1.3 / ratios.min())
    ax.set_xlim(1 / reach, reach)
    ticks = [t for t in (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 10, 20) if 1 / reach <= t <= reach]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.grid(axis="x", color="#e5e5e5", lw=0.5)
    ax.legend(fontsize=8)
    return figure


def register_reads(table: pd.DataFrame, caption: str = "") -> Figure:
    """Share of the FMA peak against registers read per multiply-add, and the line that the register file's width draws.

    table: name, kind ('loop' or 'stage'), reads (per FFMA), model (share the issue slots and register banks leave) and
    measured (share of peak; NaN where nothing was measured).
    """
    _some(table, "multiply-add loop")
    figure, (ax,) = _figure(8.5, 4.6, caption=caption)
    ax.axhline(100, color="#000000", lw=0.8, ls="--")
    for (kind, mine), colour, mark in zip(table.groupby("kind"), CYCLE, MARKS, strict=False):
        ax.scatter(
            mine.reads,
            100 * mine.model,
            facecolors="none",
            edgecolors=colour,
            marker=mark,
            s=46,
            label=f"{kind}: at most, by issue and register banks",
        )
        if mine.measured.notna().any():
            ax.scatter(mine.reads, 100 * mine.measured, color=colour, marker=mark, s=40, label=f"{kind}: measured")
        for row in mine.itertuples():
            if np.isfinite(row.measured):
                ax.plot([row.reads] * 2, [100 * row.model, 100 * row.measured], color=colour, lw=0.8, ls=":")
    ax.margins(x=0.25)
    _plain(
        ax, xlabel="registers read from the register file per multiply-add", ylabel="% of the FMA peak", ylim=(0, 112)
    )
    ax.grid(color="#e5e5e5", lw=0.5)
    ax.legend(fontsize=8, loc="lower left")
    _names(ax, list(table.name), list(table.reads), list(100 * table.measured.fillna(table.model)))
    return figure


def occupancy(table: pd.DataFrame, what: str, caption: str = "") -> Figure:
    """Speed against theoretical occupancy, a point a set of tunables, named by the values of those that differ within its stage.

    table: stage, tunables (as one types them; the stage's own may be left out), occupancy (%), limiter, tflops; `what` says what
    those TFLOPS are.
    """
    table = table.dropna(subset=["occupancy", "tflops"])
    _some(table, "point with an occupancy and a speed")
    figure, (ax,) = _figure(8.5, 4.6, caption=caption)
    labels = pd.Series("", table.index)
    for (stage, mine), colour, mark in zip(table.groupby("stage", sort=False), CYCLE, MARKS, strict=False):
        own = _own(stage)
        points = [own | dict(word.split("=", 1) for word in words.split()) for words in mine.tunables]
        varied = [n for n in dict.fromkeys(n for p in points for n in p) if len({p.get(n) for p in points}) > 1]
        names = " ".join(varied)
        labels[mine.index] = [" ".join(p.get(n, "own") for n in varied) for p in points]
        legend = f"{stage}: {names}" if names else stage
        ax.scatter(mine.occupancy, mine.tflops, color=colour, marker=mark, s=44, label=legend, zorder=3)
    _plain(
        ax, xlabel="theoretical occupancy, % of the warps an SM has room for", ylabel=f"TFLOPS, {what}", xlim=(0, 118)
    )
    ax.set_ylim(0, None)
    ax.grid(color="#e5e5e5", lw=0.5)
    ax.legend(fontsize=8)
    _names(ax, list(labels), list(table.occupancy), list(table.tflops))
    return figure


def _own(stage: str) -> dict[str, str]:
    """A stage's own tunables; none for one that is not in this checkout."""
    try:
        return {name: str(value) for name, value in stages.find(stage).tunables.items()}
    except TilescopeError:
        return {}


def ratios(table: pd.DataFrame, xlabel: str, caption: str = "") -> Figure:
    """Ratios with intervals where there are any, a row each, log axis. table: name, ratio, and lo and hi or NaN."""
    table = table[(table.ratio > 0) & np.isfinite(table.ratio)].reset_index(drop=True)
    _some(table, "ratio above 0")
    figure, (ax,) = _figure(8.5, 1.2 + 0.27 * len(table), caption=caption)
    ax.axvline(1, color="#000000", lw=0.8)
    colours = [GREY if abs(r - 1) < 1e-9 else BLUE for r in table.ratio]
    if "lo" in table:
        ax.errorbar(
            table.ratio,
            table.index,
            xerr=[table.ratio - table.lo, table.hi - table.ratio],
            fmt="none",
            ecolor="#555555",
            capsize=3,
        )
    ax.scatter(table.ratio, table.index, color=colours, s=34, zorder=3)
    for row in table.itertuples():
        ax.annotate(
            f"{row.ratio:.4g}", (row.ratio, row.Index), (0, 6), textcoords="offset points", ha="center", fontsize=7
        )
    ax.set_yticks(table.index, table.name, fontsize=8)
    ax.invert_yaxis()
    ax.margins(x=0.2, y=0.08)
    _plain(ax, xscale="log", xlabel=xlabel)
    from matplotlib.ticker import MaxNLocator

    if table.ratio.max() < 3 * table.ratio.min():  # less than the decade that a log axis marks
        ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.xaxis.set_minor_formatter(lambda x, _: "")
    ax.grid(axis="x", color="#e5e5e5", lw=0.5)
    return figure


def bounds(ax: Axes, profile: Profile) -> None:
    """The least time that each resource needs for the counted work, largest first."""
    found = sorted((b for b in profile.bounds if b.seconds > 0), key=lambda b: b.seconds)  # nan where no width is known
    seconds = np.array([b.seconds for b in found])
    unit, scale = ("us", 1e6) if seconds.max() < 1e-3 else ("ms", 1e3)
    colours = [ORANGE if b is found[-1] else BLUE if b.verified else GREY for b in found]
    bars = ax.barh([b.name for b in found], seconds * scale, color=colours)
    ax.bar_label(bars, [f"{s * scale:.3g}" for s in seconds], padding=3, fontsize=7)
    _plain(
        ax,
        xlabel=f"least time, {unit} (a bound, not a time; grey: width not verified)",
        title="What bounds it",
        xlim=(0, seconds.max() * scale * 1.12),
    )


def bank_map(ax: Axes, access: pd.DataFrame, title: str) -> None:
    """Lane by bank of one access of harness.accesses.shared: a bank that must serve several words is marked."""
    for crowded, colour, label in (
        (False, BLUE, "one word in this bank"),
        (True, ORANGE, f"up to {access.words.max()} words in one bank"),
    ):
        mine = access[(access.words > 1) == crowded]
        if len(mine):
            ax.scatter(mine.bank, mine.lane, marker="s", s=14, color=colour, label=label)
    ax.set(xlim=(-0.7, BANKS - 0.3), ylim=(LANES - 0.3, -0.7), xlabel="bank", ylabel="lane of the warp", title=title)
    ax.set_xticks(range(0, BANKS, 4))
    ax.set_yticks(range(0, LANES, 4))
    ax.grid(color="#dddddd", linewidth=0.5)
    ax.set_axisbelow(True)
    ax.legend(loc="lower right", fontsize=7, framealpha=1)


def overview(profile: Profile, line: str) -> Figure:
    """Two pictures of a profile: the banks of one shared load, named by the source line's text, and the bounds.

    Raises TilescopeError where no executed shared-memory access stands on such a line.
    """
    from . import accesses

    found = accesses.shared(profile)
    found = found[found.text.str.startswith(line)]
    if found.empty:
        raise TilescopeError(f"no shared-memory access on a line that starts with {line!r}.")
    one = found[found.line == found.line.iloc[0]]
    figure, (left, right) = _figure(10, 4.2, 2)
    figure.set_dpi(140)
    bank_map(left, one, f"Line {one.line.iloc[0]}, {one.opcode.iloc[0]}: {one.text.iloc[0]}")
    bounds(right, profile)
    figure.suptitle(caption(profile), fontsize=10)
    return figure


def caption(profile: Profile) -> str:
    """What a picture of a profile is of: stage, problem, device, and that it was simulated."""
    return f"{profile.stage.name}, {profile.problem}, {profile.device.title} ({profile.device.arch}), simulated"
