"""What an experiment expects of its points: claims in experiment.toml, judged on the values of a run.

[[claims]]
says = "sectors fall by TILE too"       # one sentence
article = "deep dive, 2"                # where it comes from, if from an article
metric = "sectors_per_request_ld"       # of harness.metrics, or 'bound: NAME', or 'C[0][0] after phase 1'
source = "ncu"                          # sim, trace, ncu, timing, ...; left out: sim, else whichever there is
of = { stage = "tiled", TILE = [8, 16] }  # the points it speaks of; lowest or highest = METRIC picks the extreme one
against = { stage = "naive" }           # then the value is this one's / that one's, at the same problem and device
inverse = true                          # the other way round
equals = "TILE / 4"                     # or least, most: a number or a formula of m, n, k and the tunables
tolerance = 0.02                        # relative
holds = false                           # it is known not to hold; why = "..." says why
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .errors import TilescopeError, nearest
from .metrics import METRICS, Metric

HOLDS, FAILS, UNCHECKED = "holds", "does not hold", "not measured"
OUTCOMES = {
    m.name: m
    for m in (
        Metric("right", "", "1 where C is right", "higher", "outcome", additive=False),
        Metric("fault", "", "1 where the simulator stopped the kernel at a fault", "lower", "outcome", additive=False),
        Metric("launch_count", "launches", "launches of a product", "", "outcome", additive=False),
        Metric("bound_ms", "ms", "the least time of a product: the largest bound", "lower", "outcome", additive=False),
        Metric("attainable_tflops", "TFLOPS", "2*m*n*k over bound_ms", "higher", "outcome", additive=False),
        Metric("time_over_bound", "x", "time_ms over bound_ms", "lower", "outcome", additive=False),
        Metric("racecheck_hazards", "", "hazards that compute-sanitizer's racecheck reports", "lower", "outcome", additive=False),
        Metric("wrong_launches", "share", "launches on the GPU whose C was wrong", "lower", "outcome", additive=False),
        Metric("wrong_cells", "share", "cells of C that were wrong in the worst launch", "lower", "outcome", additive=False),
    )
}  # fmt: skip
"""What an experiment knows of a point beyond the metrics of a profile."""
_PATTERNS = (r"bound: [\w ]+", r"C\[\d+\]\[\d+\] after phase \d+")


def is_metric(name: str) -> bool:
    """Whether a run of an experiment may have values by this name."""
    return name in METRICS or name in OUTCOMES or any(re.fullmatch(p, name) for p in _PATTERNS)


def known_metrics() -> list[str]:
    return [*METRICS, *OUTCOMES]


def meaning(name: str) -> tuple[str, str]:
    """(unit, meaning) of a metric of an experiment."""
    found = METRICS.get(name) or OUTCOMES.get(name)
    if found:
        return found.unit, found.meaning
    return ("s", f"least time: {name[7:]}") if name.startswith("bound: ") else ("", name)


@dataclass(frozen=True)
class Measured:
    """A point of a run as claims see it. `values` maps a metric to its value by source, repeats together by their median."""

    stage: str
    device: str
    m: int
    n: int
    k: int
    tunables: Mapping[str, int]
    values: Mapping[str, Mapping[str, float]]

    def value(self, metric: str, source: str = "") -> float:
        """NaN where it was not measured. Without a source: the simulator's, else the first there is."""
        found = self.values.get(metric, {})
        if source:
            return found.get(source, math.nan)
        return found.get("sim", next(iter(found.values()), math.nan))

    def __str__(self) -> str:
        size = f"{self.m}" if self.m == self.n == self.k else f"{self.m}x{self.n}x{self.k}"
        return " ".join([self.stage, *(f"{a}={b}" for a, b in self.tunables.items()), f"at {size}"])


