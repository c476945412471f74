"""The ledger: every quantitative statement of the three articles, with a verdict and the evidence for it.

harness.statements lists the statements. Each is checked by what it needs: hand arithmetic, the simulator (which any
machine has), or a recorded run on a GPU: measured roofs, Nsight Compute's counters, the ladder's times. Where no such run
is recorded, the row says which command makes one.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from . import device as devices
from . import environment, profiling, record, roofs
from . import stage as stages
from .claims import FAILS, HOLDS, PARTLY, UNCHECKED, Verdict
from .errors import TilescopeError
from .ncu import STALL
from .profiling import Profile
from .roofs import Roof

NEEDS = "needs a GPU run"
COLUMNS = ("key", "article", "section", "statement", "numbers", "verdict", "metric", "value", "source", "run", "why")


@dataclass(frozen=True)
class Outcome:
    """What became of a statement.

    verdict  'holds', 'holds for X, not for Y', 'does not hold', 'cannot be checked' or 'needs a GPU run'
    metric   what was looked at; value: what it was, with its unit
    source   'hand arithmetic', 'device data', 'documentation', 'sim', 'ncu', 'timing' or 'roofs', or several
    run      id of the recorded run, or the start of the machine code's hash for what was simulated now
    why      in a sentence or two, where the verdict is not a plain 'holds'
    """

    verdict: str
    metric: str = ""
    value: str = ""
    source: str = ""
    run: str = ""
    why: str = ""


@dataclass(frozen=True)
class Statement:
    """A quantitative statement of an article, in our own words.

    section  of the article: '4.1', or 'intro'
    numbers  as the article prints them
    check    finds the outcome
    """

    key: str
    article: str
    section: str
    says: str
    numbers: tuple[str, ...]
    check: Callable[[Evidence], Outcome]


class Evidence:
    """Where outcomes come from: profiles simulated on demand, and runs recorded on a GPU of one kind."""

    def __init__(self, device: str = "h200") -> None:
        self.device = devices.find(device)
        self._profiles: dict[tuple, Profile] = {}
        self.taken: set[tuple] = set()
        """Claims of stages that a statement has taken up."""

    def profile(self, stage: str, **options: Any) -> Profile:
        """harness.profile on the simulator, not recorded; kept for the next statement that asks for the same."""
        options = {"device": self.device.name, **options}
        key = (stage, *sorted(options.items()))
        if key not in self._profiles:
            self._profiles[key] = profiling.profile(stage, backend="sim", record=False, **options)
        return self._profiles[key]

    @cached_property
    def roofs(self) -> tuple[dict[str, Roof], str] | None:
        """(measured roofs by name, run id), or None."""
        run = roofs.recorded(self.device)
        return ({r.name: r for r in roofs.from_manifest(run.manifest)}, run.id) if run else None

    @cached_property
    def ladder(self) -> tuple[pd.DataFrame, str] | None:
        """(ladder.csv, run id) of the newest recorded ladder on this device, or None."""
        for path in [
            (record.PROFILES / "recorded" / self.device.name / "ladder.csv").resolve(),
            *reversed(_ladders(self.device.name)),
        ]:
            if path.is_file():
                manifest = path.parent / "manifest.json"
                name = record.load(path.parent).id if manifest.is_file() else record_name(path)
                return pd.read_csv(path), name
        return None

    def times(self, stage: str) -> pd.DataFrame:
        """The ladder's rows of a stage for square sizes, smallest first; empty where there are none."""
        if self.ladder is None:
            return pd.DataFrame(columns=["stage", "m", "n", "k", "ms", "tflops", "ratio"])
        table = self.ladder[0]
        mine = table[(table.stage == stage) & (table.m == table.n) & (table.n == table.k)]
        if "changed" in mine:  # a stage is the one with its own tunables
            mine = mine[mine.changed.isna()]
        return mine.dropna(subset=["ms"]).drop_duplicates("m").sort_values("m")

    def profiles(self, stage: str, size: int) -> Iterator[record.Run]:
        """Recorded profiles of a stage at size^3 on this device, newest first."""
        for path, manifest in reversed(_manifests("profile")):
            problem = manifest.get("problem", {})
            same = [problem.get(x) for x in "mnk"] == [size] * 3 and not problem.get("beta")
            if manifest.get("stage") == stage and manifest.get("device") == self.device.name and same:
                yield record.load(path)

    def counters(self, stage: str, size: int) -> tuple[Mapping[str, float], str] | None:
        """(Nsight Compute's totals by metric, run id) of the newest recorded profile of a stage at size^3, or None."""
        for run in self.profiles(stage, size):
            values = run.values
            mine = values[(values.source == "ncu") & values.pc.isna() & values.launch.isna()]
            if len(mine):
                return dict(zip(mine.metric, mine.value, strict=True)), run.id
        return None

    def stalls(self, stage: str, size: int) -> dict[str, float]:
        """Reason -> warps waiting per instruction issued, in the first launch of the newest recorded profile that has them."""
        before, _, after = STALL.partition("{}")
        for run in self.profiles(stage, size):
            values = run.values[(run.values.source == "ncu") & run.values.pc.isna() & run.values.launch.notna()]
            mine = values[values.metric.str.startswith(before) & values.metric.str.endswith(after)]
            if len(mine):
                mine = mine[(mine.launch == mine.launch.iloc[0]) & (mine.value > 0)]
                found = {
                    m.removeprefix(before).removesuffix(after): float(v)
                    for m, v in zip(mine.metric, mine.value, strict=True)
                }
                return {reason: v for reason, v in found.items() if reason != "selected"}
        return {}


