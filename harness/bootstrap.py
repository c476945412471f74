"""Second step of `make setup`: makes .venv and installs an extra of pyproject.toml with its pinned versions.

`bootstrap.py EXTRA`, started by bootstrap.sh with a Python that will do; standard library only. `.venv/.ready-EXTRA` is
written last and holds a digest of what was asked for, so a set-up that was killed never counts as done: it is
started over. A lock on pyproject.toml, which pip inherits, makes a second set-up wait for the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import IO, NoReturn

HERE = Path(__file__).resolve().parent
if __package__:
    from . import gpu_setup, preflight
else:
    sys.path.append(str(HERE))  # at the end: the harness's module names must not hide the standard library's
    import gpu_setup
    import preflight

LOG = Path(".cache/setup.log")
BASE = "dev"  # the extra that every set-up has; installing it makes .venv anew
_REDIRECT_PIP = ("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")
_FETCHED = re.compile(r"\s*(?:Downloading|Using cached)\s+(?:\S*/)?([\w.]+)-([^-\s]+)-\S+\.whl \((.+ [MG]B)\)")


class Failed(Exception):
    """A step of set-up failed: what, and what to do."""


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def fail(what: str, remedy: str) -> NoReturn:
    raise Failed(f"error: {what}\n       {remedy}")


def digest(root: Path, extra: str) -> str:
    """Changes when a set-up would install something else: pins, extra, Python."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    asked = [
        project["project"]["dependencies"],
        project["project"]["optional-dependencies"][extra],
        project["build-system"],
        (root / "constraints.txt").read_text(),
        sys.version,
        os.path.realpath(sys.executable),
    ]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def make_venv(root: Path, lock: int) -> None:
    """A fresh .venv, whatever was there; its stamps go first, since it may be killed while it removes the rest."""
    for stamp in (root / ".venv").glob(".ready-*"):
        stamp.unlink()
    command = [sys.executable, "-I", "-m", "venv", "--clear", ".venv"]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, pass_fds=[lock])
    if run.returncode:
        said = (run.stdout + run.stderr).strip().splitlines()
        fail(
            f"cannot make .venv: {said[-1] if said else 'no reason given'}",
            "See that this folder is writable and its disk has space.",
        )


def pip_environment() -> dict[str, str]:
    """The environment for pip, without what would have it install elsewhere than into .venv."""
    kept = {name: value for name, value in os.environ.items() if name not in _REDIRECT_PIP}
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def install(root: Path, extra: str, lock: int) -> None:
    """pip, its noise cut down to a line for each large package; all of it goes to .cache/setup.log."""
    command = "-I -m pip install --only-binary=:all: --no-input --progress-bar=off -c constraints.txt -e".split()
    environ = pip_environment()
    errors = []
    (root / ".cache").mkdir(exist_ok=True)
    with open(root / LOG, "w") as log:
        pip = subprocess.Popen(
            [".venv/bin/python", *command, f".[{extra}]"], cwd=root, env=environ, pass_fds=[lock],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        try:
            for line in pip.stdout:
                log.write(line)
                if m := _FETCHED.match(line):
                    say(f"  {m[1].replace('_', '-')} {m[2]} ({m[3]})")
                elif line.startswith("Installing collected packages"):
                    say(f"  unpacking {line.count(',') + 1} packages")
                elif "Retrying (" in line:
                    say("  the package index does not answer; pip tries again")
                elif line.strip().startswith("ERROR:"):
                    errors.append(line.strip().removeprefix("ERROR:").strip())
            pip.wait()
        finally:
            pip.kill()  # on Ctrl-C, say: what it writes to is removed next
            pip.wait()
    if pip.returncode:
        fail(f"pip failed: {errors[-1] if errors else f'status {pip.returncode}'}", remedy(" ".join(errors)))


def remedy(errors: str) -> str:
    """What to do about an error of pip's."""
    return f"{_remedy(errors)} All that pip said: {LOG}"


def _remedy(errors: str) -> str:
    if "No space left" in errors:
        return "Free some space on this disk and in the temporary folder (TMPDIR=)."
    if "No matching distribution" in errors or "Could not find a version" in errors:
        return "See that the package index can be reached (network, proxy, pip's own configuration)."
    return "See that the network is there and the disk has space."


def wait_for_lock(file: IO[bytes]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another set-up of .venv is running: waiting for it")
        fcntl.flock(file, fcntl.LOCK_EX)


def set_up(root: Path, extra: str) -> None:
    """Bring .venv to what pyproject.toml says. Raises Failed, and leaves no .venv where making one failed."""
    with open(root / "pyproject.toml", "r+b") as file:
        wait_for_lock(file)
        stamp, wanted = root / f".venv/.ready-{extra}", digest(root, extra)
        if os.access(root / ".venv/bin/python", os.X_OK) and stamp.exists() and stamp.read_text() == wanted:
            stamp.touch()
            return
        facts = preflight.gather(root)
        if found := preflight.problems(facts):
            raise Failed("\n".join(f"error: {p.what}\n       {p.remedy}" for p in found))
        start = time.monotonic()
        try:
            if extra == BASE:
                say("Setting up .venv, once: about 220 MB to fetch, 0.7 GB on disk")
                say(
                    f"  Python {sys.version.split()[0]} ({sys.executable}), {next(c for c in facts.compilers if c.accepted)}"
                )
                make_venv(root, file.fileno())
            else:
                say(f"Installing what `{extra}` needs into .venv, once")
            install(root, extra, file.fileno())
            if extra == BASE and (gpu := gpu_setup.find()):
                pins = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
                gpu_setup.install(root, gpu, pins, say, pip_environment(), root / LOG)
            part = stamp.with_name(f"{stamp.name}.part")
            part.write_text(wanted)
            os.replace(part, stamp)
        except BaseException:
            if extra == BASE:
                shutil.rmtree(root / ".venv", ignore_errors=True)
            raise
        say(f"  ready in {time.monotonic() - start:.0f} s")


def main(extra: str) -> int:
    try:
        set_up(HERE.parent, extra)
    except Failed as e:
        say(str(e))
        return 2
    except KeyboardInterrupt:
        say("error: set-up was interrupted.\n       The next make starts it over.")
        return 130
    except OSError as e:
        say(
            f"error: set-up failed: {e.strerror or e}.\n       See that this folder is writable and its disk has space."
        )
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
