"""What the lanes of one warp ask of memory: the frames behind bank maps and coalescing maps, from the simulator's trace.

For every source line that touches memory one access stands for all: the costliest that the traced block makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from . import sim
from .metrics import SECTOR, WORD

if TYPE_CHECKING:
    from .profiling import Profile

BANKS = 32
LANES = 32
KEYS = ["file", "line", "op"]
SHARED = (*KEYS, "text", "opcode", "lane", "bank", "word", "words", "wavefronts", "ideal")
GLOBAL = (*KEYS, "text", "opcode", "lane", "sector", "bytes", "used", "sectors", "ideal")


def trace(profile: Profile, launch: int = 0, block: int = 0) -> pd.DataFrame:
    """Every access of one block to memory, as sim.trace gives it. launch: its number among the profile's parts."""
    part = profile.parts[launch]
    return sim.trace(profile.binary, part.launch, profile.problem, profile.problem.operands(), block=block)


def shared(profile: Profile, launch: int = 0, block: int = 0) -> pd.DataFrame:
    """The shared-memory accesses of a block, the one with the most wavefronts for each line: a row a lane and word.

    Columns SHARED. word: address / 4; bank: word mod 32; words: different words that the bank must serve for lanes that
    are served together (32 of them for accesses of up to 4 bytes, 16 for 8, 8 for 16); wavefronts: what the access takes;
    ideal: what it would take with no conflict. Empty where the stage uses no shared memory.
    """
    steps = _steps(profile, launch, block, "shared")
    if steps.empty:
        return pd.DataFrame(columns=list(SHARED))
    steps["word"] = steps.address // WORD
    steps["bank"] = steps.word % BANKS
    width = steps.groupby("step")["word_of"].transform("max") + 1
    steps["together"] = steps.lane // (LANES // width)
    steps["words"] = steps.groupby(["step", "together", "bank"])["word"].transform("nunique")
    groups = steps.groupby(["step", "together"])["words"].max().groupby("step").agg(wavefronts="sum", ideal="size")
    return _costliest(steps.join(groups, on="step"), "wavefronts")[list(SHARED)]


def global_(profile: Profile, launch: int = 0, block: int = 0) -> pd.DataFrame:
    """The accesses of a block to global memory, the one with the most sectors for each line: a row a lane and sector.

    Columns GLOBAL. sector: its rank among those that the access touches, by address; bytes: what the lane asks of it;
    used: what all lanes together ask of it, of 32; sectors: how many the access touches; ideal: how many would hold its
    bytes.
    """
    steps = _steps(profile, launch, block, "global")
    if steps.empty:
        return pd.DataFrame(columns=list(GLOBAL))
    steps["at"] = steps.address // SECTOR
    steps["sector"] = steps.groupby("step")["at"].rank("dense").astype(int) - 1
    together = steps.groupby(["step", "at"]).address.nunique() * WORD
    steps = steps.join(together.rename("used"), on=["step", "at"])
    totals = together.groupby("step").agg(sectors="size", ideal=lambda used: -(-used.sum() // SECTOR))
    one = _costliest(steps.join(totals, on="step"), "sectors")
    keys = [name for name in GLOBAL if name != "bytes"]
    return one.groupby(keys, sort=False).size().mul(WORD).rename("bytes").reset_index()[list(GLOBAL)]


def _steps(profile: Profile, launch: int, block: int, space: str) -> pd.DataFrame:
    """The traced accesses to one space, with the source line's file and text; atomics are left out."""
    table = trace(profile, launch, block)
    table = table[(table.space == space) & table.op.isin(("load", "store", "copy"))].rename(columns={"word": "word_of"})
    places = {
        i.pc: (i.file, profile.binary.source_line(i.file, i.line)) for i in profile.parts[launch].kernel.instructions
    }
    return table.assign(
        lane=table.thread % LANES,
        file=[places[pc][0] for pc in table.pc],
        text=[places[pc][1] for pc in table.pc],
    )


def _costliest(steps: pd.DataFrame, cost: str) -> pd.DataFrame:
    """For each line and kind of access, the rows of its costliest access; among equals, that with the most lanes, then the first."""
    each = steps.groupby([*KEYS, "step"], sort=False).agg(cost=(cost, "max"), lanes=("lane", "nunique")).reset_index()
    each = each.sort_values(["cost", "lanes", "step"], ascending=[False, False, True]).drop_duplicates(KEYS)
    return steps[steps.step.isin(each.step)].sort_values(["file", "line", "op", "lane", "word_of"])