def _manifests(kind: str) -> list[tuple[Path, dict[str, Any]]]:
    """(directory, manifest) of the recorded runs of a kind, oldest first; those that cannot be read are left out."""
    found = []
    for path in record.runs():
        try:
            manifest = record.load(path, check=False).manifest
        except TilescopeError:
            continue
        if manifest.get("kind") == kind:
            found.append((path, manifest))
    return found


def _ladders(device: str) -> list[Path]:
    return [path / "ladder.csv" for path, manifest in _manifests("ladder") if manifest.get("device") == device]


def record_name(path: Path) -> str:
    """A recorded file by its path below the checkout."""
    return str(path.relative_to(record.PROFILES.parent))


def show(x: float) -> str:
    """A number for the ledger: four digits, thousands separated."""
    if not math.isfinite(x):
        return str(x)
    return f"{x:,.0f}" if abs(x) >= 1e4 or x == int(x) else f"{x:.4g}"


def held(ok: bool, metric: str, value: str, source: str, run: str = "", why: str = "") -> Outcome:
    """'holds', or 'does not hold' with the reason."""
    return Outcome(HOLDS if ok else FAILS, metric, value, source, run, "" if ok else why)


def needs(command: str, metric: str = "", value: str = "", source: str = "", why: str = "") -> Outcome:
    """No GPU run is recorded that could tell; `command` makes one."""
    return Outcome(NEEDS, metric, value, source, "", f"{command}. {why}".strip())


def arithmetic(metric: str, value: float, printed: float, digits: int = 0) -> Callable[[Evidence], Outcome]:
    """Holds where `value` rounds to the figure printed, at that many decimals."""
    ok = abs(value - printed) <= 0.5 * 10.0**-digits * (1 + 1e-9)
    return lambda e: held(ok, metric, show(value), "hand arithmetic", why=f"It is {show(value)}, not {printed:g}.")


def claim(stage: str, words: str, **options: Any) -> Callable[[Evidence], Outcome]:
    """The verdict on the stage's own claim that contains these words, on the simulator; with ncu's values where recorded."""

    def check(e: Evidence) -> Outcome:
        profile = e.profile(stage, **options)
        verdict = next((v for v in profile.claims if words in v.says), None)
        if verdict is None:
            return Outcome(UNCHECKED, source="sim", why=f"{stage} makes no such claim on {profile.problem}.")
        e.taken.add(_identity(stage, verdict))
        return _of_claim(e, profile, verdict)

    return check


def _identity(stage: str, verdict: Verdict) -> tuple:
    """What tells a claim of a stage from its others, whatever its tunables."""
    return stage, verdict.article, *(r.metric for r in verdict.readings)


def _of_claim(e: Evidence, profile: Profile, verdict: Verdict) -> Outcome:
    """A claim's verdict as an outcome; with ncu's values, where a profile of this stage and size is recorded."""
    value = "; ".join(show(r.value) for r in verdict.readings)
    if verdict.against:
        value += f" times less than {verdict.against}"
    source, run, p = "sim", simulated(profile), profile.problem
    plain = (
        p.m == p.n == p.k
        and not verdict.against
        and not profile_tunables(profile)
        and profile.device.name == e.device.name
    )
    known = e.counters(profile.stage.name, p.m) if plain else None
    seen = [known[0][r.metric] for r in verdict.readings if r.metric in known[0]] if known else []
    if seen:
        source, run = "sim, ncu", f"{run}, {known[1]}"
        value += f" (ncu: {'; '.join(map(show, seen))})"
    return Outcome(verdict.verdict, ", ".join(r.metric for r in verdict.readings), value, source, run, verdict.why)


def profile_tunables(profile: Profile) -> dict[str, int]:
    """Tunables that are not the stage's defaults."""
    return {k: v for k, v in profile.tunables.items() if v != profile.stage.tunables[k]}


def simulated(profile: Profile) -> str:
    """What identifies a simulated profile: its machine code."""
    return f"sass {profile.binary.hash[:12]}"


def total(stage: str, metric: str, expected: float, why: str = "", **options: Any) -> Callable[[Evidence], Outcome]:
    """Holds where a metric of the whole profile is what is expected."""

    def check(e: Evidence) -> Outcome:
        profile = e.profile(stage, **options)
        value = profile.totals[metric]
        return held(
            math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12),
            metric,
            show(value),
            "sim",
            simulated(profile),
            why,
        )

    return check


