"""make time, ladder, compare and profile with a GPU that is not there: tables, runs, README, exit statuses."""

import io
import json
import math
from types import SimpleNamespace

import pandas as pd
import pytest
from fake_gpu import GPU, install
from test_worker import serve

import harness
from harness import backends, comparison, profiling, readme, record, timing_report, timings
from harness import cli as command_line
from harness.errors import TilescopeError
from harness.gpu import client, timing
from harness.measurement import FLAGS, Point
from harness.problem import Problem
from harness.statistics import Estimate


@pytest.fixture
def gpu(monkeypatch, fake):
    """The fake GPU with the worker in this process, and nothing to wait for."""
    for name, value in (("WARM_S", 0.0), ("WARM_LIMIT_S", 0.02), ("MAX_SETS", 2), ("MAX_QUEUED", 2)):
        monkeypatch.setattr(timing, name, value)

    def conversation(r):
        fake.hung, fake.dead = False, ""
        fake.blocks.clear()
        yield from serve(r)
        fake.hung, fake.dead, fake.contexts = False, "", 0

    monkeypatch.setattr(client, "_conversation", conversation)
    monkeypatch.setattr(backends, "gpu_missing", lambda: "")
    monkeypatch.setattr(profiling, "TIME_LIMIT_S", 0.05)
    fake.speeds = {"naive": 2.0, "tiled": 8.0, "cublas": 20.0, "lt1": 18.0, "lt2": 24.0}
    return fake


def run(capsys, line):
    status = command_line.main(line.split())
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_time(gpu, tmp_path):
    t = harness.time("naive", sizes=[20, 24], limit=0.05, out=tmp_path / "run")
    assert [(p.stage, p.problem.m) for p in t.points] == [("naive", 20), ("cublas", 20), ("naive", 24), ("cublas", 24)]
    assert t.points[0].ratio.value == pytest.approx(0.1) and t.ok and not t.faults and t.path == tmp_path / "run"
    assert t.table.columns.tolist() == list(timings.COLUMNS)


def test_ladder_csv(gpu, tmp_path):
    t = harness.ladder(names=["naive", "tiled"], sizes=[16, 32], limit=0.05, out=tmp_path / "run")
    table = pd.read_csv(tmp_path / "run" / "ladder.csv", keep_default_na=False)
    assert ",".join(table.columns) == (
        "stage,m,n,k,backend,changed,ms,ms_lo,ms_hi,tflops,ratio,ratio_lo,ratio_hi,roof_share,clock_mhz,power_w,flags,error"
    )
    assert (
        table.stage.tolist() == ["naive", "tiled", "cublaslt", "cublas"] * 2 and table.m.tolist() == [16] * 4 + [32] * 4
    )
    assert table.backend.tolist()[:4] == ["gpu", "gpu", "cublaslt", "cublas"]
    assert table.ratio.tolist()[:4] == pytest.approx([0.1, 0.4, 1.2, 1.0])
    row = table.iloc[0]
    assert (
        row.ms == pytest.approx(1e3 * 2 * 16**3 / 2e9)
        and row.tflops == pytest.approx(0.002)
        and row.ms_lo <= row.ms <= row.ms_hi
    )
    assert (
        row.roof_share == pytest.approx(0.002 / GPU.device.peak_tflops) and row.clock_mhz == 1980 and row.power_w == 412
    )
    assert t.table.ms.tolist() == pytest.approx(table.ms.tolist(), rel=1e-5)


