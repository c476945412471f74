"""The probes of `make roofs` are what they say they are: checked in the machine code, and by running it in the simulator."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

from harness import device, roofs, sim, toolchain
from harness.problem import Problem
from harness.roofs import Loop
from harness.sim.memory import BASE, GUARD
from harness.stage import Launch

H200 = device.find("h200")
ARCHES = ("h200", "a100", "rtx4090", "t4")


@pytest.fixture(scope="module")
def binary():
    return roofs.compile(H200)


@pytest.mark.parametrize("name", ARCHES)
def test_no_probe_spills_or_loses_its_loop(name):
    for kernel in roofs.compile(device.find(name)).kernels.values():
        assert (kernel.spill_stores, kernel.spill_loads, kernel.function.frame) == (0, 0, 0), kernel.name
        assert Loop.of(kernel).count() >= 16, kernel.name


@pytest.mark.parametrize(
    "kernel, opcode, share",
    [
        ("fma_one_read", "FFMA", 0.98), ("fma_two_reads", "FFMA", 0.98), ("fma_three_reads", "FFMA", 0.98),
        ("outer_rows", "FFMA", 0.98), ("outer_snake", "FFMA", 0.98), ("outer_columns", "FFMA", 0.98),
        ("alu", "LOP3", 0.97), ("shuffle", "SHFL", 0.9), ("latency_fma", "FFMA", 0.8), ("latency_shared", "LDS", 0.8),
        ("latency_l1", "LDG", 0.8), ("latency_l2", "LDG", 0.8),
    ],
)  # fmt: skip
def test_the_loop_is_nearly_all_what_it_measures(binary, kernel, opcode, share):
    loop = Loop.of(binary.kernels[kernel])
    assert loop.count(opcode) / loop.count() > share


@pytest.mark.parametrize(
    "kernel, fresh",
    [
        ("fma_one_read", 1.0),
        ("fma_two_reads", 2.0),
        ("fma_three_reads", 2.95),
        ("outer_rows", 2.23),
        ("outer_snake", 2.11),
        ("outer_columns", 2.21),
    ],
)
def test_registers_fetched_per_multiply_add(binary, kernel, fresh):
    assert Loop.of(binary.kernels[kernel]).reads_per_ffma == pytest.approx(fresh, abs=0.03)


def test_the_model_tells_the_register_probes_apart(binary):
    share = {
        k: Loop.of(binary.kernels[k]).ffma_share
        for k in ("fma_one_read", "fma_two_reads", "fma_three_reads", "outer_rows")
    }
    assert share["fma_one_read"] == share["fma_two_reads"] == pytest.approx(200 / 203)  # issue alone
    assert share["fma_three_reads"] == pytest.approx(0.67, abs=0.02)
    assert share["outer_rows"] < 0.85


def test_issue_probe_leaves_issue_as_the_limit(binary):
    loop = Loop.of(binary.kernels["issue"])
    assert loop.count("FFMA") == 3 * loop.count("LOP3") == 192
    assert loop.count("FFMA", "LOP3") / loop.count() > 0.98
    assert max(loop.reads) < 0.8 * loop.count()  # no register bank in the way
    assert 2 * loop.count("LOP3") < 0.6 * loop.count()  # the ALU pipe takes one every other cycle


@pytest.mark.parametrize(
    "kernel, opcode", [("latency_shared", "LDS"), ("latency_l1", "LDG"), ("latency_l2", "LDG"), ("latency_fma", "FFMA")]
)
def test_each_step_of_a_latency_probe_waits_for_the_one_before(binary, kernel, opcode):
    chain = [i for i in Loop.of(binary.kernels[kernel]).body if i.base == opcode]
    assert len(chain) == roofs.CHASE
    before = chain[-1].operands[0]  # the loop's last step of the time before
    for i in chain:
        assert any(re.search(rf"\b{before}\b", operand) for operand in i.operands[1:]), i.text
        before = i.operands[0]
    widths = {"latency_l1": "LDG.E.64", "latency_l2": "LDG.E.64.STRONG.GPU"}  # the latter passes L1 by
    assert {i.opcode for i in chain} == {widths.get(kernel, opcode)}


@pytest.mark.parametrize(
    "kernel, opcode, loads",
    [
        ("shared_32", "LDS", 8), ("shared_64", "LDS.64", 8), ("shared_128", "LDS.128", 8), ("shared_uniform", "LDS", 8),
        ("l1_32", "LDG.E", 8), ("l1_128", "LDG.E.128", 8), ("l1_lines", "LDG.E", 8), ("l1_lines_one_bank", "LDG.E", 8),
        ("stream_read", "LDG.E.128.STRONG.GPU", 4), ("stream_copy", "LDG.E.128.STRONG.GPU", 4),
        ("stream_copy", "STG.E.128.STRONG.GPU", 4), ("stream_write", "STG.E.128.STRONG.GPU", 4),
    ],
)  # fmt: skip
def test_loads_keep_their_width_and_number(binary, kernel, opcode, loads):
    assert [i.opcode for i in Loop.of(binary.kernels[kernel]).body].count(opcode) == loads


def launch(kernel: str, blocks: int, n: int, *, data: str = "A", threads: int = 256) -> tuple[Launch, Problem]:
    entry = Launch(kernel, (blocks, 1, 1), (threads, 1, 1), args=(data, "C", n, 0))
    return entry, Problem(blocks, threads, roofs.INPUT // blocks)


def totals(binary, kernel: str, n: int, *opcodes: str) -> dict[str, float]:
    """Counts of these instructions of the loop in a run on two blocks."""
    entry, problem = launch(kernel, 2, n)
    done = sim.run(binary, [entry], problem, problem.operands())
    body = Loop.of(binary.kernels[kernel]).body
    return done.launches[0].counts.loc[[i.pc for i in body if i.base in opcodes]].sum().to_dict()


@pytest.mark.parametrize(
    "kernel, wavefronts",
    [("shared_32", 1), ("shared_64", 2), ("shared_128", 4), ("shared_uniform", 1)],
)
def test_shared_probes_have_no_bank_conflict(binary, kernel, wavefronts):
    found = totals(binary, kernel, 3, "LDS")
    loads = 2 * roofs.WARPS * 3 * 8
    assert found["executed"] == loads
    assert found["wavefronts"] == found["wavefronts_ideal"] == wavefronts * loads


@pytest.mark.parametrize(
    "kernel, lines, sectors, wavefronts",
    [("l1_32", 1, 4, 1), ("l1_128", 4, 16, 4), ("l1_lines", 32, 32, 1), ("l1_lines_one_bank", 32, 32, 32)],
)
def test_l1_probes_touch_the_lines_and_banks_they_say(binary, kernel, lines, sectors, wavefronts):
    found = totals(binary, kernel, 3, "LDG")
    loads = 2 * roofs.WARPS * 3 * 8
    assert (found["requests"], found["lines"], found["sectors"]) == (loads, lines * loads, sectors * loads)
    assert found["data_wavefronts"] == wavefronts * loads


def test_clock_is_read_right_before_and_after_the_loop(binary):
    for probe in roofs.PROBES:
        kernel = binary.kernels[probe.kernel]
        loop = Loop.of(kernel).body
        clocks = [i.pc for i in kernel.instructions if "SR_CLOCK" in i.text]
        assert len(clocks) == 2 and clocks[0] < loop[0].pc and loop[-1].pc < clocks[1], kernel.name


@pytest.mark.parametrize(
    "kernel",
    [
        "fma_one_read",
        "fma_two_reads",
        "fma_three_reads",
        "outer_rows",
        "outer_snake",
        "outer_columns",
        "alu",
        "issue",
        "shuffle",
    ],
)
def test_arithmetic_probes_run_their_loop(binary, kernel):
    loop = Loop.of(binary.kernels[kernel])
    assert totals(binary, kernel, 5, "FFMA", "LOP3", "SHFL")["executed"] == 2 * roofs.WARPS * 5 * loop.count(
        "FFMA", "LOP3", "SHFL"
    )


def test_two_read_probe_computes_what_its_source_says(binary):
    entry, problem = launch("fma_two_reads", 2, 3)
    operands = problem.operands()
    c = sim.run(binary, [entry], problem, operands).c
    flat = operands.a.ravel()
    t = np.arange(256)
    x = flat[t[:, None] * 131 + np.arange(40) & 8191].astype(np.float64)
    assert c[1] == pytest.approx((x * np.copysign(1, flat[t])[:, None] * 15).sum(1), rel=1e-4, abs=1e-4)


def test_pointer_chase_follows_the_ring(binary):
    places, stride, n = 64, 128, 5
    order = np.random.default_rng(0).permutation(places)
    problem = Problem(1, 2, places * stride // 4)
    operands = problem.operands()
    ring = operands.a.view(np.uint64).reshape(-1)
    first = BASE + GUARD
    for here, there in zip(order, np.roll(order, -1), strict=True):
        ring[here * stride // 8] = first + there * stride
    for kernel in roofs.CHASES:
        entry = Launch(kernel, (1, 1, 1), (1, 1, 1), args=("A", "C", n, 0))
        left = int(sim.run(binary, [entry], problem, operands).c.view(np.uint64)[0, 0])
        at = int(np.flatnonzero(order == 0)[0])
        assert left == first + int(order[(at + n * roofs.CHASE) % places]) * stride


def test_each_sm_is_taken_by_its_own_clock():
    ticks = np.array([[[100, 1100, 0], [120, 1100, 0], [5, 1005, 7], [5, 1005, 7]]])
    timed = roofs.Timed(ticks, [1e-6], rounds=10)
    assert timed.rates(work=200.0) == [pytest.approx(4.0)]
    assert timed.clocks == [pytest.approx(1000.0)]


def test_an_sm_that_is_done_early_does_not_lower_the_clock():
    ticks = np.array([[[0, 1000, 0], [0, 900, 1], [0, 800, 2]]])
    assert roofs.Timed(ticks, [1e-6], rounds=10).clocks == [pytest.approx(1000.0)]


def test_loads_one_upon_another():
    """Of four, two are followed by another: round the loop's end and within it."""
    body = [SimpleNamespace(base=base) for base in "LDS FFMA LDS LDS FFMA LDS".split()]
    assert roofs.Loop(tuple(body)).bunched == 0.5 and math.isnan(roofs.Loop(tuple(body[1:2])).bunched)


