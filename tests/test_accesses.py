"""The frames behind bank maps and coalescing maps, against what is known of the stages' accesses."""

import pytest

from harness import accesses, profiling


@pytest.fixture(scope="module")
def profiles():
    return {
        name: profiling.profile(name, size=128, record=False, backend="sim")
        for name in ("naive", "naive_uncoalesced", "tiled2d")
    }


def one(table, text):
    found = table[table.text.str.startswith(text)]
    assert found.line.nunique() == 1
    return found


def test_shared_accesses(profiles):
    table = accesses.shared(profiles["tiled2d"])
    assert tuple(table.columns) == accesses.SHARED
    a = one(table, "a[i] = As")  # four rows, 64 words apart: one bank, four words, each for eight lanes
    assert len(a) == 32 and a.bank.nunique() == 1 and a.word.nunique() == 4
    assert set(a.words) == {4} and set(a.wavefronts) == {4} and set(a.ideal) == {1}
    b = one(table, "b[j] = Bs")  # 16 bytes a lane, eight lanes served together, 32 bytes apart
    assert len(b) == 4 * 32 and set(b.wavefronts) == {8} and set(b.ideal) == {4} and set(b.words) == {2}


def test_shared_accesses_cost_what_the_counts_say(profiles):
    profile = profiles["tiled2d"]
    counts = profile.source_lines.set_index("line")
    for line, access in accesses.shared(profile).groupby("line"):
        per_request = counts.wavefronts[line] / counts.wavefronts_ideal[line]
        assert access.wavefronts.iloc[0] / access.ideal.iloc[0] == per_request


def test_global_accesses(profiles):
    scattered = one(accesses.global_(profiles["naive_uncoalesced"]), "sum = fmaf")
    assert tuple(scattered.columns) == accesses.GLOBAL
    assert (
        len(scattered) == 32
        and set(scattered.sectors) == {32}
        and set(scattered.ideal) == {4}
        and set(scattered.used) == {4}
    )
    together = one(accesses.global_(profiles["naive"]), "sum = fmaf")
    assert set(together.sectors) == {4} and set(together.used) == {32} and sorted(set(together.sector)) == [0, 1, 2, 3]
    assert together.bytes.sum() == 128


def test_a_stage_without_shared_memory(profiles):
    table = accesses.shared(profiles["naive"])
    assert table.empty and tuple(table.columns) == accesses.SHARED
