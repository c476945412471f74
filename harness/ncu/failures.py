"""What ncu's output says went wrong, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import TilescopeError

PERMISSION_REMEDY = (
    "NVIDIA's remedy (https://developer.nvidia.com/ERR_NVGPUCTRPERM): run as root; or, as an administrator, allow every user"
    ' by writing `options nvidia "NVreg_RestrictProfilingToAdminUsers=0"` to a file in /etc/modprobe.d and rebooting'
    " (update-initramfs -u first where there is one); or start the container with --cap-add=SYS_ADMIN."
)


class Unavailable(TilescopeError):
    """Counters cannot be had on this machine as it is: a profile goes on without them and says so."""


@dataclass(frozen=True)
class Failure:
    """kind: a word for tests and records. unavailable: the machine's doing, and not the kernel's."""

    kind: str
    what: str
    remedy: str = ""
    unavailable: bool = False

    def error(self) -> TilescopeError:
        return (Unavailable if self.unavailable else TilescopeError)(self.what, self.remedy)


_KNOWN = (
    ("ERR_NVGPUCTRPERM", Failure(
        "permission", "no permission to read the GPU's performance counters (ERR_NVGPUCTRPERM).", PERMISSION_REMEDY, True)),
    ("InterprocessLockFailed", Failure(
        "lock", "ncu cannot take its lock file, which another user's ncu made.",
        "Set TMPDIR to a folder of your own, or remove the lock file in /tmp (nsight-compute-lock).", True)),
    ("Cannot lock GPU clock", Failure(
        "clock", "ncu may not lock this GPU's clock.", "Use CLOCK=none, which leaves the clock as it is.")),
    ("driver resource was unavailable", Failure(
        "busy", "another profiler holds the GPU's counters (DCGM, say, or a second ncu).",
        "Wait for it, or pause DCGM: dcgmi profile --pause.", True)),
    ("Cuda driver is not compatible", Failure(
        "driver", "this ncu does not fit the NVIDIA driver.", "Install the ncu of the driver's CUDA version, or a newer driver.", True)),
    ("LibraryNotLoaded", Failure(
        "library", "ncu cannot initialise the profiler: the driver does not offer it here (a container or VM without it, or WSL).",
        "Profile on the host, in a VM with the whole GPU, or in a container started with the driver's profiling libraries.", True)),
    ("Windows Subsystem for Linux", Failure(
        "wsl", "the GPU's counters cannot be read from WSL as it is set up.",
        "In Windows: NVIDIA Control Panel, Desktop, Enable Developer Settings, Manage GPU Performance Counters, allow all users.", True)),
    (r"Profiling is not supported on|not supported by this version|No devices? .*support", Failure(
        "unsupported", "this ncu cannot profile this GPU.", "Install an ncu that knows it: `ncu --list-chips` says which a version knows.", True)),
    (r"unrecogni[sz]ed option|[Uu]nknown option|is not a valid option|the option '.*' is ambiguous", Failure(
        "option", "this ncu does not know an option that Tilescope gives it.", "Install Nsight Compute 2022.1 or newer.", True)),
    (r"No space left|[Dd]isk (is )?full", Failure(
        "disk", "the disk is full: ncu could not write its report.", "Free some space, or choose another disk with TMPDIR=.")),
)  # fmt: skip


def diagnose(output: str, status: int) -> Failure | None:
    """What went wrong, or None where nothing did. status: ncu's exit status, negative for the signal that ended it."""
    errors = "\n".join(line for line in output.splitlines() if line.startswith("==")) or output
    for pattern, failure in _KNOWN:
        if re.search(pattern, errors):
            return failure
    if status < 0:
        return Failure(
            "killed",
            f"ncu was killed (signal {-status}) before its report was whole: nothing was recorded.",
            "Run it again.",
        )
    if m := re.search(r"The application returned an error code \((\d+)\)", errors):
        said = _said(output)
        return Failure(
            "application",
            f"the profiled launch failed (status {m[1]}){': ' + said if said else '.'}",
            "See that it runs without ncu first.",
        )
    if "No kernels were profiled" in errors:
        said = _said(output)
        return Failure(
            "no kernel",
            f"ncu saw no launch inside the stage's NVTX range.{' It said: ' + said if said else ''}",
            "Run `make doctor`.",
        )
    if status:
        lines = [x for x in output.splitlines() if x.strip()]
        return Failure(
            "other",
            f"ncu failed (status {status}): {_stripped(lines[-1]) if lines else 'it said nothing'}",
            "Run `make doctor`.",
        )
    return None


def missing_metrics(output: str, asked: Sequence[str]) -> list[str]:
    """The metrics of those asked for that this ncu says it does not have on this GPU."""
    named: set[str] = set()
    for line in output.splitlines():
        if m := re.search(r"Failed to find metrics? (.*)", line):
            named.update(_names(m[1]))
        elif m := re.search(r"Failed to access the following \d+ metrics?: (.*)", line):
            named.update(_names(m[1]))
    return [name for name in asked if name in named or name.split(".")[0] in named]


def _names(text: str) -> list[str]:
    """Metric names in a message; ncu may show one as the regular expression it made of it."""
    words = (re.sub(r"^regex:\^?|\\|\(.*$|\$$", "", word.strip(" '\"")) for word in re.split(r"[,\s]+", text))
    return [word.rstrip(".") for word in words if word.rstrip(".")]


def _said(output: str) -> str:
    """What the profiled program itself complained of."""
    errors = [x.removeprefix("error:").strip() for x in output.splitlines() if x.startswith("error:")]
    return errors[-1] if errors else ""


def _stripped(line: str) -> str:
    return re.sub(r"^==(ERROR|WARNING|PROF)==\s*", "", line.strip())
