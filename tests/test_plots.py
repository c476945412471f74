"""The pictures show what the tables hold; README's own parts are replaced and nothing else."""

import pytest

from harness import plots, profiling, readme
from harness.errors import TilescopeError


@pytest.fixture(scope="module")
def profile():
    return profiling.profile("tiled2d", size=128, record=False)


def test_overview(profile):
    figure = plots.overview(profile, line="a[i] = As")
    left, right = figure.axes
    (crowded,) = [c for c in left.collections if "words in one bank" in c.get_label()]
    # Four rows of As, 64 words apart, in one bank: every lane is in a crowded bank, and that bank serves four words.
    assert len(crowded.get_offsets()) == 32 and "up to 4 words" in crowded.get_label()
    widths = [p.get_width() for p in right.patches]
    assert widths == sorted(widths) and "data stage" == right.get_yticklabels()[-1].get_text()
    assert "H200" in figure.get_suptitle()


def test_a_line_that_is_not_there(profile):
    with pytest.raises(TilescopeError, match="no shared-memory access on a line"):
        plots.overview(profile, line="nothing like it")


def test_readme_parts(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- x:begin -->\nold\n<!-- x:end -->\nafter\n")
    readme.fill("x", r"new \1 text", page)
    assert page.read_text() == "before\n<!-- x:begin -->\nnew \\1 text\n<!-- x:end -->\nafter\n"
    with pytest.raises(TilescopeError, match="must hold <!-- y:begin -->"):
        readme.fill("y", "z", page)
