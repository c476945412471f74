"""Frames of recorded runs hold what the profile held that was recorded."""

import math

import pandas as pd
import pytest

from harness import frames, profiling, record, report


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    profile = profiling.profile("tiled2d", size=130, backend="sim", out=out / "a")
    return profile, record.load(out / "a")


def test_points(recorded):
    profile, run = recorded
    table = frames.points([run, run])
    assert list(table.run) == [run.id] * 2 and table.stage[0] == "tiled2d" and table.m[0] == 130
    assert table.bank_conflict_share[0] == profile.totals["bank_conflict_share"]
    assert len(set(table.columns)) == len(table.columns)
    assert frames.points([]).empty


def test_instructions_and_lines(recorded):
    """The recorded counts of a line are the profile's own: several launches, two kernels."""
    profile, run = recorded
    code = frames.instructions(run)
    assert set(code.kernel) == {"tiled2d", "tiled2d_edge"} and code.sass.str.contains("FFMA R").any()
    lines = frames.source_lines(code).set_index("line")
    wanted = report.costliest(profile).set_index("line")
    for column in ("executed", "wavefronts", "wavefronts_ideal", "sectors", "sectors_ideal", "cycles"):
        assert lines[column].to_dict() == pytest.approx(wanted[column].to_dict()), column
    assert lines.share.sum() == pytest.approx(1)


def test_rungs():
    table = pd.DataFrame(
        {
            "stage": ["tiled2d", "naive"],
            "tflops": [6.0, 2.0],
            "ms": [1.0, 3.0],
            "ms_lo": [0.5, 2.0],
            "ms_hi": [2.0, 6.0],
        }
    )
    rungs = frames.rungs(table, "tflops")
    assert list(rungs.stage) == ["naive", "tiled2d"] and list(rungs.parent) == [
        "",
        "naive",
    ]  # the rungs between are left out
    assert list(rungs.lo) == [1.0, 3.0] and list(rungs.hi) == [3.0, 12.0]


def test_claims(recorded):
    _, run = recorded
    table = frames.claims(run.manifest)
    row = table[table.metric == "shared_words_read_per_fma"].iloc[0]
    assert row.claimed == 0.25 and row.simulated > 0 and math.isnan(row.measured)


def test_differences():
    table = frames.differences({"a": 1.0, "b": 2.0, "zero": 0.0}, {"a": 1.0, "b": 6.0, "zero": 1.0, "c": 1.0})
    assert table.to_dict("records") == [
        {"name": "b", "a": 2.0, "b": 6.0, "ratio": 3.0},
        {"name": "a", "a": 1.0, "b": 1.0, "ratio": 1.0},
    ]
