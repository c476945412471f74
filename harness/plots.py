"""Pictures: each one function from results to a matplotlib Figure, with units and the device in the caption.

Colours are from Okabe and Ito's palette, which colour-blind readers can tell apart and print keeps apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from .errors import TilescopeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .profiling import Profile

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#999999"
BANKS = 32


def _figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=140, layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)


def accesses(profile: Profile, launch: int = 0, block: int = 0) -> pd.DataFrame:
    """Every access of one block to memory, as sim.trace gives it."""
    from . import sim

    part = profile.parts[launch]
    return sim.trace(profile.binary, part.launch, profile.problem, profile.problem.operands(), block=block)


def bank_map(ax: Axes, steps: pd.DataFrame, title: str) -> None:
    """Lane by bank: which word of which bank each lane of a warp asks for in one shared-memory instruction.

    steps: the rows of one step of sim.trace. Lanes that want the same word share a colour; a bank that must serve several
    words is marked: it takes as many wavefronts.
    """
    lanes = steps.thread.to_numpy() % BANKS
    words = steps.address.to_numpy() // 4
    banks = words % BANKS
    served = pd.Series(words).groupby(banks).nunique()
    crowded = np.isin(banks, served.index[served > 1])
    ax.scatter(banks[~crowded], lanes[~crowded], marker="s", s=14, color=BLUE, label="one word in this bank")
    if crowded.any():
        most = served.max()
        ax.scatter(
            banks[crowded], lanes[crowded], marker="s", s=14, color=ORANGE, label=f"up to {most} words in one bank"
        )
    ax.set(xlim=(-0.7, BANKS - 0.3), ylim=(BANKS - 0.3, -0.7), xlabel="bank", ylabel="lane of the warp", title=title)
    ax.set_xticks(range(0, BANKS, 4))
    ax.set_yticks(range(0, BANKS, 4))
    ax.grid(color="#dddddd", linewidth=0.5)
    ax.set_axisbelow(True)
    ax.legend(loc="lower right", fontsize=7, framealpha=1)


def bounds(ax: Axes, profile: Profile) -> None:
    """The least time that each resource needs for the counted work, largest first."""
    found = sorted((b for b in profile.bounds if b.seconds > 0), key=lambda b: b.seconds)  # nan where no width is known
    seconds = np.array([b.seconds for b in found])
    unit, scale = ("us", 1e6) if seconds.max() < 1e-3 else ("ms", 1e3)
    colours = [ORANGE if b is found[-1] else BLUE if b.verified else GREY for b in found]
    bars = ax.barh([b.name for b in found], seconds * scale, color=colours)
    ax.bar_label(bars, [f"{s * scale:.3g}" for s in seconds], padding=3, fontsize=7)
    ax.set(
        xlabel=f"least time, {unit} (a bound, not a time; grey: width not verified)",
        title="What bounds it",
        xlim=(0, seconds.max() * scale * 1.12),
    )
    ax.spines[["top", "right"]].set_visible(False)


def overview(profile: Profile, line: str) -> Figure:
    """Two pictures of a profile: the banks of one shared load, named by the source line's text, and the bounds.

    Raises TilescopeError where no executed shared-memory access stands on such a line.
    """
    kernel = profile.parts[0].kernel
    wanted = {i.pc for i in kernel.instructions if profile.binary.source_line(i.file, i.line).startswith(line)}
    steps = accesses(profile)
    steps = steps[(steps.space == "shared") & steps.pc.isin(wanted)]
    if steps.empty:
        raise TilescopeError(f"no shared-memory access on a line that starts with {line!r}.")
    one = steps[steps.step == steps.step.iloc[0]]
    instruction = next(i for i in kernel.instructions if i.pc == one.pc.iloc[0])
    figure, (left, right) = _figure(10, 4.2, 2)
    bank_map(
        left,
        one,
        f"Line {instruction.line}, {instruction.opcode}: {profile.binary.source_line(instruction.file, instruction.line)}",
    )
    bounds(right, profile)
    figure.suptitle(
        f"{profile.stage.name}, {profile.problem}, {profile.device.title} ({profile.device.arch}), simulated",
        fontsize=10,
    )
    return figure
