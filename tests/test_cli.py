"""python -m harness: verbs, exit status, two clear lines for every error, nothing half-written, pipes and Ctrl-C."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import pytest

from harness import cli, ledger, profiling, record, toolchain, verification
from harness import stage as stages
from harness.errors import TilescopeError

ROOT = Path(cli.__file__).resolve().parent.parent


def harness(*words: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "harness", *words], cwd=ROOT, capture_output=True, text=True, timeout=120, **options
    )


def main(capsys, line: str) -> tuple[int, str, str]:
    """(status, standard output, standard error) of a command line run in this process."""
    status = cli.main(line.split())
    return status, *capsys.readouterr()


@pytest.fixture
def own_stage(tmp_path):
    """A stage outside the repository: (its .py file, its .cu file)."""
    for suffix in (".py", ".cu"):
        text = (stages.KERNELS / f"naive{suffix}").read_text()
        (tmp_path / f"mine{suffix}").write_text(text.replace('name="naive"', 'name="mine"'))
    return tmp_path / "mine.py", tmp_path / "mine.cu"


def test_list_has_a_line_a_stage(capsys):
    status, out, err = main(capsys, "list")
    assert (status, err) == (0, "") and [line.split()[0] for line in out.splitlines()] == stages.names()


def test_list_as_json(capsys):
    rows = json.loads(main(capsys, "list --json -")[1])
    assert {"stage", "parent", "idea", "tunables"} == set(rows[0])


def test_list_imports_nothing_heavy():
    code = "import sys; from harness import cli; cli.main(['list']); print({'pandas', 'pyarrow', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_profile_prints_records_and_shows_again(capsys, tmp_path):
    status, out, err = main(capsys, f"profile KERNEL=tiled SIZE=40 TILE=8 OUT={tmp_path}/run JSON={tmp_path}/x.json")
    assert (status, err) == (0, "") and "TILE=8" in out and f"{tmp_path}/run" in out.splitlines()[-1]
    assert json.loads((tmp_path / "x.json").read_text())["tunables"] == {"TILE": 8}
    shown = main(capsys, f"show {tmp_path}/run")[1]
    assert out.startswith(shown)
    assert json.loads(main(capsys, f"show RUN={tmp_path}/run --json -")[1])["stage"] == "tiled"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "x.json"]


def test_json_alone_on_standard_output(capsys):
    status, out, err = main(capsys, "profile tiled --size 33 --backend sim --record no --json -")
    assert status == 0 and json.loads(out)["error"]["max"] >= 0 and err == ""


def test_a_failed_verdict_is_status_1(capsys):
    assert main(capsys, "profile naive_row_of_b --size 33 --record no")[0] == 1
    status, out, _ = main(capsys, "profile tiled_no_first_barrier --size 64 --record no")
    assert status == 1 and "read-after-write" in out
    assert main(capsys, "verify naive_no_k COUNT=1 BACKEND=sim")[0] in (0, 1)
    assert main(capsys, "verify naive_mixed_axes COUNT=1 BACKEND=sim")[0] == 1


def test_verify(capsys):
    status, out, _ = main(capsys, "verify tiled TILE=4 COUNT=2 BACKEND=sim")
    assert status == 0 and "correct" in out
    assert json.loads(main(capsys, "verify tiled COUNT=0 BACKEND=sim --json -")[1])[0]["ok"] is True


def test_sass(capsys):
    status, out, _ = main(capsys, "sass tiled TILE=8")
    assert status == 0 and "FFMA" in out and "tiled.cu:" in out


def test_a_stage_outside_the_repository(capsys, own_stage):
    for path in own_stage:
        status, out, err = main(capsys, f"profile {path} --size 32 --record no")
        assert (status, err) == (0, "") and out.startswith("mine:") and "mine.cu:" in out


BAD = {
    "profile tild2d": "unknown kernel 'tild2d'. Did you mean tiled2d?",
    "profile": "profile needs KERNEL=",
    "profile tiled SIZE=0": "SIZE=0 is less than 1",
    "profile tiled SIZE=-3": "SIZE=-3 is less than 1",
    "profile tiled --size -3": "SIZE=-3 is less than 1",
    "profile tiled SIZE=1.5": "SIZE='1.5' is not an integer",
    "profile tiled SIZE=40000000": "elements",
    "profile tiled SIZE=99999999999999999999999999": "elements",
    "profile tiled SIZE=3 M=4": "both given",
    "profile tiled TILE=3": "illegal tunables",
    "profile tiled TILE=x": "TILE='x' is not an integer",
    "profile tiled BM=3": "unknown BM",
    "profile tiled DEVICE=h2000": "unknown DEVICE 'h2000'. Did you mean h200?",
    "profile tiled BACKEND=gpu": "BACKEND=gpu cannot work here",
    "profile tiled NVCC=/nonexistent": "no such compiler",
    "profile tiled OUT=/dev/null": "is a file",
    "profile tiled OUT=/dev/null/x": "cannot write",
    "profile tiled JSON=/nonexistent/x": "cannot write JSON",
    "profile /nonexistent/x.cu": "no stage file",
    "verify tiled COUNT=-1": "COUNT=-1",
    "show": "show needs RUN=",
    "show /nonexistent": "no run",
    "bench SIZES=a": "SIZES='a' is not an integer",
    "bench SIZES=64,0": "SIZES=64,0: 0 is less than 1",
    "bench SIZES=,": "SIZES=, names no size",
    "time tiled SIZES=0": "SIZES=0: 0 is less than 1",
    "profile tiled SIZE=٣": "SIZE='٣' is not an integer",
    "profile tiled ALPHA=٣": "ALPHA='٣' is not a number",
    "profile tiled TILE=٣": "TILE='٣' is not an integer",
    "profile tiled SIZE=4 SEED=99999999999999999999": "SEED=99999999999999999999 is more than",
    "profile tiled NVCC=/bin/true": "/bin/true is not nvcc",
    "pofile tiled": "unknown verb 'pofile'. Did you mean profile?",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_two_clear_lines(capsys, monkeypatch, line):
    monkeypatch.setattr("harness.backends.gpu_missing", lambda: "no GPU")
    status, out, err = main(capsys, line)
    assert (status, out) == (2, "")
    lines = err.splitlines()
    assert lines[0].startswith("error: ") and BAD[line] in lines[0] and len(lines) <= 2


BEFORE_THE_GPU = {
    "time tiled AGAINST=cubals": "unknown kernel 'cubals'",
    "time tiled TILE=3": "illegal tunables",
    "time tiled NVCC=/nonexistent": "no such compiler",
    "ladder STAGES=tiled,tild": "unknown kernel 'tild'. Did you mean tiled?",
    "ladder STAGES=,": "STAGES=, names no stage",
    "launch tiled TILE=3": "illegal tunables",
    "roofs NVCC=/nonexistent": "no such compiler",
    "sanitize tiled NVCC=/nonexistent": "no such compiler",
    "profile tiled BACKEND=gpu NVCC=/nonexistent": "no such compiler",
    "profile tiled BACKEND=gpu OUT=/dev/null": "is a file",
    "tune tiled BACKEND=gpu TILE=x": "TILE=x is not integers",
    "tune tiled BACKEND=gpu OUT=/dev/null": "is a file",
    "tune tiled BACKEND=gpu FOO=1": "unknown FOO",
    "experiment trafic BACKEND=gpu": "unknown experiment 'trafic'. Did you mean traffic?",
    "experiment traffic BACKEND=gpu OUT=/dev/null": "is a file",
    "experiment traffic BACKEND=gpu NVCC=/nonexistent": "no such compiler",
}


@pytest.mark.parametrize("line", BEFORE_THE_GPU)
def test_bad_input_is_named_before_a_missing_gpu(capsys, monkeypatch, line):
    def missing(*_):
        raise TilescopeError("there is no NVIDIA driver.")

    monkeypatch.setattr("harness.backends.gpu_missing", lambda: "no GPU")
    monkeypatch.setattr("harness.gpu.devices.find", missing)
    monkeypatch.setattr("harness.sanitize.find", lambda: None)
    status, out, err = main(capsys, line)
    assert (status, out) == (2, "") and BEFORE_THE_GPU[line] in err.splitlines()[0]


def test_no_compiler(capsys, monkeypatch):
    monkeypatch.setattr(toolchain, "packaged", lambda tool: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    for found in (toolchain.compiler, toolchain.tools):
        found.cache_clear()
    try:
        status, _, err = main(capsys, "profile tiled SIZE=8 --record no")
    finally:
        for found in (toolchain.compiler, toolchain.tools):
            found.cache_clear()
    assert status == 2 and "nvcc is not installed" in err


def test_a_compiler_error_shows_nvcc_s_line(capsys, own_stage, tmp_path):
    source = own_stage[1]
    source.write_text(source.read_text().replace("{", "{ int x = y;", 1))
    status, _, err = main(capsys, f"profile {source} --size 8 --out {tmp_path}/run")
    assert status == 2 and "mine.cu does not compile" in err and "undefined" in err and "mine.cu(" in err
    assert not (tmp_path / "run").exists()


def test_a_stage_file_that_raises(capsys, own_stage):
    own_stage[0].write_text("1 / 0\n")
    status, _, err = main(capsys, f"profile {own_stage[0]}")
    assert status == 2 and "mine.py:1 raised ZeroDivisionError" in err


def test_an_existing_run_is_not_overwritten(capsys, tmp_path):
    assert main(capsys, f"profile tiled SIZE=8 OUT={tmp_path}/run")[0] == 0
    status, _, err = main(capsys, f"profile tiled SIZE=9 OUT={tmp_path}/run")
    assert status == 2 and "not empty" in err and record.load(tmp_path / "run").manifest["problem"]["m"] == 8


def test_a_damaged_run_is_not_shown(capsys, tmp_path):
    main(capsys, f"profile tiled SIZE=8 OUT={tmp_path}/run")
    (tmp_path / "run/profile.txt").write_text("all is well")
    status, _, err = main(capsys, f"show {tmp_path}/run")
    assert status == 2 and "profile.txt was altered" in err


def test_a_bug_is_named_as_one_with_no_traceback(capsys, monkeypatch):
    monkeypatch.setattr(profiling, "profile", lambda *a, **k: {}["x"])
    status, _, err = main(capsys, "profile tiled")
    assert status == 2 and "a bug in Tilescope: KeyError" in err and "TILESCOPE_TRACEBACK=1" in err
    monkeypatch.setenv("TILESCOPE_TRACEBACK", "1")
    with pytest.raises(KeyError):
        cli.main(["profile", "tiled"])


def test_out_of_memory(capsys, monkeypatch):
    def greedy(*a, **k):
        raise MemoryError

    monkeypatch.setattr(profiling, "profile", greedy)
    assert main(capsys, "profile tiled")[0] == 2


def test_overview(capsys):
    for words in ("", "help", "--help"):
        status, out, _ = main(capsys, words)
        assert status == 0 and all(f"\n  {verb} " in out for verb in cli.VERBS)


def test_a_reader_that_goes_away():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "harness", "sass", "tiled"], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_json_to_what_is_no_file(tmp_path):
    """A device or a pipe is written to; it must not be replaced by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    assert cli.main(["list", f"JSON={pipe}"]) == 0
    assert '"stage": "tiled2d"' in reader.communicate(timeout=30)[0]
    assert not pipe.is_file()
    link, target = tmp_path / "link", tmp_path / "target"
    target.write_text("")
    link.symlink_to(target)
    assert cli.main(["list", f"JSON={link}"]) == 0
    assert link.is_symlink() and '"stage"' in target.read_text()


