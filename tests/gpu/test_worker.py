"""What the process that holds the GPU does and says, and what is made of its messages; on a GPU that is not there."""

import contextlib
import math
import os
import sys
import textwrap
from multiprocessing.connection import Connection

import pytest
from fake_gpu import GPU, install

from harness import stage as stages
from harness import toolchain
from harness.errors import TilescopeError
from harness.gpu import client, timing, worker
from harness.gpu.driver import Hang, KernelFault
from harness.gpu.worker import Entry, Request
from harness.problem import Problem

SMALL = Problem(24, 20, 16)
OTHER = Problem(17, 33, 19, ldc=40, beta=0.5)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """No waiting for clocks that nothing heats."""
    monkeypatch.setattr(timing, "WARM_S", 0.0)
    monkeypatch.setattr(timing, "WARM_LIMIT_S", 0.05)
    monkeypatch.setattr(timing, "MAX_SETS", 3)
    monkeypatch.setattr(timing, "MAX_QUEUED", 4)


def entry(name, key=None, **tunables):
    if name in ("cublas", "cublaslt"):
        return Entry(key or name, name)
    stage = stages.find(name)
    chosen = stage.configure(tunables)
    binary = toolchain.compile(stage, chosen, 90)
    return Entry(key or name, name, tuple(chosen.items()), binary.cubin, binary.hash)


def request(*names, problems=(SMALL,), rival="cublas", **options):
    entries = tuple(entry(n) for n in names)
    todo = tuple((i, e.key) for i in range(len(problems)) for e in entries)
    return Request(GPU, tuple(problems), entries, todo, rival, **{"limit": 0.05, "timeout": 0.05, **options})


def serve(r):
    said = []
    try:
        worker.serve([r], said.append)
    except (Hang, KernelFault):
        said.append(("died",))
    return said


def points(said):
    return {m[2]: m[3] for m in said if m[0] == "point"}


def test_everyone_is_verified_and_timed_beside_the_rival(fake):
    fake.speeds = {"naive": 1.0, "cublas": 4.0, "lt1": 3.0, "lt2": 6.0}
    said = serve(request("naive", "cublaslt", "cublas"))
    found = points(said)
    assert list(found) == ["naive", "cublaslt", "cublas"]
    assert found["naive"].ratio.value == pytest.approx(0.25) and found["cublaslt"].ratio.value == pytest.approx(1.5)
    cublas = found["cublas"]
    assert cublas.ratio.value == 1 and cublas.rival == "cublas" and len(cublas.samples) >= 2
    for p in found.values():
        assert p.ok and p.accuracy.checked == 24 * 20 and p.exact.exact and p.exact.ok and p.sets == 3 and p.cold
        assert p.ms.value == pytest.approx(
            1e3 * SMALL.flops / 1e9 / fake.speeds[{"cublaslt": "lt2"}.get(p.stage, p.stage)]
        )
    assert cublas.detail == "13.1.0" and "algorithm 2, tile 128x128" in found["cublaslt"].detail
    assert not fake.blocks and fake.handles == 0 and fake.contexts == 0


def test_the_best_of_cublaslt_s_algorithms_is_chosen_for_each_problem(fake):
    fake.speeds = {"lt1": 9.0, "lt2": 6.0}
    said = serve(request("cublaslt", "cublas", problems=(SMALL, OTHER)))
    assert all("algorithm 1," in m[3].detail for m in said if m[0] == "point" and m[2] == "cublaslt")


def test_an_algorithm_that_is_wrong_is_found(fake):
    fake.speeds, fake.fault, fake.on = {"lt2": 1e6}, "wrong", ("lt2",)
    assert points(serve(request("cublaslt", "cublas")))["cublaslt"].wrong


def test_telemetry_and_facts(fake):
    fake.clocks = [1755]
    said = serve(request("naive", "cublas"))
    p = points(said)["naive"]
    assert (
        p.telemetry.clock == 1755
        and p.telemetry.power == 412
        and p.telemetry.temperature == 51
        and "throttled" not in p.flags
    )
    assert ("gpu", {"driver": "580.159.04", "max_clock_mhz": 1980.0, "nvml": "ok"}) in said


@pytest.mark.parametrize(
    "bits, flag", [(0x4, "power-capped"), (0x20, "throttled"), (0x40, "throttled"), (0x8, "throttled")]
)
def test_a_clock_that_is_held_down_is_flagged(fake, bits, flag):
    fake.reasons = bits
    assert flag in points(serve(request("naive", "cublas")))["naive"].flags


def test_without_nvml(monkeypatch, fake):
    install(monkeypatch, fake, without=("pynvml",))
    p = points(serve(request("naive", "cublas")))["naive"]
    assert "no-telemetry" in p.flags and math.isnan(p.telemetry.clock) and p.samples


