"""Pictures show what the frames hold, with units and the device; README's own parts are replaced and nothing else."""

import numpy as np
import pandas as pd
import pytest

from harness import accesses, device, plots, profiling, readme, report
from harness.errors import TilescopeError

H200 = device.find("h200")
TIMED = pd.DataFrame(
    [("naive", 512, 0.05, 0.049, 0.051, 5.4, 0.31), ("tiled2d", 512, 0.13, 0.12, 0.14, 2.1, 0.12), ("cublas", 512, 0.0156, 0.0155, 0.0157, 17.2, 1.0)],
    columns=["stage", "m", "ms", "ms_lo", "ms_hi", "tflops", "ratio"],
).assign(n=512, k=512, backend="gpu")  # fmt: skip


@pytest.fixture(scope="module")
def profile():
    return profiling.profile("tiled2d", size=128, record=False, backend="sim")


def texts(figure):
    """Every word of a figure."""
    figure.draw_without_rendering()
    from matplotlib.text import Text

    return " | ".join(t.get_text() for t in figure.findobj(Text) if t.get_text())


def test_overview(profile):
    figure = plots.overview(profile, line="a[i] = As")
    left, right = figure.axes
    (crowded,) = [c for c in left.collections if "words in one bank" in c.get_label()]
    # Four rows of As, 64 words apart, in one bank: every lane is in a crowded bank, and that bank serves four words.
    assert len(crowded.get_offsets()) == 32 and "up to 4 words" in crowded.get_label()
    widths = [p.get_width() for p in right.patches]
    assert widths == sorted(widths) and "data stage" == right.get_yticklabels()[-1].get_text()
    assert "H200" in figure.get_suptitle()


def test_a_tuned_stage_has_a_bar_of_its_own():
    tuned = TIMED.iloc[[1]].assign(tflops=4.2, changed="BM=32")
    figure = plots.ladder(pd.concat([TIMED, tuned], ignore_index=True))
    bars = {
        tick.get_text(): p.get_width()
        for tick, p in zip(figure.axes[0].get_yticklabels(), figure.axes[0].patches, strict=True)
    }
    names = ["naive", "tiled2d", "tiled2d BM=32", "cublas"]  # below its stage, although its row is the last
    assert list(bars.items()) == list(zip(names, [5.4, 2.1, 4.2, 17.2], strict=True))
    plain = TIMED.assign(changed="")  # as a manifest has it
    assert "tiled2d BM=32" in texts(plots.ladder(pd.concat([plain, tuned], ignore_index=True)))
    assert texts(plots.ladder(plain)) == texts(plots.ladder(TIMED))
    other = tuned.assign(m=1024, n=1024, k=1024, changed="BM=128")
    assert "tiled2d tuned" in texts(plots.ladder(pd.concat([TIMED, tuned, other], ignore_index=True)))


def test_a_line_that_is_not_there(profile):
    with pytest.raises(TilescopeError, match="no shared-memory access on a line"):
        plots.overview(profile, line="nothing like it")


def test_ladder():
    figure = plots.ladder(TIMED, "NVIDIA H200")
    (ax,) = figure.axes
    assert [p.get_width() for p in ax.patches] == [5.4, 2.1, 17.2]
    words = texts(figure)
    assert "TFLOPS" in words and "NVIDIA H200" in words and "2.1 (12 %)" in words and "512" in words
    from matplotlib.colors import to_hex

    assert [to_hex(p.get_facecolor()).upper() for p in ax.patches] == [plots.BLUE, plots.BLUE, plots.GREY]
    bars = ax.containers[1]
    interval = bars.errorbar.lines[2][0].get_segments()[1][:, 0]
    assert interval == pytest.approx([2.1 * 0.13 / 0.14, 2.1 * 0.13 / 0.12])
    with pytest.raises(TilescopeError, match="no timed stage"):
        plots.ladder(TIMED.assign(ms=np.nan))


def test_roofline():
    points = pd.DataFrame(
        [("naive", 0.25, 0.6, "bound"), ("naive", 0.25, 0.4, "measured")],
        columns=["name", "intensity", "tflops", "kind"],
    )
    specified, measured = (
        plots.roofline(points, H200),
        plots.roofline(points, H200, {"DRAM": 4649.0, "L2": 9244.0, "FMA pipe": 126.1}, "on it"),
    )
    assert "4,800 GB/s, data sheet" in texts(specified) and "L2" not in texts(specified)
    words = texts(measured)
    assert (
        "4,649 GB/s, measured" in words
        and "L2 9,244" in words
        and "65.9 TFLOPS, measured" in words
        and "on it" in words
        and "FLOP per byte" in words
    )
    dram = next(line for line in measured.axes[0].lines if "DRAM" in str(line.get_label()))
    x, y = dram.get_data()
    assert y[0] == pytest.approx(4.649 * x[0]) and max(y) == pytest.approx(H200.peak_tflops * 126.1 / 128)


def test_banks(profile):
    found = accesses.shared(profile)
    figure = plots.banks(found, found[found.line == found.line.min()], ("one", "two"), "NVIDIA H200")
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert len(shown) == found.line.nunique() + 1
    grid = shown[0].collections[0].get_array()
    assert np.ma.count(grid) == 32 and grid.max() == 4
    words = texts(figure)
    assert (
        "4 wavefronts, 1 would do" in words
        and "1 wavefront: as few as can be" in words
        and "one\nlane" in words
        and "4 words" in words
    )
    with pytest.raises(TilescopeError, match="no access to shared memory"):
        plots.banks(found.iloc[:0])


