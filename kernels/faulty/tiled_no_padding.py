"""tiled_no_padding: tiled with a bug, for teaching and tests."""

from dataclasses import replace

from harness.stage import find

tiled = find("tiled")


def launches(p, t):
    """The launches of tiled."""
    return [replace(launch, entry="tiled_no_padding") for launch in tiled.launches(p, t)]


stage = replace(
    tiled,
    name="tiled_no_padding",
    parent="tiled",
    idea="bug: no zeros beyond the edge; found as reads of shared memory that nobody wrote",
    launches=launches,
    claims=(),
    source=None,
)