def test_a_busy_gpu_is_told(monkeypatch, fake):
    fake.load = 97
    monkeypatch.setattr(worker.clocks.Monitor.busy, "__defaults__", (0.0,))
    said = serve(request("naive", "cublas"))
    assert ("warning", "the GPU is 97 % busy with 1 other processes: times will suffer") in said
    assert all("busy" in p.flags for p in points(said).values())


def test_wrong_results_are_not_timed(fake):
    fake.fault, fake.on = "wrong", ("naive",)
    found = points(serve(request("naive", "tiled", "cublas")))
    assert found["naive"].flags == ["wrong"] and not found["naive"].samples and "is wrong" in found["naive"].error
    assert found["tiled"].ok and found["tiled"].samples and found["cublas"].samples


def test_damage_is_not_timed(fake):
    fake.fault, fake.on = "past C", ("naive",)
    p = points(serve(request("naive", "cublas")))["naive"]
    assert p.flags == ["damage"] and not p.samples and p.wrong and "behind C" in p.error


def test_a_result_that_turns_wrong_under_load_is_found_after_timing(fake):
    launched = []

    def count(entry, *a):
        launched.append(entry)
        fake.fault = "wrong" if launched.count("naive") > 20 else ""
        type(fake).multiply(fake, entry, *a)

    fake.multiply, fake.on = count, ("naive",)
    p = points(serve(request("naive", "cublas")))["naive"]
    assert p.samples and p.wrong and "wrong" in p.flags and not p.ok


def test_a_wrong_rival_is_no_rival(fake):
    fake.fault, fake.on = "wrong", ("cublas",)
    found = points(serve(request("naive", "cublas")))
    assert (
        found["cublas"].wrong
        and found["naive"].samples
        and not found["naive"].rival
        and math.isnan(found["naive"].ratio.value)
    )


def test_flags_that_the_problem_calls_for(fake):
    zeros = Problem(24, 20, 16, distribution="zeros")
    said = serve(request("naive", "cublas", problems=(zeros, OTHER)))
    flags = [m[3].flags for m in said if m[0] == "point" and m[2] == "naive"]
    assert "zeros" in flags[0] and "accumulates" in flags[1] and "part-cold" in flags[0]


def test_hot_is_one_set(fake):
    p = points(serve(request("naive", "cublas", cold=False)))["naive"]
    assert p.sets == 1 and not p.cold and "part-cold" not in p.flags


def test_one_stage_with_two_sets_of_tunables(fake):
    entries = (entry("tiled", "0", TILE=16), entry("tiled", "1"))
    r = Request(GPU, (SMALL,), entries, ((0, "0"), (0, "1")), "1", limit=0.05, timeout=0.05)
    found = points(serve(r))
    assert found["0"].tunables == {"TILE": 16} and found["1"].tunables == {"TILE": 32} and found["0"].rival == "tiled"


@pytest.mark.parametrize("fault, says", [("hang", "did not end within"), ("illegal", "illegal memory access")])
def test_a_fault_names_contender_and_problem(fake, fault, says):
    fake.fault, fake.on = fault, ("naive",)
    said = serve(request("tiled", "naive", "cublas"))
    (told,) = [m for m in said if m[0] == "fault"]
    assert told[1:3] == (0, "naive") and says in told[3] and said[-1] == ("died",)


def test_leaving_comes_right_after_the_fault_is_told(fake):
    class Left(BaseException):
        pass

    def leave():
        raise Left

    fake.fault, fake.on = "hang", ("naive",)
    said = []
    with pytest.raises(Left):
        worker.serve([request("naive", "cublas")], said.append, leave)
    assert said[-1][0] == "fault"
    fake.hung = False


def test_a_problem_that_does_not_fit_leaves_the_others(fake):
    fake.total = 290 * 2**20
    large = Problem(2000, 2000, 2000)
    said = serve(request("naive", "cublas", problems=(SMALL, large, OTHER)))
    assert [m[1] for m in said if m[0] == "point"] == [0, 0, 2, 2]
    (told,) = [m for m in said if m[0] == "unable"]
    assert told[1] == 1 and "GiB of GPU memory are needed" in told[2] and not fake.blocks


def test_a_library_that_is_missing_is_left_out(monkeypatch, fake):
    install(monkeypatch, fake, without=("nvmath",))
    said = serve(request("naive", "cublas"))
    (told,) = [m for m in said if m[0] == "refused"]
    assert told[1] == "cublas" and "needs nvmath-python" in told[2]
    assert points(said)["naive"].samples and not points(said)["naive"].rival


def test_pycuda_compiles_where_asked(fake):
    said = serve(request("naive", "cublas", nvcc=toolchain.compiler()[0]))
    assert points(said)["naive"].ok and not any(m[0] in ("refused", "warning") for m in said)


