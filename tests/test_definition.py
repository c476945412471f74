"""experiment.toml: what it may say, and complaints with the line and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import definition, problem
from harness import stage as stages
from harness.errors import TilescopeError

GOOD = """
question = "Does it?"
sources = ["sim", "timing"]
metrics = ["global_load_bytes"]

[[points]]
stages = ["tiled"]
tunables = { TILE = [2, 4] }
sizes = [8, 16]

[[claims]]
says = "it does"
metric = "global_load_bytes"
equals = "8 * m * n * k / TILE"
"""


def parsed(text: str) -> definition.Definition:
    return definition.parse(text, Path("/x/mine"))


def test_points_are_all_combinations_in_order():
    points = parsed(GOOD).points("sim")
    assert [(p.tunables, p.problem.m) for p in points] == [
        ((("TILE", 2),), 8), ((("TILE", 2),), 16), ((("TILE", 4),), 8), ((("TILE", 4),), 16)
    ]  # fmt: skip
    assert {p.device for p in points} == {"h200"}
    assert all(definition.Point.of(p.to_json()) == p for p in points)


def test_the_gpu_takes_repeats_and_its_own_device():
    points = parsed(GOOD.replace("sources", "repeats = 3\nsources")).points("gpu")
    assert len(points) == 12 and {p.repeat for p in points} == {0, 1, 2} and {p.device for p in points} == {""}


def test_sources_of_a_backend():
    found = parsed(GOOD)
    assert found.on("sim").sources == ("sim",) and found.on("gpu").sources == ("sim", "timing")
    with pytest.raises(TilescopeError, match="does not run with BACKEND=gpu"):
        parsed(GOOD.replace("sources", 'backends = ["sim"]\nsources')).on("gpu")


def test_the_ladder_ranges_problems_and_libraries():
    text = GOOD.split("[[points]]")[0]
    sweep = '[[points]]\nstages = "ladder"\nsizes = { from = 30, to = 36, step = 3 }\n'
    assert len(parsed(text + sweep).points("sim")) == 3 * len(stages.names())
    both = '[[points]]\nstages = ["tiled", "cublas"]\nproblems = [{ m = 3, n = 4, k = 5, beta = 2.0 }]\n'
    assert [p.stage for p in parsed(text + both).points("sim")] == ["tiled"]
    assert [p.stage for p in parsed(text + both).points("gpu")] == ["tiled", "cublas"]
    assert parsed(text + both).points("sim")[0].problem.beta == 2.0


def test_nothing_is_measured_twice_and_illegal_ones_can_be_left_out():
    text = GOOD.replace(
        "sizes = [8, 16]", "sizes = [8]\n[[points]]\nstages = ['tiled']\ntunables = { TILE = 2 }\nsizes = [8]"
    )
    assert len(parsed(text).points("sim")) == 2
    text = GOOD.replace("[2, 4]", "[2, 3]")
    assert len(parsed(text.replace("sizes =", "skip_illegal = true\nsizes =")).points("sim")) == 2


BAD = {
    "question = ": ('question = "x\n', r"line 2, column \d+: illegal character"),
    "[[points]]": ("[[points", r"line 6, column \d+: expected"),
    '"Does it?"': ('""', "line 2: `question` is missing"),
    '"timing"': ('"timings"', r"line 3: unknown sources 'timings'\. Did you mean timing\?"),
    '"global_load_bytes"]': ('"global_load_byte"]', r"line 4: unknown metric 'global_load_byte'\. Did you mean global_load_bytes\?"),
    '"tiled"': ('"tild"', r"line 7: unknown kernel 'tild'\. Did you mean tiled\?"),
    "TILE = [2, 4]": ("TILE = [2, 3]", r"line 8: illegal tunables for tiled"),
    "{ TILE": ("{ TILES", r"line 8: unknown tunable TILES"),
    "[2, 4]": ('["a"]', r"line 8: TILE must be an integer or a list of integers"),
    "sizes = [8, 16]": ("sizes = [0]", r"line 9: M=0 is less than 1"),
    "sizes =": ("size =", r"line 9: unknown key 'size'\. Did you mean sizes\?"),
    'metric = "global_load_bytes"': ('metric = "glob"', r"line 13: unknown metric `glob`"),
    "equals =": ("equal =", r"line 14: unknown key `equal`\. Did you mean equals\?"),
    '"8 * m * n * k / TILE"': ('"8 * ("', r"line 14: `8 \* \(` is no formula"),
    '"8 * m': ('"__import__(m) * m', r"line 14: .* is no formula"),
}  # fmt: skip


@pytest.mark.parametrize("old", BAD)
def test_complaints_name_the_line_and_the_reason(old):
    new, complaint = BAD[old]
    assert old in GOOD
    with pytest.raises(TilescopeError, match=f"mine/experiment.toml, {complaint}"):
        parsed(GOOD.replace(old, new, 1))


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("repeats = 0", "`repeats` = 0 must be an integer from 1"),
        ("limit_s = -1", "must be a number above 0"),
        ('blocks = "some"', "unknown blocks 'some'"),
        ('devices = ["h2000"]', "unknown DEVICE 'h2000'"),
        ('devices = "h200"', "must be a list of words"),
        ("cold = 1", "must be true or false"),
        ("backends = []", "`backends` is empty"),
        ("wrong = 1", "unknown key 'wrong'"),
        ('seed = "a"', "is not an integer"),
    ],
)
def test_bad_settings(line, complaint):
    with pytest.raises(TilescopeError, match=complaint):
        parsed(GOOD.replace("sources", f"{line}\nsources"))


@pytest.mark.parametrize(
    "selector, complaint",
    [
        ('of = { stage = "tild" }', r"line 15: the claim that .* names no point by `of`, tild\. Did you mean tiled\?"),
        ("of = { TILE = 3 }", "line 15: the claim that .* names no point by `of`, points TILE=3"),
        ('against = { stage = "naive" }', "line 15|names no point by `against`, naive"),
    ],
)
def test_a_claim_that_names_no_point_is_a_slip(selector, complaint):
    with pytest.raises(TilescopeError, match=complaint):
        parsed(GOOD + selector + "\n")
    assert parsed(GOOD + 'of = { lowest = "time_ms", device = "a GPU" }\n').claims


def test_unknown_experiments_and_too_many_points(monkeypatch):
    with pytest.raises(TilescopeError, match="Did you mean traffic"):
        definition.load("trafic")
    monkeypatch.setattr(definition, "MOST_POINTS", 99)
    with pytest.raises(TilescopeError, match="100 points; a run holds at most 99"):
        parsed(GOOD.replace("[8, 16]", "{ from = 1, to = 50 }")).points("sim")


def test_what_this_machine_cannot_hold_another_may(monkeypatch):
    monkeypatch.setattr(problem, "_available_memory", lambda: 2**30)
    found = parsed(GOOD.replace("[8, 16]", "[16384]"))
    with pytest.raises(TilescopeError, match="GiB"):
        found.points("sim")
    monkeypatch.setattr(problem, "_available_memory", lambda: 2**40)
    assert len(found.points("sim")) == 2


def test_shipped_experiments_are_sound():
    assert len(definition.names()) >= 11
    for name in definition.names():
        found = definition.load(name)
        assert found.claims and found.metrics
        for backend in found.backends:
            assert found.points(backend)
