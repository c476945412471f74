"""`python -m harness VERB`: parse, call, print. A verb is one function under @verb.

Exit status: 0; 1 a verdict failed; 2 bad input or environment; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import disk
from . import stage as stages
from .arguments import VERBS, Option, integer, number, one_of, overview, parse, required, tunables, verb
from .errors import NotRecorded, TilescopeError, nearest
from .problem import DISTRIBUTIONS

JSON = Option("json", "write the result as JSON to this file; - prints it instead of the text")
DEVICE = Option("device", "GPU to compile for and to draw bounds for", default="h200")
NVCC = Option("nvcc", "CUDA compiler to use instead of the packaged one")
GPU = Option("gpu", "GPU by index or UUID (default: the first)")
TUNED = Option("tuned", "yes: with the tunables that won a recorded search on the problem", one_of("yes", "no"), "no")
KERNEL = Option("kernel", "stage: a name from `list`, or a path to a stage file")
PROBLEM = (
    Option("size", "M, N and K, when they are equal (default 1024)", integer),
    Option("m", "rows of C", integer),
    Option("n", "columns of C", integer),
    Option("k", "columns of A, rows of B", integer),
    Option("alpha", "C = ALPHA*A*B + BETA*C", number, 1.0),
    Option("beta", "see ALPHA; with 0, C is never read", number, 0.0),
    Option("lda", "elements from a row of A to the next (default K)", integer, 0),
    Option("ldb", "elements from a row of B to the next (default N)", integer, 0),
    Option("ldc", "elements from a row of C to the next (default N)", integer, 0),
    Option("seed", "of the random inputs", integer, 0),
    Option("distribution", f"of the inputs: {', '.join(DISTRIBUTIONS)}", one_of(*DISTRIBUTIONS), "normal"),
)

COUNTERS = (
    Option(
        "metrics",
        "what Nsight Compute counts: coalescing, bank, occupancy, pipes, memory, stalls; commas between",
        default="coalescing,bank,occupancy",
    ),
    Option("set", "full: every section of Nsight Compute, and the source view", one_of("full")),
    Option("clock", "none: left as it is; base: locked by Nsight Compute", one_of("none", "base"), "none"),
    Option("cache", "all: flushed before each pass; none: left warm", one_of("all", "none"), "all"),
    Option("ncu", "Nsight Compute to use instead of the one found"),
)


@verb(JSON)
def list_(args: argparse.Namespace) -> int:
    """The ladder: every stage, one line each."""
    ladder = stages.ladder()
    width = max((len(s.name) for s in ladder), default=0)
    _Output(args.json).give(
        "".join(f"{s.name:{width}}  {s.idea}\n" for s in ladder),
        lambda: [{"stage": s.name, "parent": s.parent, "idea": s.idea, "tunables": dict(s.tunables)} for s in ladder],
    )
    return 0


@verb(
    KERNEL, *PROBLEM,
    Option("device", "GPU to compile for and to draw bounds for (default: the one here, else h200)"),
    Option("backend", "auto, sim or gpu", one_of("auto", "sim", "gpu"), "auto"),
    GPU,
    Option("out", "run directory to write (default profiles/STAGE/TIME-HASH)"),
    Option("record", "yes or no", one_of("yes", "no"), "yes"), TUNED,
    *COUNTERS, NVCC, JSON,
    bare="kernel", tunables=True,
)  # fmt: skip
def profile(args: argparse.Namespace) -> int:
    """What a stage does with the hardware and why; records the run."""
    from . import profiling, report

    output = _Output(args.json)
    options = vars(args) | {"record": args.record == "yes", "tuned": args.tuned == "yes", "counters": _counters(args)}
    for name in ("json", "tunables", *(o.name for o in COUNTERS)):
        del options[name]
    kernel = required(options.pop("kernel"), "profile")
    options |= tunables(args, kernel, "profile")
    result = output.told(lambda progress: profiling.profile(kernel, **options, progress=progress), report.render)
    return 0 if result.ok else 1


@verb(
    Option("kernel", "stage to verify (default: every stage of the ladder)"),
    Option("count", "random problems on top of the fixed ones", integer, 30),
    Option("seed", "of the random problems", integer, 0),
    Option("device", "GPU to compile for (default: the one here, else h200)"),
    Option("backend", "gpu: run on a GPU; sim: simulated with every check on; auto: gpu where there is one", one_of("auto", "sim", "gpu"), "auto"),
    GPU,
    Option("timeout", "seconds that one product may take on a GPU before it counts as hung", number, 10.0),
    Option("csv", "write a row per stage and kind of problem to this file"),
    NVCC, JSON, bare="kernel", tunables=True,
)  # fmt: skip
def verify(args: argparse.Namespace) -> int:
    """Many problems, ragged ones too: on a GPU where there is one, else through the simulator with every check on."""
    from . import report, verification
    from .gpu import client

    results = []
    output = _Output(args.json, args.csv)
    with client.keeping():
        for kernel in [args.kernel] if args.kernel else stages.names():
            chosen = tunables(args, kernel, "verify")
            with _progress() as progress:
                result = verification.verify(
                    kernel, count=args.count, seed=args.seed, device=args.device, backend=args.backend, gpu=args.gpu, timeout=args.timeout,
                    nvcc=args.nvcc, progress=progress, **chosen,
                )  # fmt: skip
            results.append(result)
            output.text(report.render_verification(result, **_terminal()))
            if result.interrupted:
                break
    output.give("", lambda: [r.to_json() for r in results], lambda: verification.table(results))
    if results and results[-1].interrupted:
        raise KeyboardInterrupt
    return 0 if all(r.ok for r in results) else 1


@verb(
    Option("out", "run directory to write (default profiles/bench/TIME-HASH)"),
    Option("sizes", "matrix sizes, with commas between", default="1024,4095,4096"),
    Option("readme", "yes: put the figures into README; no", one_of("yes", "no"), "no"),
    JSON,
)
def bench(args: argparse.Namespace) -> int:
    """How long this program itself takes on this machine; records the figures."""
    from . import bench, readme, report

    output, sizes = _Output(args.json), _sizes(args.sizes)
    result = output.told(lambda progress: bench.run(sizes=sizes, out=args.out, progress=progress), report.render_bench)
    if args.readme == "yes":
        readme.fill("bench", f"```text\n{report.render_bench(result)}```")
    return 0


@verb(Option("run", "run directory, or the id of a run"), JSON, bare="run")
def show(args: argparse.Namespace) -> int:
    """A recorded run, as it was printed."""
    from . import record

    run = record.load(required(args.run, "show", "RUN"))
    output = _Output(args.json)
    output.json(lambda: run.manifest)
    if args.json != "-":
        output.text(run.printed())
    return 0


@verb(
    Option("run", "run directory, or the id of a run"),
    Option("name", "experiment, all of whose runs go into one page"),
    Option("out", "file to write (default reports/KIND-STAGE-SIZE-RUN.html or reports/NAME.html)"),
    bare="run",
)  # fmt: skip
def report(args: argparse.Namespace) -> int:
    """A recorded run, or an experiment, as one HTML page that needs no network."""
    from . import htmlreport

    path = htmlreport.write(args.run, args.name, args.out)
    _write(f"Written to {_shown(path)}\n")
    return 0


@verb(Option("name", "notebook whose number or name begins so (default: all)"), bare="name")
def notebooks(args: argparse.Namespace) -> int:
    """Execute the notebooks of analysis/ on recorded data, and keep what they show."""
    from . import notebooks

    with _progress() as progress:
        done = notebooks.execute(args.name, progress=progress)
    for notebook, seconds in done.items():
        _write(f"{notebook}: {seconds:.1f} s\n")
    return 0


@verb(KERNEL, DEVICE, NVCC, bare="kernel", tunables=True)
def sass(args: argparse.Namespace) -> int:
    """The machine code of a stage, with source lines."""
    from . import device, toolchain

    kernel = required(args.kernel, "sass")
    found = stages.find(kernel)
    chosen = found.configure(tunables(args, kernel, "sass"))
    _write(toolchain.compile(found, chosen, device.find(args.device).cc, args.nvcc).sass())
    return 0


@verb()
def readme(args: argparse.Namespace) -> int:
    """Write the printed profile and the picture in README anew."""
    from . import readme

    readme.refresh()
    return 0


@verb(
    Option("gpu", "GPU by index or UUID (default: the first)"),
    Option("out", "run directory to write (default profiles/roofs/TIME-HASH)"),
    NVCC, JSON,
)  # fmt: skip
def roofs(args: argparse.Namespace) -> int:
    """What this GPU's resources give at most, measured; records the run, for bounds to use."""
    from . import roofs

    _Output(args.json).told(
        lambda progress: roofs.run(gpu=args.gpu, out=args.out, nvcc=args.nvcc, progress=progress), roofs.render
    )
    return 0


