"""The HTML page: what it says, that it asks nothing of the network, that a browser shows it, and how long it takes."""

import errno
import html
import os
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from harness import cli, definition, experiments, htmlreport, ledger, profiling, record, tune
from harness.errors import TilescopeError
from harness.html import charts, points
from harness.html.page import render
from harness.problem import Problem

BROWSER = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def run(folder):
    profiling.profile("tiled2d", size=130, backend="sim", out=folder / "tiled2d")
    return record.load(folder / "tiled2d")


@pytest.fixture(scope="module")
def page(run, folder):
    return htmlreport.write(run.path, out=folder / "page.html")


def timed(folder, name="ladder", **changes):
    """A recorded ladder of two stages and cuBLAS at two sizes."""
    points = []
    for m in (512, 1024):
        for stage, ms in (("naive", 0.2), ("tiled2d", 0.1), ("cublas", 0.04)):
            points.append({
                "stage": stage, "m": m, "n": m, "k": m, "backend": "cublas" if stage == "cublas" else "gpu", "ms": ms, "ms_lo": 0.99 * ms, "ms_hi": 1.01 * ms,
                "tflops": 2e-9 * m**3 / ms, "ratio": 0.04 / ms, "ratio_lo": 0.039 / ms, "ratio_hi": 0.041 / ms, "roof_share": 0.1, "clock_mhz": 1980.0, "power_w": None,
                "flags": ["throttled"] if stage == "naive" else [], "error": "0.01 of bound", "tunables": {}, "rival": "cublas", "rounds": 3,
            } | changes)  # fmt: skip
    manifest = {
        "id": f"20260101T000000Z-{name}", "kind": "ladder", "gpu": "NVIDIA H200", "device": "h200", "ok": True, "points": points, "options": {"cold": True}, "warnings": ["it was warm"],
    }  # fmt: skip
    samples = pd.DataFrame(
        [(f"{i}", p["stage"], p["m"], r, p["ms"] or 0.0) for i, p in enumerate(points) for r in range(3)],
        columns=["run", "stage", "m", "round", "ms"],
    )
    runs = pd.DataFrame(
        [{"run": f"{i}", "stage": p["stage"], "m": p["m"], "n": p["n"], "k": p["k"]} for i, p in enumerate(points)]
    )
    return record.write(folder / name, manifest, {"runs": runs, "samples": samples})


class Loads(HTMLParser):
    """What a page would fetch."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "srcset", "poster", "data", "action") or name == "href" and tag != "a":
                self.found.append((tag, name, value))
            if name == "style" and "url(" in (value or ""):
                self.found.append((tag, name, value))


class Tables(HTMLParser):
    """A page's tables: heads, rows, the classes of the boxes around each and of each of its rows."""

    def __init__(self, text):
        super().__init__()
        self.boxes, self.found, self.cell = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        classes = (dict(attrs).get("class") or "").split()
        if tag == "div":
            self.boxes.append(classes)
        if tag == "table":
            self.found.append({"boxes": [*self.boxes], "heads": [], "rows": [], "classes": []})
        if tag == "tr":
            self.found[-1]["rows"].append([])
            self.found[-1]["classes"].append(classes)
        if tag in ("th", "td"):
            self.cell = []

    def handle_endtag(self, tag):
        if tag == "div":
            self.boxes.pop()
        if tag in ("th", "td"):
            said, table = " ".join("".join(self.cell).split()), self.found[-1]
            (table["heads"] if tag == "th" else table["rows"][-1]).append(said)
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell.append(f"{data} ")

    def table(self, head):
        """The first table with a column so headed."""
        return next(t for t in self.found if head in t["heads"])

    def rows(self, head):
        return [row for row in self.table(head)["rows"] if row]


def words(page):
    """What a page says, its scripts and marks left out."""
    text = re.sub(r"<(script|style).*?</\1>", "", Path(page).read_text(), flags=re.S)
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text)))


