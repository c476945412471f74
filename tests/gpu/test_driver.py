"""The driver on a GPU that is not there: what it allocates, launches, checks, releases and says."""

import sys

import numpy as np
import pytest
from fake_gpu import GPU, CompileError, SourceModule, install

from harness import stage as stages
from harness import toolchain
from harness.errors import TilescopeError
from harness.gpu import driver
from harness.gpu.driver import PATTERN, Buffers, Hang, KernelFault, Matrix, Session, StageContender, buffers
from harness.gpu.launch import launch
from harness.problem import Problem


@pytest.fixture
def session(fake):
    with Session(GPU, timeout=0.05) as opened:
        yield opened


def contender(session, name="naive"):
    stage = stages.find(name)
    return StageContender(session, stage, stage.configure(), toolchain.compile(stage, stage.configure(), 90).cubin)


def test_the_context_is_popped_whatever_happens(fake):
    with pytest.raises(ZeroDivisionError), Session(GPU):
        assert fake.contexts == 1
        raise ZeroDivisionError
    assert fake.contexts == 0


def test_without_pycuda(monkeypatch, fake):
    install(monkeypatch, fake, without=("pycuda",))
    with pytest.raises(TilescopeError, match="PyCUDA cannot be imported"), Session(GPU):
        pass


def test_a_matrix_stands_between_bands_of_nan(session):
    m = Matrix(session, "A", 5, 7)
    assert m.address % 512 == 0 and m.damage() == ""
    assert np.isnan(np.array([PATTERN], np.uint32).view(np.float32))[0]
    values = np.arange(35, dtype=np.float32).reshape(5, 7)
    m.put(values)
    assert np.array_equal(m.get(), values) and m.damage() == ""


@pytest.mark.parametrize(
    "offset, says", [(-8, "a word before A was written, 8 bytes before it"), (140, "a word behind A was written, 0 bytes past its end"),
                     (140 + 64, "a word behind A was written, 64 bytes past its end")],
)  # fmt: skip
def test_damage_is_told_with_its_place(session, offset, says):
    m = Matrix(session, "A", 5, 7)
    session.cuda.memset_d32(m.address + offset, 0, 1)
    assert m.damage() == says
    m.guard()
    assert m.damage() == ""


def test_memory_is_freed_on_every_path(session, fake):
    with pytest.raises(ZeroDivisionError), buffers(session, Problem(8, 9, 10), 3) as sets:
        assert len(sets) == 3 and len(fake.blocks) == 9
        raise ZeroDivisionError
    assert not fake.blocks


def test_too_little_memory_says_how_much_was_needed(session, fake):
    fake.total = 300 * 2**20
    with pytest.raises(
        TilescopeError, match=r"4 sets of 4096x4096x4096: 1\.01 GiB of GPU memory are needed, 0\.29 of 0\.29 are free"
    ) as e:
        with buffers(session, Problem(4096, 4096, 4096), 4):
            pass
    assert "smaller size" in e.value.remedy and not fake.blocks


def test_memory_taken_meanwhile(session, fake, monkeypatch):
    monkeypatch.setattr(session, "need", lambda *a: None)
    fake.total = Matrix.footprint(64, 64) + 1
    with pytest.raises(TilescopeError, match="out of GPU memory"), buffers(session, Problem(64, 64, 64)):
        pass
    assert not fake.blocks


def test_a_product_is_launched_under_nvtx_and_read_back(session, fake):
    problem = Problem(20, 30, 40)
    operands = problem.operands()
    with buffers(session, problem) as (target,):
        target.put(operands)
        contender(session).launch(problem, target)
        c, damage = target.read_back(operands)
    assert not damage and np.allclose(c, operands.a @ operands.b, atol=1e-4)
    assert fake.ranges == [
        "tilescope@copy inputs",
        "tilescope@stage naive",
        "tilescope@stage naive/launch main",
        "tilescope@read back",
    ]


@pytest.mark.parametrize(
    "fault, says",
    [("past C", "a word behind C was written, 8 bytes past its end"), ("before C", "a word before C was written, 4 bytes before it"),
     ("padding", "C was written beyond its row's end, at C[1,30]"), ("writes A", "A was written")],
)  # fmt: skip
def test_writes_outside_c_are_found_and_put_right(session, fake, fault, says):
    problem = Problem(20, 30, 40, ldc=33)
    operands = problem.operands()
    with buffers(session, problem) as (target,):
        target.put(operands)
        fake.fault = fault
        contender(session).launch(problem, target)
        assert target.read_back(operands)[1] == says
        fake.fault = ""
        target.matrices["C"].put(operands.c)
        contender(session).launch(problem, target)
        assert target.read_back(operands)[1] == ""


def test_a_hang_ends_after_the_time_limit(session, fake):
    problem = Problem(20, 30, 40)
    fake.fault = "hang"
    with (
        pytest.raises(Hang, match=r"running naive, main: the kernel did not end within 0\.05 s"),
        buffers(session, problem) as (target,),
    ):
        contender(session).launch(problem, target)
    assert fake.blocks  # freeing would wait for ever


def test_a_crash_is_told_and_nothing_is_freed(session, fake):
    problem = Problem(20, 30, 40)
    fake.fault = "illegal"
    with (
        pytest.raises(KernelFault, match="the kernel made an illegal memory access"),
        buffers(session, problem) as (target,),
    ):
        contender(session).launch(problem, target)
    fake.dead = ""


