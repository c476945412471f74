"""Which backend executes a stage: `gpu` where there is one, else `sim`."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import TilescopeError, nearest

BACKENDS = ("auto", "sim", "gpu")


def choose(name: str) -> str:
    """'gpu' or 'sim'. Raises TilescopeError for an unknown name, or for 'gpu' where it cannot work, saying what is missing."""
    if name not in BACKENDS:
        raise TilescopeError(
            f"unknown BACKEND {name!r}.{nearest(name, list(BACKENDS))}", f"Choose one of {', '.join(BACKENDS)}."
        )
    if name == "sim":
        return "sim"
    missing = gpu_missing()
    if name == "gpu" and missing:
        raise TilescopeError(f"BACKEND=gpu cannot work here: {missing}.", "Use BACKEND=sim, which needs no GPU.")
    return "sim" if missing else "gpu"


def gpu_missing() -> str:
    """What the gpu backend lacks on this machine, or nothing."""
    if find_spec("harness.gpu") is None:
        return "this version has no gpu backend"
    from .gpu import devices

    try:
        devices.gpus()
    except TilescopeError as e:
        return e.what
    if find_spec("pycuda") is None:
        return "PyCUDA is not installed"
    return ""
