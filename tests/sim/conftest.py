import pytest

from harness import sim, toolchain
from harness.problem import Problem
from harness.stage import Launch, Stage

SIGNATURE = "(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C, int ldc)"


@pytest.fixture
def execute(tmp_path):
    """Compile the body of a kernel and run it by the simulator: execute(body, grid, block, problem, ...) -> Simulation."""

    def run(
        body,
        *,
        before="",
        problem=None,
        grid=(1, 1, 1),
        block=(32, 1, 1),
        tile=None,
        arch=90,
        blocks="auto",
        shared=0,
        **kw,
    ):
        source = tmp_path / "bad.cu"
        source.write_text(f'{before}\nextern "C" __global__ void bad{SIGNATURE}\n{{\n{body}\n}}\n')
        problem = problem or Problem(1, 32, 4)
        stage = Stage("bad", "", lambda p, t: [], source=source)
        binary = toolchain.compile(stage, {}, arch)
        return sim.run(
            binary, [Launch("bad", grid, block, tile, shared=shared)], problem, problem.operands(), blocks=blocks, **kw
        )

    return run
