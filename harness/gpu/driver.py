"""A GPU held through PyCUDA: memory between guard bands, modules, launches under NVTX. Everything is released when the session ends.

PyCUDA is imported when a Session opens, and nowhere else. Calls that a broken kernel could block for ever are made only
after the kernel's end has been seen by polling, up to a time limit.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from .. import cubin, parameters, toolchain
from ..errors import TilescopeError
from ..problem import Operands, Problem
from ..stage import Launch, Stage
from .devices import Gpu

DOMAIN = "tilescope"
"""NVTX domain of every range."""
GUARD = 256 * 1024
"""Most bytes of pattern on either side of a matrix; a small matrix has bands of about its own size."""
PATTERN = 0x7FA5A5A5
"""Guard word: a NaN, so that a kernel which reads a guard band shows it in C."""
TIMEOUT = 60.0
"""Seconds that one product may take before it counts as hung."""
RESERVE = 256 * 2**20
"""Bytes of GPU memory left for the context, modules and cuBLAS."""


class KernelFault(TilescopeError):
    """A kernel crashed: the process cannot use the GPU any more."""


class CompileFailed(TilescopeError):
    """PyCUDA's SourceModule could not compile: nvcc's own words."""


class Hang(TilescopeError):
    """A kernel did not end in time. Nothing that waits for the GPU may be called again: leave the process with os._exit."""


@contextmanager
def _explained(doing: str) -> Iterator[None]:
    """Turns PyCUDA's exceptions into TilescopeError, and those that leave the context unusable into KernelFault."""
    import pycuda.driver as cuda

    try:
        yield
    except cuda.CompileError as e:
        raise CompileFailed(
            f"{doing}: {toolchain.first_errors(e.stderr or str(e))}", "Correct the source, or the tunables."
        ) from e
    except cuda.Error as e:
        raise explain(str(e), doing) from e


def explain(words: str, doing: str) -> TilescopeError:
    """What a driver error means for a person: 'cuLaunchKernel failed: an illegal memory access was encountered'."""
    low = words.lower()
    if any(
        x in low
        for x in ("illegal memory access", "misaligned address", "invalid address space", "invalid program counter")
    ):
        what = "misaligned" if "misaligned" in low else "illegal"
        return KernelFault(
            f"{doing}: the kernel made an {what} memory access.".replace("an misaligned", "a misaligned"),
            "BACKEND=sim names the line, the thread and the address.",
        )
    if any(x in low for x in ("illegal instruction", "unspecified launch failure", "hardware stack", "trap", "assert")):
        return KernelFault(
            f"{doing}: the kernel crashed ({words}).", "BACKEND=sim names the line, the thread and the address."
        )
    if "timed out" in low or "timeout" in low:
        return KernelFault(
            f"{doing}: the driver ended the kernel, which ran too long for a GPU with a display.",
            "Choose a smaller size.",
        )
    if "out of memory" in low:
        return TilescopeError(
            f"{doing}: out of GPU memory.", "Choose a smaller size, or end what else uses the GPU (nvidia-smi)."
        )
    if (
        "no kernel image" in low
        or "device kernel image is invalid" in low
        or "unsupported" in low
        and "toolchain" in low
    ):
        return TilescopeError(
            f"{doing}: this GPU or its driver cannot run that machine code.", "Compile it here, or update the driver."
        )
    if "too many resources" in low or "invalid argument" in low and "launch" in low:
        return TilescopeError(
            f"{doing}: the GPU refuses the launch ({words}).",
            "A block may ask too many registers, threads or shared memory.",
        )
    return TilescopeError(f"{doing}: {words}.")