def test_sectors(profile):
    figure = plots.sectors({"tiled2d": accesses.global_(profile)}, "NVIDIA H200")
    words = texts(figure)
    assert (
        "32 sectors, 4 would do; 12.5 % used" in words
        and "4 sectors: as few as can be; 100 % used" in words
        and "NVIDIA H200" in words
    )
    grids = [ax.collections[0].get_array() for ax in figure.axes if "by address" in ax.get_xlabel()]
    assert [np.ma.count(g) for g in grids] == [32, 32, 32] and {float(g.max()) for g in grids} == {0.125, 1.0}


def test_line_costs(profile):
    lines = report.costliest(profile)
    figure = plots.line_costs(lines, most=5, caption=plots.caption(profile))
    widths = [p.get_width() for p in figure.axes[0].patches]
    assert len(widths) == 5 and widths[-1] == pytest.approx(100 * lines.cycles.max() / lines.cycles.sum())
    assert "a[i] = As" in texts(figure) and "simulated" in texts(figure)


def test_steps():
    table = pd.DataFrame(
        {
            "stage": ["naive", "tiled", "worse"],
            "parent": ["", "naive", "tiled"],
            "value": [2.0, 5.0, 4.0],
            "lo": [1.9, 4.8, 3.9],
            "hi": [2.1, 5.1, 4.2],
        }
    )
    figure = plots.steps(table, "TFLOPS", "speed", "NVIDIA H200")
    bars = figure.axes[0].patches
    assert [(p.get_y(), p.get_height()) for p in bars] == [(0, 2), (2, 3), (5, -1)]
    words = texts(figure)
    assert "x 2.5" in words and "x 0.8" in words and "speed, TFLOPS" in words


def test_ledger_and_claims():
    table = pd.DataFrame(
        {"article": ["2D", "2D", "deep dive"], "verdict": ["holds", "holds for a, not for b", "needs a GPU run"]}
    )
    words = texts(plots.ledger(table, "NVIDIA H200"))
    assert (
        "holds: 1" in words
        and "holds in part: 1" in words
        and "needs a GPU run: 1" in words
        and "does not hold" not in words
    )
    claims = pd.DataFrame(
        {"claim": ["words read", "zero"], "claimed": [0.25, 0.0], "simulated": [0.25, 1.0], "measured": [0.5, np.nan]}
    )
    figure = plots.claimed(claims)
    offsets = [c.get_offsets()[0].tolist() for c in figure.axes[0].collections]
    assert offsets == [[1, 0], [2, 0]] and "found / claimed" in texts(figure)


def test_register_reads():
    table = pd.DataFrame(
        {
            "name": ["a", "b"],
            "kind": ["loop", "stage"],
            "reads": [2.0, 3.0],
            "model": [1.0, 0.68],
            "measured": [0.985, np.nan],
        }
    )
    figure = plots.register_reads(table, "NVIDIA H200")
    words = texts(figure)
    assert "loop: measured" in words and "stage: measured" not in words and "% of the FMA peak" in words


def test_points_of_occupancy_are_named_where_a_stages_own_tunables_are_left_out():
    """As harness.survey.variants has them: tiled's own TILE is 32, and tiled2d's TM and TN are 8."""
    tunables = ["TILE=8", "", "TM=4 TN=4", "BM=32 BN=32"]
    table = pd.DataFrame({"stage": ["tiled"] * 2 + ["tiled2d"] * 2, "tunables": tunables, "occupancy": [20.0, 40, 60, 80], "tflops": [1.0, 2, 3, 4]})  # fmt: skip
    words = texts(plots.occupancy(table, "measured")).split(" | ")
    assert {"8", "32", "64 64 4 4", "32 32 8 8", "tiled: TILE", "tiled2d: BM BN TM TN"} <= set(words)


def test_occupancy_and_ratios():
    tunables = ["BM=64 TM=8 TN=4", "BM=64 TM=4 TN=8", "TILE=8"]
    table = pd.DataFrame(
        {"stage": ["tiled2d", "tiled2d", "tiled"], "tunables": tunables, "occupancy": 100.0, "tflops": [3.0, 4.0, 5.0]}
    )
    words = texts(plots.occupancy(table, "measured", "NVIDIA H200"))
    assert (
        "tiled2d: TM TN" in words
        and "8 4" in words
        and "TILE" not in words
        and "TFLOPS, measured" in words
        and "theoretical occupancy, %" in words
    )
    ratios = pd.DataFrame({"name": ["x", "none"], "ratio": [1.5, np.inf], "lo": [1.4, 0.0], "hi": [1.6, 0.0]})
    figure = plots.ratios(ratios, "A over B")
    assert "1.5" in texts(figure) and "none" not in texts(figure)


def test_readme_parts(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- x:begin -->\nold\n<!-- x:end -->\nafter\n")
    readme.fill("x", r"new \1 text", page)
    assert page.read_text() == "before\n<!-- x:begin -->\nnew \\1 text\n<!-- x:end -->\nafter\n"
    with pytest.raises(TilescopeError, match="must hold <!-- y:begin -->"):
        readme.fill("y", "z", page)
