"""The HTML report's plots: each one function from a frame to a Bokeh figure that tells more where the pointer rests.

Bokeh, because its script is 1.3 MB where Plotly's is 4.6 MB, because it draws from plain frames, and because Dask's
dashboard brings it along in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..errors import TilescopeError
from ..frames import contenders
from ..plots import BLUE, CYCLE, GREY, LIBRARIES, ORANGE, _short
from ..report import figure as written
from ..report import percent

try:
    from bokeh.models import (
        BasicTicker,
        ColumnDataSource,
        CustomJSTickFormatter,
        FactorRange,
        HoverTool,
        Legend,
        LegendItem,
        Whisker,
    )
    from bokeh.plotting import figure
except ImportError as e:
    raise TilescopeError("an HTML report needs Bokeh, which is not installed.", "Run `make setup`.") from e

TOOLS = "pan,wheel_zoom,box_zoom,reset,save"
MARKS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "plus", "x", "star")


def _figure(height: int, **options: Any) -> figure:
    chart = figure(height=height, sizing_mode="stretch_width", tools=TOOLS, toolbar_location="above", **options)
    chart.toolbar.logo = None
    chart.toolbar.active_drag = None
    chart.xgrid.grid_line_color = chart.ygrid.grid_line_color = "#eeeeee"
    chart.outline_line_color = None
    return chart


def _data(table: pd.DataFrame, name: str = "") -> ColumnDataSource:
    """A frame's columns; words as lists."""
    columns = {c: table[c].to_numpy() if table[c].dtype.kind in "if" else table[c].tolist() for c in table}
    return ColumnDataSource(columns, name=name or None)


def bars(table: pd.DataFrame, xlabel: str, tips: list[tuple[str, str]]) -> figure:
    """Horizontal bars, the largest on top. table: name, value, colour, label (beside the bar), and what the tips name."""
    table = table.sort_values("value")
    chart = _figure(
        90 + 24 * len(table), y_range=FactorRange(*table.name), x_range=(0, float(table.value.max()) * 1.15 or 1)
    )
    data = _data(table)
    drawn = chart.hbar(y="name", right="value", height=0.7, color="colour", source=data)
    chart.text(
        x="value", y="name", text="label", x_offset=4, text_font_size="11px", text_baseline="middle", source=data
    )
    chart.add_tools(HoverTool(renderers=[drawn], tooltips=tips))
    chart.xaxis.axis_label = xlabel
    chart.ygrid.grid_line_color = None
    return chart


def bounds(resources: list[dict[str, Any]]) -> figure:
    """The bounds of a manifest: the least time of each resource."""
    table = pd.DataFrame(resources).dropna(subset=["seconds"])
    table = table[table.seconds > 0]
    scale, unit = (1e6, "us") if table.seconds.max() < 1e-3 else (1e3, "ms")
    table = table.assign(
        value=table.seconds * scale,
        label=[written(s * scale) for s in table.seconds],
        colour=[
            ORANGE if s == table.seconds.max() else BLUE if v else GREY
            for s, v in zip(table.seconds, table.verified, strict=True)
        ],
    )
    return bars(
        table, f"least time, {unit}: a bound, not a time; grey: width not verified",
        [("resource", "@name"), ("at least", f"@value{{0.000}} {unit}"), ("from", "@formula"), ("width", "@width")],
    )  # fmt: skip


def lines(table: pd.DataFrame, most: int = 12) -> figure:
    """The costliest lines of harness.frames.source_lines."""
    top = table.head(most)
    top = top.assign(
        value=100 * top.share, label=[percent(s) for s in top.share], colour=BLUE,
        name=[f"{n}: {_short(t, 52)}" for n, t in zip(top.line, top.text, strict=True)],
    )  # fmt: skip
    tips = [("line", "@line: @text"), ("warp instructions", "@executed{0,0}"), ("shared wavefronts", "@wavefronts{0,0}, ideal @wavefronts_ideal{0,0}"),
            ("global sectors", "@sectors{0,0}, ideal @sectors_ideal{0,0}")]  # fmt: skip
    return bars(top, "% of an SM's cycles, all lines added up", tips)


