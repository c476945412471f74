"""compute-sanitizer's output into findings with lines; its command; a tool that did not run is never called clean."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import cli, gpu_report, sanitize, sim, stage, toolchain
from harness.errors import TilescopeError
from harness.problem import Problem
from harness.sanitize import CLEAN, FOUND_SOME, NOT_RUN, Sanitizer

DATA = Path(__file__).parent / "data/sanitizer"
PROBLEM = Problem(64, 64, 64)


def text(name: str) -> str:
    return (DATA / f"{name}.txt").read_text()


def test_memcheck() -> None:
    read, crash = sanitize.parse("memcheck", text("memcheck"))
    assert read.what == "Invalid __global__ read of size 4 bytes" and read.count == 2
    assert (read.kernel, read.file, read.line) == ("naive_no_guard", "naive_no_guard.cu", 21)
    assert (read.thread, read.block) == ("(31,5,0)", "(2,0,0)")
    assert "out of bounds" in read.detail and "nearest allocation" in read.detail
    assert crash.what.startswith("Program hit CUDA_ERROR_LAUNCH_FAILED") and not crash.file
    assert read.where == "naive_no_guard.cu:21 in naive_no_guard"


def test_racecheck() -> None:
    race, warning = sanitize.parse("racecheck", text("racecheck"))
    assert race.what == "Race reported between Write" and race.severity == "error"
    assert (race.file, race.line) == ("tiled_no_first_barrier.cu", 31)
    assert [(o.kind, o.line, o.hazards) for o in race.others] == [("Read", 36, 229376), ("Read", 36, 253952)]
    assert warning.severity == "warning" and warning.others[0].kind == "Write"
    assert sanitize.summary(text("racecheck")) == 2


def test_older_format() -> None:
    (race,) = sanitize.parse("racecheck", text("racecheck_cuda11"))
    assert (race.kernel, race.file, race.line) == ("sumKernel", "block_error.cu", 41)
    assert (race.others[0].file, race.others[0].line) == ("block_error.cu", 51)


def test_initcheck_counts_what_was_not_printed() -> None:
    result = sanitize.judge("initcheck", PROBLEM, text("initcheck"), sanitize.FOUND)
    assert result.verdict == FOUND_SOME and result.reported == 257
    assert (result.issues[0].file, result.issues[0].line) == ("naive.cu", 28)


def test_synccheck_takes_the_line_outside_cudas_headers() -> None:
    divergent, arguments = sanitize.parse("synccheck", text("synccheck"))
    assert (divergent.what, divergent.line) == ("Barrier error detected. Divergent thread(s) in warp", 24)
    assert (arguments.kernel, arguments.file, arguments.line) == ("broken_sync", "kernel.cu", 12)


@pytest.mark.parametrize(
    "name, status, verdict, why",
    [
        ("clean", 0, CLEAN, ""),
        ("racecheck_clean", 0, CLEAN, ""),
        ("clean", 1, CLEAN, "status 1"),
        ("clean", 2, NOT_RUN, "status 2"),
        ("clean", -9, NOT_RUN, "status -9"),
        ("no_gpu", 255, NOT_RUN, "there is no NVIDIA driver"),
        ("unsupported", 1, NOT_RUN, "does not support this GPU"),
        ("memcheck", sanitize.FOUND, FOUND_SOME, ""),
    ],
)
def test_verdicts(name: str, status: int, verdict: str, why: str) -> None:
    result = sanitize.judge("memcheck", PROBLEM, text(name), status)
    assert result.verdict == verdict and why in result.why


def test_output_cut_short_is_not_clean() -> None:
    assert sanitize.judge("memcheck", PROBLEM, "========= COMPUTE-SANITIZER\n", 0).verdict == NOT_RUN
    assert sanitize.judge("memcheck", PROBLEM, "", 0).verdict == NOT_RUN
    unknown = "========= A finding of a kind not known here\n========= ERROR SUMMARY: 1 error\n"
    assert sanitize.judge("memcheck", PROBLEM, unknown, sanitize.FOUND).verdict == NOT_RUN


NEVER = {"tiled2d": {50, 51, 52, 53, 142, 143, 148}}
"""Lines with instructions for K < 1, which is no problem, and for what four at a time leave of eight rounds of a loop."""


@pytest.mark.parametrize("name", stage.names())
def test_problems_are_small_and_reach_every_instruction(name: str) -> None:
    s = stage.find(name)
    chosen = s.configure()
    binary = toolchain.compile(s, chosen, 90)
    reached: set[tuple[str, int]] = set()
    for p in sanitize.problems(chosen):
        assert max(p.m, p.n) <= 256 and p.k <= 160
        for part in sim.run(binary, s.plan(p, chosen), p, p.operands()).launches:
            reached.update((part.kernel.name, pc) for pc in part.counts.index[part.counts.executed > 0])
    missed = {
        i.line
        for kernel in binary.kernels.values()
        for i in kernel.instructions
        if (kernel.name, i.pc) not in reached and i.opcode.split(".")[0] not in ("NOP", "BRA")
    }
    assert missed == NEVER.get(name, set())


@pytest.mark.parametrize("tile", [1, 2, 3, 5, 256])
def test_problems_suit_every_tile(tile: int) -> None:
    assert len({str(p) for p in sanitize.problems({"TILE": tile})}) == 5


FAKE = """#!{python}
import pathlib, sys
if sys.argv[1:] == ["--version"]:
    print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.3.1.0 (build 36400806) (public-release)")
    sys.exit(0)
