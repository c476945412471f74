"""What set-up checks first, each fault injected; and that a set-up which failed or was killed never counts as done."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from harness import bootstrap, preflight
from harness.preflight import Compiler, Facts

ROOT = Path(__file__).resolve().parent.parent
GOOD = Facts(
    glibc=(2, 36),
    python=(3, 12),
    missing=(),
    compilers=(Compiler("/usr/bin/g++", "gcc", 12),),
    c_compiler="/usr/bin/cc",
    free_bytes=50 * 10**9,
    manager="apt-get",
)


def test_a_good_machine_has_no_problem() -> None:
    assert preflight.problems(GOOD) == []


@pytest.mark.parametrize(
    "fault, what, remedy",
    [
        ({"missing": ("ensurepip",)}, "no module ensurepip", "apt install python3.12-venv"),
        ({"missing": ("ensurepip",), "manager": None}, "no module ensurepip", "Install Python with venv"),
        ({"compilers": ()}, "no C++ compiler", "sudo apt install g++"),
        ({"compilers": (), "manager": "dnf"}, "no C++ compiler", "sudo dnf install gcc-c++"),
        ({"compilers": (), "manager": None}, "no C++ compiler", "Install g++"),
        (
            {"compilers": (Compiler("/usr/bin/g++", "gcc", 16),)},
            "GCC 16 (/usr/bin/g++) is too new",
            "apt install g++-15",
        ),
        ({"compilers": (Compiler("/usr/bin/g++", "gcc", 5),)}, "GCC 5 (/usr/bin/g++) is too old", "apt install g++-15"),
        (
            {"compilers": (Compiler("/usr/bin/clang++", "clang", 21),)},
            "clang 21 (/usr/bin/clang++) is too new",
            "g++-15",
        ),
        (
            {"compilers": (Compiler("/x/g++", fault="fatal error: cstdlib: No such file"),)},
            "/x/g++ does not work: fatal",
            "g++",
        ),
        ({"c_compiler": None}, "no C compiler", "sudo apt install g++"),
        ({"glibc": (2, 27)}, "glibc 2.27", "debian:12"),
        ({"glibc": (0, 0)}, "musl", "debian:12"),
        ({"free_bytes": 10**8}, "0.1 GB are free", "Free some space"),
    ],
)
def test_each_fault_is_named_with_its_remedy(fault: dict, what: str, remedy: str) -> None:
    (problem,) = preflight.problems(replace(GOOD, **fault))
    assert what in problem.what and remedy in problem.remedy
    assert "\n" not in problem.what + problem.remedy


def test_all_faults_are_named_at_once() -> None:
    assert len(preflight.problems(replace(GOOD, missing=("venv",), compilers=(), free_bytes=0, glibc=(2, 17)))) == 4


@pytest.mark.parametrize("kind, majors", [("gcc", (6, 15)), ("clang", (7, 20))])
def test_the_limits_are_nvccs(kind: str, majors: tuple[int, int]) -> None:
    low, high = majors
    assert [Compiler("x", kind, n).accepted for n in (low - 1, low, high, high + 1)] == [False, True, True, False]


def program(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_an_older_compiler_is_found_beside_a_new_one(tmp_path: Path) -> None:
    program(tmp_path, "g++", "echo tilescope gcc 16")
    program(tmp_path, "clang++", "echo tilescope clang 21")
    environ = {"PATH": str(tmp_path)}
    assert preflight.host_compiler(environ) is None
    old = program(tmp_path, "g++-14", "echo tilescope gcc 14")
    assert preflight.host_compiler(environ) == str(old)
    assert [c.major for c in preflight.compilers(environ)] == [16, 14]


def test_nvcc_ccbin_is_obeyed(tmp_path: Path) -> None:
    program(tmp_path / "bin", "g++", "echo tilescope gcc 12")
    chosen = program(tmp_path / "own", "g++", "echo tilescope gcc 9")
    path = str(tmp_path / "bin")
    for choice in (chosen, chosen.parent):
        assert preflight.host_compiler({"PATH": path, "NVCC_CCBIN": str(choice)}) == str(chosen)
    (none,) = preflight.compilers({"PATH": path, "NVCC_CCBIN": "/no/such"})
    assert "NVCC_CCBIN" in none.fault and not none.accepted


def test_a_compiler_that_does_not_compile_is_told_apart(tmp_path: Path) -> None:
    broken = program(tmp_path, "g++", "echo '<stdin>:1: fatal error: cstdlib: No such file' >&2; exit 1")
    assert "cstdlib" in preflight.inspect(str(broken)).fault
    assert preflight.inspect(str(program(tmp_path, "silent", "exit 3"))).fault == "it ended with status 3"
    assert preflight.inspect(str(tmp_path / "none")).fault


def test_this_machine_can_be_looked_at() -> None:
    facts = preflight.gather(ROOT)
    assert facts.python == sys.version_info[:2] and facts.free_bytes > 0
    assert any(c.accepted for c in facts.compilers)


# bootstrap.sh: the system and the choice of Python


OLD = """case $* in
*platform*) echo "Python 3.9.2" ;;
--version) echo "Python 3.9.2" ;;
*) exit 1 ;;
esac"""
HANDED_OVER = """case "$1" in
-c) exit 0 ;;
*) echo "$0 $*" ;;
esac"""


def bootstrap_sh(folder: Path, python: str = "", path: str = "") -> subprocess.CompletedProcess:
    for tool in ("sh", "cat"):
        if not (folder / tool).exists():
            (folder / tool).symlink_to(shutil.which(tool))
    if not (folder / "uname").exists():
        program(folder, "uname", "case $1 in -s) echo Linux ;; -m) echo x86_64 ;; esac")
    command = ["/bin/sh", ROOT / "harness/bootstrap.sh", python, "dev"]
    return subprocess.run(
        command, cwd=folder, env={"PATH": path or str(folder)}, capture_output=True, text=True, timeout=60
    )


def refused(run: subprocess.CompletedProcess, what: str, remedy: str) -> None:
    assert run.returncode == 2 and run.stdout == ""
    first, second = run.stderr.splitlines()
    assert first.startswith("error: ") and what in first and remedy in second


@pytest.mark.parametrize(
    "system, machine, what, remedy",
    [
        ("Darwin", "arm64", "macOS", "container"),
        ("MINGW64_NT-10.0", "x86_64", "MINGW64_NT-10.0", "WSL"),
        ("Linux", "riscv64", "riscv64", "x86_64 or aarch64"),
    ],
)
def test_other_systems_are_refused(tmp_path: Path, system: str, machine: str, what: str, remedy: str) -> None:
    program(tmp_path, "uname", f"case $1 in -s) echo {system} ;; -m) echo {machine} ;; esac")
    refused(bootstrap_sh(tmp_path), what, remedy)


def test_no_python_or_an_old_one_is_refused(tmp_path: Path) -> None:
    refused(bootstrap_sh(tmp_path), "no Python", "apt install python3")
    program(tmp_path, "python3", OLD)
    refused(bootstrap_sh(tmp_path), "Python 3.9.2", "make PYTHON=")
    refused(bootstrap_sh(tmp_path, "python3"), "PYTHON=python3 is Python 3.9.2", "apt install python3")
    refused(bootstrap_sh(tmp_path, "/no/such"), "PYTHON=/no/such", "leave PYTHON out")
    program(tmp_path, "python3.12", "exit 127")  # a shim with nothing behind it
    refused(bootstrap_sh(tmp_path, "python3.12"), "not a Python that runs", "apt install")


def test_a_good_python_is_found_beside_an_old_one(tmp_path: Path) -> None:
    program(tmp_path, "python3", OLD)
    program(tmp_path, "python3.13", "exit 127")
    good = program(tmp_path, "python3.11", HANDED_OVER)
    run = bootstrap_sh(tmp_path)
    assert run.stdout.strip() == f"{good} -I {ROOT}/harness/bootstrap.py dev", run.stderr
    chosen = program(tmp_path, "mine", HANDED_OVER)
    assert bootstrap_sh(tmp_path, str(chosen)).stdout.startswith(f"{chosen} -I ")


def test_a_broken_shim_is_named_or_passed_over(tmp_path: Path) -> None:
    (tmp_path / "shims").mkdir()
    shim = program(
        tmp_path / "shims", "python3", "echo 'pyenv: python3: command not found' >&2; echo more >&2; exit 127"
    )
    path = f"{tmp_path}/shims:{tmp_path}"
    refused(bootstrap_sh(tmp_path, path=path), f"{shim} does not run: pyenv: python3: command not found, and", "apt")
    good = program(tmp_path, "python3", HANDED_OVER)
    assert bootstrap_sh(tmp_path, path=path).stdout.startswith(f"{good} -I ")


def test_a_python_with_venv_comes_before_one_without(tmp_path: Path) -> None:
    bare = program(tmp_path, "python3", f'case "$*" in *ensurepip*) exit 1 ;; esac\n{HANDED_OVER}')
    assert bootstrap_sh(tmp_path).stdout.startswith(f"{bare} ")
    whole = program(tmp_path, "python3.12", HANDED_OVER)
    assert bootstrap_sh(tmp_path).stdout.startswith(f"{whole} ")


@pytest.mark.parametrize("minor, good", [(10, False), (11, True), (14, True), (15, False)])
def test_the_versions_are_those_of_the_pins(tmp_path: Path, minor: int, good: bool) -> None:
    python = f"import sys; sys.version_info = (3, {minor}, 0); exec(sys.argv[1])"
    program(
        tmp_path, "python3", f"case $1 in -c) exec '{sys.executable}' -c '{python}' \"$2\" ;; *) echo \"$0 $*\" ;; esac"
    )
    assert (bootstrap_sh(tmp_path).returncode == 0) is good
    assert 'requires-python = ">=3.11,<3.15"' in (ROOT / "pyproject.toml").read_text()


def test_the_python_of_venv_is_kept(tmp_path: Path) -> None:
    program(tmp_path, "python3", HANDED_OVER)
    chosen = program(tmp_path, "chosen earlier", HANDED_OVER)
    (tmp_path / ".venv").mkdir()
    program(tmp_path / ".venv/bin", "python", f"echo '{chosen}'")
    assert bootstrap_sh(tmp_path).stdout.startswith(f"{chosen} -I ")
    chosen.unlink()
    assert bootstrap_sh(tmp_path).stdout.startswith(f"{tmp_path}/python3 -I ")


# bootstrap.py: .venv is there and ready, or not there


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a set-up that takes no network: the steps leave a file in .venv each."""
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(preflight, "gather", lambda root: GOOD)
    monkeypatch.setattr(bootstrap, "make_venv", fake_venv)
    monkeypatch.setattr(bootstrap, "install", lambda root, extra, lock: (root / f".venv/{extra}").touch())
    return tmp_path