def test_without_a_host_compiler_the_toolchain_s_machine_code_serves(fake, tmp_path):
    broken = tmp_path / "nvcc"
    broken.write_text("#!/bin/sh\necho 'nvcc fatal: gcc: No such file' >&2\nexit 1\n")
    broken.chmod(0o755)
    said = serve(request("naive", "cublas", nvcc=broken))
    (told,) = [m[1] for m in said if m[0] == "warning"]
    assert "PyCUDA cannot compile naive here" in told and "gcc" in told and points(said)["naive"].ok


def test_waiting_for_the_gpu_to_cool(fake, monkeypatch):
    temperatures = iter([70.0, 65.0, 50.0])
    monkeypatch.setattr(worker.clocks.Monitor, "temperature_c", lambda self: next(temperatures, 50.0))
    monkeypatch.setattr(worker.clocks.time, "sleep", lambda s: None)
    said = serve(request("naive", "cublas", cool=55.0))
    assert ("progress", "waiting for the GPU to cool from 70 to 55 degrees C") in said and points(said)["naive"].samples


# the client


@pytest.fixture
def inline(monkeypatch, fake):
    """The client's conversations held in this process; a new one has a GPU that is well again."""
    held = []

    def conversation(r):
        held.append(r)
        fake.hung, fake.dead = False, ""
        fake.blocks.clear()
        yield from serve(r)
        fake.hung, fake.dead, fake.contexts = False, "", 0

    monkeypatch.setattr(client, "_conversation", conversation)
    return held


@pytest.mark.parametrize("fault", ["hang", "illegal"])
def test_after_a_fault_the_others_go_on_in_a_new_process(fake, inline, fault):
    fake.fault, fake.on = fault, ("naive",)
    done = client.run(request("naive", "tiled", "cublas", problems=(SMALL, OTHER)))
    by = {(p.stage, p.problem): p for p in done.points}
    assert len(by) == 6 and len(inline) == 3
    for (stage, _), p in by.items():
        assert (p.fault != "") == (stage == "naive") and p.flags.count("fault") == (stage == "naive")
        assert bool(p.samples) == (stage != "naive")


def test_a_rival_that_fails_is_given_up(fake, inline):
    fake.fault, fake.on = "illegal", ("cublas",)
    done = client.run(request("naive", "tiled", "cublas"))
    by = {p.stage: p for p in done.points}
    assert by["cublas"].fault and by["naive"].samples and by["tiled"].samples and not by["naive"].rival


def test_points_are_kept_on_ctrl_c(fake, inline, monkeypatch):
    conversation = client._conversation

    def interrupted(r):
        for message in conversation(r):
            yield message
            if message[0] == "point":
                raise KeyboardInterrupt

    monkeypatch.setattr(client, "_conversation", interrupted)
    outcome = client.Outcome()
    with pytest.raises(KeyboardInterrupt):
        client.run(request("naive", "tiled", "cublas"), outcome=outcome)
    assert [p.stage for p in outcome.points] == ["naive"]


def test_progress_goes_from_0_to_1(fake, inline):
    seen = []
    client.run(request("naive", "cublas", problems=(SMALL, OTHER)), lambda f, words: seen.append((f, words)))
    shares = [f for f, _ in seen]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] < 1 and any("rounds" in w for _, w in seen)


def test_what_cannot_be_done_is_told_by_key_and_index(fake, inline, monkeypatch):
    install(monkeypatch, fake, without=("nvmath",))
    fake.total = 290 * 2**20
    done = client.run(request("naive", "cublas", problems=(SMALL, Problem(2000, 2000, 2000))))
    assert list(done.refused) == ["cublas"] and list(done.unable) == [1] and len(done.points) == 1


# real processes, with a script in place of the worker


def process(monkeypatch, tmp_path, script):
    """Make the client start a script that has `source`, `sink` and the request `r`."""
    (tmp_path / "script.py").write_text(
        "import sys, os, time\nfrom multiprocessing.connection import Connection\n"
        "source, sink = Connection(int(sys.argv[1]), writable=False), Connection(int(sys.argv[2]), readable=False)\n"
        "for r in iter(source.recv, None):\n" + textwrap.indent(textwrap.dedent(script), "    ")
    )
    real = client.subprocess.Popen
    started = []

    def popen(command, **options):
        started.append(real([sys.executable, str(tmp_path / "script.py"), *command[-2:]], **options))
        return started[-1]

    monkeypatch.setattr(client.subprocess, "Popen", popen)
    return started


def test_messages_of_a_process(monkeypatch, tmp_path, capfd):
    started = process(
        monkeypatch, tmp_path, "print('noise')\nsink.send(('warning', r.gpu.name))\nsink.send(('done',))\n"
    )
    assert client.run(request("naive")).warnings == ["NVIDIA H200"]
    assert started[0].returncode == 0 and "noise" not in capfd.readouterr().out