def test_a_profile(page, run):
    said = words(page)
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", page.read_text())
    assert titles == [
        "Findings",
        "What was run",
        "What the articles claim",
        "What bounds it",
        "Source",
        "Counters",
        "How it was made",
    ]
    for finding in run.manifest["findings"]:
        assert finding["sentence"] in said and finding["remedy"] in said
    assert (
        "C is right" in said
        and "NVIDIA H200 SXM (sm_90)" in said
        and run.id in said
        and run.manifest["binary"]["hashes"]["sass"] in said
    )
    for claim in run.manifest["claims"]:
        assert claim["says"] in said and claim["verdict"] in said
    assert "__shared__ float As[BM][BK];" in said  # the whole source, not only what has machine code
    assert re.search(r"[0-9a-f]{5} +[\d,]+ +LDS", said)
    assert "shared-memory passes that are bank conflicts" in said


def test_it_asks_nothing_of_the_network(page, folder):
    for p in (page, htmlreport.write(timed(folder, "offline"), out=folder / "offline.html")):
        text = p.read_text()
        assert Loads(text).found == [("link", "href", "data:,")]
        style = "".join(re.findall(r"<style>(.*?)</style>", text, re.S))
        assert "@import" not in style and "url(" not in style
        assert p.stat().st_size < 2_000_000


def test_no_path_of_this_machine(page, folder):
    text = page.read_text()
    assert str(folder) not in text and str(htmlreport.ROOT) not in text


def test_a_ladder(folder):
    said = words(htmlreport.write(timed(folder), out=folder / "ladder.html"))
    assert "1,024 x 1,024 x 1,024: tiled2d is the fastest stage with 21.5 TFLOPS, 40 % of cuBLAS's speed." in said
    assert "SLOWER" in said and "every C is right" in said and "throttled" in said and "Warning: it was warm" in said
    bad = words(
        htmlreport.write(
            timed(folder, "bad", ms=None, tflops=None, ratio=None, fault="it hung", error="hung"),
            out=folder / "bad.html",
        )
    )
    assert "not all are right" in bad and "naive 512: hung" in bad and "Nothing was timed." in bad


def test_roofs_ledger_and_what_has_no_page_of_its_own(folder):
    roof = {
        "name": "DRAM copy", "kernel": "k", "unit": "GB/s", "meaning": "from there to here", "value": 3823.0, "low": 3800.0, "high": 3830.0, "specified": 4800, "model": False,
        "resource": "", "scale": 1.0, "clock_mhz": 1980.0, "cycles_mhz": 1980.0, "power_w": 1.0, "flags": [], "samples": [],
    }  # fmt: skip
    runs = pd.DataFrame(
        [
            {"run": "r", "stage": "naive", "m": 1},
            {"run": "s", "stage": "tiled", "m": 2},
            {"run": "t", "stage": "tiled", "m": 3},
        ]
    )
    values = record.frame(
        record.VALUES, [(r, None, "tflops", None, 1.5 + n, "TFLOPS", "timing") for n, r in enumerate("rst")]
    )
    path = record.write(
        folder / "roofs", {"id": "r", "kind": "roofs", "gpu": "NVIDIA H200", "roofs": [roof]}, {"runs": runs}
    )
    said = words(htmlreport.write(path, out=folder / "r.html"))
    assert "DRAM copy: 3,823 GB/s, 79.6 % of what the specification says." in said
    table = pd.DataFrame(
        [("k", "2D", "1", "a statement", "4", "does not hold", "m", "3", "sim", "", "why not")],
        columns=list(ledger.COLUMNS),
    )
    path = record.write(
        folder / "ledger", {"id": "l", "kind": "ledger", "device": "h200"}, {"runs": runs, "ledger": table}
    )
    said = words(htmlreport.write(path, out=folder / "l.html"))
    assert "does not hold: 1 of 1 statements." in said and "a statement" in said
    path = record.write(
        folder / "other",
        {"id": "o", "kind": "search", "findings": ["TILE=8 is best"]},
        {"runs": runs, "values": values},
    )
    said = words(htmlreport.write(path, out=folder / "o.html"))
    assert "TILE=8 is best" in said and "2.500" in said


def title(page):
    return html.unescape(re.search(r"<title>(.*?)</title>", page.read_text())[1])