def speeds(table: pd.DataFrame) -> figure:
    """TFLOPS against size with 95 % intervals, a line a stage; a click on the legend hides one. table: ladder.csv's columns."""
    table = contenders(table.dropna(subset=["ms"])).assign(
        lo=lambda t: t.tflops * t.ms / t.ms_hi,
        hi=lambda t: t.tflops * t.ms / t.ms_lo,
        size=lambda t: np.cbrt(t.m * t.n * t.k),
    )
    chart = _figure(430, x_axis_type="log")
    items = []
    for n, (stage, mine) in enumerate(table.groupby("stage", sort=False)):
        data = _data(mine.sort_values("size"))
        colour = "#000000" if stage in LIBRARIES else CYCLE[n % len(CYCLE)]
        dash = "dashed" if stage in LIBRARIES or n >= len(CYCLE) else "solid"
        line = chart.line("size", "tflops", source=data, color=colour, line_width=2, line_dash=dash)
        dots = chart.scatter("size", "tflops", source=data, color=colour, size=8, marker=MARKS[n % len(MARKS)])
        whisker = Whisker(source=data, base="size", lower="lo", upper="hi", line_color=colour, level="annotation")
        chart.add_layout(whisker)
        items.append((stage, [line, dots]))
        tips = [("stage", "@stage"), ("m, n, k", "@m, @n, @k"), ("TFLOPS", "@tflops{0.00} (@lo{0.00} to @hi{0.00})"), ("ms", "@ms{0.00000}"),
                ("cuBLAS's time / this one's", "@ratio{0.0000}"), ("flags", "@flags")]  # fmt: skip
        chart.add_tools(HoverTool(renderers=[dots], tooltips=tips))
    chart.add_layout(Legend(items=items, click_policy="hide"), "right")
    chart.xaxis.axis_label, chart.yaxis.axis_label = "size: M, N and K, or the cube root of their product", "TFLOPS"
    chart.xaxis.ticker = sorted(set(table["size"].round().astype(int)))
    chart.xaxis.formatter = CustomJSTickFormatter(code="return tick.toLocaleString('en')")
    chart.y_range.start = 0
    return chart


def samples(table: pd.DataFrame) -> figure:
    """Every round's time over the median of its row. table: run, name, round, ms."""
    chart = _figure(300)
    items = []
    for n, (_, mine) in enumerate(table.groupby("run", sort=False)):
        data = _data(mine.assign(relative=100 * (mine.ms / mine.ms.median() - 1)))
        dots = chart.scatter(
            "round", "relative", source=data, color=CYCLE[n % len(CYCLE)], marker=MARKS[n % len(MARKS)], size=6
        )
        chart.add_tools(
            HoverTool(
                renderers=[dots],
                tooltips=[
                    ("", "@name"),
                    ("round", "@round"),
                    ("ms", "@ms{0.00000}"),
                    ("off the median", "@relative{0.00} %"),
                ],
            )
        )
        items.append((mine.name.iloc[0] if "name" in mine else str(n), [dots]))
    if len(items) <= 12:
        chart.add_layout(Legend(items=items, click_policy="hide"), "right")
    chart.xaxis.axis_label, chart.yaxis.axis_label = "round", "% off the row's median"
    return chart


DOTS = (8, 11, 14, 17, 20)
"""Marks of the problems' sizes, the least first, in pixels."""
SPAN = 10
"""Of positive values, the largest over the least from which on an axis is logarithmic."""


def geometric(values: pd.Series, label: str) -> bool:
    """Whether an axis tells values apart better by their ratios than by their differences: far apart, or doubled each time; percentages never."""
    known = sorted(values.dropna().unique())
    if len(known) < 3 or known[0] <= 0 or label.endswith("%"):
        return False
    doubled = all(np.log2(x) == int(np.log2(x)) for x in known) and known[-1] >= 2 ** (len(known) - 1)
    return bool(known[-1] >= SPAN * known[0] or doubled)


