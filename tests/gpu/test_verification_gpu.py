"""make verify on a GPU that is not there: what is judged, what a crash, a hang and damage cost, one process, what is written down."""

import io
import json

import pandas as pd
import pytest
from fake_gpu import GPU
from test_timings import gpu, run  # noqa: F401
from test_worker import process

import harness
from harness import report, toolchain, verification
from harness import stage as stages
from harness.errors import TilescopeError
from harness.gpu import client
from harness.gpu.checking import Checks
from harness.problem import Problem

PACK = len(list(verification.pack({"TILE": 32})))


@pytest.fixture
def asked(gpu, monkeypatch):  # noqa: F811
    """The problems that each process was asked to check."""
    found, conversation = [], client._conversation

    def noted(checks):
        found.append([problem for problem, _ in checks.cases])
        yield from conversation(checks)

    monkeypatch.setattr(client, "_conversation", noted)
    return found


def strike(fake, fault, size):
    """Plant a fault that only products of this size meet."""
    multiply = fake.multiply

    def selective(entry, m, n, k, *rest):
        fake.fault = fault if (m, n, k) == (size, size, size) else ""
        multiply(entry, m, n, k, *rest)

    fake.multiply = selective


def test_a_right_stage_passes_and_says_where(gpu, asked):  # noqa: F811
    done = harness.verify("tiled", count=5)
    assert done.ok and len(done.verdicts) == done.planned == PACK + 5 and len(asked) == 1
    assert (done.backend, done.gpu, done.driver, done.device.name) == ("gpu", "NVIDIA H200", "580.159.04", "h200")
    assert set(gpu.launched) == {"tiled"} and len(gpu.launched) == done.planned and not gpu.blocks
    assert all(v.accuracy.exact == v.case.exact for v in done.verdicts) and any(v.case.exact for v in done.verdicts)
    assert report.render_verification(done).startswith("tiled TILE=32 on NVIDIA H200, driver 580.159.04\n")
    said = done.to_json()
    assert (said["backend"], said["gpu"], said["driver"]) == ("gpu", "NVIDIA H200", "580.159.04")
    assert GPU.uuid not in json.dumps(said)


def test_verdicts_have_the_shape_of_the_simulator_s(gpu):  # noqa: F811
    here, there = (harness.verify("naive", count=3, backend=b) for b in ("gpu", "sim"))
    assert there.backend == "sim" and not there.gpu and "on sm_90, simulated" in str(there)
    assert [v.case for v in here.verdicts] == [v.case for v in there.verdicts]
    assert here.to_json()["verdicts"][0].keys() == there.to_json()["verdicts"][0].keys()


def test_auto_simulates_another_gpu_than_is_here(gpu):  # noqa: F811
    assert harness.verify("naive", count=0, device="a100").backend == "sim" and not gpu.launched
    with pytest.raises(TilescopeError, match="DEVICE=a100 is not what is here"):
        harness.verify("naive", count=0, device="a100", backend="gpu")


def test_a_wrong_cell_is_found(gpu):  # noqa: F811
    strike(gpu, "wrong", 47)
    done = harness.verify("naive", count=0)
    (wrong,) = done.failed
    assert wrong.case.problem.m == 47 and "C[0,46] is" in wrong.why


