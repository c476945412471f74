"""The ledger says of every number in the articles what became of it, with evidence."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pandas as pd
import pytest

from harness import claims, device, ledger, record, roofs
from harness.ledger import NEEDS, Evidence
from harness.statement_checks import BENCHMARK
from harness.statements import STATEMENTS

NUMBERS = Path(__file__).parent / "data" / "article_numbers.csv"
VERDICTS = {claims.HOLDS, claims.FAILS, claims.UNCHECKED, NEEDS}
NEED_A_GPU = {"roofs", "timing", "ncu"}


@pytest.fixture
def nothing_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "PROFILES", tmp_path / "profiles")
    monkeypatch.setattr(record, "ROOT", tmp_path)
    return tmp_path / "profiles"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The ledger on a machine where nothing is recorded."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("nothing")
        patch.setattr(record, "PROFILES", folder / "profiles")
        patch.setattr(record, "ROOT", folder)
        return ledger.build(Evidence()).set_index("key", drop=False)


def numbers() -> list[dict[str, str]]:
    with open(NUMBERS) as f:
        return list(csv.DictReader(f))


@pytest.mark.parametrize("row", numbers(), ids=lambda r: f"{r['article']} {r['section']} {r['number']}")
def test_every_number_of_the_articles_is_covered(row):
    by_key = {s.key: s for s in STATEMENTS}
    covering = [by_key[key] for key in row["keys"].split()]
    assert covering
    for s in covering:
        assert (s.article, s.section) == (row["article"], row["section"])
        printed = " ".join(s.numbers)
        assert row["number"] in s.numbers or row["number"] in re.findall(r"\d[\d,.]*\d|\d", printed)


def test_keys_are_unique():
    assert len({s.key for s in STATEMENTS}) == len(STATEMENTS)


def test_each_row_has_a_verdict_and_evidence(table):
    for r in table.itertuples():
        assert ledger.short_verdict(r.verdict) in VERDICTS | {"holds in part"}, r.key
        if r.verdict == NEEDS:
            assert r.why.startswith("make "), r.key
        elif r.verdict != claims.UNCHECKED:
            assert r.metric and r.value and r.source, r.key
        if ledger.short_verdict(r.verdict) in (claims.FAILS, claims.UNCHECKED, "holds in part"):
            assert r.why, r.key


def test_without_a_gpu_run_nothing_pretends_to_be_measured(table):
    assert not any(NEED_A_GPU & set(re.split(", ?", source)) for source in table.source)
    assert (table.verdict == NEEDS).sum() >= 20


def test_every_claim_of_the_ladder_is_taken_up(table):
    keys = {s.key for s in STATEMENTS}
    assert keys <= set(table.index) and set(table.article[~table.index.isin(keys)]) <= {"the ladder"}


@pytest.mark.parametrize(
    "key, value",
    [
        ("deep-phase-0-sums", "11, 14, 35, 46"),
        ("deep-phase-1-sums", "90, 100, 202, 228"),
        ("deep-phase-1-tiles", "3 4 7 8; 9 10 13 14"),
        ("deep-bytes-per-phase", "8,192"),
        ("deep-flops-per-phase", "65,536"),
        ("deep-h100-balance", "19.97"),
        ("deep-rtx4090-balance", "81.92"),
        ("deep-cap-h100", "0.01252"),
        ("deep-footprint-2", "32"),
        ("deep-footprint-32", "8,192"),
        ("deep-ragged-grid", "32 x 32 blocks"),
        ("deep-banks", "32"),
        ("deep-padding", "1"),
        ("2d-nine-reads", "1.125"),
        ("2d-sixteen-reads", "0.25"),
        ("2d-thousand", "225"),
        ("beginners-two-barriers", "2"),
        ("beginners-reuse-16", "16"),
        ("beginners-same-answer", "0"),
    ],
)
def test_values_by_hand(table, key, value):
    assert (table.value[key], table.verdict[key]) == (value, claims.HOLDS)


def test_the_findings_among_the_statements(table):
    assert table.verdict["beginners-sixteenfold"].startswith(
        "holds for l1tex__t_requests"
    )  # 16x fewer requests, 10x fewer sectors
    assert table.value["deep-traffic-32"].startswith("32; 20 times")
    assert table.verdict["deep-peak-mac"] == claims.FAILS
    assert table.verdict["2d-eighteen"] == claims.FAILS and "17.67 at 2048" in table.why["2d-eighteen"]
    assert table.verdict["2d-settles"] == claims.FAILS


@pytest.mark.parametrize("size", BENCHMARK)
def test_the_printed_table_agrees_with_itself(table, size):
    assert table.verdict[f"2d-table-{size}"] == claims.HOLDS


def write_ladder(folder: Path, scale: float = 1.0) -> None:
    rows = []
    for n, (ms, tflops, cublas_ms, cublas_tflops, percent) in BENCHMARK.items():
        rows.append(("tiled2d", n, n, n, "gpu", float(ms) * scale, float(tflops) / scale, float(percent) / 100 / scale))
        rows.append(("cublas", n, n, n, "cublas", float(cublas_ms), float(cublas_tflops), 1.0))
        rows.append(("naive", n, n, n, "gpu", 1.0, 5.8, 0.11))
        rows.append(("tiled1d", n, n, n, "gpu", 1.0, 10.0, 0.2))
    folder.mkdir(parents=True)
    pd.DataFrame(rows, columns=["stage", "m", "n", "k", "backend", "ms", "tflops", "ratio"]).to_csv(
        folder / "ladder.csv", index=False
    )


def outcomes(*keys: str) -> dict[str, ledger.Outcome]:
    evidence = Evidence()
    return {s.key: s.check(evidence) for s in STATEMENTS if s.key in keys}


def test_times_come_from_the_recorded_ladder(nothing_recorded):
    write_ladder(nothing_recorded / "recorded" / "h200")
    found = outcomes(
        "2d-percent-4096",
        "2d-cublas-512",
        "2d-nineteen",
        "deep-five-percent",
        "deep-ninety-five",
        "2d-t4",
        "2d-reliably-here",
    )
    assert (
        found["2d-percent-4096"].verdict
        == found["2d-cublas-512"].verdict
        == found["2d-nineteen"].verdict
        == claims.HOLDS
    )
    assert found["2d-percent-4096"].run == "profiles/recorded/h200/ladder.csv"
    assert found["deep-five-percent"].verdict == found["deep-ninety-five"].verdict == claims.FAILS
    assert found["deep-five-percent"].value.startswith("8.7%")
    assert found["2d-t4"].verdict == claims.UNCHECKED and "20.0 % at 512" in found["2d-t4"].value
    assert found["2d-reliably-here"].verdict == claims.HOLDS


def test_a_ladder_that_differs_does_not_bear_the_table_out(nothing_recorded):
    write_ladder(nothing_recorded / "recorded" / "h200", scale=1.3)
    found = outcomes("2d-percent-4096", "2d-nineteen")
    assert found["2d-percent-4096"].verdict == found["2d-nineteen"].verdict == claims.FAILS


def test_latencies_come_from_recorded_roofs(nothing_recorded):
    values = {
        "latency of shared memory": 30.0,
        "latency of L2": 260.0,
        "latency of DRAM": 690.0,
        "shared, 128-bit loads": 127.0,
        "DRAM read": 4300.0,
    }
    h200 = device.find("h200")
    binary = roofs.compile(h200)
    found = []
    for p in roofs.PROBES:
        value = values.get(p.name, 1.0)
        found.append(
            roofs.Roof(
                p.name,
                p.kernel,
                p.unit,
                p.meaning,
                value,
                value,
                value,
                None,
                p.model,
                p.resource,
                p.scale,
                1980.0,
                1980.0,
                500.0,
            )
        )
    result = roofs.Result("20261130T000000Z-00000000", h200, "NVIDIA H200", found)
    roofs._record(result, nothing_recorded / "recorded" / "h200" / "roofs", binary, 0.0)
    seen = outcomes("beginners-hundreds", "beginners-hundredfold-latency", "beginners-hundredfold-speed")
    assert seen["beginners-hundreds"].verdict == claims.HOLDS and seen["beginners-hundreds"].run == result.id
    assert (
        seen["beginners-hundredfold-latency"].verdict == claims.FAILS
        and seen["beginners-hundredfold-latency"].value == "23 times"
    )
    assert seen["beginners-hundredfold-speed"].value == "7.719 times"


def test_outputs(table, nothing_recorded, monkeypatch):
    plain = table.reset_index(drop=True)
    text = ledger.render(plain)
    assert max(map(len, text.splitlines())) <= 100
    page = ledger.markdown(plain)
    assert page.count("\n### ") == 3 + ("the ladder" in set(table.article)) and all(
        s.says.replace("|", "\\|") in page for s in STATEMENTS
    )
    assert sum(ledger.summary(plain).values()) == len(plain)
    monkeypatch.setattr(ledger, "build", lambda evidence, progress: plain)
    result = ledger.run(out=nothing_recorded / "x")
    assert record.load(result.path).table("ledger").equals(plain)
    assert len(pd.read_csv(result.path / "ledger.csv")) == len(plain)
