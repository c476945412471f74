"""A cache of compiled stages that was carried here from another machine, in another folder."""

import shutil

import pytest

from harness import stage as stages
from harness import toolchain
from harness.errors import TilescopeError


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """naive copied to two folders and compiled in the first; then no tools, and a stage in the second."""
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
        for suffix in (".cu", ".py"):
            shutil.copy(stages.KERNELS / f"naive{suffix}", tmp_path / name)
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path / "cache"))
    compiled = toolchain.compile(stages.load(tmp_path / "there" / "naive.cu"), {}, 90)

    def none(nvcc=None):
        raise TilescopeError("no CUDA compiler")

    monkeypatch.setattr(toolchain, "tools", none)
    return compiled, stages.load(tmp_path / "here" / "naive.cu")


def test_it_serves_where_there_are_no_tools(elsewhere):
    compiled, stage = elsewhere
    found = toolchain.compile(stage, {}, 90)
    assert (found.hash, found.compiler, found.disassembler) == (compiled.hash, compiled.compiler, compiled.disassembler)


def test_its_lines_are_those_of_the_files_here(elsewhere):
    _, stage = elsewhere
    found = toolchain.compile(stage, {}, 90)
    files = {i.file for i in found.kernel("naive").instructions}
    assert str(stage.source) in files and not any("there" in f for f in files)
    assert any(found.source_line(i.file, i.line) for i in found.kernel("naive").instructions)


def test_other_source_or_flags_are_not_in_it(elsewhere):
    _, stage = elsewhere
    with pytest.raises(TilescopeError, match="no CUDA compiler"):
        toolchain.compile(stage, {}, 80)
    stage.source.write_text(stage.source.read_text() + "// changed\n")
    with pytest.raises(TilescopeError, match="no CUDA compiler"):
        toolchain.compile(stage, {}, 90)


def test_only_a_named_cache_counts_as_carried(elsewhere, monkeypatch):
    monkeypatch.delenv("TILESCOPE_CACHE")
    with pytest.raises(TilescopeError, match="no CUDA compiler"):
        toolchain.compile(elsewhere[1], {}, 90)
