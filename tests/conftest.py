"""Before any test: what most of them need and pip cannot bring, named once rather than by hundreds of failures."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable

import pytest

from harness import cli, preflight, record, toolchain

# Started in the background of a script: what tests start would ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def missing() -> list[str]:
    """What keeps stages and the simulator's engine from being compiled here, each with its remedy."""
    return [f"{p.what}\n       {p.remedy}" for p in preflight.compiler_problems(preflight.gather(toolchain.ROOT))]


def pytest_configure(config: pytest.Config) -> None:
    carried = os.environ.get("TILESCOPE_CACHE")  # may hold what was compiled elsewhere
    if carried or hasattr(config, "workerinput") or config.option.collectonly:
        return
    if found := missing():
        raise pytest.UsageError("\n       ".join(found))


@pytest.fixture
def full_disk(monkeypatch):
    """The disk is full half-way through the first file of a run."""

    def write(path, data):
        path.write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(record, "_write_file", write)


@pytest.fixture
def unrecorded(full_disk, capsys, tmp_path) -> Callable[..., str]:
    """Runs a verb whose run the disk does not take, as text and as JSON: both are printed, then why and what to do, and nothing is left.
    Gives the text."""

    def run(*words: str, remedy: str = "", out: bool = True) -> str:
        printed = []
        for form in ("", "JSON=-"):
            line = [*words, *filter(None, [form, f"OUT={tmp_path}/new/run" if out else ""])]
            status = cli.main(line)
            said, errors = capsys.readouterr()
            assert status == 2 and errors.startswith("error: the run was not recorded: cannot write OUT="), errors
            assert (
                ": the disk is full.\n       Make room, or choose another disk with OUT=." in errors
                and remedy in errors
            )
            assert len(errors.splitlines()) == 2 and "Recorded in" not in said
            assert not (tmp_path / "new").exists() and not list(tmp_path.rglob(f"{record.PARTIAL}*"))
            printed.append(said)
        assert json.loads(printed[1])["path"] is None
        return printed[0]

    return run
