"""Static facts of instructions: by hand, against an H200's pipe counters, and against timed loops."""

import json
from pathlib import Path

import pytest
from listing import instruction

from harness import isa, metrics, sim, toolchain
from harness.problem import Problem
from harness.stage import Launch

DATA = Path(__file__).parent / "data"
PIPES = json.loads((DATA / "pipe_counters_h200.json").read_text())["launches"]
LOOPS = json.loads((DATA / "width_probes_h200.json").read_text())["loops"]


@pytest.mark.parametrize(
    "text, space, kind, width",
    [
        ("LDG.E R2, desc[UR4][R2.64]", "global", "load", 4),
        ("LDG.E.128.CONSTANT R4, desc[UR4][R2.64+0x10]", "global", "load", 16),
        ("LDG.E.64.STRONG.SM R4, desc[UR4][R2.64]", "global", "load", 8),
        ("LDG.E.U8 R4, desc[UR4][R2.64]", "global", "load", 1),
        ("STG.E.U16 desc[UR4][R2.64], R5", "global", "store", 2),
        ("STG.E.128 desc[UR4][R2.64], R8", "global", "store", 16),
        ("LDS R15, [R6+UR5]", "shared", "load", 4),
        ("LDS.U.128 R4, [R6]", "shared", "load", 16),
        ("LDS.S16 R4, [R6]", "shared", "load", 2),
        ("STS.64 [R7], R12", "shared", "store", 8),
        ("LDSM.16.M88.4 R4, [R6]", "shared", "load", 16),
        ("LDSM.16.MT88.2 R4, [R6]", "shared", "load", 8),
        ("LDSM.16.M88 R4, [R6]", "shared", "load", 4),
        ("LDL.64 R2, [R1+0x8]", "local", "load", 8),
        ("STL [R1], R2", "local", "store", 4),
        ("LD.E R2, desc[UR4][R2.64]", "generic", "load", 4),
        ("ST.E.64 desc[UR4][R2.64], R4", "generic", "store", 8),
        ("LDGSTS.E [R6], desc[UR8][R10.64]", "global", "copy", 4),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R7+0x1000], desc[UR8][R12.64]", "global", "copy", 16),
        ("ATOMG.E.ADD.F64.RN.STRONG.GPU PT, R2, desc[UR4][R4.64], R6", "global", "atomic", 8),
        ("RED.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R5", "generic", "atomic", 4),
        ("ATOMS.ADD RZ, [R2], R5", "shared", "atomic", 4),
        ("LDC.64 R2, c[0x0][0x210]", "constant", "load", 8),
        ("ULDC UR4, c[0x0][0x230]", "constant", "load", 4),
    ],
)
def test_access(text, space, kind, width):
    assert isa.access(instruction(text)) == isa.Access(space, kind, width)


@pytest.mark.parametrize("text", ["FFMA R1, R2, R3, R1", "BAR.SYNC.DEFER_BLOCKING 0x0", "LDGDEPBAR", "EXIT"])
def test_no_access(text):
    assert isa.access(instruction(text)) is None


@pytest.mark.parametrize(
    "text, pipe",
    [
        ("FFMA R1, R2, R3, R1", "fma"),
        ("IMAD.MOV.U32 R1, RZ, RZ, R2", "fmaheavy"),
        ("VIADD R1, R2, 0x1", "fmaheavy"),
        ("HFMA2.MMA R5, -RZ, RZ, 0, 0", "tensor"),
        ("HFMA2 R5, R6, R7, R5", "fmaheavy"),
        ("LOP3.LUT R1, R2, R3, RZ, 0xc0, !PT", "alu"),
        ("I2FP.F32.S32 R6, R6", "alu"),
        ("S2R R0, SR_TID.X", "lsu"),
        ("S2R R0, SR_CTAID.X", "adu"),
        ("S2R R0, SR_CgaCtaId", "adu"),
        ("SHFL.BFLY PT, R14, R5, 0x1, 0x1f", "lsu"),
        ("MUFU.RSQ R17, R15", "xu"),
        ("UIADD3 UR5, UR5, 0x1, URZ", "uniform"),
        ("UMOV UR5, 0x400", "none"),
        ("EXIT", "cbu"),
        ("BRA 0xcc0", "none"),
        ("FROB R1, R2", "other"),
    ],
)
def test_pipe(text, pipe):
    assert isa.pipe(instruction(text)) == pipe