def test_title_and_file_say_what_the_page_is(run, folder, monkeypatch):
    monkeypatch.setattr(htmlreport, "REPORTS", folder / "reports")
    day = run.manifest["started"][:10]
    page = htmlreport.write(run.path)
    assert (
        page.name == f"profile-tiled2d-130-{run.id}.html" and title(page) == f"tiled2d on 130 x 130 x 130, h200, {day}"
    )
    page = htmlreport.write(timed(folder, "named"))
    assert page.name == "ladder-20260101T000000Z-named.html" and title(page) == "Ladder on NVIDIA H200"
    path = timed(folder, "one")
    manifest = record.load(path).manifest
    points = [p for p in manifest["points"] if p["m"] == 512 and p["stage"] != "naive"]
    one = record.Run(path, manifest | {"kind": "time", "points": points, "started": "2026-01-02T03:04:05Z"})
    assert htmlreport._stem(one) == "time-tiled2d-512-20260101T000000Z-one"
    content = htmlreport.single(one)
    assert (content.title, content.date) == ("Times of tiled2d at 512 on NVIDIA H200", "2026-01-02")


DEFINITION = """
question = "Does traffic fall by TILE?"
metrics = ["global_load_bytes"]
sources = ["sim", "timing"]

[[points]]
stages = ["naive", "tiled"]
sizes = [32]

[[claims]]
says = "the lanes' bytes fall by TILE"
metric = "global_load_bytes"
of = { stage = "tiled" }
against = { stage = "naive" }
equals = "TILE"

[[claims]]
says = "they fall by half"
metric = "global_load_bytes"
of = { stage = "tiled" }
against = { stage = "naive" }
most = 2
holds = false
why = "TILE is 32"

[[claims]]
says = "it is fast"
metric = "time_ms"
most = 1
"""


def test_an_experiment_shows_its_claims(folder, monkeypatch):
    monkeypatch.setattr(definition, "EXPERIMENTS", folder)
    (folder / "bytes").mkdir()
    (folder / "bytes/experiment.toml").write_text(DEFINITION)
    done = experiments.experiment(folder / "bytes", backend="sim")
    page = htmlreport.write(done.path, out=folder / "one.html")
    said = words(page)
    by_name, by_path = (
        htmlreport.write(name=n, out=folder / "all.html").read_text() for n in ("bytes", str(folder / "bytes"))
    )
    assert by_name == by_path
    assert (
        title(page).startswith("Experiment bytes on h200, 20")
        and "every claim that was measured is as expected" in said
    )
    assert "3 claims: 1 holds; 1 does not hold, as expected; 1 not measured." in said and "TILE is 32" in said
    assert (
        "global_load_bytes of naive over its own: 32 for tiled TILE=32 at 32, claimed at most 2" in said
    )  # as printed
    lanes = "bytes the lanes ask of global memory: naive / this point"
    assert Tables(page.read_text()).rows("of what") == [
        ["the lanes' bytes fall by TILE", "holds", lanes, "32x", "32x", "tiled at 32", "1 of 1"],
        ["they fall by half", "does not hold, as expected", lanes, "at most 2x", "32x", "tiled at 32", "0 of 1"],
        ["it is fast", "not measured", "median time, ms", "", "", "", ""],
    ]
    assert Tables(page.read_text()).rows("bytes the lanes ask of global memory KiB") == [
        ["naive", "0", "256"], ["tiled", "1", "8"],
    ]  # fmt: skip
    assert "The same in all: device h200, backend sim, size 32." in said
    assert "Tunables of tiled that do not vary: TILE=32." in said and "finding" not in said
    again = experiments.experiment(folder / "bytes", backend="sim", fresh=True)
    several = words(htmlreport.write(name="bytes", out=folder / "several.html"))
    assert "finding" not in several and "3 claims: 1 holds; 1 does not hold, as expected; 1 not measured." in several
    assert "2 of 2" in several and "0 of 2" in several and "0 of 0" in several
    assert all(f"{x.id} experiment 2 points, BACKEND=sim" in several for x in (done, again))


def tuned(folder, name, *candidates):
    """A recorded search over tiled's TILE."""
    found = tune.Tuned(
        name, "tiled", Problem(256, 256, 256), "h200", "gpu", {"TILE": (8, 16, 32)}, list(candidates), {"TILE must be small": 5}, {},
        defaults={"TILE": 32},
    )  # fmt: skip
    tune._record(found, folder / name, 0.0)
    return found.path