@dataclass(frozen=True)
class Reading:
    """One point's answer to a claim: what was expected, what it was, and whether that agrees."""

    point: str
    value: float
    expected: float
    holds: bool


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of it: 'holds' where every reading agrees, 'does not hold', or 'not measured'.

    expected  whether the definition says that it holds; a verdict other than that is a `surprise`
    relation  to what was expected: 'equals', 'least' or 'most'
    quantity  in words, what the readings are of: the metric, or a ratio of two points' values
    """

    says: str
    article: str
    metric: str
    source: str
    verdict: str
    expected: bool
    readings: tuple[Reading, ...]
    why: str = ""
    relation: str = "equals"
    quantity: str = ""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Verdict:
        """The verdict that the manifest of a run holds."""
        return cls(**{**data, "readings": tuple(Reading(**r) for r in data["readings"])})

    @property
    def holds(self) -> bool:
        return self.verdict == HOLDS

    @property
    def surprise(self) -> bool:
        return self.verdict != UNCHECKED and self.holds is not self.expected

    @property
    def worst(self) -> Reading | None:
        """The reading furthest from what was expected."""
        return max(self.readings, key=lambda r: (not r.holds, abs(r.value - r.expected)), default=None)


@dataclass(frozen=True)
class Claim:
    """A claim as the module's head explains it. Selectors map names to the values allowed."""

    says: str
    metric: str
    of: Mapping[str, Any]
    against: Mapping[str, Any] | None
    relation: str
    limit: str
    source: str = ""
    article: str = ""
    inverse: bool = False
    tolerance: float = 0.0
    holds: bool = True
    why: str = ""

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Claim:
        """A claim from its table in experiment.toml. Raises TilescopeError naming the key in backquotes."""
        for key in table:
            if key not in _KEYS:
                raise TilescopeError(f"unknown key `{key}`.{nearest(key, list(_KEYS))}", f"Known: {', '.join(_KEYS)}.")
        for key in ("says", "metric"):
            if not table.get(key):
                raise TilescopeError(f"a claim needs `{key}`.")
        for key, kind in _KEYS.items():
            if key in table and not isinstance(table[key], kind):
                raise TilescopeError(
                    f"`{key}` = {table[key]!r} is not what it should be.", "See harness/expectations.py."
                )
        relations = [r for r in _RELATIONS if r in table]
        if len(relations) != 1:
            raise TilescopeError(f"the claim that {table['says']!r} needs one of `equals`, `least` and `most`.")
        for selector in (table.get("of", {}), table.get("against", {})):
            for key in ("lowest", "highest"):
                _check_metric(selector.get(key, "right"))
        _check_metric(table["metric"])
        limit = str(table[relations[0]])
        _parsed(limit)
        return cls(
            " ".join(table["says"].split()), table["metric"], table.get("of", {}), table.get("against"), relations[0], limit,
            table.get("source", ""), table.get("article", ""), table.get("inverse", False), float(table.get("tolerance", 0.0)),
            table.get("holds", True), " ".join(table.get("why", "").split()),
        )  # fmt: skip

    def check_names(self, points: Sequence[Measured]) -> None:
        """Raises TilescopeError where `of` or `against` names none of the points, whatever their device: such a claim is a slip."""
        for key, selector in (("of", self.of), ("against", self.against or {})):
            plain = {k: v for k, v in selector.items() if k not in ("lowest", "highest", "device")}
            if _select(plain, points):
                continue
            stage = plain.get("stage")
            near = nearest(stage, sorted({p.stage for p in points})) if isinstance(stage, str) else ""
            raise TilescopeError(f"the claim that {self.says!r} names no point by `{key}`, {_named(plain)}.{near}")

    def judge(self, points: Sequence[Measured]) -> Verdict:
        """The verdict on the points of a run. Raises TilescopeError where the claim speaks of no point at all."""
        chosen = _select(self.of, points)
        readings = []
        for point in chosen:
            value = point.value(self.metric, self.source)
            if self.against is not None:
                value = self._ratio(value, point, points)
            if math.isnan(value):
                continue
            expected = _evaluate(self.limit, point)
            readings.append(Reading(str(point), value, expected, self._agrees(value, expected)))
        verdict = UNCHECKED if not readings else HOLDS if all(r.holds for r in readings) else FAILS
        return Verdict(
            self.says, self.article, self.metric, self.source, verdict, self.holds, tuple(readings),
            self.why if verdict == FAILS else "", self.relation, self._quantity(),
        )  # fmt: skip

    def _quantity(self) -> str:
        name = f"{self.metric} [{self.source}]" if self.source else self.metric
        if self.against is None:
            return name
        other = _named(self.against)
        return f"{name} over that of {other}" if self.inverse else f"{name} of {other} over its own"

    def _ratio(self, value: float, point: Measured, points: Sequence[Measured]) -> float:
        """Against the points that `against` picks at the same problem and device: their median, where they are several."""
        same = [p for p in points if (p.device, p.m, p.n, p.k) == (point.device, point.m, point.n, point.k)]
        others = [p.value(self.metric, self.source) for p in _select(self.against or {}, same)]
        others = [x for x in others if not math.isnan(x)]
        if not others:
            return math.nan
        above, below = (value, median(others)) if self.inverse else (median(others), value)
        return above / below if below else math.nan

    def _agrees(self, value: float, expected: float) -> bool:
        slack = self.tolerance * abs(expected) + 1e-9 * max(abs(expected), 1e-3)
        match self.relation:
            case "least":
                return value >= expected - slack
            case "most":
                return value <= expected + slack
        return abs(value - expected) <= slack


