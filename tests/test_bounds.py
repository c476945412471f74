"""Occupancy and bounds: by hand, and against what an H200 took for the articles' kernels."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from listing import counts, listing

from harness import bounds, device, sim, toolchain
from harness.errors import TilescopeError
from harness.problem import Problem
from harness.stage import Launch

DATA = Path(__file__).parent / "data" / "article_kernels"
H200 = device.find("h200")
BIG = Launch("kernel", (132, 1, 1), (128, 1, 1))


def occupancy(threads, registers, static=0, dynamic=0, name="h200", blocks=132):
    on = device.find(name)
    section = static + 1024 if on.cc >= 90 and static else static
    kernel = listing("EXIT", registers=registers, shared=section)
    return bounds.occupancy(kernel, Launch("kernel", (blocks, 1, 1), (threads, 1, 1), shared=dynamic), on)


@pytest.mark.parametrize(
    "arguments, limits, percent, limiter",
    [
        ((64, 96, 4096), (32, 32, 10, 45), 31.25, "registers"),  # 3072 a warp: 5 warps on each of 4 partitions
        ((1024, 32, 8192), (2, 32, 2, 25), 100, "warps and registers"),
        ((256, 32, 2048), (8, 32, 8, 76), 100, "warps and registers"),
        ((256, 33), (8, 32, 6, 228), 75, "registers"),  # 33 * 32 = 1056, allocated as 1280
        ((32, 16), (64, 32, 128, 228), 50, "blocks"),
        ((256, 40, 0, 100 * 1024), (8, 32, 6, 2), 25, "shared memory"),
        ((96, 128), (21, 32, 5, 228), 23.4375, "registers"),  # 16 warps over blocks of 3
        ((1, 32, 0, 227 * 1024), (64, 32, 64, 1), 1.5625, "shared memory"),  # with the driver's 1 KiB, all 228
    ],
)
def test_occupancy(arguments, limits, percent, limiter):
    held = occupancy(*arguments)
    assert tuple(held.limits.values()) == limits
    assert held.percent == percent
    assert held.limiter == limiter


def test_occupancy_elsewhere():
    """No reserve of shared memory on Turing, and 16 blocks; 48 warps on cc 8.9; the cubin's section is whole before sm_90."""
    assert occupancy(128, 64, 16384, name="t4").limits == {"warps": 8, "blocks": 16, "registers": 8, "shared memory": 4}
    assert occupancy(128, 64, name="t4").limits["shared memory"] == 16
    assert occupancy(1024, 32, name="rtx4090").percent == pytest.approx(200 / 3)
    assert occupancy(128, 64, 16384, name="a100").limits["shared memory"] == 9  # 164 KiB over 17


def test_waves():
    assert occupancy(256, 32, blocks=132 * 8 * 2).waves == 2
    assert occupancy(64, 96, 4096, blocks=64).waves == pytest.approx(64 / 1320)


@pytest.mark.parametrize(
    "arguments, says",
    [
        ((1056, 32), "1056 threads"),
        ((32, 32, 0, 228 * 1024), "shared memory"),
        ((1024, 128), "128 registers"),
    ],
)
def test_a_block_that_does_not_fit_is_an_error(arguments, says):
    with pytest.raises(TilescopeError, match=says):
        occupancy(*arguments)


def by_name(found):
    return {b.name: b for b in found}


def test_each_bound_by_hand():
    """1320 warps of each instruction on 132 SMs: 10 an SM."""
    kernel = listing(
        "FFMA R2, R4, R6, R2",
        "FMUL R3, R5, R7",
        "IMAD R2, R4, R6, R3",
        "IADD3 R2, R4, R6, RZ",
        "LDS R2, [R4]",
        "LDG.E R2, desc[UR4][R4.64]",
        "STG.E desc[UR4][R4.64], R2",
    )
    table = counts(
        kernel,
        {},
        {},
        {},
        {},
        dict(requests=1320, wavefronts=4 * 1320, wavefronts_ideal=1320),
        dict(requests=1320, sectors=32 * 1320, lines=32 * 1320, data_wavefronts=32 * 1320),
        dict(requests=1320, sectors=4 * 1320, lines=1320, data_wavefronts=1320),
        warps=1320,
    ).fillna(0)
    found = by_name(bounds.bounds(BIG, kernel, table, H200))
    cycles = {name: b.cycles for name, b in found.items() if name != "L2"}
    assert cycles == pytest.approx(
        {
            "issue": 7 * 10 / 4,
            "FMA pipe": 3 * 10 * 32 / 128,
            "FMA heavy half": 10 * 32 / 64,
            "ALU pipe": 10 * 32 / 64,
            # R4 R6 R2; -; R4 R6; R4 R6; R4; R4; R4 R2, and of the odd ones: -; R5 R7; R3; -; -; R5; R5
            "register bank 0": 11 * 10 / 4,
            "register bank 1": 5 * 10 / 4,
            "LSU": 3 * 10,
            "data stage": (4 + 32 + 1) * 10,
            "tag stage": (32 / 4 + 1) * 10,
        }
    )
    assert all(b.verified for n, b in found.items() if n != "L2")
    assert found["issue"].seconds == pytest.approx(17.5 / 1.98e9)
    assert bounds.bottleneck(found.values()).name == "data stage"


