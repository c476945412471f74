"""Tables of many stages, on small problems, without anything recorded."""

import math

import pytest

from harness import record, survey
from harness.errors import TilescopeError
from harness.ledger import Evidence


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(record, "PROFILES", tmp_path_factory.mktemp("profiles"))
    patch.setattr(record, "ROOT", tmp_path_factory.mktemp("root"))
    found = Evidence("h200")
    assert found.ladder is None and found.roofs is None
    yield found
    patch.undo()


@pytest.fixture(scope="module")
def table(evidence):
    return survey.ladder(evidence, 256)


def test_ladder(table):
    names = list(table.stage)
    assert names[0] == "naive" and {"tiled", "tiled2d"} <= set(names)
    assert table.tflops.isna().all() and (table.attainable > 0).all() and table.bottleneck.notna().all()


def test_what_follows_from_it(evidence, table):
    points = survey.roofline(table)
    assert set(points.kind) == {"bound"} and len(points) == len(table)
    before, after = survey.conflicts(table)
    assert before == "tiled2d" and after != before
    with pytest.raises(TilescopeError, match="fewer than two"):
        survey.conflicts(table.iloc[:1])
    assert survey.widths(evidence) == {}
    assert "bounds, not times" in survey.caption(evidence.device, 256) and "run r" in survey.caption(
        evidence.device, 256, "r"
    )


def test_register_reads(evidence, table):
    reads = survey.register_reads(evidence, table[table.stage == "tiled2d"]).set_index("name")
    assert reads.reads["3 register reads"] == pytest.approx(3, abs=0.1) and reads.reads[
        "1 register read"
    ] == pytest.approx(1, abs=0.05)
    assert reads.model["3 register reads"] < 0.7 < reads.model["2 register reads"] <= 1
    assert reads.kind["tiled2d"] == "stage" and reads.measured.isna().all() and 0 < reads.model["tiled2d"] < 1


def test_variants(evidence):
    table = survey.variants(evidence, [("tiled", {"TILE": 16}), ("tiled", {"TILE": 7000})], 256)
    assert list(table.tunables) == ["TILE=16"] and table.occupancy[0] == 100


def test_claims(evidence):
    table = survey.all_claims(evidence, 256)
    assert {"tiled", "tiled2d"} <= set(table.stage) and all(math.isnan(x) for x in table.measured)
    disputed = survey.disputed(table)
    assert 0 < len(disputed) < len(table) and "a block has TILE x TILE threads" not in set(disputed.claim)
