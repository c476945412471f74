"""The Makefile: which variables reach the command line, in what shape, and what counts as a finished set-up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
VERBS = re.findall(r"^([a-z-]+): .*\$\(ts\.run\)", MAKEFILE, re.M)
RECORDER = """#!/bin/sh
printf '%s\\0' "$@" > arguments
env -0 > environment
exit ${STATUS:-0}
"""


class Checkout:
    """A copy of the Makefile in which .venv/bin/python writes down what it was given, and set-up does too."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / ".venv/bin").mkdir(parents=True)
        (root / "harness").mkdir()
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, root)
        (root / "Makefile").write_text(MAKEFILE)
        self.python = root / ".venv/bin/python"
        self.python.write_text(RECORDER)
        self.python.chmod(0o755)
        (root / "harness/bootstrap.sh").write_text("printf '%s\\0' \"$@\" >> setups; : > .venv/.ready-$2\n")
        (root / ".venv/.ready-dev").touch()

    def make(self, *words: str, **environ: str) -> subprocess.CompletedProcess:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k != "MFLAGS"}
        return subprocess.run(
            ["make", *words], cwd=self.root, env=clean | environ, capture_output=True, text=True, timeout=60
        )

    def given(self, *words: str, **environ: str) -> list[str]:
        """What the program was given, after `make WORDS` went well."""
        run = self.make(*words, **environ)
        assert run.returncode == 0, run.stderr
        return self.zeros("arguments")

    def zeros(self, name: str) -> list[str]:
        path = self.root / name
        return path.read_text().split("\0")[:-1] if path.exists() else []


@pytest.fixture(params=["plain", "with space"])
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Checkout:
    (tmp_path / request.param).mkdir()
    return Checkout(tmp_path / request.param)


def test_every_verb_is_passed_on(checkout: Checkout) -> None:
    assert {"list", "profile", "verify", "bench"} <= set(VERBS)
    for verb in VERBS:
        assert checkout.given(verb) == ["-m", "harness", verb]


def test_variables_are_passed_known_or_not(checkout: Checkout) -> None:
    given = checkout.given(
        "profile", "KERNEL=tiled2d", "BM=128", "NO_SUCH=1", "M=3", "K=4", "A=run1", "OUT=", "v=1", "RUN=r"
    )
    assert given[:3] == ["-m", "harness", "profile"]
    assert sorted(given[3:]) == [
        "A=run1",
        "BM=128",
        "K=4",
        "KERNEL=tiled2d",
        "M=3",
        "NO_SUCH=1",
        "OUT=",
        "RUN=r",
        "v=1",
    ]


@pytest.mark.parametrize(
    "value",
    [
        "a b",
        "it's",
        '"quoted"',
        "'; touch pwned; '",
        "$(touch pwned)",
        "$(shell touch pwned)",
        "${shell touch pwned}",
        "`touch pwned`",
        "$HOME",
        "$$",
        "a;touch pwned",
        "a&touch pwned",
        "a|touch pwned",
        ">pwned",
        "*",
        "~",
        "a\\b\\",
        "a#b",
        "x=y",
        "%",
        "a,b",
        "--flag",
        "größe",
        "tab\there",
    ],
)
def test_values_arrive_whole_and_are_never_run(checkout: Checkout, value: str) -> None:
    assert checkout.given("profile", f"KERNEL={value}", "SIZE=8")[3:] == [f"KERNEL={value}", "SIZE=8"]
    assert not list(checkout.root.rglob("pwned"))


def test_a_line_break_is_refused(checkout: Checkout) -> None:
    run = checkout.make("profile", "KERNEL=a\ntouch pwned")
    assert run.returncode == 2 and "KERNEL holds a line break" in run.stderr
    assert not list(checkout.root.rglob("pwned")) and not checkout.zeros("arguments")


def test_the_environment_does_not_count(checkout: Checkout) -> None:
    environ = {
        name: "poison"
        for name in ("NAME", "ARCH", "OUT", "KERNEL", "SIZE", "TILE", "M", "PYTHON", "RUN", "DEVICE", "JSON")
    }
    assert checkout.given("profile", **environ) == ["-m", "harness", "profile"]
    assert checkout.given("profile", "SIZE=64", **environ) == ["-m", "harness", "profile", "SIZE=64"]
    assert checkout.zeros("setups") == []


def test_variables_are_not_exported(checkout: Checkout) -> None:
    checkout.given("profile", "KERNEL=tiled2d", PYTHONPATH="/elsewhere")
    names = [entry.split("=")[0] for entry in checkout.zeros("environment")]
    assert "KERNEL" not in names and "PYTHONPATH" not in names and "PATH" in names


def test_only_pythons_own_variable_stays_behind(checkout: Checkout) -> None:
    assert checkout.given("list", "PYTHON=python3.13") == ["-m", "harness", "list"]
    assert checkout.zeros("setups") == ["python3.13", "dev"]


