"""What the HTML page of a recorded run says, by the run's kind: findings first, then the evidence."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from . import device as devices
from . import frames, interactive
from . import stage as stages
from .environment import ROOT
from .errors import TilescopeError
from .htmlreport import Content, Section, facts, folded, plot, say, table
from .measurement import FLAGS
from .metrics import METRICS
from .record import Run
from .report import LEGEND, count, duration, figure, percent, size
from .statistics import Estimate
from .statistics import verdict as timed_verdict

GROUPS = {
    "coalescing": "global memory", "bank": "shared memory", "work": "work", "memory": "traffic", "pipes": "pipes", "occupancy": "occupancy",
    "launch": "launch", "spill": "local memory", "time": "time", "timing": "time",
}  # fmt: skip
"""Groups of metrics in the order of the page, and what they are called there."""
SHOWN = ("tflops", "time_ms", "rival_ratio", "bank_conflict_share", "sectors_per_request_ld", "shared_words_read_per_fma",
         "register_reads_per_ffma", "sm__maximum_warps_per_active_cycle_pct", "launch__registers_per_thread")  # fmt: skip
"""Metrics in the table of several runs, where they have them."""
FOLDED = 250
"""Runs of a page that have a part of their own."""


def single(run: Run) -> Content:
    """The page of one run, by its kind; of a kind that has no page of its own, the points and values it holds."""
    kind = run.manifest.get("kind", "")
    return {"profile": _profile, "ladder": _timings, "time": _timings, "roofs": _roofs, "ledger": _ledger}.get(
        kind, _other
    )(run)


def several(name: str, runs: Sequence[Run]) -> Content:
    """The page of an experiment: what its runs found, a table of all points, a plot to explore them, then run by run."""
    points = frames.points(runs)
    sections = [_overall(runs, points), *_points(points)]
    each = [folded(f"{r.id}  {_headline(r)}", _brief(r)) for r in runs[:FOLDED]]
    sections.append(Section("Runs", f"{len(runs)} in all; each unfolds", each))
    bad = [r for r in runs if r.manifest.get("ok") is False]
    question = next((str(r.manifest["question"]) for r in reversed(runs) if r.manifest.get("question")), "")
    return Content(
        f"Experiment {name}", question, f"{len(runs)} recorded runs", sections, f"{len(bad)} of {len(runs)} runs not ok" if bad else "all runs ok",
        not bad, ", ".join(r.id for r in bad[:5]),
    )  # fmt: skip


def _overall(runs: Sequence[Run], points: pd.DataFrame) -> Section:
    """What the runs say together: claims by verdict, the fastest point, findings that several share."""
    blocks = []
    claims = [
        (r.manifest["stage"], c)
        for r in runs
        for c in r.manifest.get("claims") or []
        if isinstance(c, Mapping) and "says" in c and "stage" in r.manifest
    ]
    if "tflops" in points and points.tflops.notna().any():
        best = points.loc[points.tflops.idxmax()]
        blocks.append(say(f"Fastest: {_point(best)} with {figure(best.tflops)} TFLOPS."))
    if claims:
        tally = pd.DataFrame(
            [(s, c["says"], c["verdict"]) for s, c in claims], columns=["stage", "claim", "verdict"]
        ).value_counts(sort=False)
        blocks.append(table(["<stage", "<claim", "<verdict", "runs"], [(*key, n) for key, n in tally.items()]))
    found: dict[str, int] = {}
    for r in runs:
        for f in r.manifest.get("findings") or []:
            words = f["sentence"] if isinstance(f, Mapping) else str(f)
            found[words] = found.get(words, 0) + 1
    most = sorted(found.items(), key=lambda x: -x[1])[:8]
    items = [{"sentence": words, "remedy": "", "cost": f"{n} run{'s' if n > 1 else ''}"} for words, n in most]
    blocks.append({"kind": "findings", "found": items, "none": "No run has a finding."})
    return Section("Findings", "", blocks)


def _point(row: Any) -> str:
    words = [
        str(row.get("stage", "")),
        frames.tunables(row.get("tunables")) if isinstance(row.get("tunables"), str) else "",
    ]
    if row.get("m") == row.get("m"):
        words.append(f"at {int(row.m):,} x {int(row.n):,} x {int(row.k):,}")
    return " ".join(w for w in words if w)


def _points(points: pd.DataFrame) -> list[Section]:
    """A table of all points and, where there are several with figures, a plot to explore them."""
    if points.empty:
        return []
    keys = [c for c in ("stage", "m", "n", "k", "tunables", "device", "backend", "ok") if c in points]
    metrics = [c for c in SHOWN if c in points and points[c].notna().any()]
    heads = [f"<{c}" if points[c].dtype.kind not in "if" else c for c in keys]
    rows = []
    for row in points.to_dict("records"):
        words = [
            frames.tunables(row[c]) if c == "tunables" else count(row[c]) if c in "mnk" else _yes(row[c]) for c in keys
        ]
        rows.append([row["run"], *words, *(figure(row[c], 4) for c in metrics)])
    named = [f"{_title(c)}" for c in metrics]
    blocks = [table(["<run", *heads, *named], rows, sortable=True)]
    numbers = [c for c in points if points[c].dtype.kind in "if" and points[c].nunique() > 1]
    if len(points) > 2 and len(numbers) > 1 and "stage" in points:
        x = next((c for c in ("m", "n", "k") if c in numbers), numbers[0])
        y = next((c for c in (*metrics, *numbers) if c in numbers and c != x), numbers[-1])
        kept = points[[c for c in dict.fromkeys(["run", "stage", "m", "n", "k", "tunables", *numbers]) if c in points]]
        kept = kept.assign(tunables=[frames.tunables(t) for t in kept.tunables]) if "tunables" in kept else kept
        controls = {"kind": "controls", "axes": [("x", x), ("y", y)], "columns": numbers}
        blocks[:0] = [controls, plot(interactive.explorer(kept, x, y, "stage"))]
    return [Section("Points", "a click on a column's head sorts by it", blocks)]


def _title(metric: str) -> str:
    m = METRICS.get(metric)
    return f"{m.meaning}, {m.unit}" if m and m.unit else m.meaning if m else metric


def _yes(value: Any) -> str:
    return {True: "yes", False: "NO"}.get(value, "" if value is None or value != value else str(value))


def _headline(run: Run) -> str:
    """A run in a line."""
    m = run.manifest
    words = [
        m.get("kind", ""),
        m.get("stage", ""),
        _shape(m["problem"]) if isinstance(m.get("problem"), Mapping) else "",
    ]
    if isinstance(m.get("tunables"), Mapping):
        words.append(" ".join(f"{k}={v}" for k, v in m["tunables"].items()))
    if m.get("ok") is False:
        words.append("NOT OK")
    return " ".join(w for w in words if w)


def _brief(run: Run) -> list[dict[str, Any]]:
    """A run's findings, claims and facts, without its source."""
    if run.manifest.get("kind") != "profile":
        return [_made(run.manifest)]
    return [_findings(run.manifest), *_claims(run.manifest), _what(run.manifest)]


