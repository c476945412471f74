"""A page: sections of blocks, and how they become HTML that holds all it shows. templates/ has a macro for each kind of block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import TilescopeError


@dataclass
class Section:
    """A heading, a line that explains it, and blocks: dicts with a `kind` that names a macro of blocks.html.j2."""

    title: str
    note: str = ""
    blocks: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Content:
    """What a page says. verdict: a word or two, with the reason in `because`; empty where there is nothing to judge.

    date: of the run, or of the newest of several; part of the heading.
    """

    title: str
    idea: str
    origin: str
    sections: list[Section]
    verdict: str = ""
    ok: bool = True
    because: str = ""
    date: str = ""


@dataclass(frozen=True)
class Head:
    """The head of a table's column.

    unit   below the words
    about  what the pointer shows
    left   of words, not figures
    shape  how a column of words may break: 'brief' not at all, 'long' not into narrow columns
    """

    words: str
    unit: str = ""
    about: str = ""
    left: bool = False
    shape: str = ""


BRIEF, SENTENCE = 18, 30
"""Letters of the longest cell up to which a column of words keeps each on one line, and from which on it is one of sentences."""
WIDE = 110
"""Letters that fit across a page of paper that stands upright."""


def table(
    columns: Sequence[str | Head], rows: Sequence[Sequence[Any]], sortable: bool = False, best: Sequence[int] = ()
) -> dict[str, Any]:
    """A table block; columns that begin with '<' hold words, the others figures. A column with nothing in it is left out.

    best: rows to mark.
    """
    kept = [n for n in range(len(columns)) if not rows or any(str(r[n]) != "" for r in rows)]
    columns, rows = [columns[n] for n in kept], [[r[n] for n in kept] for r in rows]
    heads = [c if isinstance(c, Head) else Head(c.removeprefix("<"), left=c.startswith("<")) for c in columns]
    letters = 0
    for n, h in enumerate(heads):
        cells = [str(r[n]) for r in rows]
        longest = max(map(len, cells), default=0)
        if h.left:
            heads[n] = h = replace(h, shape="brief" if longest <= BRIEF else "long" if longest > SENTENCE else "")
        if h.left and h.shape != "brief":
            longest = max((len(word) for cell in cells for word in cell.split()), default=0)
        letters += 1 + max(longest, *map(len, (*h.words.split(), h.unit)), 0)
    return {
        "kind": "table", "columns": heads, "rows": rows, "sortable": sortable, "best": set(best),
        "wide": letters > WIDE,
    }  # fmt: skip


def facts(rows: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Names and values, one a line; those without a value are left out."""
    return {"kind": "facts", "rows": [(name, value) for name, value in rows if value not in (None, "")]}


def say(words: str) -> dict[str, Any]:
    """A paragraph."""
    return {"kind": "say", "words": words}


def plot(chart: Any) -> dict[str, Any]:
    """A figure of harness.html.charts."""
    return {"kind": "plot", "chart": chart}


def folded(title: str, blocks: Sequence[dict[str, Any]], open: bool = False) -> dict[str, Any]:
    """Blocks behind a title that unfolds."""
    return {"kind": "folded", "title": title, "blocks": list(blocks), "open": open}


def render(content: Content) -> str:
    """The page as HTML. Its plots' script is part of it."""
    charts: dict[str, Any] = {}
    for section in content.sections:
        _number(section.blocks, charts)
    script, library = "", ""
    if charts:
        from bokeh.embed import components

        script, divs = components(charts)
        library = _library()
        for section in content.sections:
            _place(section.blocks, divs)
    return _template().render(page=content, script=_safe(script), library=_safe(library))


def _number(blocks: Sequence[dict[str, Any]], charts: dict[str, Any]) -> None:
    for b in blocks:
        if "chart" in b:
            b["key"] = f"chart{len(charts)}"
            charts[b["key"]] = b["chart"]
        _number(b.get("blocks", ()), charts)


def _place(blocks: Sequence[dict[str, Any]], divs: dict[str, str]) -> None:
    for b in blocks:
        if "chart" in b:
            b["div"] = _safe(divs[b["key"]])
        _place(b.get("blocks", ()), divs)


def _safe(markup: str) -> Any:
    from markupsafe import Markup

    return Markup(markup)


@cache
def _library() -> str:
    """Bokeh's own script, without its parts for widgets, tables, mathematics and WebGL."""
    import bokeh

    script = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    return script.read_text().replace("</script", "<\\/script")


@cache
def _template() -> Any:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as e:
        raise TilescopeError("an HTML report needs Jinja2, which is not installed.", "Run `make setup`.") from e
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.globals |= {"td": _attributes, "block": lambda b: getattr(macros, b["kind"])(b)}
    macros = environment.get_template("blocks.html.j2").module
    return environment.get_template("report.html.j2")


STYLES = {
    "holds": "holds", "does not hold": "fails", "FASTER": "holds", "SLOWER": "fails", "WRONG": "fails", "differs": "fails", "equal": "holds",
}  # fmt: skip


def _attributes(head: Head, cell: Any) -> Any:
    """The attributes of a table's cell. A verdict has its colour also where it says more, as in 'does not hold, as expected'."""
    words = str(cell)
    style = STYLES.get(words.partition(", ")[0] if head.left else words)
    classes = [*(["word"] if head.left else []), *([head.shape] if head.shape else []), *([style] if style else [])]
    plain = words.replace(",", "")
    value = f' data-value="{float(plain)!r}"' if plain.replace(".", "", 1).isdigit() and "," in words else ""
    return _safe((f' class="{" ".join(classes)}"' if classes else "") + value)