def test_a_process_that_ends_by_itself(monkeypatch, tmp_path):
    process(monkeypatch, tmp_path, "sink.send(('doing', 'loading', 5.0)); os._exit(9)")
    with pytest.raises(TilescopeError, match=r"loading: the process that holds the GPU ended by itself \(status 9\)"):
        client.run(request("naive"))


def test_a_process_that_says_why(monkeypatch, tmp_path):
    process(monkeypatch, tmp_path, "sink.send(('error', 'no context.', 'Reboot.')); time.sleep(60)")
    with pytest.raises(TilescopeError, match="no context") as e:
        client.run(request("naive"))
    assert e.value.remedy == "Reboot."


def test_a_process_without_a_sign_of_life_is_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(client, "GRACE_S", 0.3)
    started = process(monkeypatch, tmp_path, "sink.send(('doing', 'copying', 0.2)); time.sleep(60)")
    done = client.run(request("naive", rival=None))
    assert done.points[0].fault.startswith("copying: no sign of life") and started[0].returncode == -9


def test_silence_is_blamed_on_what_was_to_be_done_next(monkeypatch, tmp_path):
    monkeypatch.setattr(client, "GRACE_S", 0.3)
    script = """
    from harness.measurement import Point
    for i, key in r.todo[:2]:
        sink.send(('point', i, key, Point(key, r.problems[i], 'gpu', {}, '')))
    sink.send(('doing', 'copying', 0.2))
    time.sleep(60)
    """
    asked = request("naive", "tiled", "tiled1d", rival=None)
    process(monkeypatch, tmp_path, script)
    done = client.run(asked)
    assert [(p.stage, bool(p.fault)) for p in done.points] == [("naive", False), ("tiled", False), ("tiled1d", True)]


def test_ctrl_c_ends_the_process(monkeypatch, tmp_path):
    started = process(monkeypatch, tmp_path, "sink.send(('progress', 'x')); time.sleep(60)")

    def interrupt(share, words):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.run(request("naive"), interrupt)
    assert started[0].returncode == -9


def test_the_worker_itself_without_pycuda(monkeypatch):
    """The real process, on this machine: it says what is missing, and ends."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(TilescopeError, match="PyCUDA cannot be imported|opening GPU"):
        client.run(request("naive"))


def test_no_descriptors_are_left_open(monkeypatch, tmp_path):
    process(monkeypatch, tmp_path, "sink.send(('done',))")
    client.run(request("naive"))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        client.run(request("naive"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_is_kept_for_the_next_request(monkeypatch, tmp_path):
    started = process(monkeypatch, tmp_path, "sink.send(('warning', str(os.getpid())))\nsink.send(('done',))")
    with client.keeping():
        said = [client.run(request(name)).warnings for name in ("naive", "tiled", "naive")]
        assert said[0] == said[1] == said[2] and len(started) == 1 and started[0].poll() is None
    assert started[0].returncode == 0
    assert client.run(request("naive")).warnings != said[0] and started[1].returncode == 0


def test_a_kept_process_that_died_or_failed_is_not_used_again(monkeypatch, tmp_path):
    started = process(
        monkeypatch,
        tmp_path,
        "if r.limit == 3: sink.send(('error', 'no context.', ''))\nelse: sink.send(('done',))\nif r.limit == 2: os._exit(0)",
    )
    with client.keeping():
        client.run(request("naive", limit=2))
        started[0].wait(5)
        client.run(request("naive"))
        with pytest.raises(TilescopeError, match="no context"):
            client.run(request("naive", limit=3))
        client.run(request("naive"))
    assert len(started) == 3 and all(p.returncode is not None for p in started)


def test_a_kept_process_ends_with_the_one_that_asked(monkeypatch, tmp_path):
    """The real worker's loop: its pipe closes when the one that asked is gone."""
    monkeypatch.setattr(worker, "Session", lambda *a: contextlib.nullcontext(type("S", (), {})()))
    monkeypatch.setattr(worker, "_Server", lambda *a: type("Nothing", (), {"run": lambda self: None})())
    left = []
    monkeypatch.setattr(worker.os, "_exit", lambda status: left.append(status))
    (from_us, to_it), (from_it, to_us) = os.pipe(), os.pipe()
    sink, source = Connection(to_it, readable=False), Connection(from_it, writable=False)
    sink.send(request("naive"))
    sink.send(request("naive"))
    sink.close()
    monkeypatch.setattr(sys, "argv", ["worker", str(from_us), str(to_us)])
    worker.main()
    assert left == [130] and source.recv() == source.recv() == ("done",)