@verb(
    KERNEL, *PROBLEM, *COUNTERS, GPU,
    Option("out", "report to write, without .ncu-rep", default="report"),
    bare="kernel", tunables=True,
)  # fmt: skip
def ncu_command(args: argparse.Namespace) -> int:
    """The Nsight Compute command for a stage, to use by hand."""
    from . import ncu, profiling, watched

    kernel = required(args.kernel, "ncu-command")
    stage = stages.find(kernel)
    chosen = profiling.configure(stage, tunables(args, kernel, "ncu-command"))
    options = _counters(args)
    found = ncu.find(args.ncu)
    launch = watched.launch_words(kernel, _problem(args), chosen, gpu=args.gpu)
    _write(ncu.quoted(ncu.command(found.path if found else "ncu", stage.name, launch, options, args.out)) + "\n")
    return 0


@verb(
    Option("nvcc", "CUDA compiler to look at instead of the packaged one"),
    Option("probe", "no: do not try a hardware counter on a small launch", one_of("yes", "no"), "yes"),
    JSON,
)
def doctor(args: argparse.Namespace) -> int:
    """What works on this machine, what does not, and the remedy."""
    from . import doctor, gpu_report, machine

    output = _Output(args.json)
    with _progress() as progress:
        if progress:
            progress(0.0, "looking at this machine")
        found = doctor.diagnose(machine.gather(args.nvcc, args.probe == "yes"))
    output.give(gpu_report.render_doctor(found, **_terminal()), found.to_json)
    return 0 if found.ok else 2


