"""What set-up needs and pip cannot bring, looked at first, so that each missing piece is named with its remedy.

Runs before anything is installed: standard library only, no import from the package.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# What nvcc 13.0 takes on Linux: CUDA Installation Guide, "Host Compiler Support Policy", and its crt/host_config.h.
ACCEPTED = {"gcc": (6, 15), "clang": (7, 20)}
GLIBC = (2, 28)  # of the pinned wheels
DISK_BYTES = 1_000_000_000  # .venv takes 0.7 GB, what is compiled and recorded the rest
_CANDIDATES = (
    "g++",
    *(f"g++-{n}" for n in range(ACCEPTED["gcc"][1], ACCEPTED["gcc"][0] - 1, -1)),
    "clang++",
    *(f"clang++-{n}" for n in range(ACCEPTED["clang"][1], ACCEPTED["clang"][0] - 1, -1)),
)
_PROBE = """\
#include <cstdlib>
#ifdef __clang__
tilescope clang __clang_major__
#else
tilescope gcc __GNUC__
#endif
"""
_INSTALL = {  # package manager -> how to install a C++ compiler
    "apt-get": "sudo apt install g++",
    "dnf": "sudo dnf install gcc-c++",
    "zypper": "sudo zypper install gcc-c++",
    "pacman": "sudo pacman -S gcc",
}


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its path, gcc or clang, its major version; `fault` says why it does not compile, if so."""

    path: str
    kind: str = ""
    major: int = 0
    fault: str = ""

    @property
    def accepted(self) -> bool:
        """Whether it works and nvcc takes its version."""
        low, high = ACCEPTED.get(self.kind, (1, 0))
        return not self.fault and low <= self.major <= high

    def __str__(self) -> str:
        return f"{'GCC' if self.kind == 'gcc' else self.kind} {self.major} ({self.path})"


@dataclass(frozen=True)
class Facts:
    """What preflight looks at. `glibc` is (0, 0) where the C library is another; `missing` names modules of Python's own."""

    glibc: tuple[int, int]
    python: tuple[int, int]
    missing: tuple[str, ...]
    compilers: tuple[Compiler, ...]
    c_compiler: str | None
    free_bytes: int
    manager: str | None


@dataclass(frozen=True)
class Problem:
    """What is wrong, and what to do about it."""

    what: str
    remedy: str


def inspect(path: str) -> Compiler:
    """Ask a compiler what it is by preprocessing a C++ header, which also shows whether it can."""
    try:
        run = subprocess.run(
            [path, "-E", "-P", "-x", "c++", "-"], input=_PROBE, capture_output=True, text=True, timeout=60
        )
    except (OSError, UnicodeDecodeError, subprocess.TimeoutExpired) as e:
        return Compiler(path, fault=str(e))
    words = run.stdout.split()[-3:]
    if run.returncode or words[:1] != ["tilescope"]:
        said = [line for line in run.stderr.splitlines() if "error" in line] or run.stderr.splitlines()
        return Compiler(path, fault=said[0].strip() if said else f"it ended with status {run.returncode}")
    return Compiler(path, words[1], int(words[2]))


def compilers(environ: Mapping[str, str]) -> list[Compiler]:
    """The C++ compilers here, best first, up to the first that nvcc takes.

    NVCC_CCBIN, which nvcc obeys (a compiler, or the folder of one), is the only one if it is set.
    """
    if choice := environ.get("NVCC_CCBIN"):
        path = shutil.which(os.path.join(choice, "g++") if os.path.isdir(choice) else choice, path=environ.get("PATH"))
        return [inspect(path) if path else Compiler(choice, fault="NVCC_CCBIN names no program")]
    found: list[Compiler] = []
    for name in _CANDIDATES:
        path = shutil.which(name, path=environ.get("PATH"))
        if path and not (found and found[-1].accepted):
            found.append(inspect(path))
    return found


def host_compiler(environ: Mapping[str, str] = os.environ) -> str | None:
    """Path of the first C++ compiler here that nvcc takes, or None."""
    return next((c.path for c in compilers(environ) if c.accepted), None)


