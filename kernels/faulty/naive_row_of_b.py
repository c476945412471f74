"""naive_row_of_b: naive with a bug, for teaching and tests."""

from dataclasses import replace

from harness.stage import find

naive = find("naive")


def launches(p, t):
    """The launches of naive."""
    return [replace(launch, entry="naive_row_of_b") for launch in naive.launches(p, t)]


stage = replace(
    naive,
    name="naive_row_of_b",
    parent="naive",
    idea="bug: B[col * ldb + k], a row of B for a column; found by the comparison with float64",
    launches=launches,
    claims=(),
    source=None,
)