@verb(
    KERNEL, *PROBLEM,
    Option("tools", "of compute-sanitizer, with commas between", default="memcheck,racecheck,initcheck,synccheck"),
    GPU, NVCC, JSON, bare="kernel", tunables=True,
)  # fmt: skip
def sanitize(args: argparse.Namespace) -> int:
    """A stage under compute-sanitizer, on small problems or on the one given."""
    from . import gpu_report, sanitize

    kernel = required(args.kernel, "sanitize")
    output = _Output(args.json)
    sized = any(getattr(args, name) is not None for name in ("size", "m", "n", "k"))
    odd = [
        o.name.upper() for o in PROBLEM if o.name not in ("size", "m", "n", "k") and getattr(args, o.name) != o.default
    ]
    if odd and not sized:
        raise TilescopeError(
            f"sanitize takes {odd[0]} only with a size: without one it has problems of its own.",
            "Give SIZE, or M, N and K.",
        )
    with _progress() as progress:
        result = sanitize.sanitize(
            kernel,
            problem=_problem(args) if sized else None,
            tools=[t for t in args.tools.lower().split(",") if t],
            nvcc=args.nvcc, gpu=args.gpu, progress=progress,
            **tunables(args, kernel, "sanitize"),
        )  # fmt: skip
    output.give(gpu_report.render_sanitized(result, **_terminal()), result.to_json)
    return 0 if result.ok else 1 if result.issues else 2


@verb(
    KERNEL, *PROBLEM,
    Option("cubin", "machine code of the stage, compiled before; else it is compiled through PyCUDA"),
    GPU, NVCC,
    Option("guard", "no: matrices without guard bands, for memcheck to see their ends", one_of("yes", "no"), "yes"),
    Option("timeout", "seconds a launch may take", number, 600.0),
    bare="kernel", tunables=True,
)  # fmt: skip
def launch(args: argparse.Namespace) -> int:
    """One product on the GPU under NVTX: what Nsight Compute wraps."""
    from .gpu import cublas, driver
    from .gpu.launch import launch

    kernel = required(args.kernel, "launch")
    chosen = {} if kernel in cublas.NAMES else tunables(args, kernel, "launch")
    try:
        done = launch(
            kernel, _problem(args), chosen, gpu=args.gpu, cubin=args.cubin, nvcc=args.nvcc, timeout=_positive("TIMEOUT", args.timeout),
            guarded=args.guard == "yes",
        )  # fmt: skip
    except (driver.Hang, driver.KernelFault) as e:
        os._exit(_complain(e.what, e.remedy))  # any other way out would wait for the kernel
    _write(f"{done}\n")
    return 0 if done.ok else 1


