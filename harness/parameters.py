"""The arguments of a launch as the kernel's parameter bytes: the same on the simulator and on a GPU."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from .cubin import Function
from .errors import TilescopeError
from .problem import Problem
from .stage import Launch

_FORMS = {(8, int): "<Q", (4, int): "<i", (4, float): "<f"}


def values(launch: Launch, problem: Problem, addresses: Mapping[str, int]) -> list[int | float]:
    """A launch's arguments in order; matrices become addresses. Raises TilescopeError on an unknown name."""
    known: dict[str, int | float] = {
        "M": problem.m, "N": problem.n, "K": problem.k, "alpha": problem.alpha, "beta": problem.beta,
        "lda": problem.lda, "ldb": problem.ldb, "ldc": problem.ldc, **addresses,
    }  # fmt: skip
    found: list[int | float] = []
    for a in launch.args:
        if isinstance(a, str) and a not in known:
            raise TilescopeError(
                f"launch {launch.label} names an unknown argument {a!r}; known: {', '.join(known)}.",
                "Correct Launch.args in the stage's .py file.",
            )
        found.append(known[a] if isinstance(a, str) else a)
    return found


def pack(function: Function, launch: Launch, problem: Problem, addresses: Mapping[str, int]) -> bytes:
    """The parameter block, `function.param_bytes` long, as the machine code expects it.

    Raises TilescopeError where the number or the sizes of the arguments are not those of the kernel.
    """
    if len(launch.args) != len(function.params):
        raise TilescopeError(
            f"kernel {function.name} takes {len(function.params)} arguments; launch {launch.label} gives {len(launch.args)}.",
            "Correct Launch.args in the stage's .py file.",
        )
    block = bytearray(function.param_bytes)
    for (offset, size), value in zip(function.params, values(launch, problem, addresses), strict=True):
        form = _FORMS.get((size, type(value)))
        if form is None:
            raise TilescopeError(
                f"kernel {function.name}: argument at byte {offset} takes {size} bytes; {value!r} does not fit it.",
                "Correct Launch.args in the stage's .py file.",
            )
        try:
            struct.pack_into(form, block, offset, value)
        except (struct.error, OverflowError):
            raise TilescopeError(
                f"kernel {function.name}: argument at byte {offset} takes {size} bytes; {value!r} is too large for it.",
                "Correct Launch.args in the stage's .py file.",
            ) from None
    return bytes(block)
