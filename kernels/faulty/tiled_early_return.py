"""tiled_early_return: tiled with a bug, for teaching and tests."""

from dataclasses import replace

from harness.stage import find

tiled = find("tiled")


def launches(p, t):
    """The launches of tiled."""
    return [replace(launch, entry="tiled_early_return") for launch in tiled.launches(p, t)]


stage = replace(
    tiled,
    name="tiled_early_return",
    parent="tiled",
    idea="bug: threads beyond the edge leave before the barriers; found as a barrier not reached by all",
    launches=launches,
    claims=(),
    source=None,
)
