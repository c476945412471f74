"""A page: sections of blocks, and how they become HTML that holds all it shows. templates/ has a macro for each kind of block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], sortable: bool = False) -> dict[str, Any]:
    """A table block; columns that begin with '<' hold words, the others figures."""
    return {"kind": "table", "columns": list(columns), "rows": [list(r) for r in rows], "sortable": sortable}


def facts(rows: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Names and values, one a line; those without a value are left out."""
    return {"kind": "facts", "rows": [(name, value) for name, value in rows if value not in (None, "")]}


def say(words: str) -> dict[str, Any]:
    """A paragraph."""
    return {"kind": "say", "words": words}


def plot(chart: Any) -> dict[str, Any]:
    """A figure of harness.interactive."""
    return {"kind": "plot", "chart": chart}


def folded(title: str, blocks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Blocks behind a title that unfolds."""
    return {"kind": "folded", "title": title, "blocks": list(blocks)}


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
        if b["kind"] == "plot":
            b["key"] = f"chart{len(charts)}"
            charts[b["key"]] = b["chart"]
        _number(b.get("blocks", ()), charts)


def _place(blocks: Sequence[dict[str, Any]], divs: dict[str, str]) -> None:
    for b in blocks:
        if b["kind"] == "plot":
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


def _attributes(column: str, cell: Any) -> Any:
    """The attributes of a table's cell."""
    classes = (["word"] if column.startswith("<") else []) + ([STYLES[str(cell)]] if str(cell) in STYLES else [])
    plain = str(cell).replace(",", "")
    value = f' data-value="{float(plain)!r}"' if plain.replace(".", "", 1).isdigit() and "," in str(cell) else ""
    return _safe((f' class="{" ".join(classes)}"' if classes else "") + value)