class Session:
    """The primary context of a GPU, made current while the block runs.

    Raises TilescopeError where PyCUDA is missing or broken, or the GPU gives no context.
    """

    def __init__(self, gpu: Gpu, timeout: float = TIMEOUT) -> None:
        self.gpu, self.timeout = gpu, timeout
        self._stack = ExitStack()

    def __enter__(self) -> Session:
        try:
            import pycuda.driver as cuda
        except ImportError as e:
            raise TilescopeError(
                f"PyCUDA cannot be imported: {e}.", "Run `make setup` on this machine, or use BACKEND=sim."
            ) from e
        self.cuda = cuda
        with _explained(f"opening {self.gpu}"):
            cuda.init()
            self.context = cuda.Device(self.gpu.index).retain_primary_context()
            self.context.push()
        self._stack.callback(self.context.pop)
        try:
            with _explained(f"opening {self.gpu}"):
                self.stream = cuda.Stream()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Hang):
            return  # whatever frees memory would wait for the kernel
        self.stream = None
        self._stack.close()

    def free_bytes(self) -> tuple[int, int]:
        """(free, total) GPU memory."""
        with _explained("asking for free memory"):
            return self.cuda.mem_get_info()

    def need(self, count: int, what: str) -> None:
        """Raise TilescopeError where `count` bytes do not fit into what is free."""
        free, total = self.free_bytes()
        if count + RESERVE > free:
            raise TilescopeError(
                f"{what}: {(count + RESERVE) / 2**30:.2f} GiB of GPU memory are needed, {free / 2**30:.2f} of {total / 2**30:.2f} are free.",
                "Choose a smaller size, HOT=1 for one set of inputs, or end what else uses the GPU (nvidia-smi).",
            )

    def allocate(self, count: int) -> Any:
        """Device memory of `count` bytes, freed with the session unless freed before."""
        with _explained(f"allocating {count / 2**20:.0f} MiB"):
            return self.cuda.mem_alloc(count)

    def wait(self, doing: str, event: Any = None, timeout: float | None = None) -> None:
        """Wait for an event, or for all work queued so far. Raises KernelFault or, after the time limit, Hang."""
        limit = timeout or self.timeout
        with _explained(doing):
            if event is None:
                event = self.cuda.Event()
                event.record(self.stream)
            deadline = time.monotonic() + limit
            pause = 20e-6
            while not event.query():
                if time.monotonic() > deadline:
                    raise Hang(
                        f"{doing}: the kernel did not end within {limit:g} s.",
                        "BACKEND=sim names the line of an endless loop or a barrier that not all threads reach; --timeout allows more time.",
                    )
                time.sleep(pause)
                pause = min(2 * pause, 2e-3)


def span(name: str) -> Any:
    """An NVTX range in the domain `tilescope`, or nothing where the nvtx package is missing."""
    try:
        import nvtx
    except ImportError:
        return nullcontext()
    return nvtx.annotate(name, domain=DOMAIN)


