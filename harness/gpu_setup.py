"""Last step of `make setup` where a GPU is: PyCUDA, built from source with the packaged CUDA compiler, and what goes with it.

Standard library only. PyCUDA has no wheels. Its build needs a C++ compiler, nvcc, cuda.h and
cudaProfiler.h (NVIDIA's packages bring these into .venv), libcuda to link against, and Python.h; cuRAND is left out. Where something is missing, it is named, and set-up goes on: all
that needs no GPU works without.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CUDA_13 = 13000
"""What cuDriverGetVersion says, at least, where the driver (r580 or newer) runs CUDA 13's code."""
OLD_DRIVER = (
    "the driver is for CUDA {}.{} at most, and CUDA 13's code needs r580 or newer",
    "Update the driver; or compile with CUDA 12: in a venv of its own, pip install"
    " 'cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]==12.9.*', and give its nvcc as NVCC=.",
)


@dataclass(frozen=True)
class Gpu:
    """The driver of this machine: how many GPUs, the newest CUDA (13000 for 13.0), the file that libcuda is."""

    count: int
    cuda: int
    library: str


def find() -> Gpu | None:
    """The NVIDIA driver with at least one GPU, or None."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        count, version = ctypes.c_int(), ctypes.c_int()
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
            return None
        cuda.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return Gpu(count.value, version.value, _mapped("libcuda.so.1"))


def _mapped(name: str) -> str:
    """The file that a loaded library came from."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rsplit(" ", 1)[-1].strip()
            if path.startswith("/") and ("libcuda.so" in path or name in path):
                return path
    return ""


def missing(gpu: Gpu, root: Path) -> list[tuple[str, str]]:
    """(what, remedy) of everything that PyCUDA's build would lack."""
    found = []
    if gpu.cuda < CUDA_13:
        found.append((OLD_DRIVER[0].format(gpu.cuda // 1000, gpu.cuda % 1000 // 10), OLD_DRIVER[1]))
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        found.append(("there is no Python.h", "Install Python's headers (Debian: apt install python3-dev)."))
    if not gpu.library:
        found.append(("the file of libcuda is not to be found", "Reinstall the driver."))
    toolkit = cuda_root(root)
    if toolkit is None or not (toolkit / "include/cuda.h").exists():
        found.append(("there is no cuda.h in .venv", "Run `make distclean setup`."))
    return found


def cuda_root(root: Path) -> Path | None:
    """The packaged CUDA toolkit in .venv."""
    return next(iter(sorted(root.glob(".venv/lib/python*/site-packages/nvidia/cu*/"))), None)


def siteconf(toolkit: Path, libraries: Path) -> str:
    """PyCUDA's build settings: the packaged toolkit, a folder with libcuda.so, no cuRAND."""
    return (
        f"USE_SHIPPED_BOOST = True\nCUDA_ROOT = {str(toolkit)!r}\nCUDA_INC_DIR = [{str(toolkit / 'include')!r}]\n"
        f"CUDADRV_LIB_DIR = [{str(libraries)!r}]\nCUDADRV_LIBNAME = ['cuda']\nCUDA_ENABLE_CURAND = False\n"
        "CXXFLAGS = []\nLDFLAGS = []\n"
    )


def install(
    root: Path, gpu: Gpu, pins: Sequence[str], say: Callable[[str], None], environ: Mapping[str, str], log: Path
) -> bool:
    """Install the gpu extra into .venv, PyCUDA from source. Says what failed, and returns whether all is there."""
    if lacking := missing(gpu, root):
        for what, remedy in lacking:
            say(f"  {gpu.count} GPU(s) here, but {what}.\n  {remedy}")
        return False
    say(f"  {gpu.count} GPU(s) here: building PyCUDA, a minute or two")
    pycuda = next(p for p in pins if p.startswith("pycuda"))
    pip = [str(root / ".venv/bin/python"), "-I", "-m", "pip"]
    quiet = ["--no-input", "--progress-bar=off", "-c", str(root / "constraints.txt")]
    toolkit = cuda_root(root)
    assert toolkit is not None
    with tempfile.TemporaryDirectory() as folder, open(log, "a") as out:
        work = Path(folder)

        def run(*words: str) -> bool:
            env = {**environ, "PATH": f"{toolkit / 'bin'}:{environ.get('PATH', '')}"}
            return (
                subprocess.run([*pip, *words], cwd=work, env=env, stdout=out, stderr=subprocess.STDOUT).returncode == 0
            )

        (work / "lib").mkdir()
        (work / "lib/libcuda.so").symlink_to(gpu.library)
        others = [p for p in pins if p != pycuda]
        steps = [
            ("installing what goes with PyCUDA", lambda: run("install", "--only-binary=:all:", *quiet, *others)),
            ("fetching PyCUDA", lambda: run("download", "--no-deps", "--no-binary", "pycuda", "-d", ".", pycuda)),
            ("unpacking PyCUDA", lambda: _unpack(work, siteconf(toolkit, work / "lib"))),
            ("building PyCUDA", lambda: run("install", *quiet, "./source")),
        ]
        for what, step in steps:
            if not step():
                say(f"  {what} failed; everything that needs no GPU works. All that was said: {log}")
                return False
    say("  PyCUDA is built")
    return True


def _unpack(work: Path, settings: str) -> bool:
    archive = next(iter(work.glob("pycuda-*.tar.gz")), None)
    if archive is None:
        return False
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
    shutil.move(next(p for p in work.glob("pycuda-*") if p.is_dir()), work / "source")
    (work / "source/siteconf.py").write_text(settings)
    return True
