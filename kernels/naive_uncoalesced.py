"""naive_uncoalesced: naive with x and y swapped, to show what coalescing is worth."""

from harness.stage import Claim, Launch, Stage, ceil_div

BLOCK = 32


def launches(p, t):
    """One launch whose x counts blocks of rows, and whose y counts blocks of columns."""
    grid = (ceil_div(p.m, BLOCK), ceil_div(p.n, BLOCK), 1)
    return [
        Launch(
            "naive_uncoalesced",
            grid,
            (BLOCK, BLOCK, 1),
            tile=(BLOCK, BLOCK),
            origin=lambda x, y, z: (x * BLOCK, y * BLOCK),
        )
    ]


stage = Stage(
    name="naive_uncoalesced",
    parent="naive",
    idea="naive with x and y swapped: the right answer, by strided reads and writes",
    launches=launches,
    claims=(
        Claim(
            says="arithmetic intensity is 0.25 FLOP per byte, as in naive: the order of the lanes does not enter it",
            article="deep dive, 1",
            metrics=("arithmetic_intensity", "arithmetic_intensity_sectors"),
            expect=lambda c: 0.25,
            when=lambda c: c.p.beta == 0,
            why="The lanes ask for the same bytes, but each lane's element of A now lies in a sector of its own:"
            " 33 sectors a warp and step where naive needs 5. Intensity per byte moved shows what the formula cannot.",
        ),
    ),
)
