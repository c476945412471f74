"""The timer: when it stops, what it drops, whom it turns to; on clocks that the test moves."""

import math
from itertools import count, cycle

import numpy as np
import pytest
from fake_gpu import GPU

from harness import stage as stages
from harness import toolchain
from harness.gpu import timing
from harness.gpu.driver import Session, StageContender, buffers
from harness.problem import Problem


class Turns:
    """Contenders whose products take given times (ms), on a clock (s) that runs with them."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, []

    def contender(self, name, times):
        it = iter(times)

        def run(products):
            self.order.append(name)
            ms = next(it)
            self.now += products * (ms if math.isfinite(ms) else 1.0) / 1e3
            return ms

        return run

    def clock(self):
        return self.now


def noisy(ms, spread, seed):
    rng = np.random.default_rng(seed)
    return (ms * (1 + spread * rng.standard_normal()) for _ in count())


def test_a_b_a_b_until_the_ratio_is_known():
    t = Turns()
    found = timing.alternate(
        t.contender("a", noisy(1, 0.002, 0)), t.contender("b", noisy(2, 0.002, 1)), (10, 5), 100, clock=t.clock
    )
    assert "".join(t.order) == "ab" * len(found.samples)
    assert found.precise and len(found.samples) == len(found.rival) == 10 and found.batch == 10


def test_noise_takes_more_rounds():
    t = Turns()
    found = timing.alternate(
        t.contender("a", noisy(1, 0.03, 0)), t.contender("b", noisy(2, 0.03, 1)), (10, 5), 100, clock=t.clock
    )
    assert found.precise and len(found.samples) > 50
    from harness import statistics

    assert statistics.ratio(found.samples, found.rival).half_width <= statistics.PRECISION


def test_the_time_limit_ends_it_and_is_told():
    t = Turns()
    found = timing.alternate(
        t.contender("a", noisy(1, 0.3, 0)), t.contender("b", noisy(2, 0.3, 1)), (10, 5), 1.0, clock=t.clock
    )
    assert not found.precise and 0.9 < t.now <= 1.1


@pytest.mark.parametrize("ms, rounds", [(900, 5), (4000, 2)])
def test_slow_products_get_their_least_rounds(ms, rounds):
    t = Turns()
    found = timing.alternate(t.contender("a", cycle([ms])), t.contender("b", cycle([1])), (1, 1), 2.0, clock=t.clock)
    assert len(found.samples) == rounds


def test_a_sample_that_was_not_held_back_is_dropped_with_its_partner():
    t = Turns()
    a = t.contender("a", cycle([1.0, math.nan, 1.0]))
    found = timing.alternate(a, t.contender("b", cycle([2.0])), (1, 1), 10, clock=t.clock)
    assert set(found.samples) == {1.0} and len(found.samples) == len(found.rival)


def test_nothing_but_unheld_samples_ends_too():
    t = Turns()
    found = timing.alternate(
        t.contender("a", cycle([math.nan])), t.contender("b", cycle([2.0])), (1, 1), 0.1, clock=t.clock
    )
    assert found.samples == [] and not found.precise


def test_alone():
    t = Turns()
    found = timing.alternate(t.contender("a", noisy(1, 0.001, 0)), None, (10, 10), 100, clock=t.clock)
    assert found.precise and found.rival == [] and len(found.samples) == 10


def test_warm_up_waits_for_a_clock_that_ramps():
    t = Turns()
    ramp = iter([*np.linspace(5, 1, 40), *[1.0] * 1000])
    assert timing.warm_up([t.contender("a", ramp)], [10], clock=t.clock)
    assert len(t.order) > 40 and t.now >= timing.WARM_S


def test_warm_up_gives_up():
    t = Turns()
    assert not timing.warm_up([t.contender("a", cycle([1.0, 2.0]))], [10], clock=t.clock)
    assert timing.WARM_LIMIT_S <= t.now < timing.WARM_LIMIT_S + 0.1


def test_warm_up_of_a_slow_product_is_one_product():
    t = Turns()
    assert timing.warm_up([t.contender("a", cycle([9000.0]))], [1], clock=t.clock) and t.order == ["a"]


@pytest.mark.parametrize(
    "ms, launches, batch",
    [(0.01, 1, 200), (0.001, 1, 512), (0.001, 4, 128), (5, 1, 1), (0.5, 4, 4), (math.nan, 1, 512)],
)
def test_batches_last_two_milliseconds_and_fit_the_queue(ms, launches, batch):
    assert timing.batch_size(ms, launches) == batch


def test_cold_sets_are_twice_the_l2():
    for n in (128, 512, 1024, 4096):
        p = Problem(n, n, n)
        sets = timing.sets_needed(p, 60 * 2**20, True)
        assert sets >= 2 and sets * p.bytes >= 2 * 60 * 2**20 and (sets == 2 or (sets - 1) * p.bytes < 2 * 60 * 2**20)
    assert timing.sets_needed(Problem(4, 4, 4), 2**26, True) == timing.MAX_SETS
    assert timing.sets_needed(Problem(512, 512, 512), 2**26, False) == 1


@pytest.fixture
def session(fake):
    with Session(GPU, timeout=0.5) as opened:
        yield opened


def test_a_batch_is_queued_behind_the_blocking_kernel(session, fake):
    timer = timing.Timer(session)
    seen = []

    def product():
        seen.append((fake.held, int(timer._flags[0])))
        fake.now += 0.25

    assert timer.batch([product] * 4, "timing") == pytest.approx(0.25)
    assert seen == [(True, 0)] * 4 and timer._flags[0] == 1 and timer.unheld == 0


def test_a_batch_that_outlasts_the_blocking_kernel_does_not_count(session):
    timer = timing.Timer(session)

    def slow():
        timer._flags[1] = 1  # what the kernel does when it gives up

    assert math.isnan(timer.batch([slow], "timing")) and timer.unheld == 1


def test_the_blocking_kernel_is_released_if_a_launch_fails(session):
    timer = timing.Timer(session)

    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        timer.batch([fails], "timing")
    assert timer._flags[0] == 1


def test_the_ptx_of_the_blocking_kernel_assembles(tmp_path):
    import subprocess

    (tmp_path / "hold.ptx").write_text(timing._HOLD)
    nvcc = toolchain.compiler()[0]
    for arch in (75, 90, 100):
        done = subprocess.run(
            [nvcc, "-cubin", f"-arch=sm_{arch}", "hold.ptx", "-o", "hold.cubin"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    from harness import cubin

    assert [size for _, size in cubin.read((tmp_path / "hold.cubin").read_bytes())["hold"].params] == [8, 8]


def test_contenders_walk_the_sets_in_turns(session, fake, monkeypatch):
    problem = Problem(16, 16, 16)
    stage = stages.find("naive")
    code = toolchain.compile(stage, {}, 90).cubin
    fake.speeds = {"naive": 0.1}
    walked = []
    multiply = fake.multiply
    monkeypatch.setattr(fake, "multiply", lambda entry, *a: (walked.append(a[9]), multiply(entry, *a)))
    with buffers(session, problem, 3) as sets:
        for s in sets:
            s.put(problem.operands())
        one, two = (StageContender(session, stage, {}, code) for _ in range(2))
        found = timing.duel(timing.Timer(session), problem, sets, one, two, 0.2, lambda rounds: None)
        addresses = [s.addresses["C"] for s in sets]
    assert walked[:9] == (addresses * 3)[:9] and len(found.samples) == len(found.rival) >= 2
