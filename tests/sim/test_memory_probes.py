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


@pytest.mark.parametrize(
    "stride, width, passes",
    [(4, 4, 1), (0, 4, 1), (128, 4, 32), (132, 4, 1), (8, 8, 2), (16, 16, 4), (0, 16, 4), (64, 4, 16)],
)
def test_global_memory_passes_the_data_stage_by_banks(stride, width, passes):
    """Timed on an H200: lines in different banks take one pass, a broadcast of 16 bytes takes its four quarters."""
    cost = engine.load().access(np.arange(32) * stride, 0xFFFFFFFF, width, "global")
    assert cost["data_wavefronts"] == passes and cost["wavefronts"] == 0