def undrawn(table: pd.DataFrame, axes: Sequence[str], group: str, labels: Mapping[str, str]) -> str:
    """Which points the axes leave out, in words."""
    lacking = [(labels[c], table[group][table[c].isna()]) for c in dict.fromkeys(axes)]
    words = "; ".join(f"{len(g)} ({'; '.join(g.unique())}) without {label}" for label, g in lacking if len(g))
    return f"Not drawn: {words}." if words else ""


def explorer(
    table: pd.DataFrame, x: str, y: str, group: str, labels: Mapping[str, str], groups: Sequence[str] = ()
) -> figure:
    """A point a row; the page's own lists change which columns `x` and `y` show, and whether by ratios (log2).

    The numeric columns travel with the plot; its source is named 'explorer', with whether x and y are logarithmic as tags. A
    column `dot` is a mark's diameter in pixels. labels: of the axes, by column; groups: in the order of the legend and of colours.
    """
    of = table[group].astype(str)
    groups = [g for g in dict.fromkeys((*groups, *of)) if (of == g).any()]
    at = of.map(groups.index)
    table = table.assign(
        at_x=table[x],
        at_y=table[y],
        colour=[CYCLE[n % len(CYCLE)] for n in at],
        mark=[MARKS[(n + n // len(CYCLE)) % len(MARKS)] for n in at],
        legend=of,
        dot=table["dot"] if "dot" in table else float(DOTS[0]),
    )
    log = [geometric(table[c], labels[c]) for c in (x, y)]
    for name, column, ratios in zip("xy", (x, y), log, strict=True):
        values = table[column].astype(float)
        table[name] = np.log2(values.where(values > 0)) if ratios else values
    chart = _figure(440, name="explorer-chart")
    data = _data(table, "explorer")
    data.tags = log
    dots = chart.scatter(
        "x", "y", source=data, color="colour", marker="mark", size="dot", line_width=1.5, fill_alpha=0.4
    )
    tips = [("", "@stage @tunables" if "tunables" in table else "@stage")]
    tips += (
        [("m, n, k", "@m, @n, @k")] if {"m", "n", "k"} <= set(table) else [("size", "@size")] if "size" in table else []
    )
    tips += [(labels[c], f"@at_{name}{{%.6g}}") for name, c in zip("xy", (x, y), strict=True)]
    tips += [("run", "@run")]
    formatters = {"@at_x": "printf", "@at_y": "printf"}
    chart.add_tools(HoverTool(renderers=[dots], tooltips=tips, formatters=formatters, limit=6, name="explorer-hover"))
    first = [int((at == n).to_numpy().argmax()) for n in range(len(groups))]
    items = [LegendItem(label=g, renderers=[dots], index=i) for g, i in zip(groups, first, strict=True)]
    chart.add_layout(Legend(items=items), "right")
    for n, (axis, column) in enumerate(((chart.xaxis, x), (chart.yaxis, y))):
        shown = table["xy"[n]].dropna()
        axis.axis_label, axis.name = labels[column], f"explorer-{'xy'[n]}"
        axis.ticker = BasicTicker(min_interval=1 if log[n] and shown.max() - shown.min() >= 2 else 0)
        axis.formatter = CustomJSTickFormatter(args={"source": data}, code=TICK.replace("AXIS", str(n)))
    return chart


TICK = """
const value = source.tags[AXIS] ? 2 ** tick : tick;
for (const [unit, scale] of [[" G", 1e9], [" M", 1e6]])
  if (Math.abs(value) >= scale) return +(value / scale).toPrecision(3) + unit;
return (Number.isInteger(value) ? value : +value.toPrecision(3)).toLocaleString("en", {maximumSignificantDigits: 6});
"""
"""A tick of the explorer's axes, which may be a logarithm."""