TIMING = (
    Option("hot", "1: one set of inputs, which may stay in cache", one_of("0", "1"), "0"),
    Option("cold", "1: rotating sets, together twice the L2 (the default)", one_of("0", "1")),
    Option("limit", "seconds to measure each contender on each problem", number, 5.0),
    Option("timeout", "seconds that one product may take before it counts as hung", number, 60.0),
    Option("cool", "wait before each until the GPU is at most this warm, degrees C", number),
    Option("load", "source: compile through PyCUDA; cubin: load what the toolchain compiled", one_of("source", "cubin"), "source"),
    Option("record", "yes or no", one_of("yes", "no"), "yes"),
    GPU, NVCC, JSON,
)  # fmt: skip


@verb(
    KERNEL, *PROBLEM, *TIMING,
    Option("against", "cublas, cublaslt, a stage, or none", default="cublas"),
    Option("sizes", "square sizes, with commas between, in place of one problem"),
    Option("out", "run directory to write (default profiles/STAGE/TIME-HASH)"),
    TUNED, bare="kernel", tunables=True,
)  # fmt: skip
def time(args: argparse.Namespace) -> int:
    """A stage's time beside cuBLAS's or another stage's, as a referee would take it."""
    from . import timings

    kernel = required(args.kernel, "time")
    sized = any(getattr(args, name) is not None for name in ("size", "m", "n", "k"))
    if args.sizes and sized:
        raise TilescopeError("SIZES and SIZE are both given.", "Give SIZES, or SIZE, or M, N and K.")
    chosen = tunables(args, kernel, "time")
    problems = []
    for size in _sizes(args.sizes) if args.sizes else [args.size]:
        args.size = size
        problems.append(_problem(args))
    options = {"against": args.against, "tuned": args.tuned == "yes", "out": args.out, **_timing(args), **chosen}
    _, status = _timed(args, lambda progress: timings.time(kernel, problem=problems, progress=progress, **options))
    return status


@verb(
    Option("stages", "with commas between (default: the whole ladder)"),
    Option("sizes", "square sizes, with commas between", default="512,1024,2048,4096,8192"),
    *TIMING,
    Option("distribution", f"of the inputs: {', '.join(DISTRIBUTIONS)}", one_of(*DISTRIBUTIONS), "normal"),
    Option("seed", "of the random inputs", integer, 0),
    Option("out", "run directory to write (default profiles/ladder/TIME-HASH)"),
    Option("readme", "yes: put the table into README.md; no", one_of("yes", "no"), "yes"),
)  # fmt: skip
def ladder(args: argparse.Namespace) -> int:
    """Every stage, cuBLAS and cublasLt at every size: one table, in the run and in README."""
    from . import readme, timing_report, timings

    names = [name.strip() for name in args.stages.split(",") if name.strip()] if args.stages else None
    if names == []:
        raise TilescopeError(f"STAGES={args.stages} names no stage.", "Give one or more, with commas between.")
    options = {"distribution": args.distribution, "seed": args.seed, "out": args.out, **_timing(args)}
    sizes = _sizes(args.sizes)
    result, status = _timed(
        args, lambda progress: timings.ladder(names=names, sizes=sizes, progress=progress, **options)
    )
    if args.readme == "yes" and names is None and status == 0 and result.path:
        try:
            readme.fill("ladder", timing_report.markdown(result))
        except TilescopeError as e:
            if args.json != "-":
                _write(f"README was left as it is: {e}\n")
    return status


