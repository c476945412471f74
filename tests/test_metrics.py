"""Metrics from counts written by hand; the recorded kernels are in tests/sim/test_article_kernels.py."""

import math

import pytest
from listing import counts, listing

import harness
from harness import device, metrics
from harness.problem import Problem
from harness.stage import Launch

H200, H100 = device.find("h200"), device.find("h100")
PROBLEM = Problem(32, 32, 4)
LAUNCH = Launch("kernel", (2, 1, 1), (32, 2, 1), shared=256)
LD, ST = "l1tex__t_{}_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_{}_pipe_lsu_mem_global_op_st.sum"


def kernel():
    return listing(
        (1, "LDG.E R2, desc[UR4][R4.64]"),
        (1, "LDG.E.128 R8, desc[UR4][R4.64]"),
        (2, "LDGSTS.E.128 [R6], desc[UR4][R4.64]"),
        (3, "STS [R6], R2"),
        (4, "LDS.64 R12, [R6]"),
        (4, "@!PT LDS RZ, [RZ]"),
        (5, "FFMA R1, R2, R3, R1"),
        (5, "IMAD.MOV.U32 R1, RZ, RZ, R2"),
        (6, "@P0 STG.E desc[UR4][R4.64], R1"),
        (7, "LDL R1, [R1]"),
        shared=1024 + 512,
    )


def rows():
    return (
        dict(requests=4, sectors=16, lines=4, sectors_ideal=16),
        dict(requests=4, sectors=64, lines=16, sectors_ideal=64),
        dict(requests=4, sectors=64, lines=16, sectors_ideal=64, wavefronts=16, wavefronts_ideal=16),
        dict(requests=4, wavefronts=8, wavefronts_ideal=4),
        dict(requests=4, wavefronts=20, wavefronts_ideal=8),
        dict(threads_on=0),
        {},
        {},
        dict(requests=2, threads_on=40, sectors=40, lines=20, sectors_ideal=5),
        dict(requests=4, sectors=16, lines=4),
    )


@pytest.fixture
def values():
    k = kernel()
    return metrics.launch_values(LAUNCH, k, counts(k, *rows(), warps=4), PROBLEM, H200)


def test_every_value_is_in_the_table_and_nothing_is_missing(values):
    assert set(values) == set(metrics.METRICS) - {m.name for m in (*metrics._MEASURED, *metrics._TIMED)}
    assert all(isinstance(v, float) for v in values.values())


def test_the_table_explains_itself():
    for m in metrics.METRICS.values():
        assert m.meaning and m.group and m.better in ("", "lower", "higher")
        assert not m.over or all(name in metrics.METRICS for name in m.over)
        assert m.unit or m.name in ("fma_count", "fma_useful")


@pytest.mark.parametrize(
    "name, value",
    {
        "smsp__inst_executed.sum": 40,
        "inst_executed": 40,
        "smsp__thread_inst_executed.sum": 40 * 32,
        "smsp__thread_inst_executed_pred_on.sum": 36 * 32 - 88,
        "smsp__inst_executed_op_global_ld.sum": 8,  # LDGSTS is counted apart
        "smsp__inst_executed_op_ldgsts.sum": 4,
        "smsp__inst_executed_op_global_st.sum": 4,  # also where no lane is on
        "smsp__inst_executed_op_shared_ld.sum": 8,  # a load that is never on included
        "smsp__inst_executed_op_shared_st.sum": 4,
        "smsp__inst_executed_op_local_ld.sum": 4,
        LD.format("requests"): 12,
        LD.format("sectors"): 144,
        LD.format("set_accesses"): 36,
        ST.format("requests"): 2,
        ST.format("sectors"): 40,
        "sectors_per_request_ld": 12,
        "sectors_per_request_st": 20,
        "sectors_per_request_st_ideal": 2.5,
        "memory_l2_theoretical_sectors_global": 184,
        "memory_l2_theoretical_sectors_global_ideal": 149,
        "global_load_bytes": 4 * 32 * (4 + 16 + 16),
        "global_store_bytes": 40 * 4,
        "global_load_sector_bytes": 144 * 32,
        "global_store_sector_bytes": 40 * 32,
        "memory_l1_wavefronts_shared": 44,
        "memory_l1_wavefronts_shared_ideal": 28,
        "derived__memory_l1_wavefronts_shared_excessive": 16,
        "bank_conflict_share": 16 / 44,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": 20,
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": 8,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": 12,
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": 4,
        "wavefronts_per_request_shared_ld": 5,
        "wavefronts_per_request_shared_st": 2,
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 128,
        "fma_count": 128,
        "register_reads_per_ffma": 3,
        "shared_words_read": 4 * 32 * 2,
        "shared_words_read_per_fma": 2,
        "global_words_loaded_per_thread_per_k": 4 * 32 * 9 / 128 / 4,
        "arithmetic_intensity": 2 * 128 / 4608,
        "arithmetic_intensity_sectors": 2 * 128 / 4608,
        "ffma_instruction_share": 0.1,
        "sm__inst_executed_pipe_fma.sum": 8,
        "launch__block_size": 64,
        "launch__grid_size": 2,
        "launch__thread_count": 128,
        "launch__shared_mem_per_block_static": 512,  # the section begins with the driver's 1 KiB
        "launch__shared_mem_per_block_dynamic": 256,
        "launch__shared_mem_per_block_driver": 1024,
        "shared_bytes_per_block": 768,
    }.items(),
)
def test_value(values, name, value):
    assert values[name] == pytest.approx(value)