@pytest.mark.parametrize("target", ["help", "setup", "test", "lint", "clean", "distclean"])
def test_targets_that_take_no_variables_say_so(checkout: Checkout, target: str) -> None:
    run = checkout.make(target, "TILE=16")
    assert run.returncode == 2 and f"make {target} takes no variables: TILE" in run.stderr
    assert checkout.make("setup", "profile", "TILE=16").returncode == 0


def test_help_is_the_default_and_lists_every_target(checkout: Checkout) -> None:
    run = checkout.make()
    assert run.returncode == 0 and run.stdout == checkout.make("help").stdout and not run.stderr
    targets = re.findall(r"^([a-z][a-z-]*):(?!=)", MAKEFILE, re.M)
    assert set(VERBS) < set(targets)
    for target in targets:
        assert re.search(rf"^  {target} .*\w{{3}}", run.stdout, re.M), f"make help does not list {target}"
        assert (checkout.root / target).mkdir() is None  # every target is phony: a folder of its name is no obstacle
    assert checkout.given("profile") == ["-m", "harness", "profile"]
    assert not checkout.zeros("setups")


def test_a_failure_adds_one_line_of_makes_own(checkout: Checkout) -> None:
    run = checkout.make("profile", STATUS="1")
    assert run.returncode == 2 and run.stdout == ""
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize("change", ["pyproject.toml", "constraints.txt"])
def test_newer_pins_set_up_again(checkout: Checkout, change: str) -> None:
    ready = checkout.root / ".venv/.ready-dev"
    os.utime(ready, (1, 1))
    os.utime(checkout.root / change, (2, 2))
    for name in {"pyproject.toml", "constraints.txt"} - {change}:
        os.utime(checkout.root / name, (1, 1))
    checkout.given("list")
    assert checkout.zeros("setups") == ["", "dev"]


def test_set_up_happens_by_itself(checkout: Checkout) -> None:
    checkout.given("list")
    assert checkout.zeros("setups") == []
    (checkout.root / ".venv/.ready-dev").unlink()
    checkout.given("list")
    assert checkout.zeros("setups") == ["", "dev"]


@pytest.mark.parametrize("verb", ["experiment", "reproduce"])
def test_dask_is_set_up_only_where_work_is_spread(checkout: Checkout, verb: str) -> None:
    for word in (
        "NAME=x",
        "WORKERS=0",
        "WORKERS=1",
        "WORKERS=",
        "WORKERS=-2",
        "WORKERS=x",
        "SCHEDULER=",
        "WORKERS=$(touch pwned)",
    ):
        assert checkout.given(verb, word) == ["-m", "harness", verb, word]
        assert checkout.zeros("setups") == [], word
    assert checkout.given(verb, WORKERS="8", SCHEDULER="tcp://x:1") and checkout.zeros("setups") == []
    for word in ("WORKERS=2", "WORKERS=16", "SCHEDULER=tcp://host:8786"):
        assert checkout.given(verb, word) == ["-m", "harness", verb, word]
        assert checkout.zeros("setups") == ["", "scale"], word
        (checkout.root / ".venv/.ready-scale").unlink()
        (checkout.root / "setups").unlink()


def test_a_venv_whose_python_is_gone_is_set_up_again(checkout: Checkout) -> None:
    checkout.python.unlink()
    checkout.python.symlink_to("/no/such/python")
    checkout.make("list")
    assert checkout.zeros("setups") == ["", "dev"]


def test_clean_keeps_runs_and_venv(checkout: Checkout) -> None:
    kept = ["profiles/tiled/run/manifest.json", ".venv/lib/__pycache__/x.pyc", "experiments/e/runs/1/manifest.json"]
    gone = [
        ".cache/binaries/x",
        "harness/__pycache__/x.pyc",
        "harness/sim/__pycache__/y.pyc",
        ".pytest_cache/x",
        "build/x",
    ]
    for name in kept + gone:
        (checkout.root / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout.root / name).touch()
    assert checkout.make("clean").returncode == 0
    assert [name for name in kept if not (checkout.root / name).exists()] == []
    assert [name for name in gone if (checkout.root / name).exists()] == []
    assert checkout.make("distclean").returncode == 0
    assert not (checkout.root / ".venv").exists()


def test_readme_knows_every_target() -> None:
    readme = (ROOT / "README.md").read_text()
    for target in re.findall(r"^([a-z][a-z-]*):(?!=)", MAKEFILE, re.M):
        assert f"make {target}" in readme, f"README.md does not mention make {target}"
    for target in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", readme, re.M):
        assert re.search(rf"^{target}:", MAKEFILE, re.M), f"README.md mentions make {target}, which does not exist"


def test_an_empty_python_is_refused(checkout: Checkout) -> None:
    run = checkout.make("setup", "PYTHON=")
    assert run.returncode == 2 and "PYTHON= has no value" in run.stderr and not checkout.zeros("setups")


def test_an_unknown_notebook_is_refused_before_jupyterlab_is_installed(checkout: Checkout) -> None:
    run = checkout.make("notebooks", "NAME=99")
    assert run.returncode == 2 and "no notebook begins with '99'" in run.stderr and not checkout.zeros("setups")
