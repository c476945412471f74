"""One warp instruction at a time against what an H200 counted for it: 216 addresses patterns, masks and widths."""

import csv
from pathlib import Path

import numpy as np
import pytest

from harness.sim import engine

PROBES = list(csv.DictReader((Path(__file__).parents[1] / "data" / "memory_probes_h200.csv").open()))
KINDS = {
    ("global", "load"): "global",
    ("global", "store"): "global",
    ("shared", "load"): "load",
    ("shared", "store"): "store",
}


def test_all_probes_are_there():
    assert len(PROBES) == 216


@pytest.mark.parametrize("probe", PROBES, ids=[p["name"] for p in PROBES])
@pytest.mark.parametrize("base", [0, 4096])
def test_probe(probe, base):
    offsets = np.array(probe["lane_offsets"].split(), np.int64) + base
    kind = KINDS[probe["space"], probe["op"]]
    cost = engine.load().access(offsets, int(probe["active_mask"], 16), int(probe["bytes_per_lane"]), kind)
    if probe["space"] == "global":
        assert (cost["requests"], cost["sectors"]) == (int(probe["requests"]), int(probe["sectors"]))
    else:
        assert cost["wavefronts"] == int(probe["wavefronts"])
        assert cost["wavefronts"] - cost["wavefronts_ideal"] == int(probe["bank_conflicts"])
