"""compute-sanitizer over a stage's launches: its four tools, small problems, findings with source lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from . import stage as stages
from . import toolchain, watched
from .errors import TilescopeError, nearest
from .problem import Problem
from .profiling import configure
from .stage import Stage

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 86
"""Exit status that compute-sanitizer is told to end with where it finds something."""
TIME_LIMIT = 300.0
"""Seconds for one tool on one problem."""
CLEAN, FOUND_SOME, NOT_RUN = "clean", "found", "not run"


@dataclass(frozen=True)
class Access:
    """The other side of a race: 'Read' or 'Write', where, and how many hazards."""

    kind: str
    file: str
    line: int
    hazards: int = 0


@dataclass(frozen=True)
class Issue:
    """One finding. `file` is empty and `line` 0 where the tool names none; `count`: how often it was reported.

    severity  'error' or 'warning'
    thread, block  of the first report
    """

    tool: str
    severity: str
    what: str
    kernel: str = ""
    file: str = ""
    line: int = 0
    thread: str = ""
    block: str = ""
    detail: str = ""
    others: tuple[Access, ...] = ()
    count: int = 1

    @property
    def where(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else ""
        return " ".join(x for x in (place, f"in {self.kernel}" if self.kernel else "") if x)


@dataclass(frozen=True)
class Result:
    """What one tool said of one problem. `reported` is its own total, which may be more than it printed."""

    tool: str
    problem: Problem
    verdict: str
    issues: tuple[Issue, ...] = ()
    reported: int = 0
    why: str = ""


@dataclass
class Sanitized:
    """Every tool on every problem, in the order they ran."""

    stage: Stage
    tunables: dict[str, int]
    version: str
    results: list[Result] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return bool(self.results) and all(r.verdict == CLEAN for r in self.results)

    @property
    def issues(self) -> list[Issue]:
        """Distinct findings over all problems, with their counts added up."""
        found: dict[Issue, int] = {}
        for r in self.results:
            for issue in r.issues:
                key = replace(
                    issue,
                    count=1,
                    thread="",
                    block="",
                    detail="",
                    others=tuple(replace(o, hazards=0) for o in issue.others),
                )
                found[key] = found.get(key, 0) + issue.count
        return [replace(key, count=n) for key, n in found.items()]

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage.name,
            "tunables": self.tunables,
            "compute_sanitizer": self.version,
            "ok": self.ok,
            "results": [
                {
                    "tool": r.tool, "problem": asdict(r.problem), "verdict": r.verdict, "reported": r.reported, "why": r.why or None,
                    "issues": [asdict(i) for i in r.issues],
                }
                for r in self.results
            ],
        }  # fmt: skip


@dataclass(frozen=True)
class Sanitizer:
    """An installed compute-sanitizer."""

    path: Path
    version: str


def candidates(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where compute-sanitizer may be: NVIDIA's PyPI package, PATH, CUDA_HOME, NVIDIA's usual folders, newest first."""
    found = [p for p in (toolchain.packaged("compute-sanitizer"),) if p]
    found += [Path(p) for p in (shutil.which("compute-sanitizer", path=environ.get("PATH")),) if p]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := environ.get(variable):
            found += [Path(home) / "bin/compute-sanitizer", Path(home) / "compute-sanitizer/compute-sanitizer"]
    for pattern in ("usr/local/cuda*/bin/compute-sanitizer", "usr/local/cuda*/compute-sanitizer/compute-sanitizer"):
        found += sorted(Path("/").glob(pattern), reverse=True)
    return list(dict.fromkeys(p for p in found if p.is_file()))


@cache
def find() -> Sanitizer | None:
    """The compute-sanitizer of this machine, or None."""
    for path in candidates():
        try:
            out = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if m := re.search(r"^Version (\d{4}(?:\.\d+)+)", out.stdout, re.M):
            return Sanitizer(path, m[1])
    return None


def problems(tunables: Mapping[str, int]) -> list[Problem]:
    """Small ones that between them execute every instruction of a stage: the tools see only what is executed.

    Whole tiles in a single step of K; C wider and higher than a tile by four and nearly another one, in fours and not, with
    C read and not; and K that leaves one step, or several, and a tail.
    """
    tile = max([v for name, v in tunables.items() if name in ("TILE", "BM", "BN")], default=32)
    depth, wide = tunables.get("BK", tile), 2 * tile

    def padded(m: int, n: int, k: int, gap: int, beta: float = 0.0) -> Problem:
        m, n = max(m, 5), max(n, 5)
        return Problem(m, n, k, alpha=0.5 if beta else 1.0, beta=beta, lda=k + gap, ldb=n + gap, ldc=n + gap)

    return [
        padded(wide, wide, depth, 0),
        padded(tile + 4, wide - 4, 4 * depth + 4, 4),
        padded(wide - 4, tile + 4, 4 * depth + 4, 4, beta=2.0),
        padded(wide - 3, tile + 5, 5 * depth - 1, 1),
        padded(tile + 5, wide - 3, depth + 3, 3, beta=2.0),
    ]


