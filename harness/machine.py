"""What there is on this machine, for `doctor`: compilers, driver, GPUs, tools, permissions. Looks, and changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import ncu, preflight, sanitize, toolchain
from .errors import TilescopeError
from .ncu.failures import Failure, diagnose
from .problem import Problem
from .record import PROFILES
from .watched import launch_words, run

if TYPE_CHECKING:
    from .gpu.clocks import Monitor
    from .gpu.devices import Gpu

PACKAGES = ("pycuda", "nvmath-python", "nvidia-ml-py", "nvtx", "ncu-report")
CAPABILITIES = {21: "CAP_SYS_ADMIN"}
"""Bits of a capability mask (linux/capability.h) with which the driver lets a user read counters."""
PROBE_LIMIT = 120.0


@dataclass(frozen=True)
class State:
    """How a GPU is running now, by NVML. Clocks in MHz; `locked_mhz` is 0 where no application clock is set below the top.

    flags  what holds the clock down, as timings are flagged (harness.measurement)
    busy   what else keeps it busy, in words
    """

    sm_mhz: float = 0.0
    max_mhz: float = 0.0
    locked_mhz: float = 0.0
    flags: tuple[str, ...] = ()
    celsius: float = 0.0
    mig: bool = False
    busy: str = ""


@dataclass(frozen=True)
class Facts:
    """Everything that doctor's checks look at; a text ending in `_error` says why the thing before it is not there.

    admin_only   the driver's RmProfilingAdminOnly; None where it does not say
    capability   a capability of CAPABILITIES that this process has, or nothing
    probe        None: not tried; else what came of profiling one small launch, a Failure or nothing wrong ('')
    """

    base: preflight.Facts
    python: str = ""
    headers: bool = False
    tools: toolchain.Toolchain | None = None
    tools_error: str = ""
    engine_error: str = ""
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()
    gpu_error: str = ""
    states: tuple[State, ...] = ()
    packages: Mapping[str, str] | None = None
    cuda_h: str = ""
    libcuda: str = ""
    ncu: ncu.Ncu | None = None
    report_module: bool = False
    admin_only: bool | None = None
    capability: str = ""
    container: str = ""
    virtual: str = ""
    probe: Failure | str | None = None
    sanitizer: sanitize.Sanitizer | None = None
    free_bytes: int = 0
    temporary_bytes: int = 0

    def has(self, package: str) -> bool:
        return bool(self.packages and package in self.packages)


def gather(nvcc: str | None = None, probe: bool = True, environ: Mapping[str, str] = os.environ) -> Facts:
    """Look at everything. probe: profile one tiny launch with ncu where that can work, which takes some seconds."""
    tools, tools_error = _attempt(lambda: toolchain.tools(nvcc))
    _, engine_error = _attempt(_engine)
    gpus, gpu_error = _attempt(_gpus)
    found, _ = _attempt(lambda: ncu.find())
    facts = Facts(
        base=preflight.gather(toolchain.ROOT, environ),
        python=f"{sys.version.split()[0]} ({sys.executable})",
        headers=(Path(sysconfig.get_paths()["include"]) / "Python.h").exists(),
        tools=tools,
        tools_error=tools_error,
        engine_error=engine_error,
        driver=driver_version(_text("/proc/driver/nvidia/version")),
        gpus=gpus or (),
        gpu_error=gpu_error,
        states=states(gpus) if gpus else (),
        packages=installed(),
        cuda_h=_cuda_header(tools, environ),
        libcuda=_libcuda(environ),
        ncu=found,
        report_module=find_spec("ncu_report") is not None or bool(found and found.python_folders),
        admin_only=admin_only(_text("/proc/driver/nvidia/params")),
        capability=capability(_text("/proc/self/status")),
        container=container(environ),
        virtual=virtual(_text("/proc/version"), _text("/proc/cpuinfo"), _text("/sys/class/dmi/id/sys_vendor")),
        sanitizer=sanitize.find(),
        free_bytes=_free(PROFILES),
        temporary_bytes=_free(Path(tempfile.gettempdir())),
    )
    if probe and facts.gpus and facts.ncu and facts.has("pycuda") and find_spec("harness.gpu.worker"):
        facts = replace(facts, probe=probe_counters(facts.ncu))
    return facts


def _attempt(call: Any) -> tuple[Any, str]:
    """(what a call gives, '') or (None, why not)."""
    try:
        return call(), ""
    except TilescopeError as e:
        return None, str(e)


def _engine() -> None:
    from .sim import engine

    engine.load()


def _gpus() -> tuple[Gpu, ...]:
    from .gpu import devices

    return devices.gpus()


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _free(path: Path) -> int:
    return shutil.disk_usage(next(p for p in (path, *path.parents) if p.exists())).free


def installed() -> dict[str, str]:
    """Versions of the gpu extra's packages, of those installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def driver_version(text: str) -> str:
    """'580.159.04' from /proc/driver/nvidia/version, or nothing."""
    m = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)", text)
    return m[1] if m else ""