@pytest.mark.parametrize(
    "words, kind, says",
    [
        ("cuMemAlloc failed: out of memory", TilescopeError, "out of GPU memory"),
        ("cuEventQuery failed: misaligned address", KernelFault, "made a misaligned memory access"),
        ("cuEventQuery failed: unspecified launch failure", KernelFault, "the kernel crashed"),
        ("cuEventQuery failed: the launch timed out and was terminated", KernelFault, "the driver ended the kernel"),
        ("cuModuleLoadDataEx failed: no kernel image is available for execution on the device", TilescopeError, "cannot run that machine code"),
        ("cuLaunchKernel failed: too many resources requested for launch", TilescopeError, "refuses the launch"),
        ("cuFoo failed: bar", TilescopeError, "cuFoo failed: bar"),
    ],
)  # fmt: skip
def test_driver_errors_in_words(words, kind, says):
    found = driver.explain(words, "doing so")
    assert type(found) is kind and says in found.what and found.what.startswith("doing so: ")


def test_dynamic_shared_memory_is_opted_in(session, fake):
    from dataclasses import replace

    stage = stages.find("naive")
    binary = toolchain.compile(stage, {}, 90)
    problem = Problem(8, 8, 8)
    (plain,) = stage.plan(problem, {})
    module = driver.Module(session, binary.cubin, "naive")
    with buffers(session, problem) as (target,):
        module.prepare(replace(plain, shared=100 * 1024), problem, target.addresses)()
        with pytest.raises(TilescopeError, match="loading naive"):
            module.prepare(replace(plain, shared=300 * 1024), problem, target.addresses)
        with pytest.raises(TilescopeError, match="has no kernel nave; it has naive"):
            module.prepare(replace(plain, entry="nave"), problem, target.addresses)


def test_pycuda_compiles_the_same_machine_code(session):
    stage = stages.find("tiled")
    tunables = stage.configure({"TILE": 16})
    binary = toolchain.compile(stage, tunables, 90)
    code = driver.compile(session, stage, tunables, 90, binary.hash, toolchain.compiler()[0])
    assert toolchain.machine_code_hash(code) == binary.hash
    asked = SourceModule.asked
    assert asked["source"] == toolchain.wrapper(stage) and asked["no_extern_c"] and asked["arch"] == "sm_90"
    assert (
        "-lineinfo" in asked["options"]
        and "-DTILE=16" in asked["options"]
        and not any("arch" in o for o in asked["options"])
    )


def test_other_machine_code_is_refused(session):
    stage = stages.find("tiled")
    with pytest.raises(TilescopeError, match="is not what the simulator ran"):
        driver.compile(session, stage, stage.configure({"TILE": 16}), 90, "0" * 64, toolchain.compiler()[0])


def test_what_does_not_compile_shows_nvcc_s_line(session, tmp_path, monkeypatch):
    def fails(*a, **k):
        raise CompileError("nvcc failed", stderr='kernel.cu(3): error: identifier "y" is undefined\n\n1 error detected')

    monkeypatch.setattr(sys.modules["pycuda.compiler"], "SourceModule", fails)
    with pytest.raises(driver.CompileFailed, match=r'kernel.cu\(3\): error: identifier "y" is undefined'):
        driver.compile(session, stages.find("naive"), {}, 90, "", tmp_path / "nvcc")


def test_launch_warms_up_outside_the_stage_s_range(fake, tmp_path):
    binary = toolchain.compile(stages.find("naive"), {}, 90)
    (tmp_path / "k.cubin").write_bytes(binary.cubin)
    done = launch("naive", Problem(33, 34, 35), cubin=tmp_path / "k.cubin")
    assert done.ok and "correct" in str(done) and GPU.uuid in str(done)
    assert fake.launched == ["naive", "naive"] and not fake.blocks and fake.contexts == 0
    assert [r for r in fake.ranges if "stage" in r] == ["tilescope@stage naive", "tilescope@stage naive/launch main"]
    assert "tilescope@warm up" in fake.ranges


@pytest.mark.parametrize("name", ["cublas", "cublaslt"])
def test_launch_of_a_library(fake, name):
    done = launch(name, Problem(33, 34, 35, lda=40, ldb=41, ldc=42, alpha=0.5, beta=2.0))
    assert done.ok and fake.handles == 0 and not fake.blocks and f"tilescope@stage {name}" in fake.ranges


def test_launch_says_what_is_wrong(fake):
    fake.fault = "wrong"
    done = launch("naive", Problem(16, 16, 16))
    assert not done.ok and "WRONG: 1 of 256 cells is wrong; C[0,15]" in str(done)
    fake.fault = "past C"
    assert "a word behind C was written" in str(launch("naive", Problem(16, 16, 16)))


def test_a_cubin_that_is_not_there(fake, tmp_path):
    with pytest.raises(TilescopeError, match="cannot read CUBIN="):
        launch("naive", Problem(16, 16, 16), cubin=tmp_path / "none.cubin")
    (tmp_path / "text.cubin").write_text("x")
    with pytest.raises(TilescopeError, match="not a cubin"):
        launch("naive", Problem(16, 16, 16), cubin=tmp_path / "text.cubin")


def test_buffers_count_what_they_take(session, fake):
    problem = Problem(100, 200, 300)
    before = fake.used
    with buffers(session, problem):
        assert fake.used - before <= Buffers.footprint(problem) + 3 * 512