def test_a_search_shows_bounds_states_and_what_the_bounds_dropped(folder):
    kept = tune.Candidate({"TILE": 8}, "timed", "", 32, 64, "issue", 0.5, 1.0, 0.99, 1.01, 0.8)
    sampled = tune.Candidate(
        {"TILE": 32}, "timed", "LSU takes 1.6 times the best bound", 38, 48, "LSU", 0.8, 1.2, 1.19, 1.21, 0.7, True
    )
    dropped = tune.Candidate({"TILE": 16}, "bounds", "LSU takes 1.8 times the best bound", 40, 40, "LSU", 0.9)
    page = htmlreport.write(tuned(folder, "search", kept, sampled, dropped), out=folder / "search.html")
    said = words(page)
    assert title(page) == "Tuning tiled on 256 x 256 x 256, h200, 1970-01-01"
    assert "Fastest: TILE=8 with 1 ms, 80 % of cuBLAS's speed." in said
    assert "The bounds dropped 2; 1 of them were timed nevertheless, none of them a winner." in said
    assert "The stage's own tunables take 1.200 ms, 1.200 times as long." in said
    rank, tile, ms, spread, ratio, bound, resource, registers, warps, state, why = range(11)
    (first, second, third) = Tables(page.read_text()).rows("rank")
    assert (first[rank], first[tile], first[ms], first[spread], first[ratio]) == ("1", "8", "1", "1.00 %", "0.800")
    assert (first[bound], first[resource], first[registers], first[warps]) == ("0.5000", "issue", "32", "64")
    assert (first[state], first[why]) == ("timed; the fastest", "")
    assert (second[tile], second[ms]) == ("32", "1.200") and second[why].startswith("LSU takes 1.6")
    assert second[state] == "timed, though dropped by the bounds; the stage's own"
    assert (third[tile], third[ms], third[bound], third[state]) == ("16", "", "0.9000", "dropped by the bounds")
    assert "What became of the 3 candidates: timed 1 wrong or at fault when timed 0 dropped by the bounds 2" in said
    assert "5 more suggestions broke the stage's rules" in said and "5 TILE must be small" in said
    assert "Not drawn: 1 (dropped by the bounds) without time, ms." in said
    sampled.ms = 0.5
    said = words(htmlreport.write(tuned(folder, "lost", kept, sampled), out=folder / "lost.html"))
    assert "the bounds dropped a winner" in said
    said = words(
        htmlreport.write(tuned(folder, "none", tune.Candidate({"TILE": 8}, "spills", "8 bytes")), out=folder / "n.html")
    )
    assert "No candidate is left." in said and "The bounds dropped none." in said and "8 bytes" in said


RECORDED = htmlreport.ROOT / "profiles" / "recorded" / "h200"
RUNS = sorted(p.parent.name for p in RECORDED.glob("*/manifest.json"))


@pytest.mark.parametrize("name", RUNS)
def test_every_recorded_run_has_a_page(name, folder):
    assert record.load(RECORDED / name).id in words(htmlreport.write(RECORDED / name, out=folder / f"{name}.html"))


SEARCHES = {
    "tune-warptiled-512": "PAD GROUP", "tune-warptiled-1024": "PAD", "tune-warptiled-1024-near": "BM BK WM WN PAD GROUP",
    "tune-warptiled-4096": "PAD", "tune-warptiled-4097": "PAD",
}  # fmt: skip
"""Recorded searches -> the tunables that had one choice."""