def test_a_run_holds_raw_samples_telemetry_and_values(gpu, tmp_path):
    t = harness.time("naive", sizes=[20], limit=0.05, out=tmp_path / "run")
    r = harness.load(t.path)
    samples = r.table("samples")
    assert samples.groupby("run").size().tolist() == [len(p.samples) for p in t.points]
    assert samples.ms.tolist()[: len(t.points[0].samples)] == t.points[0].samples
    assert r.runs.run.tolist() == [f"{r.id}/0", f"{r.id}/1"] and r.runs.device.tolist() == ["h200"] * 2
    v = r.values[(r.values.run == f"{r.id}/0") & (r.values.metric == "rival_ratio")]
    assert v.value.tolist() == pytest.approx([0.1]) and v.source.tolist() == ["timing"] and v.unit.tolist() == ["x"]
    assert set(r.table("telemetry").clock_mhz) == {1980.0}
    assert r.manifest["nvml"]["driver"] == "580.159.04" and r.manifest["points"][0]["exact"]["ok"]
    assert r.text("time.csv").startswith("stage,m,n,k") and r.text("profile.txt") == timing_report.render(t)


def test_nothing_recorded_tells_which_machine_it_was(gpu, tmp_path):
    t = harness.time("naive", sizes=[20], limit=0.05, out=tmp_path / "run")
    for path in t.path.iterdir():
        assert GPU.uuid.encode() not in path.read_bytes() and str(tmp_path).encode() not in path.read_bytes()


def test_problems_and_tunables(gpu):
    t = harness.time("tiled", problem=Problem(30, 20, 10, lda=13), against="tiled", limit=0.05, record=False, tile=16)
    assert [p.tunables for p in t.points] == [{"TILE": 16}, {"TILE": 32}] and t.points[0].ratio.value == pytest.approx(
        1
    )
    assert "tiled TILE=16" in timing_report.render(t) and "is SAME: tiled's time" in timing_report.render(t)


def test_sizes_keep_the_other_options(gpu, capsys):
    status, out, _ = run(
        capsys, "time naive SIZES=16,20 BETA=2 DISTRIBUTION=uniform SEED=4 LIMIT=0.05 RECORD=no JSON=-"
    )
    found = [p["problem"] for p in json.loads(out)["points"][::2]]
    assert status == 0 and [(p["m"], p["beta"], p["distribution"], p["seed"]) for p in found] == [
        (16, 2.0, "uniform", 4),
        (20, 2.0, "uniform", 4),
    ]


def test_alone(gpu):
    t = harness.time("naive", sizes=[20], against=None, limit=0.05, record=False)
    assert len(t.points) == 1 and math.isnan(t.points[0].ratio.value) and t.points[0].samples


def test_without_cublas_stages_are_timed_alone(gpu, monkeypatch):
    install(monkeypatch, gpu, without=("nvmath",))
    t = harness.ladder(names=["naive"], sizes=[16], limit=0.05, record=False)
    assert [p.stage for p in t.points] == ["naive"] and t.points[0].samples
    assert any("cublas was left out: cublas needs nvmath-python" in w for w in t.warnings)
    assert "Warning: cublas was left out" in timing_report.render(t)


def test_ctrl_c_leaves_what_was_finished(gpu, monkeypatch, capsys, tmp_path):
    conversation = client._conversation

    def interrupted(r):
        for message in conversation(r):
            yield message
            if message[:2] == ("point", 1):
                raise KeyboardInterrupt

    monkeypatch.setattr(client, "_conversation", interrupted)
    status, out, err = run(capsys, f"ladder STAGES=naive SIZES=16,20,24 LIMIT=0.05 README=no OUT={tmp_path}/run")
    assert status == 130 and "Interrupted: the points above are what was finished" in out and "interrupted" in err
    assert pd.read_csv(tmp_path / "run" / "ladder.csv").m.tolist() == [16, 16, 16, 20]
    assert record.load(tmp_path / "run").manifest["interrupted"]


@pytest.mark.parametrize("verb", ["time naive SIZES=16,20", "ladder STAGES=naive SIZES=16 README=no"])
def test_times_that_are_not_recorded_are_printed(gpu, unrecorded, verb):
    said = unrecorded(*verb.split(), "LIMIT=0.05", remedy="RECORD=no records nothing.")
    assert "naive" in said and "cublas / this" in said


