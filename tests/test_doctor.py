"""Doctor with each fault of a machine injected: status, words and remedy; and what works in spite of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import cli, doctor, gpu_report, machine, preflight
from harness.doctor import COUNTERS, FAIL, GPU, NONE, OK, SANITIZER, SIMULATOR, WARN
from harness.gpu.devices import Gpu
from harness.machine import Facts, State
from harness.measurement import CAPPED, THROTTLED
from harness.ncu import Ncu
from harness.ncu.failures import PERMISSION_REMEDY, Failure, diagnose
from harness.sanitize import Sanitizer
from harness.toolchain import Toolchain

BASE = preflight.Facts(
    (2, 36), (3, 12), (), (preflight.Compiler("/usr/bin/g++", "gcc", 12),), "/usr/bin/cc", 50 * 10**9, "apt-get"
)
H200 = Gpu(
    0,
    "NVIDIA H200",
    "GPU-1",
    90,
    132,
    1980,
    4800,
    140 * 2**30,
    60 * 2**20,
    64,
    32,
    233472,
    232448,
    1024,
    65536,
    (13, 0),
)
GOOD = Facts(
    base=BASE,
    python="3.12.3 (/venv/bin/python)",
    headers=True,
    tools=Toolchain(Path("/cu/bin/nvcc"), Path("/cu/bin/nvdisasm"), "13.0.88", "13.5.37"),
    driver="580.159.04",
    gpus=(H200,),
    states=(State(1980, 1980, celsius=40),),
    packages={"pycuda": "2026.1", "nvmath-python": "1.0.0", "nvidia-ml-py": "13", "nvtx": "0.2", "ncu-report": "2026.3.1"},
    cuda_h="/cu/include/cuda.h",
    libcuda="/usr/lib/libcuda.so",
    ncu=Ncu(Path("/opt/ncu"), (2025, 3, 1)),
    report_module=True,
    admin_only=False,
    probe="",
    sanitizer=Sanitizer(Path("/cu/bin/compute-sanitizer"), "2025.3.1"),
    free_bytes=50 * 10**9,
    temporary_bytes=50 * 10**9,
)  # fmt: skip
NO_GPU = replace(
    GOOD, driver="", gpus=(), gpu_error="there is no NVIDIA driver (libcuda.so.1)\nInstall NVIDIA's driver.", states=(), packages={}, ncu=None,
    report_module=False, admin_only=None, probe=None, sanitizer=None,
)  # fmt: skip
PERMISSION = diagnose("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", 1)


def find(facts: Facts, check: str) -> doctor.Diagnosis:
    return next(d for d in doctor.diagnose(facts).found if d.check == check)


def test_a_good_machine() -> None:
    found = doctor.diagnose(GOOD)
    assert {d.status for d in found.found} == {OK} and found.ok
    assert all(found.works(area) for area in doctor.AREAS)


def test_a_machine_with_no_gpu_says_what_still_works() -> None:
    found = doctor.diagnose(NO_GPU)
    assert found.ok and not any(d.status == FAIL for d in found.found)
    assert [found.works(a) for a in (SIMULATOR, GPU, COUNTERS, SANITIZER)] == [True, False, False, False]
    words = gpu_report.render_doctor(found)
    assert re.search(r"yes +simulated profiles", words) and re.search(r"no +running and timing", words)
    assert "there is no NVIDIA driver" in words and words.isascii()


@pytest.mark.parametrize(
    "change, check, status, words, remedy",
    [
        ({"base": replace(BASE, compilers=())}, "set-up", FAIL, "no C++ compiler", "apt install g++"),
        ({"base": replace(BASE, missing=("venv",))}, "set-up", FAIL, "no module venv", "venv"),
        ({"tools": None, "tools_error": "no CUDA compiler: nvcc is not installed.\nRun `make setup`."}, "nvcc and nvdisasm", FAIL, "no CUDA compiler", "make setup"),
        ({"tools": None, "tools_error": "nvdisasm 12.0 (/x) is older than nvcc 13.0"}, "nvcc and nvdisasm", FAIL, "older than nvcc", "make setup"),
        ({"engine_error": "no C compiler for the simulator's engine.\nInstall gcc."}, "simulator's engine", FAIL, "no C compiler", "Install gcc"),
        ({"free_bytes": 10**7}, "disk", FAIL, "0.0 GB free", "OUT="),
        ({"free_bytes": 5 * 10**8}, "disk", WARN, "0.5 GB free", "Free some space"),
        ({"gpus": (), "states": (), "gpu_error": "the NVIDIA driver finds no GPU: no device"}, "driver", FAIL, "finds no GPU", "nvidia-smi"),
        ({"gpus": (replace(H200, cuda=(12, 8)),)}, "driver and toolkit", FAIL, "up to 12.8", "r580"),
        ({"gpus": (replace(H200, cc=120, name="RTX 5090"),)}, "GPU", WARN, "not simulated", "DEVICE="),
        ({"states": (State(1980, 1980, mig=True),)}, "MIG", WARN, "split by MIG", "CLOCK=none"),
        ({"states": (State(900, 1980, flags=(THROTTLED,), celsius=88),)}, "clocks", WARN, "throttled (900 of 1980 MHz, 88 C)", "cool"),
        ({"states": (State(1500, 1980, flags=(CAPPED,)),)}, "clocks", WARN, "power-capped", "flagged"),
        ({"states": (State(1200, 1980, locked_mhz=1200),)}, "clocks", WARN, "set to 1200 MHz", "nvidia-smi"),
        ({"states": ()}, "clocks", WARN, "NVML gives no clocks", "nvidia-ml-py"),
        ({"states": (State(1980, 1980, busy="the GPU is 97 % busy"),)}, "other work", WARN, "97 % busy", "GPU="),
        ({"packages": {}}, "PyCUDA", FAIL, "everything that its build needs is here", "CUDA_ENABLE_CURAND=False pip install pycuda"),
        ({"packages": {}, "libcuda": "", "headers": False, "cuda_h": ""}, "PyCUDA", FAIL, "Python.h", "Bring that"),
        ({"packages": {}, "tools": None, "tools_error": "x"}, "PyCUDA", FAIL, "lacks nvcc", "Bring that"),
        ({"packages": {"pycuda": "2026.1"}}, "nvmath-python", WARN, "no cuBLAS", "pip install"),
        ({"ncu": None, "report_module": False}, "Nsight Compute", FAIL, "not installed", "nsight-compute"),
        ({"ncu": Ncu(Path("/old"), (2021, 3, 0))}, "Nsight Compute", FAIL, "2021.3.0 (/old) does not know sm_90", "2022.3 or newer"),
        ({"report_module": False, "packages": {"pycuda": "2026.1"}}, "report reader", WARN, "totals only", "ncu-report"),
        ({"probe": PERMISSION}, "counter permission", FAIL, "ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0"),
        ({"probe": PERMISSION, "container": "Docker"}, "counter permission", FAIL, "a container (Docker)", "the host decides"),
        ({"probe": diagnose("==ERROR== LibraryNotLoaded", 9), "virtual": "gVisor"}, "counter permission", FAIL, "in gVisor", "gVisor"),
        ({"probe": None, "admin_only": True}, "counter permission", FAIL, "RmProfilingAdminOnly: 1", "ERR_NVGPUCTRPERM"),
        ({"probe": None, "admin_only": True, "capability": "CAP_SYS_ADMIN"}, "counter permission", OK, "has CAP_SYS_ADMIN", ""),
        ({"probe": None, "admin_only": None}, "counter permission", WARN, "does not say", ""),
        ({"sanitizer": None}, "compute-sanitizer", FAIL, "not installed", "nvidia-cuda-sanitizer-api"),
    ],
)  # fmt: skip
def test_each_fault(change: dict, check: str, status: str, words: str, remedy: str) -> None:
    facts = replace(GOOD, **change)
    d = find(facts, check)
    assert d.status == status and words in d.what and remedy in d.remedy
    if d.area == SIMULATOR:
        assert doctor.diagnose(facts).ok == (status != FAIL)
    printed = gpu_report.render_doctor(doctor.diagnose(facts), width=600)
    assert words in printed and all(line.strip() in printed for line in d.remedy.splitlines())


@pytest.mark.parametrize(
    "change, area", [({"probe": PERMISSION}, COUNTERS), ({"packages": {}}, COUNTERS), ({"sanitizer": None}, SANITIZER)]
)
def test_a_fault_takes_with_it_what_stands_on_it(change: dict, area: str) -> None:
    found = doctor.diagnose(replace(GOOD, **change))
    assert not found.works(area) and found.works(SIMULATOR) and found.ok


def test_disk_for_set_up_is_no_longer_needed_after_it() -> None:
    assert doctor.diagnose(replace(GOOD, base=replace(BASE, free_bytes=0))).ok


def test_status_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(machine, "gather", lambda nvcc, probe: NO_GPU)
    assert cli.main(["doctor", "JSON=-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] and data["works"] == {"simulator": True, "gpu": False, "counters": False, "sanitizer": False}
    monkeypatch.setattr(machine, "gather", lambda nvcc, probe: replace(NO_GPU, engine_error="it does not compile"))
    assert cli.main(["doctor"]) == 2
    assert "it does not compile" in capsys.readouterr().out


def test_of_this_machine() -> None:
    """Whatever is here, it is looked at in full and can be said."""
    facts = machine.gather(probe=False)
    found = doctor.diagnose(facts)
    assert found.ok and facts.tools and facts.free_bytes > 0
    assert all(d.what for d in found.found)


DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (dvs-builder)\nGCC version: gcc 12\n"


def test_what_the_kernel_says() -> None:
    assert machine.driver_version(DRIVER) == "580.159.04"
    assert (
        machine.driver_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6") == "535.54.03"
    )
    assert machine.driver_version("") == ""
    params = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {}\nPreserveVideoMemoryAllocations: 0\n"
    assert machine.admin_only(params.format(1)) is True and machine.admin_only(params.format(0)) is False
    assert machine.admin_only("") is None
    assert machine.capability("CapEff:\t000001ffffffffff\n") == "CAP_SYS_ADMIN"
    assert machine.capability(f"CapEff:\t{1 << 21:016x}\n") == "CAP_SYS_ADMIN"
    assert machine.capability("CapEff:\t00000000a80425fb\n") == ""


@pytest.mark.parametrize(
    "version, cpuinfo, vendor, named",
    [
        ("Linux version 5.15.90.1-microsoft-standard-WSL2", "flags : fpu hypervisor", "", "WSL"),
        ("Linux version 4.4.0 (gVisor)", "", "", "gVisor"),
        ("Linux version 6.1.0", "processor : 0\nflags\t\t: fpu vme hypervisor lahf_lm\n", "QEMU\n", "QEMU"),
        ("Linux version 6.1.0", "flags\t\t: fpu hypervisor\n", "", "a virtual machine"),
        ("Linux version 6.1.0", "flags\t\t: fpu vme\n", "Dell Inc.", ""),
    ],
)
def test_virtual_machines(version: str, cpuinfo: str, vendor: str, named: str) -> None:
    assert machine.virtual(version, cpuinfo, vendor) == named


def test_containers() -> None:
    assert machine.container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) in ("Kubernetes", "Docker", "Podman")
    assert machine.container({"SINGULARITY_NAME": "x.sif"})


def test_states_by_nvml() -> None:
    monitor = SimpleNamespace(
        max_clock_mhz=lambda: 1980.0, application_mhz=lambda: 1200.0, clock_mhz=lambda: 1190.0, temperature_c=lambda: float("nan"),
        reasons=lambda: 0x4 | 0x20 | 0x40 | 0x1, mig=lambda: True, busy=lambda: "the GPU is 50 % busy",
    )  # fmt: skip
    assert machine.state(monitor) == State(1190, 1980, 1200, (CAPPED, THROTTLED), 0.0, True, "the GPU is 50 % busy")


def test_states_by_nvidia_smi() -> None:
    text = "1980, 1980, 41, 97, Disabled\n345, 1980, [N/A], 0, Enabled\nnonsense\n"
    busy, idle = machine.smi_states(text)
    assert (busy.sm_mhz, busy.celsius, busy.mig, busy.busy) == (1980, 41, False, "the GPU is 97 % busy")
    assert (idle.celsius, idle.mig, idle.busy) == (0, True, "")


def test_the_probe_asks_for_one_counter_of_one_small_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run(words: list[str], limit: float) -> tuple[str, int]:
        seen.append(words)
        return ("==ERROR== ERR_NVGPUCTRPERM - The user", 1) if len(seen) > 1 else ("==PROF== Disconnected", 0)

    monkeypatch.setattr(machine, "run", run)
    assert machine.probe_counters(GOOD.ncu) == ""
    assert "sm__cycles_elapsed.max" in seen[0] and "KERNEL=naive" in seen[0] and "M=32" in seen[0]
    failure = machine.probe_counters(GOOD.ncu)
    assert isinstance(failure, Failure) and failure.kind == "permission" and failure.remedy == PERMISSION_REMEDY


def test_nothing_that_does_not_apply_is_a_failure() -> None:
    assert find(NO_GPU, "Nsight Compute").status == NONE and find(NO_GPU, "compute-sanitizer").status == NONE
