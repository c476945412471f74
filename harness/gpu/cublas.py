"""The rivals: cuBLAS's SGEMM, and the best algorithm that cublasLt's heuristics propose, through nvmath's bindings.

Both compute in fp32 with COMPUTE_32F and the default math mode, which leaves TF32 off. Pedantic mode would forbid
algorithms too and handicap them. The libraries store columns: C^T = B^T A^T is what they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import TilescopeError
from ..problem import Problem
from .driver import Buffers, Session, span

NAMES = ("cublas", "cublaslt")
CANDIDATES = 16
"""Algorithms asked of cublasLt's heuristics, and timed."""
WORKSPACE = 32 * 2**20
"""Bytes cublasLt may use; what cuBLAS takes by itself on Hopper."""
R_32F = 0
"""cudaDataType CUDA_R_32F."""
Timer = Callable[[Callable[[], None]], float]


@contextmanager
def _explained(doing: str) -> Iterator[None]:
    try:
        yield
    except TilescopeError:
        raise
    except Exception as e:  # nvmath: cuBLASError, FunctionNotFoundError, a missing library as RuntimeError
        raise TilescopeError(
            f"{doing}: {str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__}."
        ) from e


def _bindings(name: str) -> Any:
    try:
        from nvmath.bindings import cublas, cublasLt
    except ImportError as e:
        raise TilescopeError(
            f"{name} needs nvmath-python: {e}.", "Run `make setup` on this machine, or use AGAINST=none."
        ) from e
    return cublas if name == "cublas" else cublasLt


class _Scalars:
    """alpha and beta in host memory, at addresses that stay."""

    def __init__(self, problem: Problem) -> None:
        self._values = np.array([problem.alpha, problem.beta], np.float32)
        self.alpha = self._values.ctypes.data
        self.beta = self.alpha + 4


class _Library:
    """What the two have in common: a name, the backend column, and one product in an NVTX range."""

    tunables: dict[str, int] = {}

    def __init__(self, session: Session, name: str) -> None:
        self.session, self.name, self.backend = session, name, name

    def bind(self, problem: Problem, sets: Buffers) -> Callable[[], None]:
        raise NotImplementedError

    def launch(self, problem: Problem, sets: Buffers) -> None:
        """One product in the NVTX range 'stage NAME'; waits for the end."""
        product = self.bind(problem, sets)
        with span(f"stage {self.name}"):
            product()
            self.session.wait(f"running {self.name}")