def _shape(problem: Mapping[str, Any]) -> str:
    return f"{problem['m']:,} x {problem['n']:,} x {problem['k']:,}"


def _profile(run: Run) -> Content:
    m = run.manifest
    code = frames.instructions(run)
    by_line = frames.source_lines(code)
    sections = [
        Section(
            "Findings", "costliest first; beside each, its cost as a share of the bottleneck's time", _conclusions(m)
        )
    ]
    sections.append(Section("What was run", "", [_what(m)]))
    if claims := _claims(m):
        sections.append(Section("What the articles claim", "beside what was simulated and measured", claims))
    if m.get("bounds"):
        known = sorted((b for b in m["bounds"]["resources"] if b["seconds"] is not None), key=lambda b: -b["seconds"])
        rows = [(b["name"], duration(b["seconds"]), b["formula"], b["width"]) for b in known]
        blocks = [
            plot(interactive.bounds(m["bounds"]["resources"])),
            folded("as a table", [table(["<resource", "at least", "<from", "<width"], rows)]),
        ]
        sections.append(Section("What bounds it", LEGEND, blocks))
    if len(by_line):
        sections.append(
            Section(
                "Source",
                "each line with what it costs: share of an SM's cycles, all lines added up",
                _source(run, code, by_line),
            )
        )
    if counters := _counters(m):
        sections.append(
            Section("Counters", "a value and, where Nsight Compute counted it too, what it counted", counters)
        )
    if m.get("timing"):
        sections += _times(run, m["timing"]["points"], m["timing"])
    sections += _end(run)
    error, fault = m.get("error"), m.get("fault")
    because = (
        fault["message"]
        if fault
        else f"largest error {figure(error['max'])}, bound {figure(error['bound'])}, {error['checked']:,} cells checked"
        if error
        else ""
    )
    return Content(
        f"{m['stage']} on {_shape(m['problem'])}", _idea(m["stage"]), f"run {run.id}", sections,
        "C is right" if m["ok"] else "stopped" if fault else "C is wrong", m["ok"], because,
    )  # fmt: skip