def words(sanitizer: Sanitizer, tool: str, launch: Sequence[str]) -> list[str]:
    """The compute-sanitizer command around a launch."""
    options = ["--tool", tool, "--target-processes", "all", "--error-exitcode", str(FOUND), "--check-exit-code", "no"]
    return [str(sanitizer.path), *options, "--print-limit", "100", "--show-backtrace", "device", *launch]


def sanitize(
    kernel: str | Path,
    *,
    problem: Problem | None = None,
    tools: Sequence[str] = TOOLS,
    nvcc: str | None = None,
    gpu: str | None = None,
    limit: float = TIME_LIMIT,
    progress: Callable[[float, str], None] | None = None,
    **tunables: int,
) -> Sanitized:
    """Run each tool over the stage's launches on a problem, or on `problems` of its own.

    What a tool finds is a Result, and so is a tool that could not run. Raises TilescopeError on bad input, where there is no
    compute-sanitizer or no GPU, or where the stage does not compile.
    """
    for tool in tools:
        if tool not in TOOLS:
            raise TilescopeError(f"unknown tool {tool!r}.{nearest(tool, list(TOOLS))}", f"Known: {', '.join(TOOLS)}.")
    stage = stages.find(str(kernel))
    chosen = configure(stage, tunables)
    toolchain.check(nvcc)
    sanitizer = find()
    if sanitizer is None:
        raise TilescopeError(
            "compute-sanitizer is not installed.",
            "pip install nvidia-cuda-sanitizer-api in .venv, or put the CUDA toolkit's bin folder on PATH.",
        )
    binary = toolchain.compile(stage, chosen, architecture(gpu), nvcc)
    todo = [(tool, p) for tool in tools for p in ([problem] if problem else problems(chosen))]
    done = Sanitized(stage, chosen, sanitizer.version)
    with tempfile.TemporaryDirectory(prefix="tilescope-") as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(binary.cubin)
        for number, (tool, p) in enumerate(todo):
            if progress:
                progress(number / len(todo), f"{tool}: {stage.name}, {p}")
            done.results.append(
                _one(sanitizer, tool, p, [*watched.launch_words(kernel, p, chosen, cubin, gpu), "GUARD=no"], limit)
            )
    return done


def architecture(gpu: str | None) -> int:
    """Compute capability, times ten, of the GPU that the stage runs on. Raises TilescopeError where there is none."""
    from .gpu import devices

    return devices.find(gpu).cc


def _one(sanitizer: Sanitizer, tool: str, problem: Problem, launch: Sequence[str], limit: float) -> Result:
    try:
        output, status = watched.run(words(sanitizer, tool, launch), limit)
    except TilescopeError as e:
        return Result(tool, problem, NOT_RUN, why=e.what)
    return judge(tool, problem, output, status)


def judge(tool: str, problem: Problem, output: str, status: int) -> Result:
    """What a tool's output and exit status come to. Without the tool's own summary nothing is called clean.

    A status of 1 with nothing found is the launch's own: C is wrong, which the tool has no say in.
    """
    issues, reported = parse(tool, output), summary(output)
    if issues:
        return Result(tool, problem, FOUND_SOME, tuple(issues), max(reported or 0, sum(i.count for i in issues)))
    if reported is None or reported or status not in (0, 1, FOUND) or refusal(output):
        return Result(tool, problem, NOT_RUN, reported=reported or 0, why=refusal(output) or _last(output, status))
    wrong = next((line for line in output.splitlines() if "WRONG: " in line), "")
    return Result(
        tool,
        problem,
        CLEAN,
        why=f"C is wrong: {wrong.split('WRONG: ', 1)[1]}" if wrong else _last(output, status) if status else "",
    )


_REFUSALS = (
    (r"Device not supported", "it does not support this GPU, or the GPU cannot be debugged in this container or VM"),
    (r"Target application terminated before first instrumented API call", "the launch ended before it used the GPU"),
    (r"Unable to find injection library|Failed to inject", "it could not attach to the launch"),
    (r"Internal [Ss]anitizer", "an internal error of compute-sanitizer"),
    (r"Maximum number of hazards reached", "it ran out of room for hazards; choose a smaller SIZE"),
)


def refusal(output: str) -> str:
    """Why the tool did not do its work, in words, or nothing; with what the launch itself complained of."""
    for pattern, why in _REFUSALS:
        if re.search(pattern, output):
            said = [x.removeprefix("error:").strip() for x in output.splitlines() if x.startswith("error:")]
            return f"{why}{': ' + said[-1] if said else ''}"
    return ""


def _last(output: str, status: int) -> str:
    errors = [x for x in output.splitlines() if x.startswith("error:")]
    lines = errors or [x for x in output.splitlines() if x.strip("= ")]
    return f"status {status}: {lines[-1].strip('= ')}" if lines else f"status {status}, and it said nothing"


