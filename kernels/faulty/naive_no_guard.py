"""naive_no_guard: naive with a bug, for teaching and tests."""

from dataclasses import replace

from harness.stage import find

naive = find("naive")


def launches(p, t):
    """The launches of naive."""
    return [replace(launch, entry="naive_no_guard") for launch in naive.launches(p, t)]


stage = replace(
    naive,
    name="naive_no_guard",
    parent="naive",
    idea="bug: no edge guard; found as accesses outside the matrices where 32 does not divide M and N",
    launches=launches,
    claims=(),
    source=None,
)
