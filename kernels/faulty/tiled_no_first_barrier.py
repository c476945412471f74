"""tiled_no_first_barrier: tiled with a bug, for teaching and tests."""

from dataclasses import replace

from harness.stage import find

tiled = find("tiled")


def launches(p, t):
    """The launches of tiled."""
    return [replace(launch, entry="tiled_no_first_barrier") for launch in tiled.launches(p, t)]


stage = replace(
    tiled,
    name="tiled_no_first_barrier",
    parent="tiled",
    idea="bug: no barrier after the loads; found as a read-after-write hazard between warps",
    launches=launches,
    claims=(),
    source=None,
)