def build(evidence: Evidence, progress: Callable[[float, str], None] | None = None) -> pd.DataFrame:
    """The ledger, columns COLUMNS, a row a statement; after them, claims of stages that no statement has taken up."""
    from .statements import STATEMENTS

    note = progress or (lambda fraction, text: None)
    rows = []
    for n, s in enumerate(STATEMENTS):
        note(n / len(STATEMENTS), s.key)
        rows.append((s.key, s.article, s.section, s.says, "; ".join(s.numbers), *astuple(s.check(evidence))))
    return pd.DataFrame([*rows, *_other_claims(evidence)], columns=list(COLUMNS))


def _other_claims(e: Evidence) -> list[tuple]:
    """Rows for claims of the ladder's stages at 512^3 that no statement has taken up: those of stages added since."""
    rows = []
    for stage in stages.ladder():
        if not stage.claims:
            continue
        profile = e.profile(stage.name, size=512)
        for n, verdict in enumerate(v for v in profile.claims if _identity(stage.name, v) not in e.taken):
            article, _, section = verdict.article.partition(", ")
            rows.append(
                (f"{stage.name}-{n}", article, section, verdict.says, "", *astuple(_of_claim(e, profile, verdict)))
            )
    return rows


def summary(table: pd.DataFrame) -> dict[str, int]:
    """Rows per verdict, the 'holds for X, not for Y' together."""
    short = table.verdict.map(short_verdict)
    return {v: int((short == v).sum()) for v in (HOLDS, "holds in part", FAILS, UNCHECKED, NEEDS)}


def short_verdict(verdict: str) -> str:
    """A verdict without the names of metrics."""
    return "holds in part" if verdict.startswith(PARTLY.split("{")[0]) else verdict


def markdown(table: pd.DataFrame) -> str:
    """The ledger as one Markdown table per article."""
    out = io.StringIO()
    counted = ", ".join(f"{n} {verdict}" for verdict, n in summary(table).items() if n)
    out.write(f"{len(table)} statements: {counted}.\n")
    for article, rows in table.groupby("article", sort=False):
        out.write(
            f"\n### {article[0].upper() + article[1:]}\n\n| section | statement | verdict | evidence |\n|---|---|---|---|\n"
        )
        for r in rows.itertuples():
            evidence = ", ".join(x for x in (": ".join(x for x in (r.metric, r.value) if x), r.source, r.run) if x)
            cells = (
                r.section,
                r.statement,
                short_verdict(r.verdict),
                " ".join(x for x in (evidence, r.why and f"*{r.why}*") if x),
            )
            out.write("| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |\n")
    return out.getvalue()


def render(table: pd.DataFrame, width: int = 100, colour: bool = False) -> str:
    """The ledger for a terminal: statement, verdict, and the value that decides."""
    from .report import Page

    page = Page(width, colour)
    for article, rows in table.groupby("article", sort=False):
        page.section(article)
        shown: Sequence[tuple[str, ...]] = [
            (r.section, r.statement, short_verdict(r.verdict), ", ".join(x for x in (r.value, r.source) if x))
            for r in rows.itertuples()
        ]
        page.table(["<", "<statement", "<verdict", "<evidence"], shown)
    page.section("In all")
    page.pairs([(verdict, str(n)) for verdict, n in summary(table).items()])
    return page.text()


@dataclass
class Ledger:
    """The table (columns COLUMNS) for a device, and the run directory where one was written."""

    id: str
    device: str
    table: pd.DataFrame
    path: Path | None = None

    def to_json(self) -> dict[str, Any]:
        rows = self.table.to_dict("records")
        return {
            "run": self.id,
            "device": self.device,
            "summary": summary(self.table),
            "statements": rows,
            "path": str(self.path) if self.path else None,
        }


def run(
    device: str = "h200", out: str | Path | None = None, progress: Callable[[float, str], None] | None = None
) -> Ledger:
    """Build the ledger; with `out`, record it there as a run with ledger.csv, ledger.md and ledger.txt.

    Raises TilescopeError for an unknown device; NotRecorded, which holds the Ledger, where the run cannot be recorded.
    """
    started = time.time()
    result = Ledger(record.new_id("ledger", device), device, pd.DataFrame())
    path = record.destination(out, "ledger", result.id) if out else None
    evidence = Evidence(device)
    result.device, result.table = evidence.device.name, build(evidence, progress)
    if path:
        manifest = {
            "id": result.id, "kind": "ledger", "started": record.timestamp(started), "ended": record.timestamp(time.time()),
            "environment": environment.describe(), "device": result.device, "summary": summary(result.table),
        }  # fmt: skip
        row = {
            "run": result.id,
            "kind": "ledger",
            "device": result.device,
            "started": manifest["started"],
            "ended": manifest["ended"],
        }
        files = {
            "ledger.csv": result.table.to_csv(index=False),
            "ledger.md": markdown(result.table),
            "ledger.txt": render(result.table),
        }
        record.save(result, path, manifest, {"runs": pd.DataFrame([row]), "ledger": result.table}, files)
    return result
