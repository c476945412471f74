"""naive_no_k: naive with a bug, for teaching and tests."""

from dataclasses import replace

from harness.stage import find

naive = find("naive")


def launches(p, t):
    """The launches of naive."""
    return [replace(launch, entry="naive_no_k") for launch in naive.launches(p, t)]


stage = replace(
    naive,
    name="naive_no_k",
    parent="naive",
    idea="bug: B[row * ldb + col], no k in the index; found by the comparison with float64",
    launches=launches,
    claims=(),
    source=None,
)
