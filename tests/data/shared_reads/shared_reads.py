"""shared_reads: one load from shared memory for each width and pattern of addresses, to count what each takes."""

from harness.stage import Launch, Stage, ceil_div

stage = Stage(
    name="shared_reads",
    idea="one load from shared memory for each width and pattern of addresses",
    launches=lambda p, t: [Launch("shared_reads", (ceil_div(p.n, 32), p.m, 1), (32, 1, 1), tile=(1, 32))],
)