def test_a_full_standard_output():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "harness", "list"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2 and done.stderr.startswith("error: cannot write to standard output")
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(tmp_path, closed):
    words = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "harness"]
    done = subprocess.run(
        [*words, "profile", "tiled", "SIZE=8", f"OUT={tmp_path}/run"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) is (" >&-" not in f" {closed}") and record.load(tmp_path / "run").manifest["ok"]


@pytest.mark.parametrize("word", ["x", "t", "q"])
def test_no_guess_at_a_single_letter(capsys, word):
    assert "Did you mean" not in main(capsys, f"{word} tiled")[2] + main(capsys, f"profile {word}")[2]


@pytest.mark.parametrize(
    "verb, usage", [("verify", "verify [KERNEL] ["), ("profile", "profile KERNEL ["), ("list", "list [")]
)
def test_help_shows_what_may_be_left_out(capsys, verb, usage):
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    assert usage in capsys.readouterr().out


def test_an_ascii_terminal():
    assert harness("list", env={**os.environ, "PYTHONIOENCODING": "ascii"}).returncode == 0


@pytest.mark.parametrize("delay", [0.2, 0.5, 0.9, 1.3])
def test_ctrl_c_leaves_nothing(tmp_path, delay):
    words = [
        "profile",
        "naive_uncoalesced",
        "--m",
        "1900",
        "--n",
        "1900",
        "--k",
        "1500",
        "--out",
        str(tmp_path / "run"),
    ]
    child = subprocess.Popen(
        [sys.executable, "-m", "harness", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(delay)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    if (tmp_path / "run").exists():  # it was faster: then all of it is there
        record.load(tmp_path / "run")
        return
    assert list(tmp_path.iterdir()) == []
    if delay >= 0.5:  # before, the interpreter itself may still be starting
        assert child.returncode == 130 and "Traceback" not in err


def test_two_runs_at_once(tmp_path):
    words = [sys.executable, "-m", "harness", "profile", "tiled", "--size", "64", "--out", str(tmp_path / "run")]
    children = [
        subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [c.communicate(timeout=120)[1] for c in children]
    assert sorted(c.returncode for c in children) == [0, 2]
    assert any("another run" in e or "not empty" in e for e in errors)
    record.load(tmp_path / "run")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_an_interrupted_verify_prints_what_is_finished(capsys, monkeypatch):
    real, calls = verification._judge, []

    def judge(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(verification, "_judge", judge)
    status, out, err = main(capsys, "verify tiled BACKEND=sim")
    assert status == 130 and "2 of 2 problems correct" in out and err == "error: interrupted.\n"


def test_a_run_is_shown_as_its_verb_printed_it(capsys, tmp_path):
    for kind in ("roofs", "ledger"):
        folder = ROOT / f"profiles/recorded/h200/{kind}"
        assert main(capsys, f"show {folder}") == (0, (folder / f"{kind}.txt").read_text(), "")
    record.write(tmp_path / "bare", {"id": "1", "kind": "roofs"}, {})
    status, _, errors = main(capsys, f"show {tmp_path}/bare")
    assert status == 2 and f"make report RUN={tmp_path}/bare" in errors


def test_a_profile_that_is_not_recorded_is_printed(unrecorded):
    assert "BOUNDS" in unrecorded("profile", "naive", "SIZE=8", remedy="RECORD=no records nothing.")


def test_a_ledger_that_is_not_recorded_is_printed(unrecorded, monkeypatch):
    monkeypatch.setattr(ledger, "build", lambda evidence, progress: pd.DataFrame([["x"] * 11], columns=ledger.COLUMNS))
    assert "IN ALL" in unrecorded("ledger")


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """A real file system of 200 KiB; skips where none may be mounted."""
    folder = tmp_path_factory.mktemp("small")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_really_full(capsys, small_disk):
    status, out, err = main(
        capsys, f"profile tiled SIZE=40 DEVICE=h200 OUT={small_disk}/a/run JSON={small_disk}/x.json"
    )
    assert (status, err) == (0, "") and (small_disk / "x.json").stat().st_size
    filler = small_disk / "filler"
    filler.write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize - 12288))
    there = sorted(small_disk.rglob("*"))
    before = (small_disk / "x.json").read_text()
    status, out, err = main(
        capsys, f"profile tiled SIZE=41 DEVICE=h200 OUT={small_disk}/b/run JSON={small_disk}/x.json"
    )
    assert status == 2 and "BOUNDS" in out and sorted(small_disk.rglob("*")) == there
    assert f"error: the run was not recorded: cannot write OUT={small_disk}/b/run: the disk is full.\n" in err
    assert f"error: cannot write JSON={small_disk}/x.json: the disk is full.\n" in err and len(err.splitlines()) == 4
    assert (small_disk / "x.json").read_text() == before, "what was there is whole"
    with contextlib.suppress(OSError), open(filler, "ab", buffering=0) as f:
        while f.write(bytes(4096)):
            pass
    for words in (f"OUT={small_disk}/b/run", f"JSON={small_disk}/x.json"):
        status, out, err = main(capsys, f"profile tiled SIZE=41 {words}")
        assert (status, out) == (2, "") and f"cannot write {words}: the disk is full." in err, "known before the work"
    assert sorted(small_disk.rglob("*")) == there


def test_files_that_may_not_be_so_large(tmp_path):
    assert harness("profile", "tiled", "SIZE=40", "RECORD=no").returncode == 0  # compiled
    done = harness(
        "profile", "tiled", "SIZE=40", f"OUT={tmp_path}/new/run", f"JSON={tmp_path}/x.json",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)),
    )  # fmt: skip
    assert done.returncode == 2 and "BOUNDS" in done.stdout and not list(tmp_path.iterdir())
    assert done.stderr.count("files may not be that large here (ulimit -f)") == 2


@pytest.mark.parametrize("line", ["profile naive SIZE=8 RECORD=no", "verify naive COUNT=0 BACKEND=sim", "trace tiled TILE=2", "list",
                                  "experiment"])  # fmt: skip
def test_json_that_cannot_be_written_does_not_lose_the_text(capsys, line):
    status, out, err = main(capsys, f"{line} JSON=/dev/full")
    assert status == 2 and len(out.splitlines()) > 2
    assert (
        err
        == "error: cannot write JSON=/dev/full: the disk is full.\n       Make room, or choose another disk with JSON=.\n"
    )


def test_csv_that_cannot_be_written_does_not_lose_the_rest(capsys, tmp_path):
    status, out, err = main(capsys, f"verify naive COUNT=0 BACKEND=sim CSV=/dev/full JSON={tmp_path}/x.json")
    assert status == 2 and "correct" in out and json.loads((tmp_path / "x.json").read_text())[0]["ok"]
    assert err.startswith("error: cannot write CSV=/dev/full: the disk is full.\n")


@pytest.mark.parametrize("option", ["JSON", "CSV"])
@pytest.mark.parametrize(
    "place, says",
    [
        ("", "it is a folder"),
        ("none/x", "there is no folder {}/none"),
        ("file/x", "a file stands where its folder must be"),
        ("file/x/y", "a file stands where its folder must be"),
        ("/proc/x", "/proc takes no new files"),
        ("n" * 300, "File name too long"),
    ],
)
def test_files_that_cannot_be_written_are_known_before_the_work(capsys, monkeypatch, tmp_path, option, place, says):
    monkeypatch.setattr(verification, "verify", lambda *a, **k: pytest.fail("it works already"))
    (tmp_path / "file").touch()
    target = tmp_path / place
    status, out, err = main(capsys, f"verify {option}={target}")
    assert (status, out) == (2, "") and err == (
        f"error: cannot write {option}={target}: {says.format(tmp_path)}.\n       Choose a writable place with {option}=.\n"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="becomes another user")
@pytest.mark.parametrize(
    "words", ["list JSON={}/x", "list JSON={}/old", "profile tiled OUT={}/run", "list JSON={}/shut/x"]
)
def test_no_permission(words):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "old").touch()
        (folder / "shut").mkdir(mode=0o700)
        done = subprocess.run(
            ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-m", "harness", *words.format(folder).split()],
            cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
    if "not permitted" in done.stderr or "No module named" in done.stderr:
        pytest.skip("another user cannot run this checkout")
    assert (done.returncode, done.stdout) == (2, "") and ": Permission denied.\n" in done.stderr, done.stderr


def test_a_disk_that_is_full_elsewhere_is_no_bug(capsys, monkeypatch):
    def full(*a, **k):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x")

    monkeypatch.setattr(profiling, "profile", full)
    assert main(capsys, "profile tiled") == (
        2,
        "",
        "error: cannot write /tmp/x: the disk is full.\n       Make room.\n",
    )