class Matrix:
    """A row-major fp32 matrix in device memory between two guard bands; without them, in a block of its exact size."""

    def __init__(self, session: Session, name: str, rows: int, ld: int, guarded: bool = True) -> None:
        self.session, self.name, self.rows, self.ld, self.guarded = session, name, rows, ld, guarded
        self.bytes = 4 * rows * ld
        footprint, band = (self.footprint(rows, ld), self.band(rows, ld)) if guarded else (self.bytes, 0)
        self.block = session.allocate(footprint)
        self.address = int(self.block) + band
        self._head_words = band // 4
        self._tail = self.address + self.bytes
        self._tail_words = (int(self.block) + footprint - self._tail) // 4
        self.guard()

    @staticmethod
    def band(rows: int, ld: int) -> int:
        """Bytes of a guard band: a multiple of 512, so that the matrix is as aligned as cuMemAlloc's own block."""
        return max(4096, min(GUARD, -(-4 * rows * ld // 512) * 512))

    @staticmethod
    def footprint(rows: int, ld: int) -> int:
        """Bytes taken, guard bands included."""
        return 2 * Matrix.band(rows, ld) + -(-4 * rows * ld // 512) * 512

    def guard(self) -> None:
        """Write the pattern into both guard bands."""
        if not self.guarded:
            return
        with _explained(f"guarding {self.name}"):
            self.session.cuda.memset_d32(int(self.block), PATTERN, self._head_words)
            self.session.cuda.memset_d32(self._tail, PATTERN, self._tail_words)

    def put(self, values: np.ndarray) -> None:
        """Copy from the host: fp32 (rows, ld)."""
        with _explained(f"copying {self.name}"):
            self.session.cuda.memcpy_htod(self.address, np.ascontiguousarray(values))

    def copy(self, other: Matrix) -> None:
        """Copy from another matrix of the same shape, on the session's stream."""
        with _explained(f"copying {self.name}"):
            self.session.cuda.memcpy_dtod_async(self.address, other.address, self.bytes, self.session.stream)

    def get(self) -> np.ndarray:
        """fp32 (rows, ld) from the device."""
        values = np.empty((self.rows, self.ld), np.float32)
        with _explained(f"reading {self.name} back"):
            self.session.cuda.memcpy_dtoh(values, self.address)
        return values

    def damage(self) -> str:
        """Where a guard band was written, in words, or nothing."""
        if not self.guarded:
            return ""
        before, after = np.empty(self._head_words, np.uint32), np.empty(self._tail_words, np.uint32)
        with _explained(f"reading the guard bands of {self.name}"):
            self.session.cuda.memcpy_dtoh(before, int(self.block))
            self.session.cuda.memcpy_dtoh(after, self._tail)
        for side, wrong in (
            ("before", np.flatnonzero(before != PATTERN)[::-1]),
            ("behind", np.flatnonzero(after != PATTERN)),
        ):
            if wrong.size:
                words = f"{wrong.size:,} words" if wrong.size > 1 else "a word"
                off = 4 * (before.size - int(wrong[0])) if side == "before" else 4 * int(wrong[0])
                return f"{words} {side} {self.name} {'were' if wrong.size > 1 else 'was'} written, {off:,} bytes {'before it' if side == 'before' else 'past its end'}"
        return ""

    def free(self) -> None:
        self.block.free()


class Buffers:
    """A, B and C of a problem on the GPU. C is poisoned: NaN where nothing has been written, as Operands has it."""

    def __init__(self, session: Session, problem: Problem, guarded: bool = True) -> None:
        self.session, self.problem = session, problem
        self.matrices: dict[str, Matrix] = {}
        try:
            for name, (rows, ld) in problem.shapes.items():
                self.matrices[name] = Matrix(session, name, rows, ld, guarded)
        except BaseException:
            self.free()
            raise

    @staticmethod
    def footprint(problem: Problem) -> int:
        return sum(Matrix.footprint(rows, ld) for rows, ld in problem.shapes.values())

    @property
    def addresses(self) -> dict[str, int]:
        return {name: m.address for name, m in self.matrices.items()}

    def put(self, operands: Operands) -> None:
        """Copy all three from the host."""
        with span("copy inputs"):
            for name, values in (("A", operands.a), ("B", operands.b), ("C", operands.c)):
                self.matrices[name].put(values)

    def copy(self, other: Buffers) -> None:
        """Copy all three from another set."""
        for name, matrix in self.matrices.items():
            matrix.copy(other.matrices[name])

    def read_back(self, operands: Operands) -> tuple[np.ndarray, str]:
        """(C, damage): fp32 (m, ldc), and in words what was written outside of C: guard bands, row padding, A or B; or nothing.

        Call it once the work is done. Damage is put right, so that the next contender is not blamed for it.
        """
        with span("read back"):
            c = self.matrices["C"].get()
            damage = [m.damage() for m in self.matrices.values()]
            for matrix, found in zip(self.matrices.values(), damage, strict=True):
                if found:
                    matrix.guard()
            n = self.problem.n
            padding = (
                c[:, n:].view(np.uint32) != operands.c[:, n:].view(np.uint32)
                if c.shape[1] > n
                else np.zeros((0, 0), bool)
            )
            if padding.any():
                row, column = np.argwhere(padding)[0]
                damage.append(f"C was written beyond its row's end, at C[{row},{column + n}]")
            for name, values in (("A", operands.a), ("B", operands.b)):
                if not np.array_equal(self.matrices[name].get().view(np.uint32), values.view(np.uint32)):
                    damage.append(f"{name} was written")
                    self.matrices[name].put(values)
        return c, "; ".join(filter(None, damage))

    def free(self) -> None:
        for matrix in self.matrices.values():
            matrix.free()
        self.matrices.clear()


def check_fit(session: Session, problem: Problem, count: int = 1) -> None:
    """Raise TilescopeError where `count` sets of A, B and C do not fit into the GPU's free memory, saying what is needed."""
    session.need(count * Buffers.footprint(problem), f"{count} sets of {problem}" if count > 1 else f"{problem}")


@contextmanager
def buffers(session: Session, problem: Problem, count: int = 1, guarded: bool = True) -> Iterator[list[Buffers]]:
    """`count` sets of A, B and C, freed at the block's end, between guard bands or, for memcheck to see, without. Raises TilescopeError where they do not fit."""
    check_fit(session, problem, count)
    sets: list[Buffers] = []
    try:
        for _ in range(count):
            sets.append(Buffers(session, problem, guarded))
        yield sets
    except (Hang, KernelFault):
        sets.clear()  # freeing would wait for ever, or fail
        raise
    finally:
        for x in sets:
            x.free()


def compile(session: Session, stage: Stage, tunables: Mapping[str, int], arch: int, expected: str, nvcc: Path) -> bytes:
    """Compile a stage through PyCUDA's SourceModule; the cubin, once its machine code is known to be what the simulator ran.

    expected: Binary.hash of the toolchain's. PyCUDA's own cache would ignore changes of comments and lines: it gets a fresh
    folder, which is also where the cubin is then found. Raises TilescopeError where the source does not compile or the
    machine code differs.
    """
    from pycuda.compiler import SourceModule

    options = [f for f in toolchain.flags(arch, tunables) if not f.startswith("-arch=")]
    folder = Path(tempfile.mkdtemp(prefix="tilescope-"))
    try:
        with _explained(f"compiling {stage.name}"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyCUDA passes on whatever nvcc prints, -Xptxas=-v included
            SourceModule(
                toolchain.wrapper(stage),
                nvcc=str(nvcc),
                options=options,
                no_extern_c=True,
                arch=f"sm_{arch}",
                cache_dir=str(folder),
            )
        code = next(folder.glob("*.cubin")).read_bytes()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = toolchain.machine_code_hash(code)
    if expected and found != expected:
        raise TilescopeError(
            f"{stage.name}: the machine code that PyCUDA compiled ({found[:12]}) is not what the simulator ran ({expected[:12]}).",
            "Both must use the same nvcc and flags; clear the cache (`make clean`) and try again.",
        )
    return code


class Module:
    """A loaded cubin and the parameter layout of its kernels."""

    def __init__(self, session: Session, code: bytes, name: str) -> None:
        self.session, self.name = session, name
        self.functions = cubin.read(code)
        with _explained(f"loading {name}"):
            self._module = session.cuda.module_from_buffer(code)

    def prepare(self, launch: Launch, problem: Problem, addresses: Mapping[str, int]) -> Callable[[], None]:
        """A call that queues the launch on the session's stream."""
        if launch.entry not in self.functions:
            raise TilescopeError(
                f"{self.name} has no kernel {launch.entry}; it has {', '.join(self.functions) or 'none'}."
            )
        block = parameters.pack(self.functions[launch.entry], launch, problem, addresses)
        session, shared = self.session, launch.shared
        with _explained(f"loading {launch.entry}"):
            function = self._module.get_function(launch.entry)
            if shared:
                function.set_attribute(session.cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
            function.prepare((f"{len(block)}s",))

        def queue() -> None:
            function.prepared_async_call(launch.grid, launch.block, session.stream, block, shared_size=shared)

        return queue


class StageContender:
    """A stage as something that computes products: what `bind` gives queues all of its launches."""

    backend = "gpu"
    detail = ""

    def __init__(self, session: Session, stage: Stage, tunables: Mapping[str, int], code: bytes) -> None:
        self.session, self.stage, self.tunables = session, stage, dict(tunables)
        self.name = stage.name
        self.module = Module(session, code, stage.name)

    def bind(self, problem: Problem, sets: Buffers) -> Callable[[], None]:
        """A call that queues one whole product on a set of buffers. Raises TilescopeError where the GPU refuses a launch."""
        queues = [self.module.prepare(x, problem, sets.addresses) for x in self.stage.plan(problem, self.tunables)]
        doing = f"launching {self.name}"

        def product() -> None:
            with _explained(doing):
                for queue in queues:
                    queue()

        product.launches = len(queues)
        return product

    def launch(self, problem: Problem, sets: Buffers) -> None:
        """One product, each launch in an NVTX range of its own inside 'stage NAME'; waits for the end."""
        launches: Sequence[Launch] = self.stage.plan(problem, self.tunables)
        queues = [self.module.prepare(x, problem, sets.addresses) for x in launches]
        with span(f"stage {self.name}"):
            for x, queue in zip(launches, queues, strict=True):
                with span(f"launch {x.label}"), _explained(f"launching {self.name}, {x.label}"):
                    queue()
                    self.session.wait(f"running {self.name}, {x.label}")