@pytest.mark.parametrize(
    "stage, shape", [("tiled", (100, 70, 33)), ("tiled2d", (1, 1, 1)), ("tiled2d", (100, 99, 101))]
)
def test_arithmetic_intensity_leaves_padding_out(stage, shape):
    m, n, k = shape
    totals = harness.profile(stage, m=m, n=n, k=k, backend="sim", record=False).totals
    assert totals["fma_count"] > totals["fma_useful"] == m * n * k
    assert totals["arithmetic_intensity"] == 2 * m * n * k / totals["global_load_bytes"]
    assert totals["arithmetic_intensity_sectors"] == 2 * m * n * k / totals["global_load_sector_bytes"]


def test_ratio_with_nothing_below_is_nan(values):
    k = listing("EXIT")
    empty = metrics.launch_values(LAUNCH, k, counts(k), PROBLEM, H200)
    assert math.isnan(empty["sectors_per_request_ld"]) and math.isnan(empty["arithmetic_intensity"])


def test_bandwidth_cap_is_the_articles():
    """0.25 FLOP/byte: 1.25 % of an H100's fp32 peak, 0.3 % of an RTX 4090's (deep dive, section 1)."""
    assert metrics.bandwidth_cap(0.25, H100) == pytest.approx(0.0125, rel=0.005)
    assert metrics.bandwidth_cap(0.25, device.find("rtx4090")) == pytest.approx(0.003, rel=0.05)
    assert metrics.bandwidth_cap(1e6, H100) == 1


def test_totals_sum_counts_recompute_ratios_and_keep_the_first_launchs_attributes(values):
    other = dict(values)
    other["launch__block_size"], other["launch__grid_size"] = 512.0, 7.0
    other[LD.format("requests")], other[LD.format("sectors")] = 4.0, 128.0
    both = metrics.totals([values, other], H200)
    assert both["inst_executed"] == 80
    assert both[LD.format("sectors")] == 144 + 128
    assert both["sectors_per_request_ld"] == 17
    assert both["launch__block_size"] == 64 and both["launch__grid_size"] == 2
    assert both["shared_words_read_per_fma"] == 2
    assert both["peak_share_bandwidth_cap"] == pytest.approx(values["peak_share_bandwidth_cap"])
    assert metrics.totals([values]) == pytest.approx(values)
    assert metrics.totals([]) == {}


def test_lines():
    k = kernel()
    table = metrics.lines(k, counts(k, *rows(), warps=4)).droplevel("file")
    assert list(table.index) == [1, 2, 3, 4, 5, 6, 7]
    assert table.executed.to_dict() == {1: 8, 2: 4, 3: 4, 4: 8, 5: 8, 6: 4, 7: 4}
    assert table.loc[1, ["requests", "sectors", "lines", "sectors_excess"]].tolist() == [8, 80, 20, 0]
    assert table.loc[4, ["requests", "wavefronts", "wavefronts_ideal", "wavefronts_excess"]].tolist() == [0, 20, 8, 12]
    assert table.loc[6, ["sectors", "sectors_ideal", "sectors_excess"]].tolist() == [40, 5, 35]
    assert table.loc[7, "sectors"] == 0  # local memory
    assert table.loc[5, ["even", "odd"]].tolist() == [8, 8]  # 4 warps: FFMA reads R2, R1, R3; IMAD.MOV reads R2


def test_instruction_classes():
    k = listing("FFMA R1, R2, R3, R1", "IMAD.MOV.U32 R1, RZ, RZ, R2", "HFMA2.MMA R5, -RZ, RZ, 0, 0", "IADD3 R1, R2, R3, RZ",
                "LDS R1, [R2]", "LDC R1, c[0x0][0x28]", "BRA 0x0", "FMUL R1, R2, R3", "ISETP.GE.AND P0, PT, R4, R7, PT")  # fmt: skip
    table = metrics.instruction_classes(k, counts(k, dict(executed=92)))
    assert table.index[0] == "multiply-add"
    assert table.executed.to_dict() == {"multiply-add": 92, "move": 2, "integer": 1, "shared load": 1, "constant": 1, "control": 1,
                                        "other fp32": 1, "compare and select": 1}  # fmt: skip
    assert table.share.sum() == pytest.approx(1) and table.share.iloc[0] == 0.92
    assert set(table.index) <= set(metrics.CLASSES)


def test_data_wavefronts_where_the_counts_have_none():
    """At least one pass a request, and one per 128 bytes of the lanes; none for copies and local memory."""
    k = kernel()
    t = metrics.joined(k, counts(k, *rows(), warps=4))
    assert t.data_wavefronts.tolist() == [4, 16, 0, 0, 0, 0, 0, 0, 2, 0]
    given = counts(k, *rows(), warps=4).assign(data_wavefronts=7)
    assert metrics.joined(k, given).data_wavefronts.eq(7).all()
