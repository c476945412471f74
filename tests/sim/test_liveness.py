"""Which words of a wide shared load count as read."""

from harness.sim.liveness import words_used
from tests.listing import listing


def used(*texts: str) -> dict[int, int]:
    return words_used(listing(*texts).instructions)


def test_words_that_are_read_and_words_that_are_overwritten():
    assert used(
        "LDS.128 R4, [R0]",
        "FFMA R8, R4, R5, R8",
        "MOV R6, RZ",
        "IADD3 R7, R7, 0x1, RZ",
        "STG.E [R2.64], R8",
        "EXIT",
    ) == {0: 0b1011}


def test_a_word_that_nobody_reads_before_the_end():
    assert used("LDS.64 R4, [R0]", "STG.E [R2.64], R4", "EXIT") == {0: 0b01}


def test_a_wide_store_reads_all_of_its_words():
    assert used("LDS.128 R4, [R0]", "STG.E.128 [R2.64], R4", "EXIT") == {0: 0b1111}


def test_around_a_loop():
    """R7 is read at the top of the next turn, R6 is overwritten there."""
    assert used(
        "MOV R7, RZ",
        "IADD3 R8, R7, R8, RZ",
        "MOV R6, R8",
        "LDS.128 R4, [R0]",
        "@P0 BRA 0x10",
        "STG.E [R2.64], R4",
        "EXIT",
    ) == {3: 0b1001}


def test_what_is_written_and_read_under_one_guard_is_not_live_before():
    loop = ["LDS.64 R4, [R0]", "@P1 LDC R5, c[0x0][0x160]", "@P1 STG.E [R2.64], R5", "@!P1 STG.E [R2.64], R4", "EXIT"]
    assert used(*loop) == {0: 0b01}
    loop.insert(2, "ISETP.GE.AND P1, PT, R9, 0x1, PT")  # the guard may be another one when R5 is read
    assert used(*loop) == {0: 0b11}


def test_what_leaves_the_function_reads_everything():
    assert used("LDS.64 R4, [R0]", "RET.REL.NODEC R2 0x0") == {0: 0b11}


def test_far_branches():
    assert used("LDS.64 R4, [R0]", "@!P0 CALL.REL.NOINC 0x30", "EXIT", "STG.E [R2.64], R5", "EXIT") == {0: 0b10}


def test_narrow_loads_are_left_out():
    assert used("LDS R4, [R0]", "@!PT LDS RZ, [RZ]", "EXIT") == {}