@pytest.mark.parametrize("name", SEARCHES)
def test_a_recorded_search_has_a_column_for_each_tunable_that_varies(name, folder):
    run = record.load(RECORDED / name)
    page = htmlreport.write(run.path, out=folder / f"{name}.html")
    said, tables = words(page), Tables(page.read_text())
    m, heads = run.manifest, tables.table("rank")["heads"]
    fixed = SEARCHES[name].split()
    assert {n for n, choices in m["choices"].items() if len(choices) == 1} == set(fixed)
    assert heads[: 1 + len(m["choices"]) - len(fixed)] == ["rank", *(n for n in m["choices"] if n not in fixed)]
    assert said.count("The same in all: " + " ".join(f"{n}={m['winner']['tunables'][n]}" for n in fixed) + ".") == 1
    marked = [row for row, kind in zip(tables.table("rank")["rows"], tables.table("rank")["classes"], strict=True) if "best" in kind]  # fmt: skip
    won = dict(zip(heads, marked[0], strict=True))
    assert len(marked) == 1 and won["rank"] == "1" and "the fastest" in won["what became of it"]
    assert all(won[n] == str(v) for n, v in m["winner"]["tunables"].items() if n not in fixed)
    assert f"What became of the {len(run.table('candidates'))} candidates: timed {m['counts']['timed']} " in said
    assert f"wrong or at fault when timed {m['counts']['wrong']} " in said
    assert f"dropped by the bounds {m['counts']['bounds']} " in said


def chosen(page):
    """The axes of a page's plot, as its lists have them."""
    lists = re.findall(r'<select data-axis="[xy]">(.*?)</select>', page, re.S)
    return tuple(html.unescape(re.search(r'<option value="([^"]*)"[^>]* selected>', x)[1]) for x in lists)


SECTORS, EXCESS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "derived__memory_l1_wavefronts_shared_excessive"
OCCUPANCY = "sm__maximum_warps_per_active_cycle_pct"
AXES = {  # by the question: what it sweeps or blames, against what it asks; measured, and simulated
    "article_table": ("size", "rival_ratio", "attainable_tflops"),
    "bank_conflicts": ("BK", EXCESS, EXCESS),
    "barriers": ("TILE", "fault", "fault"),
    "occupancy_vs_speed": (OCCUPANCY, "time_ms", "bound_ms"),
    "ragged": ("size", "time_ms", "bound_ms"),
    "reads_per_fma": ("shared_words_read_per_fma", "memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared"),
    "register_reads": ("register_reads_per_ffma", "time_ms", "bound_ms"),
    "roofline": ("arithmetic_intensity", "tflops", "attainable_tflops"),
    "traffic": ("TILE", "global_load_bytes", "global_load_bytes"),
    "uncoalesced": (SECTORS, "time_ms", "bound_ms"),
}


@pytest.fixture(scope="module")
def pages():
    """The pages of every recorded run of an experiment by (name, backend), and of all runs of one by (name, 'all')."""
    found = {}
    for name in definition.names():
        runs = htmlreport.experiment(name)
        found[name, "all"] = render(htmlreport.several(name, runs))
        found |= {(name, run.manifest["backend"]): render(htmlreport.single(run)) for run in runs}
    return found


def test_the_axes_of_an_experiment_are_what_it_asks(pages):
    found = {key: chosen(page) for key, page in pages.items()}
    assert found.pop(("hello_4x4", "sim")) == found.pop(("hello_4x4", "all")) == ()  # two points
    wanted = {}
    for name, (x, measured, simulated) in AXES.items():
        wanted |= {(name, "gpu"): (x, measured), (name, "all"): (x, measured), (name, "sim"): (x, simulated)}
    assert found == wanted


def test_every_table_scrolls_in_its_own_box(pages, page):
    for key, text in {**pages, "profile": page.read_text()}.items():
        tables = Tables(text).found
        assert len(tables) >= 2 and all({"scroll", "source"} & set(t["boxes"][-1]) for t in tables), key
        for t in tables:
            assert all(len(row) == len(t["heads"]) for row in t["rows"] if row), key
            assert all(t["heads"]), (key, t["heads"])  # every column says what it is


def test_no_metric_of_an_experiment_stands_there_without_its_meaning(pages):
    for (name, _), text in pages.items():
        tables = Tables(text)
        about = {row[0]: row for row in tables.rows("metric")}
        heads = next(
            t["heads"] for t in tables.found if {"point", "run"} & set(t["heads"]) and "fault" not in t["heads"]
        )
        start = next(n for n, h in enumerate(heads) if h in ("point", "run")) + 1
        assert all(any(h.startswith(words) for words in about) for h in heads[start:]), (name, heads)
        assert not any("__" in h for h in heads)
        assert all(row[1] and row[-1] for row in about.values())


