"""Counts in words, for whatever a person reads."""

from __future__ import annotations

from collections.abc import Sequence


def several(n: float, noun: str, plural: str = "s") -> str:
    """'1 block', '2 blocks', '4,096 blocks'; `plural` is what the noun takes on for more than one."""
    return f"{n:,.0f} {noun}{'' if n == 1 else plural}"


def listed(words: Sequence[str], most: int) -> str:
    """'a, b, c', or with more than `most` of them 'a, b and 5 more'."""
    rest = f" and {len(words) - most:,} more" if len(words) > most else ""
    return ", ".join(words[:most]) + rest