@verb(
    Option("a", "run directory, or the id of a run: what is compared with"),
    Option("b", "run directory, or the id of a run: what is judged"),
    JSON,
)  # fmt: skip
def compare(args: argparse.Namespace) -> int:
    """FASTER, SAME, SLOWER or AMBIGUOUS: run B against run A, row by row; 1 where one is SLOWER."""
    from . import comparison, timing_report

    output = _Output(args.json)
    result = comparison.compare(required(args.a, "compare", "A"), required(args.b, "compare", "B"))
    output.give(timing_report.render_comparison(result, **_terminal()), result.to_json)
    return 0 if result.ok else 1


def _timing(args: argparse.Namespace) -> dict[str, Any]:
    """What TIMING says, as arguments of harness.timings."""
    if args.hot == "1" and args.cold == "1" or args.hot == "0" and args.cold == "0":
        raise TilescopeError(f"HOT={args.hot} and COLD={args.cold} contradict each other.", "Give one of them.")
    return {
        "cold": args.hot != "1", "limit": _positive("LIMIT", args.limit), "timeout": _positive("TIMEOUT", args.timeout), "cool": args.cool,
        "load": args.load, "record": args.record == "yes", "gpu": args.gpu, "nvcc": args.nvcc,
    }  # fmt: skip


def _sizes(words: str) -> list[int]:
    """Raises TilescopeError on a word that is no size, or where there is none."""
    sizes = [integer("SIZES")(word.strip()) for word in words.split(",") if word.strip()]
    if bad := [n for n in sizes if n < 1]:
        raise TilescopeError(f"SIZES={words}: {bad[0]} is less than 1.")
    if not sizes:
        raise TilescopeError(f"SIZES={words} names no size.", "Give one or more, with commas between.")
    return sizes


def _timed(args: argparse.Namespace, work: Callable[[Any], Any]) -> tuple[Any, int]:
    """Do and print a timing; it, and the exit status that it calls for. Raises TilescopeError where something could not be measured."""
    from . import timing_report, timings

    result = _Output(args.json).told(work, timing_report.render)
    if result.interrupted:
        raise KeyboardInterrupt
    if not result.ok:
        return result, 1
    undone = [e for name, e in result.missing.items() if name not in timings.LIBRARIES]
    if undone:
        raise undone[0]
    if result.faults:
        first = result.faults[0]
        raise TilescopeError(
            f"{first.stage} on {first.problem}: {first.fault.splitlines()[0]}", "\n".join(first.fault.splitlines()[1:])
        )
    return result, 0


def _positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise TilescopeError(f"{name}={value:g} is not more than 0.")
    return value


def _counters(args: argparse.Namespace) -> Any:
    """What COUNTERS say, as harness.ncu.Options."""
    from . import ncu

    return ncu.Options(ncu.groups(args.metrics), args.set or "", args.clock, args.cache, args.ncu)


def _problem(args: argparse.Namespace) -> Any:
    """What PROBLEM says, as a Problem."""
    from .problem import Problem
    from .profiling import shape

    rest = {o.name: getattr(args, o.name) for o in PROBLEM if o.name not in ("size", "m", "n", "k")}
    return Problem(*shape(args.size, args.m, args.n, args.k), **rest)


@verb(
    Option("device", "GPU whose recorded runs count, and to draw bounds for", default="h200"),
    Option("out", "run directory to write, with ledger.csv and ledger.md"),
    JSON,
)  # fmt: skip
def ledger(args: argparse.Namespace) -> int:
    """Every quantitative statement of the three articles, with a verdict and the evidence."""
    from . import ledger

    _Output(args.json).told(
        lambda progress: ledger.run(device=args.device, out=args.out, progress=progress),
        lambda result, **terminal: ledger.render(result.table, **terminal),
    )
    return 0


EXPERIMENT = (
    GPU, NVCC,
    Option("workers", "processes to spread the points over, on a GPU backend one for each GPU; 0 or 1: this one", integer, 0),
    Option("scheduler", "address of a Dask cluster to spread the points over: tcp://HOST:PORT"),
    Option("out", "run directory to write (default: beside the experiment)"),
    JSON,
)  # fmt: skip


