"""naive_mixed_axes: naive with a bug that square blocks hide, so its block shape can be chosen."""

from harness.stage import Launch, Rule, Stage, ceil_div


def launches(p, t):
    """The launch of naive, with blocks of BX x BY threads. The tiles are what the blocks are meant to own."""
    grid = (ceil_div(p.n, t.BX), ceil_div(p.m, t.BY), 1)
    return [Launch("naive_mixed_axes", grid, (t.BX, t.BY, 1), tile=(t.BY, t.BX))]


stage = Stage(
    name="naive_mixed_axes",
    parent="naive",
    idea="bug: blockDim.x in the row index; found by cells of C never written (BX > BY) or written twice (BX < BY)",
    launches=launches,
    tunables={"BX": 32, "BY": 8},
    rules=(Rule("a block of BX * BY threads must have at most 1024", lambda t: t.BX * t.BY <= 1024),),
)