_RELATIONS = ("equals", "least", "most")
_KEYS: dict[str, Any] = {
    "says": str, "metric": str, "source": str, "article": str, "of": dict, "against": dict, "inverse": bool, "holds": bool,
    "why": str, "tolerance": (int, float), **dict.fromkeys(_RELATIONS, (int, float, str)),
}  # fmt: skip


def _check_metric(name: Any) -> None:
    if not isinstance(name, str) or not is_metric(name):
        raise TilescopeError(f"unknown metric `{name}`.{nearest(str(name), known_metrics())}")


def _select(selector: Mapping[str, Any], points: Sequence[Measured]) -> list[Measured]:
    """The points that a selector names. A tunable that a stage does not have does not match."""
    found = list(points)
    for key, wanted in selector.items():
        if key in ("lowest", "highest"):
            continue
        allowed = wanted if isinstance(wanted, list) else [wanted]
        found = [p for p in found if _attribute(p, key) in allowed]
    for key, best in (("lowest", min), ("highest", max)):
        if key in selector:
            known = {p.value(selector[key]): p for p in reversed(found) if not math.isnan(p.value(selector[key]))}
            found = [known[best(known)]] if known else []
    return found


def _named(selector: Mapping[str, Any]) -> str:
    """A selector in words: 'tiled2d BK=8', 'the point with the highest time_ms'."""
    said = {key: " or ".join(map(str, x if isinstance(x, list) else [x])) for key, x in selector.items()}
    extremes = [f"with the {key} {said.pop(key)}" for key in ("lowest", "highest") if key in said]
    words = [said.pop("stage", "the point" if extremes else "points"), *(f"{key}={x}" for key, x in said.items())]
    return " ".join(words + extremes)


def _attribute(point: Measured, key: str) -> Any:
    if key in ("stage", "device", "m", "n", "k"):
        return getattr(point, key)
    if key == "size":
        return point.m if point.m == point.n == point.k else None
    return point.tunables.get(key)


_OPERATORS: dict[type, Callable] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.USub: operator.neg,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable] = {"ceil": math.ceil, "floor": math.floor, "min": min, "max": max}


def _parsed(formula: str) -> ast.expr:
    """A formula of numbers, names, + - * / // %, ceil, floor, min and max. Raises TilescopeError on anything else."""
    try:
        tree = ast.parse(formula, mode="eval").body
    except (SyntaxError, ValueError):
        raise TilescopeError(f"`{formula}` is no formula.") from None
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=int() | float()) | ast.Name() | ast.BinOp() | ast.UnaryOp(op=ast.USub()):
                continue
            case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
                continue
        if not isinstance(node, (*_OPERATORS, ast.Load)):
            raise TilescopeError(f"`{formula}` is no formula of numbers, m, n, k and tunables.")
    return tree


def _evaluate(formula: str, point: Measured) -> float:
    """Raises TilescopeError where a name is not known at this point, or the arithmetic fails."""
    names = {"m": point.m, "n": point.n, "k": point.k, **point.tunables}

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=number):
                return number
            case ast.Name(id=name):
                return names[name]
            case ast.UnaryOp(operand=operand):
                return -value(operand)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return _FUNCTIONS[name](*map(value, arguments))
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](value(left), value(right))
        raise AssertionError(node)

    try:
        return float(value(_parsed(formula)))
    except KeyError as e:
        raise TilescopeError(f"`{formula}` names {e.args[0]}, which {point} does not have.") from None
    except (ArithmeticError, TypeError, ValueError) as e:
        raise TilescopeError(f"`{formula}` cannot be computed for {point}: {e}.") from None