@verb(
    Option("name", "an experiment in experiments/, or a path to its folder; without it, those there are"),
    Option("backend", "auto, sim or gpu", one_of("auto", "sim", "gpu"), "auto"),
    Option("fresh", "yes: measure what is known already, too", one_of("yes", "no"), "no"),
    *EXPERIMENT, bare="name",
)  # fmt: skip
def experiment(args: argparse.Namespace) -> int:
    """Measure every point of an experiment; goes on where a killed one stopped, skips what is known."""
    from . import definition, experiment_report, experiments

    output = _Output(args.json)
    if not args.name:
        found = [definition.load(name) for name in definition.names()]
        width = max((len(d.name) for d in found), default=0)
        output.give(
            "".join(f"{d.name:{width}}  {d.question}\n" for d in found),
            lambda: [{"experiment": d.name, "question": d.question, "backends": d.backends} for d in found],
        )
        return 0

    def where(result: Any) -> str:
        if not result.started:
            return f"Nothing new to measure: all is in {_shown(result.path)}\n"
        known = len(result.taken) - result.taken.count("measured")
        said = f"; {known} of {len(result.taken)} points were known" if known else ""
        return f"Recorded in {_shown(result.path)}{said}\n"

    options = {"fresh": args.fresh == "yes", "backend": args.backend, **_spread(args)}
    with _kept():
        result = output.told(
            lambda progress: experiments.experiment(args.name, progress=progress, **options),
            experiment_report.render,
            where,
        )
    if result.troubles:
        raise TilescopeError(
            f"{len(result.troubles)} of {len(result.points)} points could not be measured: {next(iter(result.troubles.values()))}",
            "The others are recorded; the same command measures those that are missing.",
        )
    return 0 if result.ok else 1


@verb(
    Option("exp", "directory or id of a run of an experiment; or an experiment that has only one"),
    Option("backend", "sim repeats what was simulated of a run on a GPU (default: the run's)", one_of("sim", "gpu")),
    *EXPERIMENT, bare="exp",
)  # fmt: skip
def reproduce(args: argparse.Namespace) -> int:
    """Measure a recorded run of an experiment again and say what differs; 1 where a claim no longer holds."""
    from . import experiment_report, reproduction

    output = _Output(args.json)
    run = required(args.exp, "reproduce", "EXP")
    with _kept():
        result = output.told(
            lambda progress: reproduction.reproduce(run, backend=args.backend, progress=progress, **_spread(args)),
            experiment_report.render_reproduction,
        )
    return 0 if result.ok else 1


def _spread(args: argparse.Namespace) -> dict[str, Any]:
    """What EXPERIMENT says, as arguments of harness.experiments."""
    return {o.name: getattr(args, o.name) for o in EXPERIMENT if o is not JSON}


@contextmanager
def _kept(what: str = "points", out: str | None = None) -> Iterator[None]:
    """Says on Ctrl-C what happens to the points, or to what there is of them, that are finished. out: where they were recorded."""
    try:
        yield
    except KeyboardInterrupt:
        other = f", with another OUT= than {out}," if out and Path(out).expanduser().exists() else ""
        print(f"Finished {what} are kept: the same command{other} goes on from there.", file=sys.stderr)
        raise


@verb(
    Option("points", "yes: a row a point, not a row a run", one_of("yes", "no"), "no"),
    Option("csv", "write the whole table to this file"),
    JSON,
)
def index(args: argparse.Namespace) -> int:
    """Every recorded run, under profiles/ and experiments/, in one table; checksums are left to show, report and reproduce."""
    from . import experiment_report, indexing

    output = _Output(args.json, args.csv)
    table = indexing.index(points=args.points == "yes")
    output.give(
        experiment_report.render_index(table, **_terminal()),
        lambda: table.astype(object).where(table.notna(), None).to_dict("records"),
        lambda: table,
    )
    for words in table.attrs["warnings"]:
        print(f"warning: {words}", file=sys.stderr)
    return 0