class Cublas(_Library):
    """cublasGemmEx with COMPUTE_32F. Close it before the session ends."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, "cublas")
        self.library = _bindings(self.name)
        with _explained("opening cuBLAS"):
            self.handle = self.library.create()
            self.library.set_stream(self.handle, session.stream.handle)
            self.library.set_math_mode(self.handle, int(self.library.Math.DEFAULT_MATH))
            self.detail = version(self.library.get_version(self.handle))

    def bind(self, problem: Problem, sets: Buffers) -> Callable[[], None]:
        p, at, scalars, library = problem, sets.addresses, _Scalars(problem), self.library
        plain, compute, algorithm = (
            int(library.Operation.N),
            int(library.ComputeType.COMPUTE_32F),
            int(library.GemmAlgo.DFALT),
        )

        def product() -> None:
            with _explained("cublasGemmEx"):
                library.gemm_ex(
                    self.handle, plain, plain, p.n, p.m, p.k, scalars.alpha, at["B"], R_32F, p.ldb, at["A"], R_32F, p.lda,
                    scalars.beta, at["C"], R_32F, p.ldc, compute, algorithm,
                )  # fmt: skip

        product.launches = 4  # a product may be split in two kernels and a reduction
        return product

    def close(self) -> None:
        with _explained("closing cuBLAS"):
            self.library.destroy(self.handle)


class CublasLt(_Library):
    """cublasLtMatmul with the fastest of the algorithms that its heuristics propose, found anew for each problem."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, "cublaslt")
        self.library = _bindings(self.name)
        with _explained("opening cublasLt"):
            self.handle = self.library.create()
            self.detail = self._version = version(self.library.get_version())
        self.workspace = session.allocate(WORKSPACE)
        self._chosen: dict[Problem, tuple[Any, int, str]] = {}

    def choose(self, problem: Problem, sets: Buffers, timer: Timer) -> None:
        """Time each proposed algorithm, in seconds or any unit that `timer` gives, and keep the fastest."""
        with _Descriptors(self.library, problem) as d, _explained("cublasLt's heuristics"):
            results = self.library.MatmulHeuristicResult(CANDIDATES)
            count = np.zeros(1, np.int32)
            self.library.matmul_algo_get_heuristic(
                self.handle, d.operation, d.b, d.a, d.c, d.c, d.preference, CANDIDATES, results.ptr, count.ctypes.data
            )
            states = np.atleast_1d(results.state)
            size = self.library.matmul_heuristic_result_dtype.itemsize
            found = []
            for i in range(int(count[0])):
                if states[i] != 0:
                    continue
                try:
                    found.append((timer(self._product(problem, sets, results.ptr + i * size)), i))
                except TilescopeError as e:
                    if type(e) is not TilescopeError:
                        raise  # a crash or a hang, not a refusal
        if not found:
            raise TilescopeError(f"cublasLt proposes no algorithm for {problem}.")
        _, best = min(found)
        what = self._describe(results.ptr + best * size)
        self._chosen[problem] = (results, results.ptr + best * size, what)
        self.detail = f"{self._version}, {what}, the fastest of {len(found)}"

    def bind(self, problem: Problem, sets: Buffers) -> Callable[[], None]:
        if problem not in self._chosen:
            self.choose(problem, sets, lambda product: 0.0)  # its own first choice
        return self._product(problem, sets, self._chosen[problem][1])

    def _product(self, problem: Problem, sets: Buffers, algorithm: int) -> Callable[[], None]:
        d = _Descriptors(self.library, problem).__enter__()
        at, scalars, library = sets.addresses, _Scalars(problem), self.library

        def product() -> None:
            with _explained("cublasLtMatmul"):
                library.matmul(
                    self.handle, d.operation, scalars.alpha, at["B"], d.b, at["A"], d.a, scalars.beta, at["C"], d.c, at["C"], d.c,
                    algorithm, int(self.workspace), WORKSPACE, self.session.stream.handle,
                )  # fmt: skip

        product.launches = 4
        return product

    def _describe(self, algorithm: int) -> str:
        """'algorithm 0, tile 128x128, split-K 1' of an algorithm at an address, as far as the library says."""
        names = self.library.MatmulAlgoConfigAttribute
        parts = []
        for word, attribute in (("algorithm", names.ID), ("tile", names.TILE_ID), ("split-K", names.SPLITK_NUM)):
            value = np.zeros(1, self.library.get_matmul_algo_config_attribute_dtype(int(attribute)))
            written = np.zeros(1, np.uint64)
            try:
                self.library.matmul_algo_config_get_attribute(
                    algorithm, int(attribute), value.ctypes.data, value.nbytes, written.ctypes.data
                )
            except Exception:
                continue
            shown: object = int(value[0])
            if attribute is names.TILE_ID:
                try:
                    shown = self.library.MatmulTile(int(value[0])).name.removeprefix("TILE_")
                except ValueError:
                    pass
            parts.append(f"{word} {shown}")
        return ", ".join(parts)

    def close(self) -> None:
        with _explained("closing cublasLt"):
            self.library.destroy(self.handle)
            self.workspace.free()


class _Descriptors:
    """cublasLt's description of C^T = B^T A^T: freed at the block's end, or with this object."""

    def __init__(self, library: Any, problem: Problem) -> None:
        self.library, self.problem = library, problem
        self.operation = self.a = self.b = self.c = self.preference = 0

    def __enter__(self) -> _Descriptors:
        library, p = self.library, self.problem
        with _explained("describing the product to cublasLt"):
            self.operation = library.matmul_desc_create(68, R_32F)  # CUBLAS_COMPUTE_32F
            self.b = library.matrix_layout_create(R_32F, p.n, p.k, p.ldb)
            self.a = library.matrix_layout_create(R_32F, p.k, p.m, p.lda)
            self.c = library.matrix_layout_create(R_32F, p.n, p.m, p.ldc)
            self.preference = library.matmul_preference_create()
            limit = np.array([WORKSPACE], np.uint64)
            library.matmul_preference_set_attribute(
                self.preference,
                int(library.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES),
                limit.ctypes.data,
                limit.nbytes,
            )
        return self

    def __exit__(self, *error: object) -> None:
        library = self.library
        for layout in (self.a, self.b, self.c):
            if layout:
                library.matrix_layout_destroy(layout)
        if self.operation:
            library.matmul_desc_destroy(self.operation)
        if self.preference:
            library.matmul_preference_destroy(self.preference)
        self.operation = self.a = self.b = self.c = self.preference = 0

    def __del__(self) -> None:
        self.__exit__()


def version(number: int) -> str:
    """'13.1.0' of 130100 (cuBLAS 13: major * 10000 + minor * 100 + patch)."""
    number = int(number)
    if number >= 100_000:  # from 10.0 to 12.x the same digits count: 120401 is 12.4.1
        return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def open_library(session: Session, name: str) -> Cublas | CublasLt:
    """'cublas' or 'cublaslt'. Raises TilescopeError where nvmath-python or the library is missing."""
    with span(f"open {name}"):
        return Cublas(session) if name == "cublas" else CublasLt(session)
