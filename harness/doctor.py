"""`make doctor`: what works on this machine, what does not, and the remedy. Each check is a function of the facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from . import preflight
from .device import DEVICES
from .machine import Facts
from .measurement import CAPPED, THROTTLED
from .ncu.failures import PERMISSION_REMEDY, Failure

OK, WARN, FAIL, NONE = "ok", "warn", "fail", "-"
SIMULATOR, GPU, COUNTERS, SANITIZER = "simulator", "gpu", "counters", "sanitizer"
AREAS = {
    SIMULATOR: "simulated profiles and verification (`make profile`, `make verify`), which need no GPU",
    GPU: "running and timing on the GPU (BACKEND=gpu, `make time`, `make ladder`)",
    COUNTERS: "hardware counters by Nsight Compute in a profile",
    SANITIZER: "`make sanitize`",
}
PYCUDA = "pycuda==2026.1"
LEAST_RUN_BYTES, FEW_BYTES = 50 * 10**6, 10**9
OLDEST_NCU = {75: (2019, 1), 80: (2020, 1), 86: (2020, 2), 87: (2022, 2), 89: (2022, 3), 90: (2022, 3), 100: (2025, 1), 103: (2025, 2),
              120: (2025, 1), 121: (2025, 3)}  # fmt: skip
"""Compute capability -> the first Nsight Compute that knows it (Nsight Compute Release Notes)."""


@dataclass(frozen=True)
class Diagnosis:
    """What one check found. status: 'ok', 'warn' (works, with a limit), 'fail', or '-' where it does not apply here."""

    area: str
    check: str
    status: str
    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnoses:
    """All of them, in the order they are shown."""

    found: tuple[Diagnosis, ...]

    @property
    def ok(self) -> bool:
        """Whether everything that the simulator needs is there."""
        return not any(d.area == SIMULATOR and d.status == FAIL for d in self.found)

    def works(self, area: str) -> bool:
        """Whether an area works: nothing in it fails or is absent, nor in what it stands on."""
        stands_on = {COUNTERS: (GPU, COUNTERS), SANITIZER: (GPU, SANITIZER)}.get(area, (area,))
        return not any(d.area in stands_on and d.status in (FAIL, NONE) for d in self.found)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "works": {a: self.works(a) for a in AREAS}, "checks": [asdict(d) for d in self.found]}


def diagnose(facts: Facts) -> Diagnoses:
    """Every check on the facts of a machine."""
    return Diagnoses(tuple(d for check in CHECKS for d in check(facts)))


def _setup(f: Facts) -> Iterable[Diagnosis]:
    """Python, C library, host compilers: what set-up looks at, its disk aside."""
    wrong = preflight.problems(replace(f.base, free_bytes=preflight.DISK_BYTES))
    for p in wrong:
        yield Diagnosis(SIMULATOR, "set-up", FAIL, p.what, p.remedy)
    if not wrong:
        compiler = next((str(c) for c in f.base.compilers if c.accepted), "")
        yield Diagnosis(SIMULATOR, "Python", OK, f.python)
        yield Diagnosis(SIMULATOR, "host compiler", OK, compiler)


def _compiler(f: Facts) -> Iterable[Diagnosis]:
    if f.tools is None:
        what, _, remedy = f.tools_error.partition("\n")
        yield Diagnosis(SIMULATOR, "nvcc and nvdisasm", FAIL, what, remedy or "Run `make setup`.")
        return
    yield Diagnosis(SIMULATOR, "nvcc", OK, f"{f.tools.nvcc_version} ({f.tools.nvcc})")
    yield Diagnosis(
        SIMULATOR,
        "nvdisasm",
        OK,
        f"{f.tools.nvdisasm_version} ({f.tools.nvdisasm}), which reads nvcc {f.tools.nvcc_version}'s code",
    )


def _engine(f: Facts) -> Iterable[Diagnosis]:
    what, _, remedy = f.engine_error.partition("\n")
    if what:
        yield Diagnosis(
            SIMULATOR, "simulator's engine", FAIL, what, remedy or "Run `make clean`, and see that gcc works."
        )
    else:
        yield Diagnosis(SIMULATOR, "simulator's engine", OK, "compiles and loads")


def _disk(f: Facts) -> Iterable[Diagnosis]:
    for where, free, remedy in (
        ("profiles/", f.free_bytes, "Free some space, or record elsewhere with OUT=."),
        ("the temporary folder", f.temporary_bytes, "Free some space, or set TMPDIR to another disk."),
    ):
        status = FAIL if free < LEAST_RUN_BYTES else WARN if free < FEW_BYTES else OK
        yield Diagnosis(
            SIMULATOR, "disk", status, f"{free / 1e9:.1f} GB free in {where}", "" if status == OK else remedy
        )


def _driver(f: Facts) -> Iterable[Diagnosis]:
    if f.gpus:
        cuda = ".".join(map(str, f.gpus[0].cuda))
        yield Diagnosis(GPU, "driver", OK, f"{f.driver or 'version not told'}, for CUDA up to {cuda}")
        return
    what, _, remedy = f.gpu_error.partition("\n")
    if f.driver:
        yield Diagnosis(
            GPU, "driver", FAIL, f"NVIDIA driver {f.driver}: {what or 'no GPU'}", remedy or "Look at nvidia-smi."
        )
    else:
        yield Diagnosis(GPU, "driver", NONE, what or "there is no NVIDIA driver", remedy)


def _gpu(f: Facts) -> Iterable[Diagnosis]:
    known = {d.cc for d in DEVICES.values()}
    for g in f.gpus:
        title = f"{g} sm_{g.cc}, {g.memory_bytes / 2**30:.0f} GiB"
        if g.cc in known:
            yield Diagnosis(GPU, "GPU", OK, title)
        else:
            yield Diagnosis(
                GPU,
                "GPU",
                WARN,
                f"{title}: not simulated",
                "Profiles show what is measured; DEVICE=h200 simulates another GPU.",
            )


def _driver_fits(f: Facts) -> Iterable[Diagnosis]:
    """The driver against the compiler's CUDA version: r580 and newer run CUDA 13's code."""
    if not f.gpus or f.tools is None:
        return
    from .errors import TilescopeError

    try:
        f.gpus[0].check_runs(f.tools.nvcc_version)
    except TilescopeError as e:
        yield Diagnosis(GPU, "driver and toolkit", FAIL, e.what, e.remedy)
    else:
        yield Diagnosis(GPU, "driver and toolkit", OK, f"the driver runs code of nvcc {f.tools.nvcc_version}")


def _state(f: Facts) -> Iterable[Diagnosis]:
    """MIG, clocks, and who else is there."""
    if f.gpus and not f.states:
        yield Diagnosis(
            GPU,
            "clocks",
            WARN,
            "NVML gives no clocks: throttling would not be seen",
            "pip install nvidia-ml-py in .venv.",
        )
    for n, s in enumerate(f.states):
        name = f"GPU {n}"
        if s.mig:
            yield Diagnosis(
                GPU, "MIG", WARN, f"{name} is split by MIG: figures are those of a slice, and bounds for the whole GPU do not apply",
                "Use a GPU without MIG to compare with others; CLOCK=none for ncu.",
            )  # fmt: skip
        at = f"{s.sm_mhz:.0f} of {s.max_mhz:.0f} MHz, {s.celsius:.0f} C"
        slow = [flag for flag in s.flags if flag in (CAPPED, THROTTLED)]
        if slow:
            yield Diagnosis(
                GPU, "clocks", WARN, f"{name} is {' and '.join(slow)} ({at})", "Let it cool, or expect flagged figures."
            )
        elif s.locked_mhz:
            yield Diagnosis(
                GPU, "clocks", WARN, f"{name} has its clock set to {s.locked_mhz:.0f} MHz, below its {s.max_mhz:.0f}",
                "nvidia-smi -rac and -rgc reset it (an administrator's right); times say at which clock they were taken.",
            )  # fmt: skip
        else:
            yield Diagnosis(GPU, "clocks", OK, f"{name} free to run up to {s.max_mhz:.0f} MHz ({at})")
        if s.busy:
            yield Diagnosis(GPU, "other work", WARN, f"{name}: {s.busy}", "Wait, or choose another with GPU=.")


def _pycuda(f: Facts) -> Iterable[Diagnosis]:
    if not f.gpus:
        return
    if f.has("pycuda"):
        yield Diagnosis(GPU, "PyCUDA", OK, f.packages["pycuda"])
        return
    missing = [
        what
        for there, what in (
            (f.tools is not None, "nvcc"),
            (bool(f.cuda_h), "cuda.h (it is in the toolkit's include folder: pip install 'cuda-toolkit[cudart]')"),
            (
                bool(f.libcuda),
                "a libcuda.so to link against (the driver has only libcuda.so.1: link one to it in a folder on LIBRARY_PATH)",
            ),
            (f.headers, "Python.h (Debian: apt install python3-dev)"),
            (any(c.accepted for c in f.base.compilers), "a C++ compiler"),
        )
        if not there
    ]
    how = f"`make setup` builds it, or: CUDA_ENABLE_CURAND=False pip install {PYCUDA}"
    if missing:
        yield Diagnosis(
            GPU, "PyCUDA", FAIL, f"not installed, and its build lacks {'; '.join(missing)}", f"Bring that, then {how}"
        )
    else:
        yield Diagnosis(
            GPU, "PyCUDA", FAIL, "not installed; everything that its build needs is here", how[0].upper() + how[1:]
        )


def _packages(f: Facts) -> Iterable[Diagnosis]:
    if not f.gpus:
        return
    for package, without in (
        ("nvmath-python", "no cuBLAS to compare with"),
        ("nvidia-ml-py", "clocks, power and temperature are not recorded"),
        ("nvtx", "launches are not marked, and ncu cannot find them"),
    ):
        if f.has(package):
            yield Diagnosis(GPU, package, OK, f.packages[package])
        else:
            yield Diagnosis(
                GPU, package, WARN, f"not installed: {without}", f"pip install {package} in .venv, or `make setup`."
            )


def _ncu(f: Facts) -> Iterable[Diagnosis]:
    if f.ncu is None:
        status = WARN if f.gpus else NONE
        remedy = "Install Nsight Compute (NVIDIA's CUDA packages have it: nsight-compute), or put ncu on PATH."
        yield Diagnosis(
            COUNTERS,
            "Nsight Compute",
            FAIL if status == WARN else NONE,
            "ncu is not installed",
            remedy if f.gpus else "",
        )
        return
    old = [g for g in f.gpus if f.ncu.version < OLDEST_NCU.get(g.cc, (0,))]
    if old:
        needed = ".".join(map(str, OLDEST_NCU[old[0].cc]))
        yield Diagnosis(
            COUNTERS, "Nsight Compute", FAIL, f"ncu {f.ncu.title} ({f.ncu.path}) does not know sm_{old[0].cc}",
            f"Install Nsight Compute {needed} or newer.",
        )  # fmt: skip
    else:
        yield Diagnosis(COUNTERS, "Nsight Compute", OK, f"{f.ncu.title} ({f.ncu.path})")
    if f.report_module:
        yield Diagnosis(
            COUNTERS,
            "report reader",
            OK,
            f"ncu-report {f.packages['ncu-report']}" if f.has("ncu-report") else "the module in ncu's own folder",
        )
    else:
        yield Diagnosis(
            COUNTERS,
            "report reader",
            WARN,
            "no ncu_report module: totals only, no value per line",
            "pip install ncu-report in .venv.",
        )


def _permission(f: Facts) -> Iterable[Diagnosis]:
    """Whether counters can be read: tried where it can be, else what the driver's settings say."""
    if not f.gpus or f.ncu is None:
        return
    inside = " and ".join(x for x in (f.container and f"a container ({f.container})", f.virtual) if x)
    there = f", in {inside}" if inside else ""
    if isinstance(f.probe, Failure):
        remedy = f.probe.remedy
        if inside and f.probe.unavailable:
            remedy += f"\nThis is {inside}: the host decides what counters it shows."
        yield Diagnosis(
            COUNTERS,
            "counter permission",
            FAIL,
            f"{f.probe.what}{' (' + f.probe.kind + there + ')' if there else ''}",
            remedy,
        )
    elif f.probe == "":
        yield Diagnosis(COUNTERS, "counter permission", OK, f"ncu read a hardware counter{there}")
    elif f.admin_only and not f.capability:
        yield Diagnosis(
            COUNTERS, "counter permission", FAIL, f"the driver shows counters to administrators only (RmProfilingAdminOnly: 1){there}", PERMISSION_REMEDY
        )  # fmt: skip
    else:
        said = {
            None: "the driver does not say",
            True: f"for administrators, and this process has {f.capability}",
            False: "for every user",
        }[f.admin_only]
        yield Diagnosis(
            COUNTERS, "counter permission", OK if f.admin_only is not None else WARN, f"{said}{there}; not tried"
        )


def _sanitizer(f: Facts) -> Iterable[Diagnosis]:
    if f.sanitizer:
        yield Diagnosis(SANITIZER, "compute-sanitizer", OK, f"{f.sanitizer.version} ({f.sanitizer.path})")
    else:
        remedy = "pip install nvidia-cuda-sanitizer-api in .venv, or put the CUDA toolkit's bin folder on PATH."
        yield Diagnosis(
            SANITIZER, "compute-sanitizer", FAIL if f.gpus else NONE, "not installed", remedy if f.gpus else ""
        )


CHECKS: tuple[Callable[[Facts], Iterable[Diagnosis]], ...] = (
    _setup, _compiler, _engine, _disk, _driver, _gpu, _driver_fits, _state, _pycuda, _packages, _ncu, _permission, _sanitizer,
)  # fmt: skip
