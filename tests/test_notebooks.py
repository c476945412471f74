"""The notebooks of analysis/: their form, what they keep, and that they run."""

import json
import re

import pytest

from harness import notebooks
from harness.errors import TilescopeError

PATHS = notebooks.found()
NUMBERS = [f"{n:02}" for n in range(1, 10)]


def load(path):
    return json.loads(path.read_text())


def text(cell):
    return "".join(cell["source"])


def test_there_are_nine():
    assert [p.name[:2] for p in PATHS] == NUMBERS


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_form(path):
    """A question first, links to an experiment, small, executed, with an answer and a picture, and nothing of the machine."""
    notebook = load(path)
    cells = notebook["cells"]
    assert (
        cells[0]["cell_type"] == "markdown"
        and text(cells[0]).startswith(f"# {path.name[:2]} ")
        and "?" in text(cells[0])
    )
    assert re.search(r"\]\(\.\./experiments/\w+/experiment\.toml\)|make compare", text(cells[0]))
    assert path.stat().st_size < 300_000
    code = [c for c in cells if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1))
    assert not any(re.match(r"\s*(def|class) ", line) for c in code for line in text(c).splitlines()), (
        "logic belongs into harness"
    )
    outputs = [o for c in code for o in c["outputs"]]
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    said = json.dumps(outputs)
    assert "**Answer.**" in said and "image/png" in said
    raw = path.read_text()
    assert not re.search(r"/(home|root|tmp|work|Users)/", raw)


def test_outputs_are_tidied():
    output = {
        "output_type": "display_data",
        "data": {"image/png": "x", "text/plain": "<Figure size 1x1>"},
        "metadata": {"a": 1},
    }
    cell = {"cell_type": "code", "metadata": {"execution": {"iopub.execute_input": "2026"}}, "outputs": [output]}
    notebook = notebooks.tidy({"cells": [cell], "metadata": {"language_info": {"version": "3.11.7"}}})
    assert notebook["cells"][0] == {
        "cell_type": "code",
        "metadata": {},
        "outputs": [{"output_type": "display_data", "data": {"image/png": "x"}, "metadata": {}}],
    }
    assert "version" not in json.dumps(notebook)


def test_one_that_is_not_there():
    with pytest.raises(TilescopeError, match="no notebook begins with 'nothing'"):
        notebooks.found("nothing")


def write(folder, *sources):
    cells = [
        {"cell_type": "code", "id": f"c{n}", "metadata": {}, "source": s, "outputs": [], "execution_count": None}
        for n, s in enumerate(sources)
    ]
    path = folder / "01_x.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def test_execution(tmp_path, monkeypatch):
    pytest.importorskip("nbclient", reason="needs the extra `lab`")
    monkeypatch.setattr(notebooks, "ANALYSIS", tmp_path)
    path = write(tmp_path, "import harness\nprint(6 * 7)")
    assert list(notebooks.execute()) == ["01_x"]
    assert "42" in json.dumps(load(path)["cells"][0]["outputs"])
    path = write(tmp_path, "1 / 0")
    before = path.read_text()
    with pytest.raises(TilescopeError, match="01_x.ipynb: a cell raised ZeroDivisionError"):
        notebooks.execute()
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
    path.write_text("{")
    with pytest.raises(TilescopeError, match="cannot be read"):
        notebooks.execute()