def summary(output: str) -> int | None:
    """Errors or hazards by the tool's own summary line, or None where it printed none."""
    counts = [int(n) for n in re.findall(r"ERROR SUMMARY: (\d+) errors?\s*$", output, re.M)]
    counts += [
        int(e) + int(w)
        for e, w in re.findall(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)", output)
    ]
    return max(counts) if counts else None


_PLACE = re.compile(
    r"at (?:0x[0-9a-f]+ in (?P<file1>[^:()]+):(?P<line1>\d+):(?P<kernel1>.+?)"  # up to CUDA 11
    r"|0x[0-9a-f]+ in (?P<kernel2>.+?)"
    r"|(?P<kernel3>\S.*?)\+0x[0-9a-f]+(?: in (?P<file3>.+?):(?P<line3>\d+))?)"
    r"(?: \[(?P<hazards>\d+) hazards?\])?$"
)
_HEADS = (
    (re.compile(r"(?P<what>Invalid __\w+__ (?:read|write|atomic) of size \d+(?: bytes)?)"), "error"),
    (re.compile(r"(?P<what>Uninitialized __\w+__ memory read of size \d+(?: bytes)?)"), "error"),
    (re.compile(r"(?P<what>Barrier error detected\. .+?)\.?$"), "error"),
    (re.compile(r"(?P<severity>Error|Warning): (?P<what>Race reported between (?P<kind>Read|Write|Atomic)) access (?P<place>at .+)$"), "error"),
    (re.compile(r"(?P<what>Program hit .+)$"), "error"),
    (re.compile(r"(?P<what>Host API (?:uninitialized )?memory access error.*)$"), "error"),
    (re.compile(r"(?P<what>(?:Potential )?(?:WAR|RAW|WAW) hazard detected.*)$"), "error"),
    (re.compile(r"(?P<what>Malloc/Free error.*|Leaked [\d,]+ bytes.*)$"), "error"),
)  # fmt: skip
_AND = re.compile(r"and (?P<kind>Read|Write|Atomic) access (?P<place>at .+)$")


def parse(tool: str, output: str) -> list[Issue]:
    """Findings in compute-sanitizer's text output, equal ones together. Formats: CUDA 11 to 13.

    The line is that of the instruction; where it lies in a header of CUDA's own (__syncwarp), that of the first device frame
    outside of it.
    """
    found: list[Issue] = []
    for line in output.splitlines():
        if not line.startswith("========="):
            continue
        text = line.lstrip("=").strip()
        head = next(((m, s) for pattern, s in _HEADS if (m := pattern.match(text))), None)
        if head:
            m, severity = head
            groups = m.groupdict()
            issue = Issue(tool, (groups.get("severity") or severity).lower(), groups["what"].rstrip("."))
            found.append(_placed(issue, groups["place"]) if groups.get("place") else issue)
        elif found:
            found[-1] = _continued(found[-1], text)
    together: dict[Issue, Issue] = {}
    for issue in found:
        key = replace(issue, thread="", block="", detail="")
        if key in together:
            together[key] = replace(together[key], count=together[key].count + 1)
        else:
            together[key] = issue
    return list(together.values())


def _continued(issue: Issue, text: str) -> Issue:
    """An issue with what the next line of its report adds."""
    if m := _AND.match(text):
        other = _placed(Issue("", "", ""), m["place"])
        hazards = re.search(r"\[(\d+) hazards?\]", text)
        return replace(
            issue, others=(*issue.others, Access(m["kind"], other.file, other.line, int(hazards[1]) if hazards else 0))
        )
    if m := re.match(r"by thread (\([\d,]+\)) in block (\([\d,]+\))", text):
        return replace(issue, thread=m[1], block=m[2])
    if re.match(r"(Address|Access|and is inside|and is \d)", text):
        return replace(issue, detail=f"{issue.detail} {text}".strip())
    if text.startswith("at ") and not issue.kernel:
        return _placed(issue, text)
    if m := re.match(r"Device Frame: ?(.+)$", text):
        if not issue.file or not issue.file.endswith((".cu", ".cuh")):
            outer = _placed(Issue("", "", ""), f"at {m[1]}")
            if outer.file:
                return replace(issue, kernel=outer.kernel, file=outer.file, line=outer.line)
    return issue


def _placed(issue: Issue, place: str) -> Issue:
    """An issue with the kernel and source line of 'at kernel(...)+0x90 in file.cu:41' or the older 'at 0x90 in file.cu:41:kernel(...)'."""
    m = _PLACE.match(place)
    if not m:
        return issue
    kernel = m["kernel1"] or m["kernel2"] or m["kernel3"] or ""
    file, line = m["file1"] or m["file3"] or "", int(m["line1"] or m["line3"] or 0)
    return replace(
        issue,
        kernel=kernel.split("(")[0].removeprefix("void ").strip(),
        file=Path(file).name if file else "",
        line=line,
    )