def test_what_a_plot_leaves_out_is_said(pages):
    assert "Not drawn: 3 (naive) without TILE." in pages["traffic", "gpu"]
    assert "Not drawn: 5 (cublas) without cuBLAS&#39;s time over this one&#39;s." in pages["article_table", "gpu"]
    assert 'id="undrawn"></p>' in pages["ragged", "gpu"]


def test_claims_are_those_of_the_newest_definition(pages):
    """The run of `ragged` on a GPU is older than its last claim, which its times can answer."""
    (claim,) = [
        r for r in Tables(pages["ragged", "all"]).rows("of what") if r[0].startswith("and take more than three")
    ]
    assert claim[1:] == [
        "",
        "holds",
        "median time, ms",
        "at least 0.852",
        "1.018",
        "tiled2d at 1025",
        "1 of 1",
        "1 of 1",
    ]
    assert "and the time with it" not in re.sub(r"<details>.*?</details>", "", pages["ragged", "all"], flags=re.S)


def test_faults_are_told_with_their_lines(pages):
    faults = Tables(pages["barriers", "sim"]).rows("what happened")
    assert len(faults) == 6 and {r[2] for r in faults} == {
        "tiled_no_first_barrier.cu:25",
        "tiled_no_second_barrier.cu:30",
    }
    assert all("hazard" in r[-1] and "by thread" in r[-1] for r in faults)


def test_axes_of_points_that_nobody_claims_anything_of():
    rows = pd.DataFrame({"stage": list("aab"), "size": [512, 1024, 512], "tflops": [1.0, 2, 3], "right": [1, 1, 1]})
    assert points.axes(rows, ["size"]) == ("size", "tflops")
    assert points.axes(rows.assign(size=512), ["size"]) == ("tflops", "tflops")
    assert points.axes(rows[["stage", "right"]], []) == ("", "")


def test_a_logarithm_where_values_double_or_lie_far_apart():
    def log(*values, label="x"):
        return charts.geometric(pd.Series(values, dtype=float), label)

    assert log(4, 8, 16, 32) and log(0.1, 0.2, 3) and log(512, 1024, 4096)
    assert not log(4, 7, 8, 9, 16, 17) and not log(0, 1, 100) and not log(960, 961, 1088) and not log(2, 4)
    assert not log(12.5, 25, 100, label="occupancy, %") and not log(float("nan"))


def test_units_that_a_person_reads():
    assert points.scale("global_load_bytes", [2.0**25, 2.0**39]) == (2.0**-20, "MiB")
    assert points.scale("global_load_bytes", [256.0, 2.0**39, 0.0]) == (1.0, "bytes")
    assert points.scale("bank_conflict_share", [0.64]) == (100.0, "%")
    assert points.scale("bound: FMA pipe", [1e-4]) == (1e3, "ms")
    assert points.words("bound: FMA pipe") == "least time: FMA pipe" and points.words("right") == "C is right"


def test_a_changed_source_is_not_shown_as_if_it_were_the_old_one(run, folder, monkeypatch):
    copy = folder / "old"
    shutil.copytree(run.path, copy)
    (copy / "tiled2d.cu").unlink()
    monkeypatch.setattr("harness.html.profiles.ROOT", folder)
    (folder / "old.html").write_text(render(htmlreport.single(record.Run(copy, run.manifest))))
    said = words(folder / "old.html")
    assert (
        "Only lines with machine code" in said and "a[i] = As[ty * TM + i][k];" in said and "#pragma unroll" not in said
    )


def test_200_runs_in_ten_seconds(run, folder, monkeypatch):
    monkeypatch.setattr(definition, "EXPERIMENTS", folder)
    for n in range(200):
        shutil.copytree(run.path, folder / "many" / "runs" / f"{n:03}")
    (folder / "many" / "experiment.toml").touch()
    start = time.perf_counter()
    page = htmlreport.write(name="many", out=folder / "many.html")
    assert time.perf_counter() - start < 10
    said = words(page)
    assert "all runs ok" in said and "200 in all" in said and said.count(run.id) >= 200
    assert page.stat().st_size < 5_000_000