@pytest.mark.parametrize("recorded", PIPES, ids=[r["stage"] for r in PIPES])
def test_pipes_equal_the_hardware_counters(recorded):
    """Executed instructions summed by pipe(), as an H200 counts them; and 128-byte lines looked up in L1."""
    articles = json.loads((DATA / "article_kernels" / "h200_counters.json").read_text())["launches"]
    r = next(x for x in articles if (x["stage"], x["M"]) == (recorded["stage"], recorded["size"]))
    binary = toolchain.load(DATA / "article_kernels" / r["cubin"])
    problem = Problem(r["M"], r["N"], r["K"])
    launch = Launch(r["function"], tuple(r["grid"]), tuple(r["block"]), tuple(r["tile"]), args=tuple("ABCMNK"))
    done = sim.run(binary, [launch], problem, problem.operands(), blocks="count").launches[0]
    table = metrics.joined(done.kernel, done.counts)
    executed = table.executed.groupby(table["pipe"]).sum()
    executed["fma"] += executed.get("fmaheavy", 0)
    for name, value in recorded["metrics"].items():
        assert executed.get(name.removeprefix("sm__inst_executed_pipe_").removesuffix(".sum"), 0) == value, name
    for base, op in (("LDG", "ld"), ("STG", "st")):
        assert (
            table.lines[table.base == base].sum() == recorded[f"l1tex__t_set_accesses_pipe_lsu_mem_global_op_{op}.sum"]
        )


def reads(*texts: str) -> list[tuple[int, int]]:
    return isa.register_reads([instruction(t) for t in texts])


@pytest.mark.parametrize(
    "text, even_odd",
    [
        ("FFMA R1, R2, R3, R5", (1, 2)),
        ("FFMA R1, R2, R2, R4", (2, 0)),  # twice the same register is one read
        ("FFMA R1, -R2, |R3|, 1.5", (1, 1)),
        ("FFMA R1, R2, c[0x0][0x210], RZ", (1, 0)),
        ("IMAD R89, R82, UR15, R29", (1, 1)),
        ("IMAD.WIDE.U32 R52, R52, R93, R6", (2, 2)),  # R6 and R7
        ("IADD3 R26, P0, R24, UR4, RZ", (1, 0)),
        ("LOP3.LUT P0, RZ, R4, 0x1, RZ, 0xc0, !PT", (1, 0)),
        ("ISETP.GE.AND P0, PT, R4, R7, PT", (1, 1)),
        ("MOV R1, R2", (1, 0)),
        ("LDS R15, [R6+UR5]", (1, 0)),
        ("LDS.128 R24, [R54+0x10]", (1, 0)),
        ("LDG.E R2, desc[UR12][R28.64+0x14]", (1, 1)),  # a 64-bit address
        ("STS.128 [R7+0x100], R12", (2, 3)),
        ("STG.E desc[UR12][R28.64], R50", (2, 1)),
        ("LDGSTS.E.128 [R7], desc[UR8][R12.64]", (1, 2)),
        ("DFMA R2, R4, R6, R2", (3, 3)),
        ("HMMA.16816.F32.BF16 R4, R8, R12, R4", (5, 5)),
        ("R2UR UR4, R5", (0, 1)),
        ("S2R R76, SR_TID.X", (0, 0)),
        ("BRA 0x270", (0, 0)),
    ],
)
def test_reads_of_one_instruction(text, even_odd):
    assert reads(text) == [even_odd]


def test_reuse_frees_the_same_slot_of_the_next_instruction():
    assert reads("FFMA R8, R2.reuse, R4, R8", "FFMA R9, R2, R5, R9") == [(3, 0), (0, 2)]


def test_reuse_holds_for_its_own_slot_only():
    assert reads("FFMA R8, R2.reuse, R4, R8", "FFMA R9, R5, R2, R9") == [(3, 0), (1, 2)]


def test_no_flag_keeps_nothing():
    assert reads("FFMA R8, R2, R4, R8", "FFMA R9, R2, R5, R9") == [(3, 0), (1, 2)]


def test_a_kept_operand_outlives_reads_of_the_other_bank():
    """R18 stays through an IMAD that reads an odd register in its slot, and goes with one that reads an even one."""
    lop, odd, even = "LOP3.LUT R36, R36, R18.reuse, RZ, 0x96, !PT", "IMAD R39, R20, R39, RZ", "IMAD R40, R20, R40, RZ"
    assert reads(lop, odd, lop)[2] == (1, 0)
    assert reads(lop, even, lop)[2] == (2, 0)


def test_one_operand_of_a_pair_kept():
    """A move's source lies in the second slot."""
    assert reads("FADD R1, R3, R2.reuse", "MOV R5, R2")[1] == (0, 0)


@pytest.mark.parametrize("name", LOOPS)
def test_widths_bound_measured_loops(name):
    """The least cycles of a loop, by the widths of cc 9.0, against what an H200 took: never more, and seldom much less."""
    probe = LOOPS[name]
    loop = [instruction(text) for text in probe["loop"]]
    warps, pipes = probe["warps"], [isa.pipe(i) for i in loop]
    memory = [a for i in loop if (a := isa.access(i)) and a.space in ("shared", "global")]
    per_bank = [sum(x) for x in zip(*isa.register_reads(loop), strict=True)]
    heavy = pipes.count("fmaheavy")
    bound = warps * max(
        len(loop) / 4,
        *(n / 4 for n in per_bank),
        (pipes.count("fma") + heavy) / 4,
        heavy / 2,
        pipes.count("alu") / 2,
        pipes.count("lsu"),
        len(memory) * probe["wavefronts"],
        len(memory) * -(-probe["lines"] // 4),
    )
    assert 0.78 * probe["cycles"] < bound < 1.001 * probe["cycles"]
