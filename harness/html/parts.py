"""What the pages of all kinds of runs share: the problem's shape, who was timed, how the run was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .. import stage as stages
from ..errors import TilescopeError
from ..record import PRINTED, Run
from .page import Section, facts, say

ARTICLES = {
    "beginners": "\u201cTiled Matrix Multiplication in CUDA\u201d",
    "2D": "\u201c2D Block Tiling: Scaling Matrix Multiplication on NVIDIA H100\u201d",
    "deep dive": "\u201cTiled GEMM: Matrix Multiplication in CUDA\u201d",
    "the ladder": "what later stages claim of themselves",
}
"""What harness.statements and stages call the articles, as readers know them."""


def articles(places: Iterable[str]) -> list[dict[str, Any]]:
    """A line on the articles that places such as 'deep dive, 2' are in, or nothing."""
    known = dict.fromkeys(p.partition(",")[0] for p in places)
    words = "; ".join(f"{name}: {title}" for name, title in ARTICLES.items() if name in known)
    return [say(f"Article and section: {words}.")] if words else []


def shape(problem: Mapping[str, Any]) -> str:
    return f"{problem['m']:,} x {problem['n']:,} x {problem['k']:,}"


def known(rival: str) -> str:
    return {"cublas": "cuBLAS", "cublaslt": "cublasLt"}.get(rival, rival)


def contender(p: Mapping[str, Any]) -> str:
    return f"{known(p['stage'])} {stages.changed(p['stage'], p['tunables'])}".strip()


def idea(stage: str) -> str:
    """A stage's idea, or nothing for one from outside the checkout or one that is gone."""
    try:
        return stages.find(stage).idea
    except TilescopeError:
        return ""


def end(run: Run) -> list[Section]:
    """How the run was made, its files, and its text as it was printed."""
    blocks: list[dict[str, Any]] = [made(run.manifest)]
    for name in PRINTED:
        if (run.path / name).exists():
            blocks.append({"kind": "text", "title": f"{name}: as it was printed", "text": run.text(name)})
    if (run.path / "checksums.sha256").exists():
        blocks.append({"kind": "text", "title": "files and their SHA-256", "text": run.text("checksums.sha256")})
    return [Section("How it was made", "", blocks)]


def made(m: Mapping[str, Any]) -> dict[str, Any]:
    where, b = m.get("environment") or {}, m.get("binary") or {}
    git = where.get("git") or {}
    hashes = {"sass": m.get("sass", ""), **(b.get("hashes") or {})}
    nvml = m.get("nvml") or (m.get("timing") or {}).get("nvml") or {}
    counted = (m.get("measured") if m.get("kind") == "profile" else None) or {}
    return facts([
        ("run", m.get("id")), ("kind", m.get("kind")), ("started", m.get("started")), ("ended", m.get("ended")),
        ("commit", f"{git['commit'][:12]}{', with changes' if git.get('dirty') else ''}" if git.get("commit") else ""),
        ("machine code", hashes["sass"]), ("cubin", hashes.get("cubin")),
        ("compiler", f"nvcc {b.get('nvcc') or m.get('nvcc')} {' '.join(b.get('flags') or [])}" if b.get("nvcc") or m.get("nvcc") else ""),
        ("GPU", f"{m.get('gpu') or (m.get('timing') or {}).get('gpu') or ''}{', driver ' + nvml['driver'] if nvml.get('driver') else ''}"),
        ("Nsight Compute", counted.get("ncu")),
        ("Python", where.get("python")), ("packages", ", ".join(f"{k} {v}" for k, v in (where.get("packages") or {}).items())),
        ("host", f"{where.get('cpu', '')}, {where.get('cores', '')} cores, {where.get('system', '')}" if where else ""),
    ])  # fmt: skip