@verb(
    KERNEL, *PROBLEM,
    Option("block", "number of the block to trace, x first", integer, 0),
    DEVICE, NVCC, JSON, bare="kernel", tunables=True,
)  # fmt: skip
def trace(args: argparse.Namespace) -> int:
    """One block, phase by phase: what each thread loads, the shared tiles, every partial sum. SIZE is 4 unless given."""
    from . import sim, tracing

    kernel = required(args.kernel, "trace")
    output = _Output(args.json)
    if not any(getattr(args, name) is not None for name in ("size", "m", "n", "k")):
        args.size = tracing.SIZE
    chosen = tunables(args, kernel, "trace")
    try:
        result = tracing.trace(kernel, _problem(args), block=args.block, device=args.device, nvcc=args.nvcc, **chosen)
    except sim.Fault as fault:
        output.text(f"{fault}\n")
        return 1
    output.give(tracing.render(result), result.to_json)
    return 0


@verb(
    Option("size", "M, N and K", integer, 4096),
    DEVICE,
    Option("out", "run directory to write, with steps.csv and steps.md"),
    Option("readme", "yes: put the table into README.md; no", one_of("yes", "no"), "no"),
    NVCC, JSON,
)  # fmt: skip
def steps(args: argparse.Namespace) -> int:
    """Each rung of the ladder beside its parent: what the change aimed at, what is predicted, what moved."""
    from . import readme, steps

    result = _Output(args.json).told(
        lambda progress: steps.run(args.device, args.size, args.out, args.nvcc, progress), steps.render
    )
    if args.readme == "yes":
        if result.missing:
            raise TilescopeError(
                f"README keeps its table: {', '.join(result.missing)} left out.", "Choose a DEVICE that has them all."
            )
        readme.fill("steps", steps.markdown(result))
    return 0


@verb(
    KERNEL, *(o for o in PROBLEM if o.name != "seed"),
    Option("count", "candidates to compile, those of earlier runs included", integer, 40),
    Option("timed", "of the candidates kept, how many to time (GPU)", integer, 12),
    Option("sampled", "of those that the bounds dropped, how many to time nevertheless", integer, 4),
    Option("margin", "a candidate is dropped whose largest bound is more than this times the best", number, 1.15),
    Option("seed", "of the search", integer, 0),
    Option("device", "GPU to compile for (default: the one here, else h200)"),
    Option("backend", "auto, sim or gpu; sim: nothing is timed", one_of("auto", "sim", "gpu"), "auto"),
    Option("out", "run directory to write (default profiles/STAGE/TIME-HASH)"),
    GPU, NVCC, JSON, bare="kernel", tunables=True,
)  # fmt: skip
def tune(args: argparse.Namespace) -> int:
    """Search a stage's tunables (BM=64,128 gives the choices): compile and bound anywhere, time where a GPU is; goes on where it stopped."""
    from . import tune
    from .problem import Problem
    from .profiling import shape

    output = _Output(args.json)
    kernel = required(args.kernel, "tune")
    given = tunables(args, kernel, "tune")
    sized = any(getattr(args, name) is not None for name in ("size", "m", "n", "k"))
    rest = {o.name: getattr(args, o.name) for o in PROBLEM if o.name not in ("size", "m", "n", "k", "seed")}
    problem = Problem(*(shape(args.size, args.m, args.n, args.k) if sized else (4096,) * 3), **rest)
    with _kept("candidates", args.out):
        result = output.told(
            lambda progress: tune.run(
                kernel, problem=problem, given=given, count=args.count, timed=args.timed, sampled=args.sampled, margin=args.margin, seed=args.seed,
                device=args.device, backend=args.backend, gpu=args.gpu, nvcc=args.nvcc, out=args.out, progress=progress,
            ),
            tune.render,
        )  # fmt: skip
        if result.interrupted:
            raise KeyboardInterrupt
    return 0 if result.winner and not result.lost else 1


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return _complain("interrupted.", status=130)
    except TilescopeError as e:
        return _complain(e.what, e.remedy)
    except MemoryError:
        return _complain("out of memory.", "Choose a smaller size.")
    except Exception as e:
        if isinstance(e, OSError) and e.errno in disk.FULL:
            return _complain(f"cannot write {e.filename or 'a file'}: {disk.FULL[e.errno]}.", "Make room.")
        if os.environ.get("TILESCOPE_TRACEBACK"):
            raise
        return _complain(f"a bug in Tilescope: {type(e).__name__}: {e}", "Set TILESCOPE_TRACEBACK=1 for the traceback.")


