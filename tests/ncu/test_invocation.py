"""The ncu command, word by word; where ncu is looked for; which metrics each group asks for."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from harness import metrics, ncu
from harness.errors import TilescopeError
from harness.ncu import invocation
from harness.problem import Problem
from harness.watched import launch_words

from .fakes import FakeNcu


def test_command_word_by_word() -> None:
    launch = ["python", "-m", "harness", "launch", "KERNEL=tiled2d"]
    words = ncu.command(
        "/opt/ncu", "tiled2d", launch, ncu.Options(clock="base", cache="none"), "/tmp/r", ["a__b.sum", "c"]
    )
    assert words == [
        "/opt/ncu", "--config-file", "off", "--target-processes", "all", "--clock-control", "base", "--cache-control", "none",
        "--nvtx", "--nvtx-include", "tilescope@stage tiled2d/", "--metrics", "a__b.sum,c", "--import-source", "yes", "-f", "-o", "/tmp/r",
        *launch,
    ]  # fmt: skip


def test_full_set_asks_for_sections_and_every_group() -> None:
    words = ncu.command("ncu", "naive", ["x"], ncu.Options(groups=("bank",), set="full"), "r")
    assert words[words.index("--set") + 1] == "full"
    asked = words[words.index("--metrics") + 1].split(",")
    assert {"dram__bytes_read.sum", metrics.FFMA, metrics.SHARED, metrics.REQUESTS_LD} <= set(asked)


def test_a_stage_name_cannot_be_read_as_filter_syntax() -> None:
    assert invocation.nvtx_filter("a/b@c[1],*+\\") == r"tilescope@stage a\/b\@c\[1\]\,\*\+\\/"


@pytest.mark.parametrize("group", invocation.GROUPS)
def test_each_group_asks_for_metrics_of_its_own_that_ncu_has(group: str) -> None:
    asked = ncu.Options((group,)).metrics
    assert len(asked) == len(set(asked)) > len(invocation.ALWAYS)
    assert set(invocation.ALWAYS) <= set(asked)
    assert all(metrics.in_ncu(name) or name.startswith("sass__") for name in asked)
    assert not any(name.startswith("derived__") for name in asked)


def test_groups_are_words_with_commas_between() -> None:
    assert ncu.groups("Bank, memory,bank,") == ("bank", "memory")
    assert ncu.groups("") == invocation.DEFAULT


@pytest.mark.parametrize(
    "wrong, named",
    [
        ({"groups": ("banks",)}, "Did you mean bank"),
        ({"set": "fulll"}, "SET"),
        ({"clock": "boost"}, "CLOCK"),
        ({"cache": "off"}, "CACHE"),
    ],
)
def test_unknown_options_are_named(wrong: dict, named: str) -> None:
    with pytest.raises(TilescopeError) as e:
        ncu.Options(**wrong)
    assert named in str(e.value)


def test_launch_says_only_what_is_not_the_default() -> None:
    words = launch_words("tiled", Problem(8, 9, 10, beta=0.5, ldb=12), {"TILE": 16}, "/x/kernel.cubin", "1")
    assert words[:5] == [sys.executable, "-m", "harness", "launch", "KERNEL=tiled"]
    assert words[5:] == ["M=8", "N=9", "K=10", "BETA=0.5", "LDB=12", "TILE=16", "CUBIN=/x/kernel.cubin", "GPU=1"]


def test_a_stage_outside_the_checkout_is_found_from_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"KERNEL={tmp_path / 'mine.py'}" in launch_words("./mine.py", Problem(1, 1, 1), {})


def test_quoted_survives_a_shell() -> None:
    words = ncu.command("ncu", "it's", ["a b"], ncu.Options(), "r")
    assert shlex.split(ncu.quoted(words)) == words


def test_found_on_path_first_then_in_cuda_home(tmp_path: Path) -> None:
    for name in ("first", "home/bin"):
        (tmp_path / name).mkdir(parents=True)
        FakeNcu(tmp_path / name)
    found = invocation.candidates(environ={"PATH": str(tmp_path / "first"), "CUDA_HOME": str(tmp_path / "home")})
    assert found[:2] == [tmp_path / "first/ncu", tmp_path / "home/bin/ncu"]


def test_version_is_read(tmp_path: Path) -> None:
    assert invocation.version_of(FakeNcu(tmp_path, "2022.4.1").path) == (2022, 4, 1)
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    assert invocation.version_of(broken) == ()
    assert invocation.version_of(tmp_path / "absent") == ()


def test_an_ncu_given_by_name_must_run(tmp_path: Path) -> None:
    with pytest.raises(TilescopeError, match="NCU="):
        ncu.find(str(tmp_path / "nowhere"))
    fake = FakeNcu(tmp_path)
    assert ncu.find(str(fake.path)) == fake.ncu


def test_ncus_own_python_folder_is_known(tmp_path: Path) -> None:
    """As NVIDIA lays it out: CUDA's bin/ncu beside a folder nsight-compute-VERSION."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "nsight-compute-2025.3.1/extras/python").mkdir(parents=True)
    fake = FakeNcu(tmp_path / "bin")
    assert fake.ncu.python_folders == [tmp_path / "nsight-compute-2025.3.1/extras/python"]
