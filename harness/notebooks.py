"""`make notebooks`: execute the notebooks of analysis/ and keep what they show, the same on every machine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from . import disk
from .environment import ROOT
from .errors import TilescopeError

ANALYSIS = ROOT / "analysis"
LIMIT_S = 600
"""Seconds a cell may take."""


def found(name: str | None = None) -> list[Path]:
    """The notebooks of analysis/ whose names begin with `name`, in order. Raises TilescopeError if there is none."""
    paths = sorted(p for p in ANALYSIS.glob("*.ipynb") if p.name.startswith(name or ""))
    if not paths:
        known = ", ".join(p.stem for p in sorted(ANALYSIS.glob("*.ipynb"))) or "none"
        raise TilescopeError(
            f"no notebook begins with {name!r}." if name else "analysis/ has no notebook.", f"Known: {known}."
        )
    return paths


def execute(
    name: str | None = None, progress: Callable[[float, str], None] | None = None, keep: bool = True
) -> dict[str, float]:
    """Execute notebooks in order; gives the seconds each took.

    keep: write the outputs into the notebook. Raises TilescopeError where Jupyter is missing, or a cell raises: then its
    notebook is left as it was.
    """
    try:
        import nbformat
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    except ImportError as e:
        raise TilescopeError("Jupyter is not installed.", "Run `make notebooks`, or pip install '.[lab]'.") from e
    paths, seconds = found(name), {}
    for n, path in enumerate(paths):
        if progress:
            progress(n / len(paths), path.stem)
        start = time.perf_counter()
        try:
            notebook = nbformat.read(path, as_version=4)
        except (OSError, ValueError) as e:
            raise TilescopeError(f"{path.name} cannot be read: {e}") from e
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "PYTHONHASHSEED": "0",
        }
        client = NotebookClient(
            notebook,
            timeout=LIMIT_S,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(ANALYSIS)}},
        )
        client.extra_arguments = ["--log-level=40"]  # no words about the transport
        try:
            client.execute(env=environment)
        except CellExecutionError as e:
            raise TilescopeError(f"{path.name}: a cell raised {e.ename}: {e.evalue}", "Open it with `make lab`.") from e
        except (CellTimeoutError, DeadKernelError) as e:
            raise TilescopeError(f"{path.name}: {str(e).splitlines()[0]}") from e
        if keep:
            disk.write(path, json.dumps(tidy(notebook), indent=1, ensure_ascii=False, sort_keys=True) + "\n")
        seconds[path.stem] = time.perf_counter() - start
    return seconds


def tidy(notebook: dict) -> dict:
    """A notebook without what differs from machine to machine: versions, times, and the text beside a picture."""
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}, "language_info": {"name": "python"},
    }  # fmt: skip
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        for output in cell.get("outputs", ()):
            output.get("metadata", {}).clear()
            data = output.get("data", {})
            if "image/png" in data:
                data.pop("text/plain", None)
    return notebook