def test_what_cannot_be_reported(run, folder, monkeypatch):
    monkeypatch.setattr(definition, "EXPERIMENTS", folder / "experiments")
    (folder / "experiments" / "traffic" / "runs").mkdir(parents=True)
    (folder / "experiments" / "traffic" / "experiment.toml").touch()
    for arguments, message in (
        ({}, "RUN or NAME"),
        ({"run": run.path, "name": "traffic"}, "not both"),
        ({"run": folder / "nowhere"}, "no run"),
        ({"name": "trafic"}, "Did you mean traffic"),
        ({"name": "traffic"}, "has no recorded run"),
        ({"run": run.path, "out": folder}, "is a folder"),
        ({"run": run.path, "out": run.path / "manifest.json" / "x.html"}, "cannot write"),
    ):
        with pytest.raises(TilescopeError, match=message):
            htmlreport.write(**arguments)
    damaged = folder / "damaged"
    shutil.copytree(run.path, damaged)
    (damaged / "values.parquet").write_bytes(b"PAR1")
    with pytest.raises(TilescopeError, match="damaged"):
        htmlreport.write(damaged)
    assert not list(folder.glob(".*html*"))


def test_what_was_measured_otherwise(run):
    counted = {
        "metric": "a__metric",
        "launch": "main",
        "simulated": 4.0,
        "measured": 5.0,
        "verdict": "differs",
        "why": "nobody knows",
    }
    same = counted | {"metric": "b__metric", "measured": 4.0, "verdict": "equal"}
    manifest = run.manifest | {"measured": {"totals": {}, "comparisons": [counted, same], "ncu": "2026.1"}}
    page = render(htmlreport.single(record.Run(run.path, manifest)))
    assert (
        "Simulated against measured: 1 differs, 1 equal." in page and "nobody knows" in page and "b__metric" not in page
    )


def test_the_verb(run, folder, capsys):
    assert cli.main(["report", f"RUN={run.path}", f"OUT={folder / 'verb.html'}"]) == 0
    assert "Written to " in capsys.readouterr().out and (folder / "verb.html").stat().st_size > 1e6
    assert cli.main(["report"]) == 2 and "RUN or NAME" in capsys.readouterr().err


@pytest.mark.parametrize("out, says", [("/proc/x", "/proc takes no new files"), ("/dev", "it is a folder")])
def test_a_page_that_cannot_be_written_is_known_before_the_work(run, capsys, monkeypatch, out, says):
    monkeypatch.setattr(htmlreport, "single", lambda run: pytest.fail("it works already"))
    assert cli.main(["report", f"RUN={run.path}", f"OUT={out}"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f"error: cannot write OUT={out}: {says}.\n       Choose a writable place with OUT=.\n",
    )


def test_a_disk_that_is_full_leaves_no_page(run, folder, capsys, monkeypatch):
    real = Path.write_bytes

    def full(self, data):
        real(self, data[:1000])
        if len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert cli.main(["report", f"RUN={run.path}", f"OUT={folder}/new/place/x.html"]) == 2
    assert f"cannot write OUT={folder}/new/place/x.html: the disk is full." in capsys.readouterr().err
    assert not (folder / "new").exists()


def browse(page, *words):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=10000", "--host-resolver-rules=MAP * ~NOTFOUND",
               "--enable-logging=stderr", "--window-size=1200,2600", f"--user-data-dir={page.parent / 'browser'}", *words, f"file://{page}"]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)


CHECK = """<script>setTimeout(() => {
  const list = document.querySelector("select[data-axis=y]");
  let moved = "none";
  if (list) {
    const source = Bokeh.documents.map(d => d.get_model_by_name("explorer")).find(x => x);
    list.value = "power_w"; list.dispatchEvent(new Event("change"));
    moved = Array.from(source.data.y).join(" ");
  }
  const drawn = x => x.querySelector("canvas") || [...x.querySelectorAll("*")].some(y => y.shadowRoot && drawn(y.shadowRoot));
  const plots = [...document.querySelectorAll("[data-root-id]")].filter(x => x.firstElementChild?.getBoundingClientRect().height > 80 && drawn(x));
  const head = [...document.querySelectorAll("table.sortable th")].at(-1); head?.click();
  document.body.dataset.seen = `${plots.length} plots; y ${moved}; last ${[...document.querySelectorAll("table.sortable td:first-child")].at(-1)?.textContent}`;
}, 3000)</script></body>"""


