"""Counts in words, for whatever a person reads."""

from __future__ import annotations


def several(n: float, noun: str, plural: str = "s") -> str:
    """'1 block', '2 blocks', '4,096 blocks'; `plural` is what the noun takes on for more than one."""
    return f"{n:,.0f} {noun}{'' if n == 1 else plural}"