def _idea(stage: str) -> str:
    try:
        return stages.find(stage).idea
    except TilescopeError:  # a stage from outside the checkout, or one that is gone
        return ""


def _conclusions(m: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Sentences on the bottleneck and the time, then the findings."""
    blocks = []
    device = devices.find(m["device"])
    if m.get("bounds"):
        top = next(b for b in m["bounds"]["resources"] if b["name"] == m["bounds"]["bottleneck"])
        blocks.append(say(
            f"Bottleneck: {top['name']}. It needs at least {duration(top['seconds'])}, so at most {figure(m['attainable_tflops'])} of"
            f" {figure(device.peak_tflops)} TFLOPS are attainable: a bound, not a time."
        ))  # fmt: skip
    for p in ((m.get("timing") or {}).get("points") or [])[:1]:
        if p["ms"] is not None:
            beside = (
                f", {percent(p['ratio'])} of {_known(p['rival'])}'s speed"
                if p.get("rival") and p["ratio"] is not None
                else ""
            )
            blocks.append(say(f"Measured: {figure(p['ms'], 4)} ms, {figure(p['tflops'])} TFLOPS{beside}."))
    compared = (m.get("measured") or {}).get("comparisons") or []
    if compared:
        words = pd.Series([c["verdict"] for c in compared]).value_counts()
        blocks.append(say("Simulated against measured: " + ", ".join(f"{n} {word}" for word, n in words.items()) + "."))
    return [*blocks, _findings(m)] + [say(f"Not done: {note}") for note in m.get("notes") or []]


def _findings(m: Mapping[str, Any]) -> dict[str, Any]:
    items = [
        {"sentence": f["sentence"], "remedy": f["remedy"], "cost": percent(f["cost"])} for f in m.get("findings") or []
    ]
    none = (
        "Nothing here wastes more than 1 % of the bottleneck's time."
        if m.get("launches")
        else "Nothing was simulated, so nothing was found."
    )
    return {"kind": "findings", "found": items, "none": none}


def _what(m: Mapping[str, Any]) -> dict[str, Any]:
    p, device, b = m["problem"], devices.find(m["device"]), m["binary"]
    spills = sum(b["spills"].values())
    launches = [
        f"{x['name']}: grid {'x'.join(map(str, x['grid']))}, block {'x'.join(map(str, x['block']))}, occupancy {figure(x['occupancy']['percent'], 4)} %"
        f" (limited by {x['occupancy']['limiter']})"
        for x in m.get("launches") or []
    ]
    return facts([
        ("problem", f"C[{p['m']:,} x {p['n']:,}] = {p['alpha']:g} A[{p['m']:,} x {p['k']:,}] B[{p['k']:,} x {p['n']:,}] + {p['beta']:g} C; {p['distribution']} inputs, seed {p['seed']}"),
        ("tunables", " ".join(f"{k}={v}" for k, v in m["tunables"].items()) or "none"),
        ("device", f"{device.title} ({m['arch']}): {device.sms} SMs at {device.clock_mhz:,} MHz, fp32 peak {figure(device.peak_tflops)} TFLOPS"),
        ("binary", f"{b['registers']} registers a thread, {size(b['shared_bytes'])} of shared memory, {f'{spills} bytes of spills' if spills else 'no spills'}"),
        ("backend", {"sim": "the simulator: machine code, executed on the CPU", "gpu": "the GPU, and the simulator for what it counts"}.get(m["backend"], m["backend"])),
        *[("launch", words) for words in launches],
    ])  # fmt: skip


def _claims(m: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = frames.claims(m) if m.get("claims") else pd.DataFrame()
    if found.empty:
        return []
    rows = [
        (c.claim, c.article, METRICS[c.metric].meaning, figure(c.claimed, 4), figure(c.simulated, 4), figure(c.measured, 4) if c.measured == c.measured else "", c.verdict)
        for c in found.itertuples()
    ]  # fmt: skip
    why = [say(f"{c['says']}: {c['why']}") for c in m["claims"] if c.get("why")]
    columns = ["<claim", "<article", "<metric", "claimed", "simulated", "measured", "<verdict"]
    return [table(columns, rows), *([folded("why, where one does not hold", why)] if why else [])]


def _source(run: Run, code: pd.DataFrame, by_line: pd.DataFrame) -> list[dict[str, Any]]:
    blocks = [plot(interactive.lines(by_line))]
    costs = {(x.file, x.line): x for x in by_line.itertuples()}
    machine = {key: part for key, part in code.groupby(["file", "line"])}
    worst = by_line.share.max()
    for file in dict.fromkeys(by_line.sort_values("cycles", ascending=False).file):
        text, note = _text(run, file)
        if text is None:
            known = code[code.file == file].groupby("line").text.first()
            numbered = [(int(n), t) for n, t in known.items() if n > 0]
        else:
            numbered = list(enumerate(text.splitlines(), 1))
        rows = [_row(n, t, costs.get((file, n)), machine.get((file, n)), worst) for n, t in numbered]
        blocks.append({"kind": "source", "name": file, "note": note, "rows": rows})
    return blocks


def _row(number: int, text: str, cost: Any, code: pd.DataFrame | None, worst: float) -> dict[str, Any]:
    row = {
        "no": number,
        "text": text or " ",
        "sass": "",
        "share": "",
        "shade": 0,
        "conflict": False,
        "scattered": False,
    }
    row |= dict.fromkeys(("executed", "wavefronts", "wavefronts_ideal", "sectors", "sectors_ideal"), "")
    if code is not None:
        row["sass"] = "\n".join(f"{x.pc:05x}  {count(x.executed):>13}  {x.sass}" for x in code.itertuples())
    if cost is not None:
        share = f"{100 * cost.share:.1f} %" if cost.share >= 0.0005 else "< 0.1 %"
        row |= {"share": share, "executed": compact(cost.executed), "shade": round(0.45 * cost.share / worst, 3)}
        for what in ("wavefronts", "sectors"):
            if value := getattr(cost, what):
                row |= {what: compact(value), f"{what}_ideal": compact(getattr(cost, f"{what}_ideal"))}
        row["conflict"] = cost.wavefronts > cost.wavefronts_ideal
        row["scattered"] = cost.sectors > cost.sectors_ideal
    return row


def compact(x: float) -> str:
    """A count in the unit that suits it: 268 M."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if x >= scale:
            return f"{x / scale:.3g} {unit}"
    return f"{x:.0f}"


def _text(run: Run, file: str) -> tuple[str | None, str]:
    """A source as it was compiled: the run's copy, or the checkout's where it is still the same; else None, and why."""
    wanted = run.manifest["binary"]["hashes"]["source"].get(file)
    for path in (run.path / Path(file).name, ROOT / file):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == wanted:
                return data.decode(), ""
    return (
        None,
        "Only lines with machine code: the run holds no copy of this file, and the checkout's has changed since.",
    )


def _counters(m: Mapping[str, Any]) -> list[dict[str, Any]]:
    simulated, counted = m.get("totals") or {}, (m.get("measured") or {}).get("totals") or {}
    blocks = []
    for group, title in GROUPS.items():
        rows = []
        for name, metric in METRICS.items():
            a, b = simulated.get(name), counted.get(name)
            if metric.group != group or (not a and not b):
                continue
            known = a is not None and b is not None
            agree = (
                ""
                if not known
                else "equal"
                if math.isclose(a, b, rel_tol=1e-9)
                else f"{100 * (b / a - 1):+.2f} %"
                if a
                else "differs"
            )
            rows.append(
                (metric.meaning, *(figure(x, 6) if x is not None else "" for x in (a, b)), agree, metric.unit, name)
            )
        if rows:
            blocks.append(
                folded(
                    title, [table(["<", "simulated", "measured", "measured against simulated", "<unit", "<name"], rows)]
                )
            )
    return blocks


def _times(run: Run, points: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> list[Section]:
    """The table of times, TFLOPS against size where there are several, rounds, clocks, and what flags mean."""
    rows = []
    for p in points:
        spread = f"{50 * (p['ms_hi'] - p['ms_lo']) / p['ms']:.2f} %" if p["ms"] else ""
        word = (
            timed_verdict(Estimate(p["ratio"], p["ratio_lo"], p["ratio_hi"]))
            if p.get("rival") and p["ratio"] is not None and p["stage"] != p["rival"]
            else ""
        )
        rows.append((
            _contender(p), f"{p['m']:,}" if p["m"] == p["n"] == p["k"] else _shape(p), figure(p["ms"] or math.nan, 4), spread, figure(p["tflops"] or math.nan),
            percent(p["roof_share"] or math.nan), percent(p["ratio"]) if p.get("rival") and p["ratio"] is not None else "", word, p["rounds"],
            figure(p["clock_mhz"] or math.nan), figure(p["power_w"] or math.nan), " ".join(p["flags"]), p["error"].removesuffix(" of bound"),
        ))  # fmt: skip
    rival = next((p["rival"] for p in points if p.get("rival")), "")
    columns = [
        "<",
        "size",
        "ms",
        "±",
        "TFLOPS",
        "of peak",
        f"of {_known(rival)}'s speed" if rival else "",
        "<is",
        "rounds",
        "MHz",
        "W",
        "<flags",
        "<error / bound",
    ]
    blocks: list[dict[str, Any]] = []
    if len({(p["m"], p["n"], p["k"]) for p in points}) > 1:
        blocks.append(plot(interactive.speeds(pd.DataFrame(points))))
    blocks.append(table(columns, rows, sortable=True))
    raised = dict.fromkeys(f for p in points for f in p["flags"])
    blocks += [facts([(f, FLAGS.get(f, "")) for f in raised])] if raised else []
    options = about.get("options") or {}
    how = f"± is half of the 95 % interval. CUDA events, launches queued behind a blocking kernel; {'rotating inputs, together twice the L2' if options.get('cold') else 'one set of inputs, which may stay in cache'}"
    sections = [Section("Times", how, blocks)]
    if (run.path / "samples.parquet").exists():
        samples = run.table("samples")
        samples["name"] = [f"{s} {m}" for s, m in zip(samples.stage, samples.m, strict=True)]
        if len(samples):
            sections.append(
                Section("Rounds", "every sample, against the median of its row", [plot(interactive.samples(samples))])
            )
    return sections


def _known(rival: str) -> str:
    return {"cublas": "cuBLAS", "cublaslt": "cublasLt"}.get(rival, rival)


def _contender(p: Mapping[str, Any]) -> str:
    try:
        usual = dict(stages.find(p["stage"]).tunables)
    except TilescopeError:
        usual = {}
    return " ".join([_known(p["stage"]), *(f"{k}={v}" for k, v in p["tunables"].items() if usual.get(k) != v)])


def _timings(run: Run) -> Content:
    m = run.manifest
    points = [p for p in m["points"] if p["ms"] is not None]
    found = []
    for shape in dict.fromkeys((p["m"], p["n"], p["k"]) for p in points):
        mine = [p for p in points if (p["m"], p["n"], p["k"]) == shape and p["backend"] == "gpu"]
        if not mine:
            continue
        best = max(mine, key=lambda p: p["tflops"])
        beside = (
            f", {percent(best['ratio'])} of {_known(best['rival'])}'s speed"
            if best.get("rival") and best["ratio"] is not None
            else ""
        )
        found.append(
            f"{' x '.join(f'{x:,}' for x in shape)}: {_contender(best)} is the fastest stage with {figure(best['tflops'])} TFLOPS{beside}."
        )
    blocks = [
        {
            "kind": "findings",
            "found": [{"sentence": s, "remedy": "", "cost": ""} for s in found],
            "none": "Nothing was timed.",
        }
    ]
    blocks += [say(f"Warning: {w}") for w in m.get("warnings") or []]
    sections = [Section("Findings", "", blocks), *_times(run, m["points"], m), *_end(run)]
    wrong = [
        p for p in m["points"] if p.get("fault") or p.get("damage") or (p.get("accuracy") and not p["accuracy"]["ok"])
    ]
    title = "Ladder" if m["kind"] == "ladder" else "Times"
    driver = (m.get("nvml") or {}).get("driver")
    return Content(
        f"{title} on {m['gpu']}", f"driver {driver}" if driver else "", f"run {run.id}", sections, "every C is right" if m["ok"] and not wrong else "not all are right",
        bool(m["ok"]) and not wrong, ", ".join(f"{p['stage']} {p['m']}: {p['error']}" for p in wrong),
    )  # fmt: skip


def _roofs(run: Run) -> Content:
    m = run.manifest
    roofs = pd.DataFrame(m["roofs"])
    known = roofs.dropna(subset=["specified"]).assign(share=lambda t: t.value / t.specified.astype(float))
    far = known[(known.share < 0.95) | (known.share > 1.02)]
    items = [
        {"sentence": f"{r.name}: {figure(r.value, 4)} {r.unit}, {percent(r.share)} of what {'the model' if r.model else 'the specification'} says.", "remedy": "", "cost": ""}
        for r in far.itertuples()
    ]  # fmt: skip
    none = "Every roof is within 5 % of what the device's data or the model say."
    rows = [
        (r.name, figure(r.value, 4), r.unit, f"{figure(r.low, 4)} to {figure(r.high, 4)}", figure(r.specified, 4) if r.specified == r.specified and r.specified is not None else "",
         "model" if r.model else "", figure(r.clock_mhz), r.meaning)
        for r in roofs.itertuples()
    ]  # fmt: skip
    shown = known.assign(
        label=[percent(s) for s in known.share],
        colour=[interactive.ORANGE if s < 0.95 else interactive.BLUE for s in known.share],
    )
    shown = shown.assign(rate=shown.value, value=100 * shown.share)[
        ["name", "value", "label", "colour", "rate", "unit", "meaning", "specified"]
    ]
    tips = [("", "@name: @meaning"), ("measured", "@rate{0.000} @unit"), ("specified", "@specified{0.000} @unit")]
    charts = [plot(interactive.bars(shown, "% of the device's data, or of the model", tips))] if len(shown) else []
    columns = ["<roof", "measured", "<unit", "least to most", "specified", "<", "MHz", "<"]
    sections = [
        Section(
            "Findings", "roofs that lie off what is specified", [{"kind": "findings", "found": items, "none": none}]
        ),
        Section(
            "Roofs",
            "what the units, memories and latencies of this GPU give at most",
            [*charts, table(columns, rows, sortable=True)],
        ),
        *_end(run),
    ]
    return Content(f"Roofs of {m['gpu']}", "", f"run {run.id}", sections)


def _ledger(run: Run) -> Content:
    from .ledger import short_verdict, summary

    found = run.table("ledger")
    counted = [
        {"sentence": f"{verdict}: {n} of {len(found)} statements.", "remedy": "", "cost": ""}
        for verdict, n in summary(found).items()
        if n
    ]
    rows = [
        (r.article, r.section, r.statement, short_verdict(r.verdict), r.value, r.source, r.why)
        for r in found.itertuples()
    ]
    columns = ["<article", "<section", "<statement", "<verdict", "<value", "<source", "<why"]
    sections = [
        Section("Findings", "", [{"kind": "findings", "found": counted, "none": "No statement."}]),
        Section("Statements", "", [table(columns, rows, sortable=True)]),
        *_end(run),
    ]
    return Content("The articles' statements", f"for {run.manifest['device']}", f"run {run.id}", sections)


def _other(run: Run) -> Content:
    """A run of any other kind: what it found, if it says so, and its points."""
    m = run.manifest
    points = frames.points([run])
    shown = (
        [Section("Findings", "", [_findings_of(m)])]
        if m.get("findings")
        else [_overall([run], points)]
        if len(points) > 1
        else []
    )
    sections = [*shown, *_points(points), *_end(run)]
    ok = m.get("ok")
    return Content(
        f"{str(m.get('kind', 'run')).capitalize()} {m.get('name', '')}".strip(), str(m.get("question", "")), f"run {run.id}", sections,
        "" if ok is None else "ok" if ok else "not ok", ok is not False,
    )  # fmt: skip


def _findings_of(m: Mapping[str, Any]) -> dict[str, Any]:
    items = [f if isinstance(f, Mapping) else {"sentence": str(f)} for f in m["findings"]]
    filled = [
        {
            "sentence": f.get("sentence", ""),
            "remedy": f.get("remedy", ""),
            "cost": percent(f["cost"]) if f.get("cost") else "",
        }
        for f in items
    ]
    return {"kind": "findings", "found": filled, "none": ""}


def _end(run: Run) -> list[Section]:
    """How the run was made, its files, and its text as it was printed."""
    blocks: list[dict[str, Any]] = [_made(run.manifest)]
    for name in ("profile.txt", "roofs.txt", "ledger.txt"):
        if (run.path / name).exists():
            blocks.append({"kind": "text", "title": f"{name}: as it was printed", "text": run.text(name)})
    if (run.path / "checksums.sha256").exists():
        blocks.append({"kind": "text", "title": "files and their SHA-256", "text": run.text("checksums.sha256")})
    return [Section("How it was made", "", blocks)]


def _made(m: Mapping[str, Any]) -> dict[str, Any]:
    where, b = m.get("environment") or {}, m.get("binary") or {}
    git = where.get("git") or {}
    hashes = {"sass": m.get("sass", ""), **(b.get("hashes") or {})}
    nvml = m.get("nvml") or (m.get("timing") or {}).get("nvml") or {}
    return facts([
        ("run", m.get("id")), ("kind", m.get("kind")), ("started", m.get("started")), ("ended", m.get("ended")),
        ("commit", f"{git['commit'][:12]}{', with changes' if git.get('dirty') else ''}" if git.get("commit") else ""),
        ("machine code", hashes["sass"]), ("cubin", hashes.get("cubin")),
        ("compiler", f"nvcc {b.get('nvcc') or m.get('nvcc')} {' '.join(b.get('flags') or [])}" if b.get("nvcc") or m.get("nvcc") else ""),
        ("GPU", f"{m.get('gpu') or (m.get('timing') or {}).get('gpu') or ''}{', driver ' + nvml['driver'] if nvml.get('driver') else ''}"),
        ("Nsight Compute", (m.get("measured") or {}).get("ncu")),
        ("Python", where.get("python")), ("packages", ", ".join(f"{k} {v}" for k, v in (where.get("packages") or {}).items())),
        ("host", f"{where.get('cpu', '')}, {where.get('cores', '')} cores, {where.get('system', '')}" if where else ""),
    ])  # fmt: skip
