"""`trace`: the deep dive's example by hand, and any other stage's sums against what its code stores."""

from __future__ import annotations

import pytest

from harness import cli, sim, tracing
from harness.errors import TilescopeError
from harness.problem import Problem

BY_HAND = {0: [11, 14, 35, 46], 1: [90, 100, 202, 228]}


def test_the_four_by_four_example():
    found = tracing.trace("tiled", tile=2)
    for phase, sums in BY_HAND.items():
        assert [found.sums[r, c, phase] for r, c in ((0, 0), (0, 1), (1, 0), (1, 1))] == sums
    assert [v for _, _, _, v in found.stores] == BY_HAND[1]
    first, second = found.phases
    assert sorted(first.tiles.values()) == [1, 1, 2, 2, 5, 5, 6, 6]
    assert {(0, ("A", 0, 2), 3.0), (0, ("B", 2, 0), 9.0)} <= set(second.loads) and len(second.loads) == 8
    text = str(found)
    for line in (
        "thread (1, 0)  A[0][1] = 2, B[0][1] = 2",
        "thread (0, 1)  C[1][0]: 5*1 + 6*5 = 35",
        "thread (1, 1)  C[1][1]: 46 + 7*10 + 8*14 = 228",
        "thread (0, 0)  C[0][0] = 90",
    ):
        assert line in text


@pytest.mark.parametrize(
    "stage, tunables, size",
    [
        ("naive", {}, 4),
        ("naive_uncoalesced", {}, 5),
        ("tiled", {"TILE": 4}, 7),
        ("tiled1d", {"BM": 4, "BN": 4, "BK": 2, "TM": 2}, 8),
        ("tiled2d", {"BM": 4, "BN": 4, "BK": 2, "TM": 2, "TN": 2}, 9),
    ],
)
@pytest.mark.parametrize("block", [0, 1])
def test_the_sums_end_in_what_is_stored(stage, tunables, size, block):
    try:
        found = tracing.trace(stage, Problem(size, size, size), block=block, **tunables)
    except TilescopeError:
        assert block and stage.startswith("naive")
        return
    last = len(found.phases) - 1
    assert found.stores and {(r, c): v for _, r, c, v in found.stores} == {
        (r, c): s for (r, c, phase), s in found.sums.items() if phase == last
    }


def test_json_and_the_command_line(capsys):
    assert cli.main(["trace", "KERNEL=tiled", "TILE=2", "SIZE=4"]) == 0
    assert "C[1][1] = 228" in capsys.readouterr().out
    assert tracing.trace("tiled", TILE=2).to_json()["phases"][0]["sums"][3]["sum"] == 46
    assert cli.main(["trace", "tiled_no_first_barrier", "TILE=8", "SIZE=8"]) == 1
    assert "read-after-write" in capsys.readouterr().out


def test_what_is_too_much_or_not_there():
    with pytest.raises(TilescopeError, match="too much to read"):
        tracing.trace("tiled", Problem(512, 512, 512))
    with pytest.raises(TilescopeError, match="BLOCK=4: launch main has blocks 0 to 3"):
        tracing.trace("tiled", block=4, TILE=2)
    with pytest.raises(sim.Fault):
        tracing.trace("tiled_no_second_barrier", Problem(16, 16, 16), TILE=8)
