"""On an NVIDIA GPU: compute-sanitizer is clean on every stage, and finds the races that the simulator finds."""

from __future__ import annotations

from pathlib import Path

import pytest

import harness
from harness import sanitize, stage
from harness.stage import KERNELS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(sanitize.find() is None, reason="no compute-sanitizer")]


@pytest.mark.parametrize("name", stage.names())
def test_every_stage_is_clean(name: str) -> None:
    done = sanitize.sanitize(name)
    assert done.ok, [(r.tool, r.why, r.issues) for r in done.results]


RACY = sorted(p.stem for p in Path(KERNELS, "faulty").glob("tiled_no_*_barrier.py"))


@pytest.mark.parametrize("name", RACY)
def test_racecheck_agrees_with_the_simulator(name: str) -> None:
    """Both name a race, on the same source line."""
    fault = harness.profile(name, size=64, backend="sim", record=False).fault
    assert fault is not None and fault.kind.startswith("race")
    done = sanitize.sanitize(name, tools=("racecheck",))
    races = [i for i in done.issues if i.what.startswith("Race")]
    lines = {line for i in races for line in (i.line, *(o.line for o in i.others))}
    assert fault.line in lines
