"""cpasync_no_wait: cpasync with a bug, for teaching and tests."""

from dataclasses import replace

from harness.stage import find

cpasync = find("cpasync")


def launches(p, t):
    """The launches of cpasync."""
    return [replace(launch, entry="cpasync_no_wait") for launch in cpasync.launches(p, t)]


stage = replace(
    cpasync,
    name="cpasync_no_wait",
    parent="cpasync",
    idea="bug: waits for one group of copies too few; found as a tile that is read before it has landed",
    launches=launches,
    claims=(),
    source=None,
)