def fake_venv(root: Path, lock: int) -> None:
    shutil.rmtree(root / ".venv", ignore_errors=True)
    (root / ".venv/bin").mkdir(parents=True)
    (root / ".venv/bin/python").symlink_to(sys.executable)


def test_set_up_is_done_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap.set_up(root, "dev")
    assert (root / ".venv/dev").exists() and (root / ".venv/.ready-dev").exists()
    (root / ".venv/mine").touch()
    bootstrap.set_up(root, "dev")
    bootstrap.set_up(root, "lab")
    assert (root / ".venv/mine").exists() and (root / ".venv/lab").exists()
    (root / "constraints.txt").write_text("numpy==1\n")
    bootstrap.set_up(root, "dev")
    assert not (root / ".venv/mine").exists() and not (root / ".venv/.ready-lab").exists()


@pytest.mark.parametrize(
    "fault", [bootstrap.Failed("pip failed"), KeyboardInterrupt(), OSError(28, "No space left on device")]
)
@pytest.mark.parametrize("step", ["make_venv", "install"])
def test_a_failed_set_up_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException, step: str
) -> None:
    def fails(*args: object) -> None:
        (root / ".venv/half").mkdir(parents=True)
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, step, fails)
        with pytest.raises(type(fault)):
            bootstrap.set_up(root, "dev")
    assert not (root / ".venv").exists()
    bootstrap.set_up(root, "dev")
    assert (root / ".venv/.ready-dev").exists()