def _open_standard_streams() -> None:
    """Nothing for those that were closed (`>&-`): what is written there goes nowhere, and no file of a run gets their number."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            try:
                os.fstat(fd)
            except OSError:
                os.dup2(null, fd)
            setattr(sys, name, open(null, "w" if fd else "r"))


def _complain(what: str, remedy: str = "", status: int = 2) -> int:
    try:
        print(f"error: {what}" + (f"\n       {remedy}" if remedy else ""), file=sys.stderr, flush=True)
    except OSError:
        pass
    return status


def run(argv: list[str]) -> int:
    """Parse and call. Raises TilescopeError on bad input."""
    if not argv or argv[0] in ("help", "-h", "--help"):
        _write(overview())
        return 0
    if argv[0] not in VERBS:
        raise TilescopeError(f"unknown verb {argv[0]!r}.{nearest(argv[0], list(VERBS))}", f"Known: {', '.join(VERBS)}.")
    return VERBS[argv[0]].call(parse(argv[0], argv[1:]))


class _Output:
    """Where a verb's result goes: text to standard output; JSON to a file or, instead of the text, to standard output; a table to a
    file as CSV.

    Raises TilescopeError at once if a file cannot be written: before the work, not after it.
    """

    def __init__(self, json: str | None, csv: str | None = None) -> None:
        self.target, self.sheet = json, csv
        for option, target in (("JSON", json), ("CSV", csv)):
            if target and (option, target) != ("JSON", "-"):
                disk.check(target, option)

    def told(
        self,
        work: Callable[[Any], Any],
        render: Callable[..., str],
        where: Callable[[Any], str] = lambda result: f"Recorded in {_shown(result.path)}\n",
    ) -> Any:
        """Call work with a progress callable, and `give` what comes of it, and where it is recorded, also if it could not be."""
        lost = None
        try:
            with _progress() as progress:
                result = work(progress)
        except NotRecorded as e:
            result, lost = e.result, e
        words = render(result, **_terminal())
        self.give(words + (where(result) if result.path else ""), result.to_json, lost=lost)
        return result

    def give(
        self,
        words: str,
        data: Callable[[], Any],
        table: Callable[[], Any] | None = None,
        lost: TilescopeError | None = None,
    ) -> None:
        """Print a result and write its files. Raises TilescopeError for what could not be written, `lost` included, after all else."""
        troubles = [lost] if lost else []
        for put, what in ((self.text, words), (self.json, data), (self.csv, table)):
            try:
                put(what)
            except TilescopeError as e:
                troubles.append(e)
        for e in troubles[:-1]:
            _complain(e.what, e.remedy)
        if troubles:
            raise troubles[-1]

    def text(self, words: str) -> None:
        if self.target != "-":
            _write(words)

    def json(self, data: Callable[[], Any]) -> None:
        if not self.target:
            return
        from .record import plain

        words = json.dumps(plain(data()), indent=1, allow_nan=False) + "\n"
        if self.target == "-":
            _write(words)
        else:
            disk.write(self.target, words, "JSON")

    def csv(self, table: Callable[[], Any] | None) -> None:
        if self.sheet and table:
            disk.write(self.sheet, table().to_csv(index=False, lineterminator="\n"), "CSV")


def _write(words: str) -> None:
    """Print; a reader that went away (`| head`) ends the output and not the program."""
    try:
        sys.stdout.write(words)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as e:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise TilescopeError(f"cannot write to standard output: {e.strerror}.") from e


def _terminal() -> dict[str, Any]:
    """Width in columns and colour for what is printed: plain text where standard output is not a terminal."""
    if not sys.stdout.isatty():
        return {"width": 100, "colour": False}
    return {
        "width": min(100, os.get_terminal_size(sys.stdout.fileno()).columns or 100),
        "colour": "NO_COLOR" not in os.environ,
    }


def _shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


@contextmanager
def _progress() -> Iterator[Callable[[float, str], None] | None]:
    """A progress callable that keeps one line of a terminal up to date, or None where standard error is not one."""
    if not sys.stderr.isatty():
        yield None
        return

    def show(done: float, words: str) -> None:
        sys.stderr.write(f"\r\x1b[K{done:4.0%} {words}"[:110])
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
