"""The HTML report's plots: each one function from a frame to a Bokeh figure that tells more where the pointer rests.

Bokeh, because its script is 1.3 MB where Plotly's is 4.6 MB, because it draws from plain frames, and because Dask's
dashboard brings it along in any case.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..errors import TilescopeError
from ..frames import contenders
from ..plots import BLUE, CYCLE, GREY, LIBRARIES, ORANGE, _short

try:
    from bokeh.models import ColumnDataSource, CustomJSTickFormatter, FactorRange, HoverTool, Legend, Whisker
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
        label=[f"{s * scale:.3g}" for s in table.seconds],
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
        value=100 * top.share, label=[f"{100 * s:.3g} %" for s in top.share], colour=BLUE,
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


def explorer(table: pd.DataFrame, x: str, y: str, group: str) -> figure:
    """A point a row; the page's own lists change which columns `x`, `y` and colour show.

    The numeric columns travel with the plot; its source is named 'explorer'.
    """
    groups = list(dict.fromkeys(table[group].astype(str)))
    table = table.assign(
        x=table[x],
        y=table[y],
        colour=[CYCLE[groups.index(str(g)) % len(CYCLE)] for g in table[group]],
        legend=table[group].astype(str),
    )
    chart = _figure(420, name="explorer-chart")
    data = _data(table, "explorer")
    dots = chart.scatter("x", "y", source=data, color="colour", size=9, alpha=0.75, legend_group="legend")
    tips = [
        ("run", "@run"),
        ("stage", "@stage"),
        ("m, n, k", "@m, @n, @k"),
        ("x", "@x{0.[0000]}"),
        ("y", "@y{0.[0000]}"),
    ]
    tips += [("tunables", "@tunables")] if "tunables" in table else []
    chart.add_tools(HoverTool(renderers=[dots], tooltips=tips))
    chart.add_layout(chart.legend[0], "right")
    chart.xaxis.axis_label, chart.yaxis.axis_label = x, y
    chart.xaxis.name, chart.yaxis.name = "explorer-x", "explorer-y"
    return chart
