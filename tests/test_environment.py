"""What a manifest says of the machine, and what it does not."""

from __future__ import annotations

import getpass
import json
import platform
import subprocess
from pathlib import Path

import pytest

from harness import definition, environment


def test_it_says_versions_cpu_and_git():
    found = environment.describe()
    assert (
        found["python"] == platform.python_version()
        and found["packages"]["numpy"]
        and found["cores"] >= 1
        and found["cpu"]
    )
    if (environment.ROOT / ".git").exists():
        assert len(found["git"]["commit"]) == 40 and isinstance(found["git"]["dirty"], bool)


def test_it_says_nothing_of_the_user():
    words = json.dumps(environment.describe())
    assert str(Path.home()) + "/" not in words and str(environment.ROOT) not in words
    assert f'"{platform.node()}"' not in words and f'"{getpass.getuser()}"' not in words


def test_outside_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert environment.git() is None


def test_no_git(monkeypatch):
    def run(*a, **k):
        raise FileNotFoundError("git")

    monkeypatch.setattr(environment.subprocess, "run", run)
    assert environment.git() is None


def test_public_paths():
    assert environment.public(environment.ROOT / "kernels/tiled.cu") == "kernels/tiled.cu"
    assert environment.public("/home/someone/mine.cu") == "mine.cu"


def test_the_diff_leaves_recorded_runs_out(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(
            ["git", "-C", tmp_path, "-c", "user.name=x", "-c", "user.email=x@x", *words],
            check=True,
            capture_output=True,
        )

    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert environment.diff() == ""
    git("init", "-q")
    for name in ("a.py", "experiments/x/runs/1/manifest.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    git("add", "-A")
    git("commit", "-qm", "x")
    (tmp_path / "experiments/x/runs/1/manifest.json").write_text("2\n")
    assert environment.diff() == "" and environment.git()["dirty"] is False
    for name in ("a.py", "experiments/x/runs/1/manifest.json", "b.py", "experiments/x/runs/2", "profiles/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("2\n")
    assert "+2" in environment.diff() and environment.diff().endswith("not tracked: b.py\n")
    assert "runs" not in environment.diff() and "profiles" not in environment.diff() and environment.git()["dirty"]


@pytest.mark.skipif(not (environment.ROOT / ".git").exists(), reason="not a checkout")
def test_a_users_runs_are_ignored_and_those_that_come_along_are_tracked():
    def git(*words):
        return subprocess.run(["git", "-C", environment.ROOT, *words], capture_output=True, text=True)

    for own in (
        "experiments/traffic/runs/20270101T000000Z-0/manifest.json",
        "profiles/tiled/x/manifest.json",
        "reports/x.html",
    ):
        assert git("check-ignore", "-q", own).returncode == 0, own
    for kept in ("experiments/mine/experiment.toml", "profiles/recorded/h200/x/manifest.json", "kernels/mine.cu"):
        assert git("check-ignore", "-q", kept).returncode == 1, kept
    tracked = git("ls-files", "experiments").stdout.splitlines()
    for name in definition.names():
        assert any(f.startswith(f"experiments/{name}/runs/") and f.endswith("/checksums.sha256") for f in tracked), name
