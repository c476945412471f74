"""The printed profile: what it must show, within 100 columns, as plain text or in colour; how figures are written."""

from __future__ import annotations

import math

import pytest

import harness
from harness import report


@pytest.fixture(scope="module")
def ragged():
    return harness.profile("tiled2d", m=100, n=99, k=101, record=False)


@pytest.fixture(scope="module")
def square():
    return harness.profile("tiled2d", size=512, record=False)


def test_sections_in_order(square):
    words = report.render(square)
    titles = [
        "GLOBAL MEMORY",
        "SHARED MEMORY",
        "OCCUPANCY",
        "WORK",
        "COSTLIEST",
        "BOUNDS",
        "ARTICLES CLAIM",
        "FINDINGS",
        "RESULT",
    ]
    places = [words.index(t) for t in titles]
    assert places == sorted(places)
    assert "a bound, not a time" in words


def test_figures_of_tiled2d(square):
    words = report.render(square)
    for figure in ("131,072", "262,144", "3,145,728", "2,097,152", "31.25 %", "96 registers", "tiled2d.cu:"):
        assert figure in words
    assert "64 % of the wavefronts are bank conflicts" in words
    assert "sum[i][j] = fmaf(a[i], b[j], sum[i][j]);" in words


def test_figures_that_do_not_fit_go_into_another_table():
    page = report.Page(60, False)
    page.table(
        ["<stage", "<tunables", *"abcd"], [["tiled", "TILE=32", *["549,755,813,888"] * 4], ["naive", "", *"1234"]]
    )
    text = page.text()
    assert text.count("549,755,813,888") == 4 and text.count("TILE=32") == text.count("naive") == 2
    assert max(map(len, text.splitlines())) <= 60 and [x for x in text.split() if x in "abcd"] == list("abcd")


def test_copies_into_shared_memory_have_a_row():
    """cpasync at 512: A and B are read 8 times, 512 bytes a warp: of A in eight rows (8 wavefronts for 4), of B in two."""
    words = report.render(harness.profile("cpasync", size=512, record=False))
    one = 8 * 512 * 512 // 128
    row = next(line for line in words.splitlines() if line.strip().startswith("copy in"))
    assert row.split()[2:] == [f"{x:,}" for x in (2 * one, 12 * one, 8 * one, 4 * one)] + ["6", "4"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_it_fits(ragged, width):
    assert max(map(len, report.render(ragged, width).splitlines())) <= width


def test_plain_text_has_no_codes_and_ascii_only(ragged):
    assert "\x1b" not in report.render(ragged)
    assert report.render(ragged).isascii()
    assert "\x1b[" in report.render(ragged, colour=True)


def test_every_launch_is_shown(ragged):
    words = report.render(ragged)
    assert all(label in words for label in ("main", "right", "bottom", "corner"))


@pytest.mark.parametrize("kernel", ["naive", "naive_uncoalesced", "tiled", "tiled1d"])
def test_every_stage_prints(kernel):
    words = report.render(harness.profile(kernel, m=33, n=1, k=5, beta=1, record=False))
    assert "correct:" in words and "nan" not in words
    assert kernel.startswith("tiled") or "not used" in words


def test_a_wrong_result_is_said_before_the_figures():
    wrong = report.render(harness.profile("naive_row_of_b", size=33, backend="sim", record=False))
    assert wrong.index("result    WRONG: ") < wrong.index("GLOBAL MEMORY")
    stopped = report.render(harness.profile("naive_no_guard", m=33, n=33, k=8, backend="sim", record=False))
    assert "result    STOPPED: out of bounds" in stopped


def test_a_sampled_run_says_how_much_of_c_was_checked():
    profile = harness.profile("tiled", m=6400, n=6400, k=400, backend="sim", record=False)
    assert profile.error.checked < profile.error.cells == 6400 * 6400
    assert f"correct: {profile.error.checked:,} of 40,960,000 cells checked" in report.render(profile)


def test_one_of_a_thing():
    words = report.render(harness.profile("tiled", size=1, backend="sim", record=False))
    assert "1 of 1 block\n" in words and "correct: 1 cell checked" in words


def test_what_does_not_hold_says_by_how_much(square):
    words = " ".join(report.render(square).split())
    assert "claimed 4x, simulated 4.5x: 12.5 % more than claimed" in words


def test_the_units_of_the_bounds_are_explained(square):
    words = " ".join(report.render(square).split())
    for name in {b.name for b in square.bounds} - {"issue", "FMA pipe", "ALU pipe", "L2", "DRAM", "register bank 1"}:
        assert f"{name}: " in words or f"{name}, 1: " in words, name


def test_markup_in_a_stage_s_words_is_text(ragged, monkeypatch):
    import dataclasses

    odd = dataclasses.replace(ragged, stage=dataclasses.replace(ragged.stage, idea="[bold]a[i] [/x]"))
    assert "[bold]a[i] [/x]" in report.render(odd)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (4, "4"),
        (31.25, "31.2"),
        (1234567.8, "1,234,568"),
        (0.25, "0.250"),
        (1e-9, "1e-09"),
        (math.nan, "-"),
        (math.inf, "inf"),
    ],
)
def test_figure(value, words):
    assert report.figure(value) == words


def test_other_units():
    assert report.size(16 * 2**20) == "16 MiB" and report.size(5) == "5 B"
    assert [report.duration(x) for x in (2, 2e-3, 2e-6, 2e-9, math.nan)] == ["2 s", "2 ms", "2 us", "2 ns", "unknown"]
    assert report.percent(0.645) == "64.5 %"