def a_roof(**changes) -> roofs.Roof:
    values = dict(name="x", kernel="k", unit="lanes/cycle", meaning="", value=120.0, low=119.0, high=121.0, specified=128.0, model=False,
                  resource="FMA pipe", scale=1.0, clock_mhz=1980.0, cycles_mhz=1979.0, power_w=None)  # fmt: skip
    return roofs.Roof(**(values | changes))


def test_the_recorded_cubin_says_nothing_of_the_machine_it_was_compiled_on(binary, tmp_path):
    result = roofs.Result("r", H200, "NVIDIA H200", [a_roof()])
    roofs._record(result, tmp_path / "roofs", binary, 0.0)
    code = (result.path / "kernel.cubin").read_bytes()
    assert toolchain.machine_code_hash(code) == binary.hash
    assert str(roofs.SOURCE.parent).encode() in binary.cubin and str(roofs.SOURCE.parent).encode() not in code


def test_widths_take_the_best_probe_of_a_resource():
    found = [
        a_roof(),
        a_roof(value=126.0),
        a_roof(resource=""),
        a_roof(value=120.0, resource="data stage", scale=1 / 128),
        a_roof(value=3.9, resource="register bank"),
    ]
    assert roofs.widths(found) == {
        "FMA pipe": 126.0,
        "data stage": pytest.approx(0.9375),
        "register bank 0": 3.9,
        "register bank 1": 3.9,
    }


def test_every_resource_is_a_bound():
    from harness.bounds import bounds, total
    from harness.stage import find

    stage = find("naive")
    binary = toolchain.compile(stage, {}, 90)
    problem = Problem(64, 64, 64)
    launches = stage.plan(problem, {})
    done = sim.run(binary, launches, problem, problem.operands())
    measured = roofs.widths([a_roof(resource=p.resource, value=1.0) for p in roofs.PROBES])
    per_launch = [bounds(x.launch, x.kernel, x.counts, H200, measured) for x in done.launches]
    known = {b.name: b for b in total(problem, per_launch, H200, measured)}
    assert set(measured) <= set(known)
    for name, b in known.items():
        assert b.width == ("measured roof" if name in measured else "probed"), name