def test_ctrl_c_on_a_full_disk(gpu, unrecorded, monkeypatch):
    """What was finished is printed; that it is not recorded is what has to be said."""
    conversation = client._conversation

    def interrupted(r):
        for message in conversation(r):
            yield message
            if message[:2] == ("point", 1):
                raise KeyboardInterrupt

    monkeypatch.setattr(client, "_conversation", interrupted)
    said = unrecorded("ladder", "STAGES=naive", "SIZES=16,20,24", "LIMIT=0.05", "README=no")
    assert "Interrupted: the points above are what was finished" in said


def test_a_profile_with_times_that_is_not_recorded_is_printed(gpu, unrecorded):
    assert "cublas" in unrecorded("profile", "naive", "SIZE=16").lower()


def test_exit_statuses(gpu, capsys):
    words = "SIZE=20 LIMIT=0.05 RECORD=no"
    assert run(capsys, f"time naive {words}")[0] == 0
    gpu.fault, gpu.on = "wrong", ("naive",)
    status, out, _ = run(capsys, f"time naive {words}")
    assert status == 1 and "WRONG" in out and "is wrong; C[0,19]" in out
    gpu.fault = "illegal"
    status, out, err = run(capsys, f"time naive {words}")
    assert (
        status == 2
        and "FAULT" in out
        and "naive on 20x20x20: running naive, main: the kernel made an illegal memory access" in err
    )
    gpu.fault, gpu.total = "", 2**20
    status, _, err = run(capsys, f"time naive {words}")
    assert status == 2 and "GPU memory are needed" in err


def test_json(gpu, capsys):
    status, out, _ = run(capsys, "time naive SIZE=20 LIMIT=0.05 RECORD=no JSON=-")
    found = json.loads(out)
    assert status == 0 and found["kind"] == "time" and found["points"][0]["ratio"] == pytest.approx(0.1)
    assert found["points"][0]["verdict"] == "SLOWER" and found["points"][0]["flags"] and found["path"] is None


@pytest.mark.parametrize(
    "line, says",
    [
        ("time naive HOT=1 COLD=1", "HOT=1 and COLD=1 contradict each other"),
        ("time naive LIMIT=0", "LIMIT=0 is not more than 0"),
        ("time naive TIMEOUT=-1", "TIMEOUT=-1 is not more than 0"),
        ("time naive SIZES=5,x", "SIZES='x' is not an integer"),
        ("time naive SIZES=5 SIZE=5", "SIZES and SIZE are both given"),
        ("time naive SIZES=0", "0 is less than 1"),
        ("time naive AGAINST=cubals", "unknown kernel 'cubals'"),
        ("time naive TILE=3", "unknown TILE"),
        ("time naive LOAD=x", "unknown LOAD"),
        ("time naive GPU=4", "GPU=4: no such GPU"),
        ("time naive DISTRIBUTION=cauchy", "unknown DISTRIBUTION"),
        ("time", "time needs KERNEL="),
        ("ladder STAGES=naive,nave", "unknown kernel 'nave'"),
        ("compare A=x B=y", "no run x"),
        ("compare", "compare needs A="),
        ("launch", "launch needs KERNEL="),
    ],
)
def test_bad_input(gpu, capsys, line, says):
    status, out, err = run(capsys, line)
    assert status == 2 and out == "" and says in err and "bug" not in err


def test_readme_gets_the_ladder(gpu, capsys, monkeypatch, tmp_path):
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- ladder:begin -->\nold\n<!-- ladder:end -->\nafter\n")
    monkeypatch.setattr(readme.fill, "__defaults__", (page,))
    monkeypatch.setattr(timings.stages, "names", lambda: ["naive", "tiled"])
    status, _, err = run(capsys, f"ladder SIZES=16,32 LIMIT=0.05 OUT={tmp_path}/run")
    assert status == 0, err
    text = page.read_text()
    assert (
        text.startswith("before\n<!-- ladder:begin -->\n| |")
        and text.endswith("<!-- ladder:end -->\nafter\n")
        and "old" not in text
    )
    assert (
        "| `naive` | 0.002" in text
        and "(10 %)" in text
        and "| cuBLAS | " in text
        and "cuBLAS 13.1.0" in text
        and "(120 %)" in text
    )
    once = page.read_text()
    run(capsys, f"ladder SIZES=16 STAGES=naive LIMIT=0.05 OUT={tmp_path}/other")
    assert page.read_text() == once, "a part of the ladder does not go into README"