def test_a_failed_extra_leaves_the_rest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap.set_up(root, "dev")
    monkeypatch.setattr(bootstrap, "install", lambda *args: bootstrap.fail("pip failed", "try again"))
    with pytest.raises(bootstrap.Failed):
        bootstrap.set_up(root, "lab")
    assert (root / ".venv/.ready-dev").exists() and not (root / ".venv/.ready-lab").exists()


def test_problems_are_printed_and_nothing_is_made(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(preflight, "gather", lambda root: replace(GOOD, compilers=(), free_bytes=0))
    monkeypatch.setattr(bootstrap, "HERE", root / "harness")
    assert bootstrap.main("dev") == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("error: ") == 2 and "apt install g++" in said.err
    assert not (root / ".venv").exists()


SLOW_PIP = """
import sys
sys.path.insert(0, {repo!r})
from pathlib import Path
from harness import bootstrap, preflight
from tests.test_preflight import GOOD, program
preflight.gather = lambda root: GOOD
def make_venv(root, lock):
    (root / ".venv").mkdir()
    program(root / ".venv/bin", "python", "touch .venv/half; sleep 1; touch late")
bootstrap.make_venv = make_venv
bootstrap.set_up(Path({root!r}), "dev")
"""
SLOW = """
import sys, time
sys.path.insert(0, {repo!r})
from pathlib import Path
from harness import bootstrap, preflight
from tests.test_preflight import GOOD, fake_venv
preflight.gather = lambda root: GOOD
bootstrap.make_venv = fake_venv
def install(root, extra, lock):
    (root / ".venv/half").touch()
    time.sleep({seconds})
    (root / ".venv/whole").touch()
bootstrap.install = install
bootstrap.set_up(Path({root!r}), "dev")
"""


def started(root: Path, seconds: float = 0, code: str = SLOW) -> subprocess.Popen:
    """A set-up in a process of its own, half-way through."""
    code = code.format(repo=str(ROOT), root=str(root), seconds=seconds)
    run = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    wait_until((root / ".venv/half").exists, run)
    return run


def wait_until(true: Callable[[], object], run: subprocess.Popen) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def test_a_killed_set_up_does_not_count(root: Path) -> None:
    run = started(root, 60)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    assert (root / ".venv/half").exists()
    bootstrap.set_up(root, "dev")
    assert (root / ".venv/.ready-dev").exists() and not (root / ".venv/half").exists()


def test_a_stamp_goes_before_what_it_stands_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.ready-dev").touch()

    def killed(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap.subprocess, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        bootstrap.make_venv(tmp_path, 0)
    assert list((tmp_path / ".venv").glob(".ready-*")) == []


def test_a_set_up_waits_for_the_pip_of_a_killed_one(root: Path) -> None:
    run = started(root, code=SLOW_PIP)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    assert not (root / "late").exists()
    bootstrap.set_up(root, "dev")
    assert (root / "late").exists(), "pip of the killed set-up still ran"


def test_a_second_set_up_waits_for_the_first(root: Path, capsys: pytest.CaptureFixture) -> None:
    first = started(root, 1)
    bootstrap.set_up(root, "dev")
    first.communicate()
    assert "waiting for it" in capsys.readouterr().err
    assert (root / ".venv/whole").exists(), "the second set-up did not use what the first made"


# pip's part


def test_pips_noise_becomes_a_line_per_large_package(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    said = (
        "Collecting numpy==2.4.6\n  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (16.6 MB)\n"
        "  Using cached rich-15.0.0-py3-none-any.whl (310 kB)\n"
        "  Downloading nvidia_nvvm-13.0.88-py3-none-any.whl.metadata (1.7 kB)\n"
        "Installing collected packages: numpy, rich\nSuccessfully installed numpy-2.4.6 rich-15.0.0\n"
    )
    (tmp_path / "said").write_text(said)
    program_in_venv(tmp_path, "cat said")
    bootstrap.install(tmp_path, "dev", os.open(tmp_path / "said", os.O_RDONLY))
    assert capsys.readouterr().err == "  numpy 2.4.6 (16.6 MB)\n  unpacking 2 packages\n"
    assert (tmp_path / bootstrap.LOG).read_text() == said


@pytest.mark.parametrize(
    "said, remedy",
    [
        ("ERROR: No matching distribution found for numpy==2.4.6", "network"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "Free some space"),
        ("      ERROR: No matching distribution found for flit_core==4.2.0", "network"),
        ("", "network"),
    ],
)
def test_pips_failure_is_told_with_a_remedy(tmp_path: Path, said: str, remedy: str) -> None:
    program_in_venv(tmp_path, f"echo '{said}'; exit 1")
    with pytest.raises(bootstrap.Failed, match=remedy) as failure:
        bootstrap.install(tmp_path, "dev", os.open(tmp_path, os.O_RDONLY))
    assert said.strip().removeprefix("ERROR: ") in str(failure.value) and str(bootstrap.LOG) in str(failure.value)


def test_pip_is_gone_before_an_interrupted_set_up_cleans_up(tmp_path: Path) -> None:
    program_in_venv(tmp_path, "echo $$ > pid; trap '' INT; echo begun; exec sleep 60")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom pathlib import Path\nfrom harness import bootstrap\n"
        f"bootstrap.install(Path({str(tmp_path)!r}), 'dev', 0)"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), run)
    time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    run.wait(10)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def program_in_venv(root: Path, body: str) -> None:
    (root / ".venv").mkdir()
    program(root / ".venv/bin", "python", body)


def test_pins_are_exact_and_complete() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    direct = [*project["dependencies"], *(p for extra in project["optional-dependencies"].values() for p in extra)]
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(line.count("==") == 1 and "*" not in line for line in direct + pinned)
    names = [line.split("==")[0].split("[")[0].lower() for line in {*direct, *pinned}]
    assert sorted(names) == sorted(set(names)), "a package is pinned to two versions"
    needed, todo = set(), [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    while todo:
        wanted = Requirement(todo.pop())
        name = wanted.name.lower().replace("_", "-")
        if name not in needed:
            needed.add(name)
            extras = wanted.extras or {""}
            for line in metadata.requires(name) or []:
                marker = Requirement(line).marker
                if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                    todo.append(line)
    assert len(needed) > 20 and needed <= set(names), needed - set(names)


def test_without_a_compiler_the_tests_say_so_once(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("TILESCOPE_CACHE", "PYTHONPATH")}
    environ = {name: value for name, value in environ.items() if not name.startswith("PYTEST_XDIST")}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "tests/test_claims.py"],
        cwd=ROOT, env=environ | {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    said = run.stdout + run.stderr
    assert run.returncode == 4 and "there is no C++ compiler" in said and len(said.splitlines()) < 6, said
