"""A GPU that is not there: modules that stand in for pycuda, nvmath, pynvml and nvtx, over host memory and a clock of their own.

Products are computed with numpy; a fault can be planted. Whatever the driver would refuse raises what PyCUDA raises.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from types import ModuleType, SimpleNamespace

import numpy as np

from harness.gpu import devices

GPU = devices.Gpu(
    index=0, name="NVIDIA H200", uuid="GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", cc=90, sms=132, clock_mhz=1980.0, dram_gbs=4800.0,
    memory_bytes=2**33, l2_bytes=2**20, max_warps=64, max_blocks=32, shared_per_sm=233472, shared_per_block=232448, shared_reserved=1024,
    registers_per_sm=65536, cuda=(13, 0),
)  # fmt: skip
_ARGUMENTS = "<iiifQiiQifQi"  # M N K alpha A lda pad B ldb beta C ldc


class Fake:
    """Its state: memory by address, time, what was launched, and what goes wrong.

    fault      '', 'illegal', 'hang', 'wrong', 'past C', 'before C', 'padding', 'writes A', 'skips a cell'
    on         entry names that the fault strikes; None: all
    speeds     GFLOP/s by entry; jitter: relative, of each launch
    """

    def __init__(self) -> None:
        self.blocks: dict[int, np.ndarray] = {}
        self.now = 0.0
        self.total = GPU.memory_bytes
        self.launched: list[str] = []
        self.ranges: list[str] = []
        self.open_ranges: list[str] = []
        self.contexts = 0
        self.fault, self.on = "", None
        self.dead, self.hung = "", False
        self.held = False
        self.speeds: dict[str, float] = {}
        self.jitter = 0.0
        self.rng = np.random.default_rng(1)
        self.handles = 0
        self.clocks, self.reasons, self.load = [1980], 0, 0
        self.heuristics = [(0, 15), (1, 0), (2, 0)]  # (algorithm, status)

    @property
    def used(self) -> int:
        return sum(b.nbytes for b in self.blocks.values())

    # memory

    def allocate(self, count: int) -> int:
        self.alive("cuMemAlloc")
        if self.used + count > self.total:
            raise MemoryError_("cuMemAlloc failed: out of memory")
        raw = np.zeros(count + 512, np.uint8)
        address = -(-raw.ctypes.data // 512) * 512
        self.blocks[address] = raw
        return address

    def inside(self, address: int, count: int) -> None:
        if not any(a <= address and address + count <= a + b.nbytes for a, b in self.blocks.items()):
            raise LogicError("memory access failed: invalid argument")

    def view(self, address: int, rows: int, ld: int) -> np.ndarray:
        return np.ctypeslib.as_array((ctypes.c_float * (rows * ld)).from_address(address)).reshape(rows, ld)

    def alive(self, doing: str) -> None:
        if self.dead:
            raise LogicError(f"{doing} failed: {self.dead}")
        if not self.contexts:
            raise LogicError(f"{doing} failed: invalid device context")

    # products

    def multiply(self, entry, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, extra=()) -> None:
        self.alive("cuLaunchKernel")
        self.launched.append(entry)
        if self.fault == "illegal" and self.struck(entry):
            self.dead = "an illegal memory access was encountered"
            return
        if self.fault == "hang" and self.struck(entry):
            self.hung = True
            return
        self.now += 2e-6 * m * n * k / self.speeds.get(entry, 1000.0) * (1 + self.jitter * self.rng.standard_normal())
        x, y, z = self.view(a, m, lda), self.view(b, k, ldb), self.view(c, m, ldc)
        z[:, :n] = np.float32(alpha) * (x[:, :k] @ y[:, :n]) + (np.float32(beta) * z[:, :n] if beta else 0)
        if self.struck(entry):
            match self.fault:
                case "wrong":
                    z[0, -1 if ldc == n else n - 1] += 1
                case "past C":
                    ctypes.c_float.from_address(c + 4 * m * ldc + 8).value = 1.0
                case "before C":
                    ctypes.c_float.from_address(c - 4).value = 1.0
                case "padding":
                    z[1, n] = 7
                case "writes A":
                    x[0, 0] = 0
                case "skips a cell":
                    z[m // 2, n // 2] = np.nan

    def struck(self, entry: str) -> bool:
        return self.on is None or entry in self.on

    # NVTX

    def annotate(self, message=None, color=None, domain=None, category=None, payload=None):
        fake = self

        class Range:
            def __enter__(self):
                fake.ranges.append(f"{domain}@{'/'.join([*fake.open_ranges, message])}")
                fake.open_ranges.append(message)

            def __exit__(self, *error):
                fake.open_ranges.pop()

        return Range()


class Error(Exception):
    pass


class LogicError(Error):
    pass


class LaunchError(Error):
    pass


class MemoryError_(Error):
    pass


class CompileError(Error):
    def __init__(self, words, stderr=""):
        super().__init__(words)
        self.stderr = stderr


def driver(fake: Fake) -> ModuleType:
    """Stands in for pycuda.driver."""
    cuda = ModuleType("pycuda.driver")

    class Allocation:
        def __init__(self, count: int) -> None:
            self.address = fake.allocate(count)

        def __int__(self) -> int:
            return self.address

        def free(self) -> None:
            del fake.blocks[self.address]

    class Context:
        def push(self) -> None:
            fake.contexts += 1

        def pop(self) -> None:
            fake.contexts -= 1

    class Device:
        def __init__(self, index: int) -> None:
            assert index == 0

        def retain_primary_context(self) -> Context:
            return Context()

    class Stream:
        handle = 77

    class Event:
        def __init__(self, flags: int = 0) -> None:
            fake.alive("cuEventCreate")
            self.time = None

        def record(self, stream: object = None) -> None:
            fake.alive("cuEventRecord")
            self.time = fake.now

        def query(self) -> bool:
            fake.alive("cuEventQuery")
            return not fake.hung

        def time_since(self, other: Event) -> float:
            return self.time - other.time

    class Function:
        def __init__(self, name: str) -> None:
            self.name, self.attributes = name, {}

        def set_attribute(self, attribute: str, value: int) -> None:
            if value > GPU.shared_per_block:
                raise LogicError("cuFuncSetAttribute failed: invalid argument")
            self.attributes[attribute] = value

        def prepare(self, format: tuple[str, ...] | str) -> Function:
            self.format = format
            return self

        def prepared_async_call(self, grid, block, stream, *args, shared_size=0) -> None:
            assert isinstance(grid, tuple) and len(grid) in (2, 3) and isinstance(block, tuple) and len(block) == 3
            assert shared_size <= 48 * 1024 or self.attributes
            fake.alive("cuLaunchKernel")
            if self.name == "hold":
                fake.held = True
                return
            (parameters,) = args
            assert self.format == (f"{len(parameters)}s",)
            m, n, k, alpha, a, lda, _, b, ldb, beta, c, ldc = struct.unpack_from(_ARGUMENTS, parameters)
            fake.multiply(self.name, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)

    class Module:
        def __init__(self, code: bytes) -> None:
            assert isinstance(code, bytes)

        def get_function(self, name: str) -> Function:
            return Function(name)

    class Pinned(np.ndarray):
        pass

    def pagelocked_zeros(shape, dtype, order="C", mem_flags=0):
        raw = np.zeros(shape, dtype).view(Pinned)
        raw.get_device_pointer = lambda: raw.ctypes.data
        raw.free = lambda: None
        return raw[:]

    def memcpy_htod(address: int, values: np.ndarray) -> None:
        fake.alive("cuMemcpyHtoD")
        assert not fake.hung, "a copy would wait for ever"
        assert values.flags.c_contiguous
        fake.inside(address, values.nbytes)
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def memcpy_dtoh(values: np.ndarray, address: int) -> None:
        fake.alive("cuMemcpyDtoH")
        assert not fake.hung, "a copy would wait for ever"
        fake.inside(address, values.nbytes)
        ctypes.memmove(values.ctypes.data, address, values.nbytes)

    def memcpy_dtod_async(to: int, source: int, count: int, stream: object = None) -> None:
        fake.inside(to, count), fake.inside(source, count)
        ctypes.memmove(to, source, count)

    def memset_d32(address: int, word: int, count: int) -> None:
        fake.alive("cuMemsetD32")
        fake.inside(address, 4 * count)
        np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address))[:] = word

    cuda.__dict__.update(
        init=lambda: None, Device=Device, Context=Context, Stream=Stream, Event=Event, Module=Module, mem_alloc=Allocation,
        mem_get_info=lambda: (fake.total - fake.used, fake.total), memcpy_htod=memcpy_htod, memcpy_dtoh=memcpy_dtoh,
        memcpy_dtod_async=memcpy_dtod_async, memset_d32=memset_d32, module_from_buffer=Module, pagelocked_zeros=pagelocked_zeros,
        host_alloc_flags=SimpleNamespace(DEVICEMAP=2), function_attribute=SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES="shared"),
        Error=Error, LogicError=LogicError, LaunchError=LaunchError, MemoryError=MemoryError_, CompileError=CompileError,
    )  # fmt: skip
    return cuda


def libraries(fake: Fake) -> tuple[ModuleType, ModuleType]:
    """Stand in for nvmath.bindings.cublas and .cublasLt: column-major, alpha and beta by address."""

    def number(address: int) -> float:
        return ctypes.c_float.from_address(address).value

    class Math:
        DEFAULT_MATH, PEDANTIC_MATH = 0, 2

    class State:
        math = None

    def gemm_ex(handle, ta, tb, m, n, k, alpha, a, at, lda, b, bt, ldb, beta, c, ct, ldc, compute, algorithm):
        assert (ta, tb, at, bt, ct, compute, algorithm, State.math) == (0, 0, 0, 0, 0, 68, -1, 0)
        # column-major C (m x n) is row-major C^T (n x m)
        fake.multiply("cublas", n, m, k, number(alpha), b, ldb, a, lda, number(beta), c, ldc)

    def create():
        fake.handles += 1
        return 5

    def destroy(handle):
        fake.handles -= 1

    cublas = ModuleType("nvmath.bindings.cublas")
    cublas.__dict__.update(
        create=create, destroy=destroy, set_stream=lambda handle, stream: None, get_version=lambda handle: 130100, gemm_ex=gemm_ex,
        set_math_mode=lambda handle, mode: setattr(State, "math", mode), Math=Math, Operation=SimpleNamespace(N=0),
        ComputeType=SimpleNamespace(COMPUTE_32F=68), GemmAlgo=SimpleNamespace(DFALT=-1),
    )  # fmt: skip

    lt = ModuleType("nvmath.bindings.cublasLt")
    layouts: dict[int, tuple[int, int, int]] = {}
    record = np.dtype(
        [("algo", "<u8", 8), ("workspace_size", "<u8"), ("state", "<i4"), ("waves", "<f4"), ("reserved", "<i4", 4)]
    )

    class MatmulHeuristicResult:
        def __init__(self, size: int) -> None:
            self.data = np.zeros(size, record)
            self.ptr = self.data.ctypes.data

        @property
        def state(self) -> np.ndarray:
            return self.data["state"]

    def get_heuristic(handle, operation, a, b, c, d, preference, asked, results, count):
        found = np.ctypeslib.as_array((ctypes.c_uint8 * (asked * record.itemsize)).from_address(results)).view(record)
        for i, (algorithm, status) in enumerate(fake.heuristics):
            found[i]["algo"][0], found[i]["state"] = algorithm, status
        ctypes.c_int.from_address(count).value = len(fake.heuristics)

    def layout_create(kind, rows, columns, ld):
        layouts[len(layouts) + 1] = (rows, columns, ld)
        return len(layouts)

    def matmul(
        handle, operation, alpha, a, adesc, b, bdesc, beta, c, cdesc, d, ddesc, algorithm, workspace, size, stream
    ):
        (m, k, lda), (k2, n, ldb), (m2, n2, ldc) = layouts[adesc], layouts[bdesc], layouts[cdesc]
        assert (m, k, n) == (m2, k2, n2) and c == d and stream == 77
        name = f"lt{ctypes.c_uint64.from_address(algorithm).value}"
        fake.multiply(name, n, m, k, number(alpha), b, ldb, a, lda, number(beta), c, ldc)

    def config(algorithm, attribute, buffer, size, written):
        value = {0: ctypes.c_uint64.from_address(algorithm).value, 1: 20, 2: 1}[attribute]
        ctypes.c_uint32.from_address(buffer).value = value

    lt.__dict__.update(
        create=create, destroy=destroy, get_version=lambda: 130100, MatmulHeuristicResult=MatmulHeuristicResult,
        matmul_heuristic_result_dtype=record, matmul_algo_get_heuristic=get_heuristic, matmul_desc_create=lambda compute, scale: 1,
        matrix_layout_create=layout_create, matmul_preference_create=lambda: 1, matmul_preference_set_attribute=lambda *a: None,
        matrix_layout_destroy=lambda x: None, matmul_desc_destroy=lambda x: None, matmul_preference_destroy=lambda x: None, matmul=matmul,
        matmul_algo_config_get_attribute=config, get_matmul_algo_config_attribute_dtype=lambda a: np.uint32,
        MatmulPreferenceAttribute=SimpleNamespace(MAX_WORKSPACE_BYTES=1),
        MatmulAlgoConfigAttribute=SimpleNamespace(ID=0, TILE_ID=1, SPLITK_NUM=2), MatmulTile=lambda x: SimpleNamespace(name="TILE_128x128"),
    )  # fmt: skip
    return cublas, lt


def nvml(fake: Fake) -> ModuleType:
    """Stands in for pynvml."""
    module = ModuleType("pynvml")

    def clock(handle, kind):
        assert kind == 1
        return fake.clocks[min(len(fake.clocks) - 1, int(fake.now) % len(fake.clocks))]

    module.__dict__.update(
        nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lambda uuid: uuid, nvmlDeviceGetClockInfo=clock,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980, nvmlDeviceGetPowerUsage=lambda handle: 412_000,
        nvmlDeviceGetTemperature=lambda handle, kind: 51, nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: fake.reasons,
        nvmlSystemGetDriverVersion=lambda: "580.159.04", nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=1)],
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=fake.load),
    )  # fmt: skip
    return module


def install(monkeypatch, fake: Fake, without: tuple[str, ...] = ()) -> None:
    """Put the stand-ins where imports find them. `without`: 'pycuda', 'nvmath', 'pynvml' or 'nvtx' are then missing."""
    cuda, (cublas, lt) = driver(fake), libraries(fake)
    compiler = ModuleType("pycuda.compiler")
    compiler.SourceModule = SourceModule
    bindings = ModuleType("nvmath.bindings")
    bindings.cublas, bindings.cublasLt = cublas, lt
    pycuda, nvmath, nvtx = ModuleType("pycuda"), ModuleType("nvmath"), ModuleType("nvtx")
    pycuda.driver, nvmath.bindings, nvtx.annotate = cuda, bindings, fake.annotate
    modules = {
        "pycuda": pycuda, "pycuda.driver": cuda, "pycuda.compiler": compiler, "nvmath": nvmath, "nvmath.bindings": bindings,
        "nvmath.bindings.cublas": cublas, "nvmath.bindings.cublasLt": lt, "pynvml": nvml(fake), "nvtx": nvtx,
    }  # fmt: skip
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, None if name.split(".")[0] in without else module)
    monkeypatch.setattr(devices, "gpus", lambda: (GPU,))


class SourceModule:
    """Stands in for PyCUDA's: compiles with nvcc into cache_dir, as that does. `asked` holds the last one's arguments."""

    asked: dict = {}

    def __init__(self, source, **given) -> None:
        import subprocess
        from pathlib import Path

        SourceModule.asked = {"source": source, **given}
        folder = Path(given["cache_dir"])
        (folder / "kernel.cu").write_text(source)
        command = [
            given["nvcc"],
            "--cubin",
            *given["options"],
            "-arch",
            given["arch"],
            "kernel.cu",
            "-o",
            "checksum.cubin",
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise CompileError("nvcc compilation of kernel.cu failed", stderr=done.stderr)
