"""An ncu and an ncu_report module that are not there: the program as a script, the module as objects with its methods."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from harness.ncu import Ncu

_SCRIPT = """#!{python}
import json, os, pathlib, re, signal, sys, time
here = pathlib.Path(__file__).parent
set_up = json.loads((here / "set_up.json").read_text())
words = sys.argv[1:]
with open(here / "calls.jsonl", "a") as f:
    f.write(json.dumps(words) + "\\n")
if words == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nCopyright (c) 2018-2025 NVIDIA Corporation")
    print("Version {version}.0 (build 36398880) (public-release)")
    sys.exit(0)
if words[0] == "--import":
    print(set_up.get("csv", ""))
    sys.exit(0)
asked = words[words.index("--metrics") + 1].split(",")
unknown = [m for m in asked if m in set_up.get("unknown", [])]
print("==PROF== Connected to process 4242 (/usr/bin/python3.12)", flush=True)
if unknown:
    one = re.sub(r"\\.sum$", "", unknown[0])
    print("==ERROR== Failed to find metric " + (unknown[0] if set_up.get("plain") else "regex:^" + one + r"\\.(sum|min|max|avg)$"))
    sys.exit(1)
mode = set_up.get("mode", "")
if mode == "permission":
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the"
          " target device 0. For instructions on enabling permissions and to get more information see"
          " https://developer.nvidia.com/ERR_NVGPUCTRPERM")
    sys.exit(1)
if mode == "application":
    print("error: out of GPU memory: 12 GiB needed.\\n==PROF== Disconnected from process 4242")
    print("==ERROR== The application returned an error code (2).")
    sys.exit(2)
if mode == "silent":
    print("==PROF== Disconnected from process 4242\\n==WARNING== No kernels were profiled.")
    sys.exit(0)
if mode == "hang":
    pathlib.Path(words[words.index("-o") + 1] + ".ncu-rep").write_bytes(b"half")
    time.sleep(600)
if mode == "killed":
    pathlib.Path(words[words.index("-o") + 1] + ".ncu-rep").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
for name in set_up.get("launches", ["tiled2d"]):
    print('==PROF== Profiling "' + name + '": 0%....50%....100% - 8 passes', flush=True)
pathlib.Path(words[words.index("-o") + 1] + ".ncu-rep").write_bytes(b"NVR\\0 a report")
print("==PROF== Disconnected from process 4242")
"""


class FakeNcu:
    """An ncu script in a folder, and what it was called with. set_up: mode, unknown metrics, csv, launches."""

    def __init__(self, folder: Path, version: str = "2025.3.1", **set_up: object) -> None:
        self.path = folder / "ncu"
        self.path.write_text(_SCRIPT.format(python=sys.executable, version=version))
        self.path.chmod(0o755)
        (folder / "set_up.json").write_text(json.dumps(set_up))
        self.ncu = Ncu(self.path, tuple(map(int, version.split("."))))

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.path.parent / "calls.jsonl").read_text().splitlines()]


class FakeMetric:
    """ncu_report.IMetric: a value, and instances with correlation ids."""

    ValueKind_UNKNOWN, ValueKind_ANY, ValueKind_STRING, ValueKind_DOUBLE, ValueKind_UINT64 = 0, 1, 2, 4, 6

    def __init__(self, value: float | str | None, unit: str = "", instances: dict | None = None) -> None:
        self.now, self.words, self.instances = value, unit, instances or {}

    def _at(self, index: tuple) -> float | str | None:
        return list(self.instances.values())[index[0]] if index else self.now

    def has_value(self, *index: int) -> bool:
        return self._at(index) is not None

    def kind(self, *index: int) -> int:
        kinds = {str: self.ValueKind_STRING, int: self.ValueKind_UINT64}
        return kinds.get(type(self._at(index)), self.ValueKind_DOUBLE)

    def as_double(self, *index: int) -> float:
        value = self._at(index)
        return value if isinstance(value, float) else 0.0

    def as_uint64(self, *index: int) -> int:
        return int(self._at(index))

    def as_string(self, *index: int) -> str | None:
        return self._at(index) if isinstance(self._at(index), str) else None

    def unit(self) -> str:
        return self.words

    def num_instances(self) -> int:
        return len(self.instances)

    def has_correlation_ids(self) -> bool:
        return bool(self.instances)

    def correlation_ids(self) -> FakeMetric:
        return FakeMetric(None, instances=dict(enumerate(self.instances)))


@dataclass
class FakeAction:
    """ncu_report.IAction: a launch."""

    kernel: str
    metrics: dict[str, FakeMetric]
    ranges: tuple[str, ...] = ()
    source: dict[int, tuple[str, int]] = field(default_factory=dict)

    def name(self) -> str:
        return self.kernel

    def metric_names(self) -> tuple[str, ...]:
        return tuple(self.metrics)

    def metric_by_name(self, name: str) -> FakeMetric | None:
        return self.metrics.get(name)

    def source_info(self, address: int) -> SimpleNamespace | None:
        if address not in self.source:
            return None
        file, line = self.source[address]
        return SimpleNamespace(file_name=lambda: file, line=lambda: line)

    def sass_by_pc(self, address: int) -> str:
        return "FFMA R1, R2, R3, R1"

    def nvtx_state(self) -> SimpleNamespace | None:
        if not self.ranges:
            return None
        domain = SimpleNamespace(name=lambda: "tilescope", push_pop_ranges=lambda: self.ranges)
        return SimpleNamespace(domains=lambda: (7,), domain_by_id=lambda i: domain)


def module(actions: list[FakeAction], fault: Exception | None = None) -> SimpleNamespace:
    """An ncu_report whose load_report gives these launches, or raises."""

    def load_report(path: str) -> SimpleNamespace:
        if fault:
            raise fault
        one = SimpleNamespace(num_actions=lambda: len(actions), action_by_idx=lambda i: actions[i])
        return SimpleNamespace(num_ranges=lambda: 1 if actions else 0, range_by_idx=lambda i: one)

    return SimpleNamespace(load_report=load_report)
