"""What a figure depends on besides the kernel: versions, the host's CPU, the state of the checkout. No host name, no user, no path."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("--", ".", ":(exclude)profiles", ":(exclude)experiments/*/runs/*")
"""What git is asked about: all but recorded runs."""
PACKAGES = (
    "numpy",
    "pandas",
    "pyarrow",
    "rich",
    "cuda-toolkit",
    "nvidia-cuda-nvcc",
    "nvidia-cuda-nvdisasm",
    "pycuda",
    "nvmath-python",
)


@cache
def describe() -> dict:
    """Python, packages, operating system, CPU and cores that this process may use, and git state, ready for JSON."""
    return {
        "python": platform.python_version(),
        "packages": packages(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu(),
        "cores": cores(),
        "git": git(),
    }


def packages() -> dict[str, str]:
    """Versions of the packages that matter, of those installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


@cache
def cpu() -> str:
    """The CPU's model as the kernel names it, or the architecture where it does not (most aarch64)."""
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                if line.startswith(("model name", "Model\t", "cpu model")):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def git() -> dict | None:
    """{'commit': hash, 'dirty': whether tracked files other than recorded runs differ from it} of the checkout, or None outside one."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit.strip(), "dirty": bool(_git("status", "--porcelain", "--untracked-files=no", *SOURCES))}


def diff() -> str:
    """What the checkout differs in from its commit, recorded runs left out; nothing outside a checkout."""
    found = _git("diff", "HEAD", "--no-color", *SOURCES) or ""
    new = (_git("ls-files", "--others", "--exclude-standard", *SOURCES) or "").splitlines()
    return found + "".join(f"not tracked: {name}\n" for name in new)


def _git(*words: str) -> str | None:
    if not (ROOT / ".git").exists():
        return None
    try:
        run = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout if run.returncode == 0 else None


def public(path: str | Path) -> str:
    """A path that says nothing of the user: relative to the checkout, or the bare name of a file outside it."""
    path = Path(path)
    try:
        return str(path.relative_to(ROOT))
    except ValueError:
        return path.name