def test_a_readme_that_cannot_be_written_is_no_failure(gpu, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(readme.fill, "__defaults__", (tmp_path / "none" / "README.md",))
    monkeypatch.setattr(timings.stages, "names", lambda: ["naive"])
    status, out, _ = run(capsys, f"ladder SIZES=16 LIMIT=0.05 OUT={tmp_path}/run")
    assert status == 0 and "README was left as it is" in out


def test_the_printed_table(gpu):
    gpu.reasons = 4
    t = harness.ladder(names=["naive"], sizes=[16], limit=0.05, record=False)
    text = timing_report.render(t)
    assert (
        "Ladder on GPU 0, NVIDIA H200" in text
        and "cublas / this" in text
        and "SM clock 1,980 to 1,980 MHz; driver 580.159.04" in text
    )
    assert f"power-capped  {FLAGS['power-capped']}  (all)" in text.replace("\n                ", " ")
    assert max(map(len, text.splitlines())) <= 100
    t.points[0].flags.append("wrong")
    assert "(naive 16)" in timing_report.render(t)


def test_flags_are_known():
    p = Point("x", Problem(4, 4, 4), "gpu")
    with pytest.raises(ValueError):
        p.flag("odd")
    p.flag("busy")
    p.flag("busy")
    assert p.flags == ["busy"]


# profile


def test_profile_runs_checks_and_times(gpu, tmp_path):
    p = harness.profile("naive", size=33, out=tmp_path / "run", backend="gpu")
    assert p.ok and p.backend == "gpu" and p.device.name == "h200" and p.timed.ratio.value == pytest.approx(0.1)
    timing_rows = p.values[(p.values.source == "timing") & (p.values.metric == "time_ms")]
    assert timing_rows.value.tolist() == [p.timed.ms.value]
    assert (p.values.source == "sim").sum() > 50, "the simulated counts come along"
    text = str(p)
    assert (
        "backend   GPU 0, NVIDIA H200, driver 580.159.04; its counts from the machine code" in text
        and "cublas / this" in text
    )
    assert "times the bound of" in text
    r = harness.load(p.path)
    assert r.table("samples").run.tolist()[0] == r.id and r.runs.rounds.tolist() == [len(p.timed.samples)]
    assert comparison.compare(p.path, p.path).rows[0].stage == "naive"


def test_auto_means_the_gpu_where_there_is_one(gpu):
    assert harness.profile("naive", size=16, record=False).backend == "gpu"
    assert harness.profile("naive", size=16, record=False, device="h200").backend == "gpu"
    other = harness.profile("naive", size=16, record=False, device="a100")
    assert (other.backend, other.device.name) == ("sim", "a100")
    assert harness.profile("naive", size=16, record=False, backend="sim").timing is None


def test_profile_refuses_what_is_not_here(gpu):
    with pytest.raises(TilescopeError, match="DEVICE=a100 is not what is here: GPU 0, NVIDIA H200"):
        harness.profile("naive", size=16, device="a100", backend="gpu", record=False)
    with pytest.raises(TilescopeError, match="GPU=0 needs BACKEND=gpu"):
        harness.profile("naive", size=16, backend="sim", gpu=0, record=False)


@pytest.mark.parametrize("fault, says", [("wrong", "WRONG: 1 of"), ("past C", "WRONG: a word behind C was written")])
def test_profile_of_a_stage_that_is_wrong_on_the_gpu(gpu, fault, says):
    gpu.fault, gpu.on = fault, ("naive",)
    p = harness.profile("naive", size=16, record=False)
    assert not p.ok and says in str(p) and "not timed" in str(p)


@pytest.mark.parametrize("fault, says", [("hang", "did not end within"), ("illegal", "illegal memory access")])
def test_profile_of_a_stage_that_fails_on_the_gpu(gpu, monkeypatch, fault, says):
    monkeypatch.setattr(client, "GRACE_S", 0.1)
    time = timings.time
    monkeypatch.setattr(timings, "time", lambda *a, **k: time(*a, **k, timeout=0.05))
    gpu.fault, gpu.on = fault, ("naive",)
    with pytest.raises(TilescopeError, match=says):
        harness.profile("naive", size=16, record=False)
    gpu.fault = ""
    assert harness.profile("naive", size=16, record=False).ok, "the next one works"


def test_a_fault_in_the_simulator_keeps_the_stage_off_the_gpu(gpu):
    p = harness.profile("tiled_no_first_barrier", size=64, record=False)
    assert p.fault and not p.timing and not gpu.launched


def test_an_architecture_that_is_not_simulated_still_profiles(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr("harness.sim.simulate.ARCHITECTURES", (80,))
    p = harness.profile("naive", size=16, out=tmp_path / "run")
    assert p.ok and not p.parts and p.timed.samples and "not simulated" in str(p)
    assert any("Not simulated: the simulator does not know the machine code of sm_90" in n for n in p.notes)
    assert harness.load(p.path).manifest["launches"] == []
    with pytest.raises(TilescopeError, match="not simulated"):
        harness.profile("naive", size=16, backend="sim", record=False)


# compare


def recorded(gpu, tmp_path, name, **speeds):
    gpu.speeds |= speeds
    gpu.jitter = 0.001
    return harness.ladder(names=["naive", "tiled"], sizes=[16, 32], limit=0.1, out=tmp_path / name)


def test_the_newest_two_that_can_be_compared(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison.records, "PROFILES", tmp_path)
    assert comparison.newest() is None
    runs = [recorded(gpu, tmp_path, f"stage/{name}") for name in "ba"]
    harness.time("vectorized", sizes=[20], against=None, limit=0.05, out=tmp_path / "stage/other")
    found = comparison.newest()
    assert [found.a, found.b] == [run.id for run in runs]  # in the order they were taken, not of their names


def test_compare(gpu, tmp_path, capsys):
    a = recorded(gpu, tmp_path, "a")
    b = recorded(gpu, tmp_path, "b", naive=2.2, tiled=7.0)
    found = harness.compare(a.path, b.path)
    words = {r.stage: r.verdict for r in found.rows if r.problem == (16, 16, 16)}
    assert words == {"naive": "FASTER", "tiled": "SLOWER", "cublaslt": "SAME", "cublas": "SAME"} and not found.ok
    row = found.rows[0]
    assert row.ratio == pytest.approx(1.1, rel=0.01) and row.lo <= row.ratio <= row.hi and row.a_ms > row.b_ms
    status, out, _ = run(capsys, f"compare A={a.path} B={b.path}")
    assert status == 1 and "SLOWER" in out and "FASTER" in out
    status, out, _ = run(capsys, f"compare A={b.path} B={b.path} JSON=-")
    assert status == 0 and json.loads(out)["verdicts"] == {"FASTER": 0, "SAME": 8, "SLOWER": 0, "AMBIGUOUS": 0}


def test_a_throttled_figure_is_no_verdict(gpu, tmp_path):
    a = recorded(gpu, tmp_path, "a")
    gpu.reasons = 0x40
    b = recorded(gpu, tmp_path, "b", naive=1.0)
    found = harness.compare(a.path, b.path)
    assert {r.verdict for r in found.rows} == {"AMBIGUOUS"} and found.rows[0].note == "throttled" and found.ok


def test_a_run_is_the_same_as_itself(gpu, tmp_path):
    gpu.reasons = 0x40
    a = recorded(gpu, tmp_path, "a")
    found = harness.compare(a.path, a.path)
    assert {(r.verdict, r.lo, r.hi, r.note) for r in found.rows} == {("SAME", 1.0, 1.0, "throttled")}
    assert found.only_a == found.only_b == []


def test_rows_without_a_partner_are_named(gpu, tmp_path, capsys):
    a = recorded(gpu, tmp_path, "a")
    b = harness.time("tiled", sizes=[16, 20], limit=0.1, out=tmp_path / "b", TILE=8)
    found = harness.compare(a.path, b.path)
    assert [(r.stage, r.problem[0]) for r in found.rows] == [("cublas", 16)]
    assert found.only_a[:2] == ["naive at 16", "tiled at 16"] and len(found.only_a) == 7
    assert found.only_b == ["tiled TILE=8 at 16", "tiled TILE=8 at 20", "cublas at 20"]
    status, out, _ = run(capsys, f"compare A={a.path} B={b.path}")
    assert status == 0 and "Only in A, not compared: 7 rows: naive at 16, tiled at 16" in out
    assert "Only in B, not compared: 3 rows: tiled TILE=8 at 16, tiled TILE=8 at 20, cublas at 20." in " ".join(out.split())  # fmt: skip
    assert run(capsys, f"compare A={a.path} B={a.path}")[1].count("Only in") == 0
    _, out, _ = run(capsys, f"compare A={a.path} B={b.path} JSON=-")
    assert json.loads(out)["only_b"] == found.only_b


def test_runs_with_nothing_in_common(gpu, tmp_path):
    a = harness.time("naive", sizes=[16], limit=0.05, out=tmp_path / "a")
    b = harness.time("naive", sizes=[20], limit=0.05, out=tmp_path / "b")
    hot = harness.time("naive", sizes=[16], limit=0.05, out=tmp_path / "c", cold=False)
    for other, has in ((b, "naive at 20"), (hot, "naive at 16 hot")):
        with pytest.raises(TilescopeError, match=f"share no stage on the same problem(.|\n)*B has {has}"):
            harness.compare(a.path, other.path)
    simulated = harness.profile("naive", size=16, backend="sim", out=tmp_path / "d")
    with pytest.raises(TilescopeError, match="has no times: it is of kind profile"):
        harness.compare(a.path, simulated.path)


def test_what_the_runs_were_taken_under(gpu, tmp_path, monkeypatch):
    a = recorded(gpu, tmp_path, "a")
    import sys

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlSystemGetDriverVersion", lambda: "590.1")
    found = harness.compare(a.path, recorded(gpu, tmp_path, "b").path)
    assert found.differences == ["driver: 580.159.04 and 590.1"]


def test_csv_of_nothing_known():
    p = Point("x", Problem(4, 4, 4), "gpu", fault="it broke\nremedy")
    table = pd.DataFrame([timings._row(p, 60.0)], columns=list(timings.COLUMNS))
    assert timings.csv(table).splitlines()[1] == "x,4,4,4,gpu," + "," * 11 + ",it broke"
    assert pd.read_csv(io.StringIO(timings.csv(table))).m.tolist() == [4]


def test_an_interval_of_nothing():
    assert timing_report._spread(Estimate(math.nan, math.nan, math.nan)) == "-"


def test_a_tuned_row_stands_below_its_stage():
    """Although, for want of a search, it is first timed at the second size."""
    sizes = [Problem(512, 512, 512), Problem(1024, 1024, 1024)]
    who = [("tiled", "gpu", {}), ("tiled", "gpu", {"TILE": 16}), ("naive", "gpu", {}), ("cublas", "cublas", {})]
    points = [
        Point(name, p, kind, own, samples=[1.0]) for p in sizes for name, kind, own in who if not own or p is sizes[1]
    ]
    t = SimpleNamespace(points=points, gpu=SimpleNamespace(name="a GPU"), options={"cold": True})
    rows = [line.split("|")[1].strip() for line in timing_report.markdown(t).splitlines() if line.startswith("| ")]
    assert rows[1:] == ["`tiled`", "`tiled`, tuned", "`naive`", "cuBLAS"]