MEASURE = """<script>setTimeout(() => {
  const found = [...document.querySelectorAll("iframe")].map(f => {
    const page = f.contentDocument, width = f.clientWidth;
    const out = [...page.querySelectorAll("body *")].filter(e => !e.closest(".scroll, .source, .plot, pre, .bk-Tooltip") && e.getBoundingClientRect().right > width + 1);
    const scrolled = [...page.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth).length;
    return `${width}: ${page.documentElement.scrollWidth <= width && !out.length ? "fits" : "cut " + out.slice(0, 3).map(e => e.tagName + e.className)}, ${scrolled} scroll`;
  });
  document.body.dataset.seen = found.join("; ");
}, 3000)</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
@pytest.mark.parametrize("name", ["bank_conflicts", "roofline", "tune"])
def test_nothing_is_cut_off_at_any_width(name, pages, folder):
    """In a browser 1400, 1000 and 400 pixels wide, whatever is wider than the page lies in a box that scrolls."""
    text = render(htmlreport.single(record.load(RECORDED / "tune-warptiled-1024"))) if name == "tune" else pages[name, "gpu"]  # fmt: skip
    frames = [f'<iframe style="width:{w}px;height:900px;border:0" srcdoc="{html.escape(text)}"></iframe>' for w in (1400, 1000, 400)]  # fmt: skip
    framed = folder / f"framed-{name}.html"
    framed.write_text(f"<!doctype html><body>{''.join(frames)}{MEASURE}</body>")
    done = browse(framed, "--dump-dom")
    seen = re.search(r'<body data-seen="([^"]*)"', done.stdout)
    assert seen and len(re.findall(r"\d+: fits, \d scroll", seen[1])) == 3, seen or done.stderr
    if name != "tune":  # a search has a column for each of a dozen tunables
        assert "1400: fits, 0 scroll" in seen[1], seen


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
@pytest.mark.parametrize("kind", ["profile", "ladder", "points"])
def test_a_browser_shows_it(kind, page, folder, request):
    """In a real browser without network: every plot is drawn, the lists of axes and the tables' heads work, no error."""
    if kind == "ladder":
        page = htmlreport.write(timed(folder, "shown"), out=folder / "shown.html")
    if kind == "points":
        runs = pd.DataFrame({"run": list("rst"), "stage": ["naive", "tiled", "tiled"], "m": [1, 2, 3], "n": 1, "k": 1})
        rows = [
            (r, None, metric, None, v + n, "", "timing")
            for n, r in enumerate("rst")
            for metric, v in (("tflops", 1.5), ("power_w", 400.0))
        ]
        path = record.write(
            folder / "points",
            {"id": "p", "kind": "search"},
            {"runs": runs, "values": record.frame(record.VALUES, rows)},
        )
        page = htmlreport.write(path, out=folder / "points.html")
    plots = page.read_text().count("data-root-id=")
    probed = folder / f"probed-{kind}.html"
    probed.write_text(page.read_text().replace("</body>", CHECK))
    done = browse(probed, "--dump-dom")
    assert done.returncode == 0, done.stderr
    seen = re.search(r'data-seen="(.*?)"', done.stdout)
    assert seen and seen[1].startswith(f"{plots} plots") and plots >= 1, seen
    assert not re.findall(r"CONSOLE.*(?:[Ee]rror|ERR_).*", done.stderr), done.stderr
    if kind == "points":
        assert "y 400 401 402" in seen[1] and "last naive" in seen[1], seen
    picture = folder / f"{kind}.png"
    browse(page, f"--screenshot={picture}")
    from matplotlib.image import imread

    pixels = imread(picture)[..., :3]
    assert pixels.shape[:2] == (2600, 1200)
    blue = abs(pixels - [0, 0x72 / 255, 0xB2 / 255]).max(axis=2) < 0.03
    assert blue.sum() > (60 if kind != "profile" else 20000), "no plot in the picture"