def test_l2_has_no_verified_width_and_says_so():
    kernel = listing("STG.E desc[UR4][R4.64], R2")
    table = counts(kernel, dict(requests=10, sectors=40, lines=10), warps=10)
    found = by_name(bounds.bounds(BIG, kernel, table, H200))["L2"]
    assert math.isnan(found.seconds) and not found.verified
    assert "nobody has verified" in found.formula and found.work == 40 * 32


def test_roofs_replace_widths():
    kernel = listing("FFMA R2, R4, R6, R2")
    table = counts(kernel, warps=1320)
    roofs = {"FMA pipe": 64, "DRAM": 4000, "L2": 5000}
    launch = bounds.bounds(BIG, kernel, table, H200, roofs)
    assert by_name(launch)["FMA pipe"].cycles == 5 and by_name(launch)["FMA pipe"].verified
    whole = by_name(bounds.total(Problem(1000, 1000, 1000), [launch], H200, roofs))
    assert whole["DRAM"].seconds == pytest.approx(12e6 / 4000e9) and whole["DRAM"].verified
    assert whole["L2"].seconds == 0


def test_widths_of_another_architecture_are_not_verified():
    kernel = listing("FFMA R2, R4, R6, R2")
    found = by_name(bounds.bounds(BIG, kernel, counts(kernel, warps=1080), device.find("a100")))
    assert found["FMA pipe"].cycles == 1080 / 108 * 32 / 64
    assert not any(b.verified for b in found.values())


def test_a_small_grid_has_only_the_sms_that_can_have_a_block():
    kernel = listing("FFMA R2, R4, R6, R2")
    few = replace(BIG, grid=(33, 1, 1))
    assert by_name(bounds.bounds(few, kernel, counts(kernel, warps=132), H200))["issue"].cycles == 1


def test_total_sums_launches_and_adds_dram():
    problem = Problem(64, 64, 64, beta=1.0)
    kernel = listing("FFMA R2, R4, R6, R2")
    one = bounds.bounds(BIG, kernel, counts(kernel, warps=1320), H200)
    two = bounds.total(problem, [one, one], H200)
    assert by_name(two)["issue"].cycles == 2 * by_name(one)["issue"].cycles
    assert by_name(two)["DRAM"].seconds == pytest.approx(4 * 4 * 64 * 64 / 4800e9)
    top = bounds.bottleneck(two)
    assert top.name == "FMA pipe" or top.seconds >= by_name(two)["FMA pipe"].seconds
    assert bounds.attainable_tflops(problem, two) == pytest.approx(problem.flops / top.seconds / 1e12)


@pytest.mark.parametrize(
    "stage, name, milliseconds, measured",
    [
        ("naive", "data stage", 131, 189),
        ("naive", "issue", 76, 189),
        ("tiled32", "data stage", 103, 123),
        ("tiled2d", "data stage", 51.5, 58.6),
        ("tiled2d", "FMA pipe", 16.4, 58.6),
    ],
)
def test_articles_kernels_at_8192(stage, name, milliseconds, measured):
    """The inner loops' counts at 512, times 16^3: within 5 % of the figure for the loop's own work, and below the time."""
    articles = json.loads((DATA / "h200_counters.json").read_text())["launches"]
    r = next(x for x in articles if (x["stage"], x["M"]) == (stage, 512))
    kernel = toolchain.load(DATA / r["cubin"]).kernel(r["function"])
    problem = Problem(512, 512, 512)
    launch = Launch(r["function"], tuple(r["grid"]), tuple(r["block"]), tuple(r["tile"]), args=tuple("ABCMNK"))
    done = sim.run(toolchain.load(DATA / r["cubin"]), [launch], problem, problem.operands(), blocks="count")
    loop = done.launches[0].counts * 16**3
    if name == "FMA pipe":
        loop.loc[[i.pc for i in kernel.instructions if i.base != "FFMA"]] = 0
    if name == "data stage" and stage != "naive":
        loop["data_wavefronts"] = 0
    found = by_name(bounds.bounds(replace(launch, grid=(512, 512, 1)), kernel, loop, H200))[name]
    assert found.seconds * 1e3 == pytest.approx(milliseconds, rel=0.01)
    assert found.seconds * 1e3 < measured
