"""GPUs as the driver describes them, with a driver library that the test writes."""

import ctypes
from dataclasses import replace

import pytest
from fake_gpu import GPU

from harness import backends
from harness.errors import TilescopeError
from harness.gpu import devices


class Library:
    """A libcuda of some GPUs. `attributes` by number; `broken`: a function name and the error it gives."""

    names = ("NVIDIA H200", "NVIDIA H200 NVL")
    attributes = {75: 9, 76: 0, 16: 132, 13: 1_980_000, 36: 3_201_000, 37: 6144, 38: 62_914_560, 39: 2048, 81: 233_472, 82: 65_536, 97: 232_448, 106: 32, 111: 1024}  # fmt: skip
    version = 13000
    broken: tuple[str, int] = ("", 0)

    def __getattr__(self, name):
        if name == self.broken[0]:
            return lambda *a: self.broken[1]
        raise AttributeError(name)

    def cuInit(self, flags):
        return self.broken[1] if self.broken[0] == "cuInit" else 0

    def cuDriverGetVersion(self, out):
        out._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, out):
        out._obj.value = len(self.names)
        return 0

    def cuDeviceGet(self, out, index):
        out._obj.value = index
        return 0

    def cuDeviceGetName(self, buffer, size, device):
        buffer.value = self.names[device].encode()
        return 0

    def cuDeviceGetUuid_v2(self, raw, device):
        raw[0] = device + 1
        return 0

    def cuDeviceTotalMem_v2(self, out, device):
        out._obj.value = 150_000_000_000
        return 0

    def cuDeviceGetAttribute(self, out, number, device):
        if number not in self.attributes:
            return 1
        out._obj.value = self.attributes[number]
        return 0

    def cuGetErrorString(self, status, out):
        out._obj.value = {
            100: b"no CUDA-capable device is detected",
            803: b"system has unsupported display driver",
        }.get(status, b"x")
        return 0


@pytest.fixture
def library(monkeypatch):
    found = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
    devices.gpus.cache_clear()
    yield found
    devices.gpus.cache_clear()


def test_gpus_are_described(library):
    first, second = devices.gpus()
    assert (first.name, first.cc, first.sms, first.cuda, first.uuid) == (
        "NVIDIA H200",
        90,
        132,
        (13, 0),
        "GPU-01000000-0000-0000-0000-000000000000",
    )
    assert first.clock_mhz == 1980 and first.max_warps == 64 and round(first.dram_gbs) == 4917 and second.index == 1
    assert first.device.name == "h200" and first.device.verified


def test_by_index_and_uuid(library):
    assert devices.find().index == devices.find("0").index == devices.find(0).index == 0
    assert devices.find("GPU-02").index == devices.find("02000000").index == 1
    with pytest.raises(TilescopeError, match="GPU=2: no such GPU") as e:
        devices.find("2")
    assert "GPU 1, NVIDIA H200 NVL" in e.value.remedy
    with pytest.raises(TilescopeError, match="GPU=GPU-0: several GPUs begin so"):
        devices.find("GPU-0")


def test_no_driver(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    devices.gpus.cache_clear()
    with pytest.raises(TilescopeError, match="there is no NVIDIA driver") as e:
        devices.find()
    assert "--gpus all" in e.value.remedy
    assert "no NVIDIA driver" in backends.gpu_missing()
    with pytest.raises(TilescopeError, match="BACKEND=gpu cannot work here: there is no NVIDIA driver"):
        backends.choose("gpu")


@pytest.mark.parametrize("status, says", [(100, "no CUDA-capable device"), (803, "unsupported display driver")])
def test_a_driver_without_a_gpu(library, status, says):
    library.broken = ("cuInit", status)
    with pytest.raises(TilescopeError, match=f"finds no GPU: cuInit: .*{says}"):
        devices.gpus()


def test_all_gpus_hidden(library):
    library.names = ()
    with pytest.raises(TilescopeError, match="finds no GPU") as e:
        devices.gpus()
    assert "CUDA_VISIBLE_DEVICES" in e.value.remedy


def test_a_gpu_of_a_known_kind_that_has_no_entry(library):
    library.names, library.attributes = ("NVIDIA H100 PCIe",), Library.attributes | {16: 114, 13: 1_755_000}
    d = devices.find().device
    assert (d.name, d.title, d.sms, d.clock_mhz, d.fma_lanes, d.cc) == (
        "h100pcie",
        "NVIDIA H100 PCIe",
        114,
        1755,
        128,
        90,
    )


def test_a_gpu_newer_than_any_known_one(library):
    library.names, library.attributes = ("NVIDIA B200",), Library.attributes | {75: 10, 16: 148}
    d = devices.find().device
    assert (d.name, d.cc, d.arch, d.sms, d.verified, d.max_warps) == ("b200", 100, "sm_100", 148, False, 64)


def test_a_slice_of_a_gpu(library):
    library.names, library.attributes = ("NVIDIA H200 MIG 1g.18gb",), Library.attributes | {16: 16}
    assert devices.find("MIG-01").uuid.startswith("MIG-01000000") and devices.find().device.title.endswith(
        "MIG 1g.18gb"
    )


def test_attributes_that_a_driver_does_not_know_are_0(library):
    library.attributes = {75: 9, 76: 0, 16: 132}
    assert devices.find().clock_mhz == 0 and devices.find().device.clock_mhz == 1980


@pytest.mark.parametrize(
    "cuda, compiler, fits",
    [((13, 0), "13.0.88", True), ((13, 1), "12.9.1", True), ((12, 8), "13.0.88", False), ((12, 8), "", True)],
)
def test_code_too_new_for_the_driver(cuda, compiler, fits):
    gpu = replace(GPU, cuda=cuda)
    if fits:
        gpu.check_runs(compiler)
        return
    with pytest.raises(TilescopeError, match=r"knows CUDA up to 12\.8; this code is compiled by nvcc 13\.0\.88") as e:
        gpu.check_runs(compiler)
    assert "r580" in e.value.remedy and "12.*" in e.value.remedy