def admin_only(text: str) -> bool | None:
    """The driver's RmProfilingAdminOnly from /proc/driver/nvidia/params; None where it does not say."""
    m = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", text, re.M)
    return bool(int(m[1])) if m else None


def capability(text: str) -> str:
    """The capability in /proc/self/status that lets this process read counters, or nothing."""
    m = re.search(r"^CapEff:\s*([0-9a-f]+)", text, re.M)
    mask = int(m[1], 16) if m else 0
    return next((name for bit, name in CAPABILITIES.items() if mask >> bit & 1), "")


def container(environ: Mapping[str, str]) -> str:
    """The container this runs in, as far as it can be told."""
    if Path("/.dockerenv").exists():
        return "Docker"
    if Path("/run/.containerenv").exists():
        return "Podman"
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "Kubernetes"
    m = re.search(r"(docker|kubepods|lxc|containerd|podman)", _text("/proc/1/cgroup"))
    return m[1] if m else environ.get("container", "") or ("Singularity" if "SINGULARITY_NAME" in environ else "")


def virtual(version: str, cpuinfo: str, vendor: str) -> str:
    """The virtual machine this runs in, as far as it can be told: 'WSL', 'gVisor', a vendor, or 'a virtual machine'."""
    if "microsoft" in version.lower():
        return "WSL"
    if "gvisor" in version.lower() or "starting gvisor" in version.lower():
        return "gVisor"
    if re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.M):
        return vendor.strip() or "a virtual machine"
    return ""


def _cuda_header(tools: toolchain.Toolchain | None, environ: Mapping[str, str]) -> str:
    roots = [Path(environ[v]) for v in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT") if environ.get(v)]
    roots += [tools.nvcc.resolve().parent.parent] if tools else []
    return next((str(p) for root in roots if (p := root / "include/cuda.h").is_file()), "")


def _libcuda(environ: Mapping[str, str]) -> str:
    """A libcuda.so that a linker can use: without a version in its name, the driver's own or the toolkit's stub."""
    folders = [*environ.get("LIBRARY_PATH", "").split(":"), *environ.get("LD_LIBRARY_PATH", "").split(":")]
    folders += ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib"]
    stubs = [str(p) for p in Path("/").glob("usr/local/cuda*/lib64/stubs")]
    return next((str(p) for f in (*folders, *stubs) if f and (p := Path(f) / "libcuda.so").exists()), "")


def states(gpus: Sequence[Gpu]) -> tuple[State, ...]:
    """Every GPU's present state by NVML, or by nvidia-smi where nvidia-ml-py is not installed; empty where neither answers."""
    from .gpu.clocks import Monitor

    monitors = [Monitor(g) for g in gpus]
    if any(m.handle is None for m in monitors):
        return smi_states(_smi())
    return tuple(state(m) for m in monitors)


def state(monitor: Monitor) -> State:
    """One GPU through NVML; what it does not answer is 0."""
    from .gpu.clocks import REASONS

    def number(x: float) -> float:
        return x if x == x else 0.0

    top, application, reasons = number(monitor.max_clock_mhz()), number(monitor.application_mhz()), monitor.reasons()
    return State(
        sm_mhz=number(monitor.clock_mhz()),
        max_mhz=top,
        locked_mhz=application if application < top else 0.0,
        flags=tuple(dict.fromkeys(flag for bit, flag in REASONS.items() if reasons & bit)),
        celsius=number(monitor.temperature_c()),
        mig=monitor.mig(),
        busy=monitor.busy(),
    )


SMI_FIELDS = ("clocks.sm", "clocks.max.sm", "temperature.gpu", "utilization.gpu", "mig.mode.current")


def _smi() -> str:
    words = ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        out = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return out.stdout if out.returncode == 0 else ""


def smi_states(text: str) -> tuple[State, ...]:
    """States from nvidia-smi's CSV of SMI_FIELDS. It says less than NVML: no reasons, no processes."""
    found = []
    for line in text.splitlines():
        cells = [c.strip() for c in line.split(",")]
        if len(cells) != len(SMI_FIELDS):
            continue
        sm, top, celsius, busy = (float(c) if re.fullmatch(r"[\d.]+", c) else 0.0 for c in cells[:4])
        load = f"the GPU is {busy:.0f} % busy" if busy > 5 else ""
        found.append(State(sm, top, celsius=celsius, mig=cells[4] == "Enabled", busy=load))
    return tuple(found)


def probe_counters(found: ncu.Ncu) -> Failure | str:
    """Profile one tiny launch for one hardware counter: '' where that works, else what went wrong."""
    with tempfile.TemporaryDirectory(prefix="tilescope-") as folder:
        launch = launch_words("naive", Problem(32, 32, 32), {})
        words = ncu.command(
            found.path, "naive", launch, ncu.Options(), Path(folder) / "probe", ["sm__cycles_elapsed.max"]
        )
        try:
            output, status = run(words, PROBE_LIMIT)
        except TilescopeError as e:
            return Failure("other", e.what, e.remedy)
    return diagnose(output, status) or ""