def test_integers_must_be_right_to_the_bit(gpu):  # noqa: F811
    """An error far within the bound of fp32 is none, but for integers."""
    multiply = gpu.multiply

    def inexact(entry, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        multiply(entry, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
        if k >= 16 and beta <= 1:
            cells = gpu.view(c, m, ldc)[:, :n]
            cells += cells * 2.0**-23

    gpu.multiply = inexact
    done = harness.verify("naive", count=0)
    assert [v.case for v in done.failed] == [v.case for v in done.verdicts if v.case.exact]


@pytest.mark.parametrize(
    "fault, says", [("past C", "a word behind C was written"), ("before C", "a word before C was written"), ("writes A", "A was written")]
)  # fmt: skip
def test_damage_fails_a_product_that_is_right(gpu, fault, says):  # noqa: F811
    strike(gpu, fault, 32)
    done = harness.verify("naive", count=0)
    assert done.failed and all(v.case.problem.m == 32 and v.accuracy.ok and says in v.why for v in done.failed)


@pytest.mark.parametrize("fault, says", [("illegal", "illegal memory access"), ("hang", "did not end within 0.05 s")])
def test_after_a_fault_the_rest_is_checked_in_a_new_process(gpu, asked, fault, says):  # noqa: F811
    strike(gpu, fault, 47)
    done = harness.verify("naive", count=0, timeout=0.05)
    (wrong,) = done.failed
    assert wrong.case.problem.m == 47 and wrong.accuracy is None and says in wrong.why
    assert len(done.verdicts) == done.planned
    assert [len(problems) for problems in asked] == [PACK, PACK - 47] and asked[1][0].m == 48


def test_a_stage_that_crashes_last(gpu, asked):  # noqa: F811
    gpu.fault = "illegal"
    checks = Checks(
        GPU, "naive", {}, toolchain.compile(stages.find("naive"), {}, 90).cubin, ((Problem(3, 3, 3), False),), 0.05
    )
    ((compared, why),) = client.check(checks)
    assert compared is None and "illegal" in why and len(asked) == 1


def test_ctrl_c_keeps_what_is_finished(gpu, monkeypatch):  # noqa: F811
    conversation = client._conversation

    def interrupted(checks):
        for n, message in enumerate(m for m in conversation(checks) if m[0] == "checked"):
            if n == 4:
                raise KeyboardInterrupt
            yield message

    monkeypatch.setattr(client, "_conversation", interrupted)
    done = harness.verify("naive", count=0)
    assert done.interrupted and done.ok and len(done.verdicts) == 4


def test_a_launch_that_the_gpu_refuses_is_bad_input(gpu, capsys):  # noqa: F811
    gpu.total = 0
    status, _, err = run(capsys, "verify naive COUNT=0")
    assert status == 2 and "GiB of GPU memory are needed" in err


def test_the_evidence(gpu, capsys, tmp_path):  # noqa: F811
    strike(gpu, "wrong", 47)
    status, out, _ = run(capsys, f"verify tiled COUNT=2 CSV={tmp_path}/v.csv JSON={tmp_path}/v.json")
    assert status == 1 and "1 wrong" in out
    text = (tmp_path / "v.csv").read_text()
    table = pd.read_csv(io.StringIO(text))
    assert tuple(table.columns) == verification.COLUMNS and GPU.uuid not in text
    row = table.set_index("group").loc["squares from 1"]
    assert (row.cases, row.failed, row.gpu, row.driver) == (64, 1, "NVIDIA H200", "580.159.04") and row.error_share > 1
    assert table.cases.sum() == PACK + 2 and table.failed.sum() == 1
    (said,) = json.loads((tmp_path / "v.json").read_text())
    assert said["gpu"] == "NVIDIA H200" and len(said["verdicts"]) == PACK + 2


@pytest.mark.parametrize(
    "line, says",
    [("GPU=7", "GPU=7: no such GPU"), ("BACKEND=sim GPU=0", "GPU=0 needs BACKEND=gpu"), ("TIMEOUT=0", "TIMEOUT=0 is not more than 0"),
     ("BACKEND=cpu", "unknown BACKEND 'cpu'"), ("CSV=/nonexistent/x", "cannot write CSV=/nonexistent/x")],
)  # fmt: skip
def test_bad_input(gpu, capsys, line, says):  # noqa: F811
    status, out, err = run(capsys, f"verify naive {line}")
    assert (status, out) == (2, "") and says in err and not gpu.launched


# real processes, with a script in place of the worker


def checks(*sizes):
    return Checks(GPU, "naive", {}, b"", tuple((Problem(n, n, n), False) for n in sizes), 0.05)


def test_one_process_checks_stage_after_stage(monkeypatch, tmp_path):
    started = process(
        monkeypatch, tmp_path, "[sink.send(('checked', os.getpid(), '')) for _ in r.cases]\nsink.send(('done',))"
    )
    with client.keeping():
        found = [said for _ in range(3) for said, _ in client.check(checks(1, 2))]
    assert len(found) == 6 and set(found) == {started[0].pid} and len(started) == 1 and started[0].returncode == 0


def test_a_case_without_a_sign_of_life_fails_and_the_next_goes_on(monkeypatch, tmp_path):
    monkeypatch.setattr(client, "GRACE_S", 0.3)
    script = """
    for problem, exact in r.cases:
        sink.send(('doing', f'checking {problem}', 0.2))
        if problem.m == 2: time.sleep(60)
        sink.send(('checked', problem.m, ''))
    sink.send(('done',))
    """
    started = process(monkeypatch, tmp_path, script)
    found = list(client.check(checks(1, 2, 3)))
    assert found[0] == (1, "") and found[2] == (3, "")
    assert found[1][0] is None and found[1][1].startswith("checking 2x2x2: no sign of life")
    assert len(started) == 2 and started[0].returncode == -9


def test_a_process_that_never_starts_is_not_tried_for_every_case(monkeypatch, tmp_path):
    monkeypatch.setattr(client, "GRACE_S", -119.8)
    started = process(monkeypatch, tmp_path, "time.sleep(60)")
    with pytest.raises(TilescopeError, match="starting: no sign of life"):
        list(client.check(checks(1, 2, 3)))
    assert len(started) == 1


def test_the_process_itself_without_pycuda(monkeypatch):
    """The real process, on this machine: it says what is missing, and ends."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(TilescopeError, match="PyCUDA cannot be imported|opening GPU"):
        list(client.check(checks(1)))