tool = sys.argv[sys.argv.index("--tool") + 1]
with open(pathlib.Path(__file__).with_name("calls"), "a") as f:
    f.write(" ".join(sys.argv[1:]) + "\\n")
found = tool in {found!r}
name = tool if found else "racecheck_clean" if tool == "racecheck" else "clean"
print(pathlib.Path({data!r}, name + ".txt").read_text(), end="")
sys.exit(86 if found else 0)
"""


@pytest.fixture
def sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A compute-sanitizer that finds something with the tools named."""

    def make(*found: str) -> Path:
        path = tmp_path / "compute-sanitizer"
        path.write_text(FAKE.format(python=sys.executable, found=set(found), data=str(DATA)))
        path.chmod(0o755)
        monkeypatch.setattr(sanitize, "find", lambda: Sanitizer(path, "2025.3.1"))
        monkeypatch.setattr(sanitize, "architecture", lambda gpu: 90)
        return path

    return make


def test_every_tool_on_every_problem(sanitizer) -> None:
    path = sanitizer()
    done = sanitize.sanitize("naive")
    assert done.ok and [r.tool for r in done.results] == [t for t in sanitize.TOOLS for _ in range(5)]
    calls = path.with_name("calls").read_text().splitlines()
    assert len(calls) == 20 and all(
        "--error-exitcode 86" in c and "launch KERNEL=naive" in c and "CUBIN=" in c for c in calls
    )


def test_findings_end_with_status_1_and_their_lines(sanitizer, capsys: pytest.CaptureFixture) -> None:
    sanitizer("racecheck")
    assert cli.main(["sanitize", "tiled", "SIZE=64", "TILE=16", "TOOLS=memcheck,racecheck"]) == 1
    out = capsys.readouterr().out
    assert "tiled_no_first_barrier.cu:31" in out and "with the read at tiled_no_first_barrier.cu:36" in out
    assert "64x64x64" in out and "TILE=16" in out and "clean" in out


def test_a_clean_stage_ends_with_status_0(sanitizer, capsys: pytest.CaptureFixture) -> None:
    sanitizer()
    assert cli.main(["sanitize", "naive", "SIZE=32", "JSON=-"]) == 0
    assert '"ok": true' in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, said",
    [
        (["naive", "TOOLS=memchek"], "Did you mean memcheck"),
        (["naive", "BETA=2"], "BETA only with a size"),
        (["naive", "TILE=4"], "unknown TILE"),
        ([], "KERNEL"),
    ],
)
def test_bad_input(sanitizer, capsys: pytest.CaptureFixture, words: list[str], said: str) -> None:
    sanitizer()
    assert cli.main(["sanitize", *words]) == 2
    assert said in capsys.readouterr().err


def test_none_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitize, "find", lambda: None)
    with pytest.raises(TilescopeError, match="not installed"):
        sanitize.sanitize("naive")


def test_a_tool_past_its_limit_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "slow"
    path.write_text("#!/bin/sh\nsleep 60\n")
    path.chmod(0o755)
    monkeypatch.setattr(sanitize, "find", lambda: Sanitizer(path, "2025.3.1"))
    monkeypatch.setattr(sanitize, "architecture", lambda gpu: 90)
    done = sanitize.sanitize("naive", problem=PROBLEM, tools=("memcheck",), limit=0.5)
    assert done.results[0].verdict == NOT_RUN and "limit" in done.results[0].why and not done.ok
    assert "limit" in gpu_report.render_sanitized(done)


def test_the_same_finding_on_two_problems_is_one() -> None:
    results = [sanitize.judge("memcheck", PROBLEM, text("memcheck"), sanitize.FOUND)] * 2
    done = sanitize.Sanitized(stage.find("naive"), {}, "2025.3.1", results)
    assert [i.count for i in done.issues] == [4, 2]


def test_found_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "cuda/bin"
    home.mkdir(parents=True)
    path = home / "compute-sanitizer"
    path.write_text(FAKE.format(python=sys.executable, found=set(), data=str(DATA)))
    path.chmod(0o755)
    assert path in sanitize.candidates({"CUDA_HOME": str(tmp_path / "cuda"), "PATH": ""})
    monkeypatch.setattr(sanitize, "candidates", lambda: [tmp_path / "absent", path])
    assert sanitize.find.__wrapped__() == Sanitizer(path, "2025.3.1.0")


def test_without_a_gpu_it_says_so_at_once(
    sanitizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def none(gpu: str | None) -> int:
        raise TilescopeError("there is no NVIDIA driver", "Install it.")

    sanitizer()
    monkeypatch.setattr(sanitize, "architecture", none)
    assert cli.main(["sanitize", "naive"]) == 2
    assert "no NVIDIA driver" in capsys.readouterr().err


def test_what_an_h200s_compute_sanitizer_printed():
    """Recorded with compute-sanitizer 2025.3.1: racecheck of tiled_no_first_barrier, memcheck of naive_no_guard."""
    data = Path(__file__).parent / "data/sanitizer"
    races = sanitize.parse("racecheck", (data / "racecheck_h200.txt").read_text())
    assert {i.line for i in races} == {24, 25} and all("tiled_no_first_barrier.cu" in i.file for i in races)
    assert {o.line for i in races for o in i.others} == {29}
    (invalid,) = sanitize.parse("memcheck", (data / "memcheck_h200.txt").read_text())
    assert (invalid.line, invalid.count) == (18, 2) and "read of size 4" in invalid.what
