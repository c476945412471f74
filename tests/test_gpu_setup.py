"""PyCUDA's build where a GPU is: what it needs is named when it lacks, and its settings leave cuRAND out."""

import shutil
import subprocess
import sysconfig
import tarfile
from pathlib import Path

import pytest

from harness import bootstrap, gpu_setup
from harness.gpu_setup import Gpu

GPU = Gpu(1, 13000, "/usr/lib/libcuda.so.580")


@pytest.fixture
def root(tmp_path, monkeypatch):
    toolkit = tmp_path / ".venv/lib/python3.12/site-packages/nvidia/cu13"
    (toolkit / "include").mkdir(parents=True)
    (toolkit / "include/cuda.h").write_text("")
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "Python.h").write_text("")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(headers))
    return tmp_path


def test_nothing_is_missing(root):
    assert gpu_setup.missing(GPU, root) == []


def test_each_thing_that_is_missing(root):
    def said(gpu=GPU):
        return " ".join(f"{what}. {remedy}" for what, remedy in gpu_setup.missing(gpu, root))

    assert "CUDA 12.4 at most" in said(Gpu(1, 12040, "/x")) and "r580" in said(Gpu(1, 12040, "/x"))
    assert "==12.9.*" in said(Gpu(1, 12040, "/x"))
    assert "libcuda" in said(Gpu(1, 13000, ""))
    (root / "headers/Python.h").unlink()
    assert "python3-dev" in said()
    (gpu_setup.cuda_root(root) / "include/cuda.h").unlink()
    assert "no cuda.h" in said()


def test_what_is_missing_is_said_and_set_up_goes_on(root):
    words = []
    assert not gpu_setup.install(root, Gpu(2, 12040, "/x"), ["pycuda==1"], words.append, {}, root / "log")
    assert "2 GPU(s) here, but the driver is for CUDA 12.4" in words[0]


def test_steps_and_settings(root, monkeypatch):
    ran, words = [], []

    def run(command, cwd, env, stdout, stderr):
        ran.append(command[4:])
        if "download" in command:
            (cwd / "x/pycuda-1").mkdir(parents=True)
            with tarfile.open(cwd / "pycuda-1.tar.gz", "w:gz") as tar:
                tar.add(cwd / "x/pycuda-1", "pycuda-1")
            shutil.rmtree(cwd / "x")
        if command[-1] == "./source":
            settings = {}
            exec((cwd / "source/siteconf.py").read_text(), settings)
            assert settings["CUDA_ENABLE_CURAND"] is False and settings["CUDA_ROOT"].endswith("nvidia/cu13")
            assert (Path(settings["CUDADRV_LIB_DIR"][0]) / "libcuda.so").readlink() == Path(GPU.library)
            assert env["PATH"].startswith(settings["CUDA_ROOT"])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(gpu_setup.subprocess, "run", run)
    assert gpu_setup.install(root, GPU, ["nvtx==2", "pycuda==1"], words.append, {}, root / "log")
    assert [c[0] for c in ran] == ["install", "download", "install"] and ran[0][-1] == "nvtx==2"
    assert words[-1].strip() == "PyCUDA is built"


def test_a_build_that_fails_is_named(root, monkeypatch):
    monkeypatch.setattr(gpu_setup.subprocess, "run", lambda c, **kw: subprocess.CompletedProcess(c, 1))
    words = []
    assert not gpu_setup.install(root, GPU, ["nvtx==2", "pycuda==1"], words.append, {}, root / "log")
    assert "installing what goes with PyCUDA failed; everything that needs no GPU works" in words[-1]


def test_no_driver_no_gpu(monkeypatch):
    def none(name):
        raise OSError

    monkeypatch.setattr(gpu_setup.ctypes, "CDLL", none)
    assert gpu_setup.find() is None
    assert bootstrap.gpu_setup is gpu_setup
