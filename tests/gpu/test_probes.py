"""The order of work of `make roofs`, on a GPU that is not there: what is launched, with which arguments, and what is made of it."""

from __future__ import annotations

import contextlib
import json
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from fake_gpu import GPU

from harness import device, record, roofs
from harness.errors import TilescopeError
from harness.gpu import devices, probes
from harness.measurement import Telemetry

H200 = device.find("h200")
CYCLES = 500
"""Of this GPU, for a time round any loop."""
CLOCK = 2e9


class Memory(int):
    """An address with a free()."""

    def free(self) -> None:
        self.session.freed.append(int(self))


class FakeSession:
    """Memory as addresses with contents where something was written, launches that take CYCLES a round."""

    def __init__(self) -> None:
        self.gpu = SimpleNamespace(uuid="GPU-0", name="no GPU", index=0)
        self.stream, self.now, self.top = object(), 0.0, 0x7F0000000000
        self.contents: dict[int, np.ndarray] = {}
        self.launched: list[tuple[str, tuple]] = []
        self.freed: list[int] = []
        self.cuda = SimpleNamespace(memcpy_htod=self._put, memcpy_dtoh=self._get, Event=lambda: FakeEvent(self))

    def need(self, count: int, what: str) -> None:
        self.needed = count

    def allocate(self, count: int) -> Memory:
        memory = Memory(self.top)
        memory.session = self
        self.top += -(-count // 512) * 512
        return memory

    def wait(self, doing: str, event: object = None, timeout: float | None = None) -> None:
        pass

    def _put(self, address: int, values: np.ndarray) -> None:
        self.contents[int(address)] = values.copy()

    def _get(self, values: np.ndarray, address: int) -> None:
        values[:] = self.contents[int(address)].reshape(values.shape)


class FakeEvent:
    def __init__(self, session: FakeSession) -> None:
        self.session = session

    def record(self, stream: object) -> None:
        self.at = self.session.now

    def time_till(self, other: FakeEvent) -> float:
        return 1e3 * (other.at - self.at)


class FakeModule:
    """Knows the parameters of each kernel from its cubin, and does what the kernels do to `ticks` and to the chain's end."""

    def __init__(self, session: FakeSession, code: bytes, name: str) -> None:
        from harness import cubin

        self.session, self.functions, self.broken = session, cubin.read(code), False

    def prepare(self, launch, problem, addresses):
        from harness import parameters

        function = self.functions[launch.entry]
        block = parameters.pack(function, launch, problem, addresses)
        args = tuple(
            struct.unpack_from("<Q" if size == 8 else "<i", block, offset)[0] for offset, size in function.params
        )

        def queue() -> None:
            self.session.launched.append((launch.entry, args))
            if launch.entry != "link":
                self._run(launch, args)

        return queue

    def _run(self, launch, args) -> None:
        s = self.session
        rounds = args[3] if launch.entry.startswith("stream") else args[2]
        s.now += rounds * CYCLES / CLOCK
        warps = launch.blocks * max(1, launch.threads // 32)
        if args[-1]:
            start = np.full(warps, 1000)
            ticks = np.stack([start, start + rounds * CYCLES, np.arange(warps) * launch.blocks // warps % 132], axis=1)
            s.contents.setdefault("ticks", {})[args[-1]] = ticks
        if launch.entry in roofs.CHASES:
            order_args = next(a for name, a in reversed(s.launched) if name == "link")
            base, at, places, stride = order_args
            order = s.contents[at]
            index = int(np.flatnonzero(order == (args[0] - base) // stride)[0])
            end = base + int(order[(index + rounds * roofs.CHASE) % places]) * stride
            s.contents[args[1]] = np.array([end + self.broken], np.uint64)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(probes, "Module", FakeModule)
    monkeypatch.setattr(probes, "WARM", 0.0)
    monkeypatch.setattr(probes, "FIRST", 0.0)
    monkeypatch.setattr(probes, "Sampler", FakeSampler)
    session = FakeSession()
    session.cuda.memcpy_dtoh = lambda values, address: _read(session, values, address)
    return probes.Bench(session, roofs.compile(H200), H200)


def _read(session: FakeSession, values: np.ndarray, address: int) -> None:
    if values.ndim == 3:
        for n in range(len(values)):
            values[n] = session.contents["ticks"][int(address) + n * 24 * values.shape[1]]
    else:
        values[:] = session.contents[int(address)]


class FakeSampler:
    def __init__(self, monitor: object, period: float) -> None:
        self.telemetry = Telemetry([0.0, 0.1], [1980.0, 1975.0], [400.0, 410.0], [50.0, 50.0], [4, 4])

    def __enter__(self) -> FakeSampler:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def probe(name: str) -> roofs.Probe:
    return next(p for p in roofs.PROBES if p.name == name)


def test_every_probe_gives_a_roof_in_order(bench):
    found = probes._measure(bench, lambda fraction, text: None)
    assert [r.name for r in found] == [p.name for p in roofs.PROBES]
    assert all(
        r.value > 0 and r.low == pytest.approx(r.value) == r.high and len(r.samples) == probes.LAUNCHES for r in found
    )
    assert all(r.clock_mhz == 1977.5 and r.flags == ("power-capped",) for r in found)
    assert [r.cycles_mhz for r in found] == pytest.approx([2000.0] * len(found))


def test_rates_follow_from_work_and_cycles(bench):
    loop = roofs.Loop.of(bench.binary.kernel("fma_two_reads"))
    found = {r.name: r for r in probes._measure(bench, lambda fraction, text: None)}
    assert found["FMA"].value == pytest.approx(2 * 8 * 32 * loop.count("FFMA") / CYCLES)  # 2 blocks of 8 warps an SM
    three = roofs.Loop.of(bench.binary.kernel("fma_three_reads"))
    assert found["register bank"].value == pytest.approx(2 * 8 * max(three.reads) / CYCLES)
    assert found["latency of L2"].value == pytest.approx(CYCLES / roofs.CHASE)
    moved = 132 * 8 * 256 * roofs.UNROLL * 16
    assert found["DRAM read"].value == pytest.approx(moved / (CYCLES / CLOCK) / 1e9)
    assert found["DRAM copy"].value == pytest.approx(2 * found["DRAM read"].value)


def test_a_launch_lasts_about_ten_milliseconds(bench):
    timed, _ = bench.run(probe("FMA"))
    assert timed.rounds * CYCLES / CLOCK == pytest.approx(probes.SECONDS, rel=0.01)


def test_kernels_that_share_a_run_are_run_once(bench):
    probes._measure(bench, lambda fraction, text: None)
    counted = [args for name, args in bench.session.launched if name == "fma_two_reads" and args[-1]]
    assert len(counted) == probes.LAUNCHES


def test_a_dram_chase_never_comes_to_a_place_twice(bench):
    bench.session.launched.clear()
    bench.run(probe("latency of DRAM"))
    steps = sum(args[2] * roofs.CHASE for name, args in bench.session.launched if name == "latency_l2")
    assert steps <= probes.PLACES
    assert [name for name, _ in bench.session.launched][:2] == ["link", "stream_read"]  # L2 holds none of it any more
    _, (base, _, places, stride) = bench.session.launched[0]
    assert base == int(bench.arrays[0]) and places * stride == 512 * roofs.MIB


def test_a_chain_that_ends_elsewhere_is_refused(bench):
    bench.module.broken = True
    with pytest.raises(TilescopeError, match="chain of pointers"):
        bench.run(probe("latency of L1"))


def test_masks_and_addresses_stay_inside_the_arrays(bench):
    probes._measure(bench, lambda fraction, text: None)
    for name, args in bench.session.launched:
        if name in roofs.STREAMS:
            assert 16 * (args[4] + 1) <= bench.large
            assert (args[4] + 1) & args[4] == 0  # a power of two


def test_memory_is_freed_whatever_happens(bench, monkeypatch):
    monkeypatch.setattr(probes, "_measure", lambda *a: 1 / 0)
    monkeypatch.setattr(probes, "Bench", lambda *a: bench)
    with pytest.raises(ZeroDivisionError):
        probes.measure(bench.session, bench.binary, H200)
    assert len(bench.session.freed) == 6


def test_the_run_is_recorded_and_found_again(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(record, "PROFILES", tmp_path)
    found = probes._measure(bench, lambda fraction, text: None)
    result = roofs.Result(record.new_id(), H200, "NVIDIA H200", found)
    roofs._record(result, record.destination(None, roofs.KIND, result.id), bench.binary, 0.0)
    assert roofs.recorded(device.find("a100")) is None
    run = roofs.recorded(H200)
    assert run.path == result.path and roofs.from_manifest(run.manifest) == found
    assert roofs.recorded_widths(H200) == roofs.widths(found)
    assert len(run.table("samples")) == probes.LAUNCHES * len(found)
    assert "latency of shared memory" in run.text("roofs.txt")
    assert json.loads((run.path / "manifest.json").read_text())["kind"] == "roofs"
    assert max(map(len, run.text("roofs.txt").splitlines())) <= 100


def test_roofs_that_are_not_recorded_are_printed(bench, unrecorded, monkeypatch):
    monkeypatch.setattr(devices, "find", lambda gpu: GPU)
    monkeypatch.setattr("harness.gpu.driver.Session", lambda gpu: contextlib.nullcontext(bench.session))
    monkeypatch.setattr(probes, "measure", lambda *a, progress: probes._measure(bench, lambda fraction, text: None))
    assert "latency of shared memory" in unrecorded("roofs")


@pytest.mark.gpu
def test_roofs_of_this_gpu_are_plausible(tmp_path):
    result = roofs.run(out=tmp_path / "roofs")
    found = {r.name: r for r in result.roofs}
    known = result.device.verified  # of a known architecture: within a few per cent of its widths
    for name in ("FMA", "issue", "ALU", "LSU", "shared, 32-bit loads", "shared, 64-bit loads", "shared, 128-bit loads"):
        assert not known or 0.9 < found[name].share < 1.01, name
    for r in result.roofs:
        assert (r.high - r.low) / r.value < 0.1, r.name
        # Cycles over the launch's time: start and end of a launch count in the time, so it is lower, never higher
        # (an H200 at 1980 MHz: 1979 for FMA, 1938 for LSU, 1902 for L2 reads).
        assert r.clock_mhz is None or 0.94 * r.clock_mhz < r.cycles_mhz < 1.005 * r.clock_mhz, r.name
    assert 0.5 * result.device.dram_gbs < found["DRAM read"].value < 1.01 * result.device.dram_gbs
    latencies = [found[f"latency of {x}"].value for x in ("FMA", "shared memory", "L1", "L2", "DRAM")]
    assert latencies == sorted(latencies)
    assert record.load(result.path).manifest["device"] == result.device.name
