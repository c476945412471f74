"""Before any test: what most of them need and pip cannot bring, named once rather than by hundreds of failures."""

from __future__ import annotations

import os

import pytest

from harness import preflight, toolchain


def missing() -> list[str]:
    """What keeps stages and the simulator's engine from being compiled here, each with its remedy."""
    return [f"{p.what}\n       {p.remedy}" for p in preflight.compiler_problems(preflight.gather(toolchain.ROOT))]


def pytest_configure(config: pytest.Config) -> None:
    carried = os.environ.get("TILESCOPE_CACHE")  # may hold what was compiled elsewhere
    if carried or hasattr(config, "workerinput") or config.option.collectonly:
        return
    if found := missing():
        raise pytest.UsageError("\n       ".join(found))