def gather(root: Path, environ: Mapping[str, str] = os.environ) -> Facts:
    """The facts of this machine and this interpreter."""
    library, version = platform.libc_ver()
    numbers = [int(n) for n in version.split(".")[:2]] if library == "glibc" else [0, 0]
    path = environ.get("PATH")
    return Facts(
        glibc=(numbers[0], numbers[1]),
        python=(int(platform.python_version_tuple()[0]), int(platform.python_version_tuple()[1])),
        missing=tuple(m for m in ("venv", "ensurepip") if importlib.util.find_spec(m) is None),
        compilers=tuple(compilers(environ)),
        c_compiler=next((found for n in ("gcc", "cc", "clang", "g++") if (found := shutil.which(n, path=path))), None),
        free_bytes=shutil.disk_usage(root).free,
        manager=next((m for m in _INSTALL if shutil.which(m, path=path)), None),
    )


def problems(facts: Facts) -> list[Problem]:
    """Everything that would make set-up or the first compilation fail, each with its remedy."""
    found = [*_library(facts), *_python(facts), *compiler_problems(facts)]
    if facts.free_bytes < DISK_BYTES:
        found.append(
            Problem(
                f"set-up needs {DISK_BYTES / 1e9:.1f} GB of disk here, and {facts.free_bytes / 1e9:.1f} GB are free.",
                "Free some space, or clone to another disk.",
            )
        )
    return found


def _library(facts: Facts) -> list[Problem]:
    if facts.glibc >= GLIBC:
        return []
    wanted = ".".join(map(str, GLIBC))
    have = f"glibc {facts.glibc[0]}.{facts.glibc[1]}" if facts.glibc != (0, 0) else "not glibc (musl, as in Alpine?)"
    return [
        Problem(
            f"the C library here is {have}; the compiler and numpy are built for glibc {wanted} or newer.",
            'Use Debian 10, Ubuntu 20.04, RHEL 8 or newer, or a container: docker run -it -v "$PWD:/w" -w /w debian:12',
        )
    ]


def _python(facts: Facts) -> list[Problem]:
    if not facts.missing:
        return []
    version = "{}.{}".format(*facts.python)
    remedy = (
        f"sudo apt install python{version}-venv" if facts.manager == "apt-get" else "Install Python with venv and pip"
    )
    return [
        Problem(
            f"Python {version} has no module {' and '.join(facts.missing)}, which makes virtual environments.",
            f"{remedy}; or choose another: make PYTHON=/path/to/python3.12 ...",
        )
    ]


def compiler_problems(facts: Facts) -> list[Problem]:
    """What is wrong with the compilers here, each with its remedy."""
    if any(c.accepted for c in facts.compilers):
        if facts.c_compiler:
            return []
        what = "there is no C compiler (gcc or clang), which builds the simulator's engine."
        return [Problem(what, _INSTALL.get(facts.manager or "", "Install gcc") + ".")]
    if not facts.compilers:
        what = "there is no C++ compiler (g++ or clang++), which nvcc needs beside it."
        return [Problem(what, _INSTALL.get(facts.manager or "", "Install g++") + ".")]
    first, newest = facts.compilers[0], ACCEPTED["gcc"][1]
    if first.fault:
        what = f"the C++ compiler {first.path} does not work: {first.fault}"
        return [Problem(what, _INSTALL.get(facts.manager or "", "Install g++ again") + ".")]
    limits = " or ".join(f"{'GCC' if k == 'gcc' else k} {low} to {high}" for k, (low, high) in ACCEPTED.items())
    which = "old" if first.major < ACCEPTED[first.kind][0] else "new"
    beside = {"apt-get": f"sudo apt install g++-{newest}", "dnf": f"sudo dnf install gcc{newest}-c++"}
    remedy = beside.get(facts.manager or "", f"Install g++-{newest}")
    return [
        Problem(
            f"{first} is too {which} for nvcc 13.0, which takes {limits}.",
            f"{remedy}: g++-{newest} is found beside g++ by itself. One elsewhere: export NVCC_CCBIN=/path/to/g++",
        )
    ]
