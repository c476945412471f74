"""Hold what a stage's author claims against what was counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from .metrics import METRICS
from .stage import Claim, Stage

HOLDS, PARTLY, FAILS, UNCHECKED = "holds", "holds for {}, not for {}", "does not hold", "cannot be checked"


@dataclass(frozen=True)
class Reading:
    """One metric's answer to a claim. `value` is baseline / this stage where the claim compares."""

    metric: str
    value: float
    holds: bool


@dataclass(frozen=True)
class Verdict:
    """A claim and what became of it.

    verdict   'holds', 'holds for X, not for Y', 'does not hold' or 'cannot be checked'
    why       the author's explanation where some metric does not bear the claim out, or why it cannot be checked
    """

    says: str
    article: str
    expected: float
    readings: tuple[Reading, ...]
    verdict: str
    why: str = ""
    against: str | None = None

    @property
    def holds(self) -> bool:
        return self.verdict == HOLDS


def check(
    stage: Stage,
    context: SimpleNamespace,
    metrics: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Verdict]:
    """The verdict on each claim that speaks of this context.

    context    attributes t (tunables), p (problem) and d (device)
    metrics    this stage's values by metric name; baselines: those of other stages at the same problem, by stage name

    A claim whose own formula fails is reported as one that cannot be checked, with what went wrong.
    """
    verdicts = []
    for claim in stage.claims:
        try:
            if not claim.when(context):
                continue
            expected = float(claim.expect(context))
        except Exception as e:  # a formula is the stage author's code: anything may come out of it
            verdicts.append(_unchecked(claim, context, f"its formula fails: {type(e).__name__}: {e}"))
            continue
        verdicts.append(_judge(claim, context, expected, metrics, baselines or {}))
    return verdicts


def _judge(claim: Claim, context: SimpleNamespace, expected: float, metrics: Mapping, baselines: Mapping) -> Verdict:
    unknown = [m for m in claim.metrics if m not in METRICS]
    if unknown or not claim.metrics:
        return _unchecked(
            claim, context, f"there is no metric {', '.join(unknown)}." if unknown else "it names no metric.", expected
        )
    missing = [m for m in claim.metrics if m not in metrics]
    if missing:
        return _unchecked(claim, context, f"no value for {', '.join(missing)}.", expected)
    if claim.against is not None and claim.against not in baselines:
        return _unchecked(claim, context, f"it compares with {claim.against}, which was not profiled.", expected)
    readings = []
    for name in claim.metrics:
        value = float(metrics[name])
        if claim.against is not None:
            value = baselines[claim.against].get(name, math.nan) / value if value else math.nan
        readings.append(Reading(name, value, math.isclose(value, expected, rel_tol=claim.tolerance, abs_tol=1e-12)))
    good, bad = ([r.metric for r in readings if r.holds is held] for held in (True, False))
    verdict = PARTLY.format(", ".join(good), ", ".join(bad)) if good and bad else FAILS if bad else HOLDS
    return Verdict(
        _says(claim, context),
        claim.article,
        expected,
        tuple(readings),
        verdict,
        claim.why if bad else "",
        claim.against,
    )


def _unchecked(claim: Claim, context: SimpleNamespace, why: str, expected: float = math.nan) -> Verdict:
    return Verdict(_says(claim, context), claim.article, expected, (), UNCHECKED, why, claim.against)


def _says(claim: Claim, context: SimpleNamespace) -> str:
    """The statement with {TILE} and the like filled in, and {M}, {N}, {K}; left as it is where a name is unknown."""
    p = context.p
    try:
        return claim.says.format(**{"M": p.m, "N": p.n, "K": p.k, **vars(context.t)})
    except (KeyError, IndexError, ValueError, AttributeError):
        return claim.says
