"""The tuner: what it chooses from, what it drops and why, that it goes on where it stopped, and that it would notice a winner dropped."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from harness import cli, htmlreport, profiling, record, stage, timings, toolchain, tune
from harness import device as devices
from harness.errors import TilescopeError
from harness.problem import Problem
from harness.tune import Candidate, Timed, Tuned

SMALL = Problem(256, 256, 256)


def test_choices():
    found = tune.choices(stage.find("warptiled"), {"BM": "64,128", "TN": (16,)})
    assert found["BM"] == (64, 128) and found["TN"] == (16,)
    assert found["ASYNC_A"] == (0, 1) and found["STAGES"] == (2, 3) and found["PAD"] == (0, 2, 4, 8)
    assert found["WARPS"] == (4, 8, 16)
    with pytest.raises(TilescopeError, match="not integers"):
        tune.choices(stage.find("tiled"), {"TILE": "16,x"})
    with pytest.raises(TilescopeError, match="unknown tunable"):
        tune.choices(stage.find("tiled"), {"BM": "16"})
    bare = next(s for s in stage.ladder() if not s.tunables) if any(not s.tunables for s in stage.ladder()) else None
    if bare:
        with pytest.raises(TilescopeError, match="no tunables"):
            tune.choices(bare)


def outcome(*candidates: Candidate) -> Tuned:
    return Tuned(
        "r",
        "tiled",
        SMALL,
        "h200",
        "gpu",
        {"TILE": (8, 16, 32)},
        list(candidates),
        {"TILE must be small": 5, "and even": 2},
        {},
    )


def test_a_dropped_winner_is_noticed():
    kept = Candidate({"TILE": 8}, "timed", ms=1.0, bound_ms=0.5)
    slower = Candidate({"TILE": 16}, "timed", ms=1.2, bound_ms=0.8, sampled=True)
    faster = Candidate({"TILE": 32}, "timed", ms=0.9, bound_ms=0.9, sampled=True)
    good, bad = outcome(kept, slower), outcome(kept, slower, faster)
    assert not good.lost and good.winner is kept and "none of them a winner" in tune.render(good)
    assert bad.lost == [faster] and bad.winner is faster and "the bounds dropped a winner" in tune.render(bad, 200)
    assert good.counts["bounds"] == 1 and bad.counts["bounds"] == 2 and bad.counts["illegal"] == 7
    assert "No candidate is left" in tune.render(outcome(Candidate({"TILE": 8}, "spills", "8 bytes")))


def test_what_is_said_of_the_bounds():
    assert tune.pruning(0, 0, 0) == "The bounds dropped none."
    assert "dropped 9; none of them was timed" in tune.pruning(9, 0, 0)
    assert tune.pruning(9, 4, 0) == "The bounds dropped 9; 4 of them were timed nevertheless, none of them a winner."
    assert "dropped 9; 4 of them were timed" in tune.pruning(9, 4, 1) and "dropped a winner" in tune.pruning(9, 4, 1)


def test_the_rules_that_suggestions_break_are_named_most_frequent_first():
    said = tune.render(outcome(Candidate({"TILE": 8})))
    assert re.search(r"suggested against the stage's rules +7\n", said)
    assert re.search(r"RULES BROKEN.*\n +5 +TILE must be small\n +2 +and even\n", said)
    many = outcome(Candidate({"TILE": 8}))
    many.illegal = {f"rule {n}": 9 - n for n in range(7)}
    said = tune.render(many)
    assert "rule 4" in said and "rule 5" not in said and "and 2 more rules in rules.csv" in said
    assert many.to_json()["illegal"] == many.illegal and many.counts["illegal"] == sum(many.illegal.values())


def test_what_the_bounds_drop():
    found = [Candidate({"TILE": n}, bound_ms=ms, bound="issue") for n, ms in ((8, 1.0), (16, 1.1), (32, 1.3))]
    tune._drop(found, 1.15)
    assert [c.state for c in found] == ["ready", "ready", "bounds"] and "1.3 times" in found[2].why


def test_without_optuna(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(TilescopeError, match="needs Optuna"):
        tune._optuna()


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr(record, "PROFILES", tmp_path / "profiles")
    return tmp_path


def search(count=4, **options):
    return tune.run(
        "tiled", problem=SMALL, given={"TILE": "8,16,32,64"}, count=count, device="h200", backend="sim", workers=2, **options
    )  # fmt: skip


def test_without_a_gpu_it_ranks(profiles):
    done = search(margin=100.0)
    assert done.backend == "sim" and [c.state for c in done.candidates] == ["ready"] * 3  # 64 * 64 threads are too many
    assert done.illegal and done.winner is done.candidates[0]
    ranks = [c.expected_ms for c in done.candidates]
    assert ranks == sorted(ranks) and all(c.expected_ms >= c.bound_ms for c in done.candidates)
    assert all(c.registers > 0 and c.warps >= 4 for c in done.candidates)
    run = record.load(done.path)
    assert run.manifest["kind"] == "tune" and run.manifest["counts"]["ready"] == 3
    assert len(run.table("candidates")) == len(run.runs) == 3 and (run.path / "study.journal").stat().st_size
    assert "nothing was timed" in run.text("profile.txt")
    [rule] = done.illegal
    assert rule == stage.find("tiled").rules[0].says and run.manifest["illegal"] == done.illegal
    assert run.table("rules").to_dict("records") == [{"rule": rule, "suggestions": done.illegal[rule]}]
    again = search(margin=100.0, count=3)
    assert again.illegal == done.illegal  # those of the search that goes on included


def test_a_launch_that_no_gpu_takes_counts_too(profiles, monkeypatch):
    monkeypatch.setattr(tune.stages.Stage, "broken", lambda *a: None)
    assert set(search(margin=100.0).illegal) == {tune.UNLAUNCHABLE}


def test_no_legal_candidate_names_the_rule(profiles):
    with pytest.raises(TilescopeError, match="no legal candidate .* for tiled: TILE must be 2, 4, 8, 16 or 32"):
        tune.run("tiled", problem=SMALL, given={"TILE": "5,64"}, device="h200", backend="sim")


def test_times_the_kept_and_some_dropped_and_goes_on(profiles, monkeypatch):
    asked = []

    def timer(tunables):
        asked.append(tunables["TILE"])
        return Timed(1.0 / tunables["TILE"], 0.0, 1.0, 0.5, "C is wrong" if tunables["TILE"] == 16 else "")

    first = search(timer=timer, margin=1.0, sampled=5)
    kept = [c for c in first.candidates if not c.sampled]
    assert sorted(asked) == [8, 16, 32] and len(kept) == 1 and len(first.candidates) == 3
    wrong = next(c for c in first.candidates if c.tunables["TILE"] == 16)
    assert wrong.state == "wrong" and wrong.why == "C is wrong" and first.winner is not wrong
    best = min((c for c in first.candidates if c.state == "timed"), key=lambda c: c.ms)
    assert first.winner is best and bool(first.lost) == best.sampled
    monkeypatch.setattr(tune._Search, "_compile", lambda *a: pytest.fail("compiled again"))
    again = search(timer=timer, margin=1.0, sampled=5, count=3)
    assert len(asked) == 3 and again.journal == first.journal and again.id != first.id
    assert [c.tunables for c in again.candidates] == [c.tunables for c in first.candidates]


def interrupt(monkeypatch, at: int) -> None:
    """Ctrl-C while a candidate is counted: the `at`-th, from 1."""
    count, calls = profiling.count, []

    def stopped(*args, **options):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return count(*args, **options)

    monkeypatch.setattr(profiling, "count", stopped)


def test_an_interrupted_search_goes_on(profiles, monkeypatch):
    interrupt(monkeypatch, at=2)
    first = search(margin=100.0)
    assert first.interrupted and len(first.candidates) == 1 and "goes on from here" in tune.render(first)
    done = search(margin=100.0)
    assert not done.interrupted and len(done.candidates) == 3


def test_an_interrupted_search_with_out_says_to_choose_another(profiles, monkeypatch, tmp_path, capsys):
    interrupt(monkeypatch, at=2)
    words = ["tune", "tiled", "SIZE=128", "TILE=8,16,32", "COUNT=3", "DEVICE=h200", "BACKEND=sim", "MARGIN=50"]
    assert cli.main([*words, f"OUT={tmp_path / 'one'}"]) == 130
    said = capsys.readouterr()
    assert f"the same command, with another OUT= than {tmp_path / 'one'}, goes on from there" in said.err
    assert "goes on from here" in said.out and (tmp_path / "one" / "manifest.json").exists()
    assert cli.main([*words, f"OUT={tmp_path / 'two'}"]) == 0
    assert "were known" in capsys.readouterr().out


def test_a_search_interrupted_before_anything_is_finished(profiles, monkeypatch, tmp_path):
    interrupt(monkeypatch, at=1)
    done = search()
    assert done.interrupted and not done.candidates and "No candidate is finished yet." in tune.render(done)
    page = htmlreport.write(done.path, out=tmp_path / "page.html").read_text()
    assert "no candidate is finished yet" in page


def test_a_fault_of_the_machine_is_held_against_no_candidate(profiles, monkeypatch, tmp_path):
    monkeypatch.setenv("NVCC_CCBIN", "/nope")
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(TilescopeError):
        search()
    monkeypatch.delenv("NVCC_CCBIN")
    assert {c.state for c in search(margin=100.0).candidates} == {"ready"}


def test_one_search_at_a_time(profiles, monkeypatch):
    """The second of two at once is refused, and disturbs nothing."""
    count = profiling.count

    def meanwhile(*args, **options):
        with pytest.raises(TilescopeError, match="another process is making this search") as refused:
            search()
        assert refused.value.remedy == "Wait for it, or end it."
        return count(*args, **options)

    monkeypatch.setattr(profiling, "count", meanwhile)
    assert len(search().candidates) == 3
    monkeypatch.setattr(profiling, "count", count)
    assert search().known == 3


def test_spills_and_few_warps_are_dropped(profiles, monkeypatch):
    monkeypatch.setattr(tune, "LEAST_WARPS", 1000)
    done = search(count=1)
    assert (
        done.candidates[0].state == "occupancy" and "warps on an SM" in done.candidates[0].why and done.winner is None
    )


def test_verb(profiles, capsys):
    words = ["tune", "tiled", "SIZE=128", "TILE=8,16", "COUNT=2", "DEVICE=h200", "BACKEND=sim", "MARGIN=50", "JSON=-"]
    assert cli.main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["counts"]["ready"] == 2 and said["choices"] == {"TILE": [8, 16]} and math.isfinite(said["winner"]["bound_ms"])  # fmt: skip
    assert cli.main(["tune", "tiled", "MARGIN=0.5"]) == 2


def test_a_search_that_is_not_recorded_is_printed_and_goes_on(profiles, unrecorded, monkeypatch, capsys):
    words = ["tune", "tiled", "SIZE=128", "TILE=8,16", "COUNT=2", "DEVICE=h200", "BACKEND=sim", "MARGIN=50"]
    assert "CANDIDATES" in unrecorded(*words, remedy=tune.KEPT)
    monkeypatch.undo()
    monkeypatch.setattr(record, "PROFILES", profiles / "profiles")
    assert cli.main(words) == 0 and "nothing new was compiled or timed" in capsys.readouterr().out


@pytest.mark.parametrize("most", [300, 3000, 6000])
def test_a_journal_that_the_disk_does_not_take_keeps_whole_lines(profiles, most):
    """The search stops with a word on how it goes on; then it does."""
    code = f"""
import resource, sys
from pathlib import Path
from harness import cli, record, toolchain
record.PROFILES = Path({str(profiles / "profiles")!r})
if sys.argv[1:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
raise SystemExit(cli.main("tune tiled SIZE=128 TILE=4,8,16,32 COUNT=4 DEVICE=h200 BACKEND=sim MARGIN=50".split()))
"""

    def run(*words):
        return subprocess.run([sys.executable, "-c", code, *words], cwd=record.ROOT, capture_output=True, text=True)

    for tile in (4, 8, 16, 32):
        toolchain.compile(stage.find("tiled"), {"TILE": tile}, 90)
    stopped = run(str(most))
    [journal] = profiles.rglob("study.journal")
    assert (
        stopped.returncode == 2 and tune.KEPT in stopped.stderr and "study.journal: files may not be" in stopped.stderr
    )
    assert journal.read_bytes().endswith(b"\n") and not list(profiles.rglob("manifest.json"))
    with open(journal, "ab") as f:
        f.write(b'{"op_code": 5, "wor')  # a writer that was killed
    done = run()
    assert done.returncode == 0 and "READY TO BE TIMED" in done.stdout.upper(), done.stderr


def test_winners_are_found_by_stage_and_problem(profiles, monkeypatch):
    monkeypatch.setattr(record, "ROOT", profiles)
    monkeypatch.setenv("TILESCOPE_CACHE", str(profiles / "cache"))
    h200, tiled = devices.find("h200"), stage.find("tiled")
    assert tune.winners(h200) == {}
    with pytest.raises(TilescopeError, match="no search of tiled's tunables on 256x256x256 is recorded for h200") as e:
        tune.winner(tiled, SMALL, h200)
    assert "make tune KERNEL=tiled SIZE=256`" in e.value.remedy
    search()  # ranked only: no winner to rely on
    assert tune.winners(h200) == {}
    shipped = record.PROFILES / "recorded/h200/tuned"
    search(timer=lambda t: Timed(float(t["TILE"]), 0.0, 1.0), out=shipped, margin=50)
    assert tune.winners(h200) == {("tiled", SMALL): {"TILE": 8}} and tune.winners(devices.find("t4")) == {}
    assert tune.winner(tiled, Problem(256, 256, 256, distribution="zeros", seed=3), h200) == {"TILE": 8}
    search(timer=lambda t: Timed(64.0 - t["TILE"], 0.0, 1.0), margin=50, count=3)  # of what was timed before
    assert tune.winner(tiled, SMALL, h200) == {"TILE": 8}
    (record.PROFILES / "tiled").rename(profiles / "away")
    search(timer=lambda t: Timed(64.0 - t["TILE"], 0.0, 1.0), margin=50)  # a person's own goes before what is shipped
    assert tune.winner(tiled, SMALL, h200) == {"TILE": 32}
    run = profiling.profile("tiled", size=256, tuned=True, device="h200", backend="sim", record=False)
    assert run.tunables == {"TILE": 32}
    monkeypatch.setattr(tune, "winners", lambda d: {("tiled", SMALL): {"TILE": 16}})
    both = [SMALL, Problem(8, 8, 8)]
    assert timings.Contender("tiled", tuned=True, needed=False).on(both, h200) == [({"TILE": 16}, [0])]
    assert timings.Contender("tiled", {"TILE": 4}).on(both, h200) == [({"TILE": 4}, [0, 1])]
    with pytest.raises(TilescopeError, match="8x8x8"):
        timings.Contender("tiled", tuned=True).on(both, h200)


def test_expected_ranks_better_than_the_largest_bound():
    """41 tiles of warptiled as an H200 timed them; at 4096 the one expected to be the fastest was."""
    table = pd.read_csv(Path(__file__).parent / "data" / "ranking_h200.csv")
    table["bound"] = table[["scheduler_ms", "data_stage_ms"]].max(axis=1)
    table["expected"] = [
        tune.expected(*row) for row in table[["scheduler_ms", "data_stage_ms", "loop_bytes"]].itertuples(index=False)
    ]
    for size, least in ((4096, 0.9), (4097, 0.75)):
        mine = table[table["size"] == size]
        ranks = mine[["ms", "bound", "expected"]].rank()
        assert ranks.expected.corr(ranks.ms) >= max(least, ranks.bound.corr(ranks.ms) + 0.05)
        # Loads from shared memory one upon another do not tell what is left: hence no term for them.
        assert abs(mine.bunched.rank().corr((mine.ms / mine.expected).rank())) < 0.2
    at = table[table["size"] == 4096]
    assert at.ms[at.expected.idxmin()] == at.ms.min()


def test_expected():
    """Two resources that are equally busy: the fourth root of 2; a loop that the instruction cache does not hold: 4 % more."""
    assert tune.expected(1.0, 1.0, 1000) == pytest.approx(2**0.25) and tune.expected(3.0, 0.0, 1000) == 3.0
    assert tune.expected(3.0, 0.0, 35 * 1024) == pytest.approx(3.12)


def test_what_is_said_of_a_search_that_goes_on(profiles):
    assert "were known" not in tune.render(search())
    again = search(count=3)
    assert (again.known, again.measured) == (3, 0)
    assert "3 of 3 candidates were known; nothing new was compiled or timed." in record.load(again.path).text(
        "profile.txt"
    )
    assert tune.known(2, 3, 0) == "2 of 3 candidates were known, 1 is new."
    assert tune.known(3, 3, 1) == "3 of 3 candidates were known."


def test_ctrl_c_says_that_the_same_command_goes_on(profiles, monkeypatch, capsys):
    def interrupted(*a):
        raise KeyboardInterrupt

    monkeypatch.setattr(tune._Search, "fill", interrupted)
    assert cli.main(["tune", "tiled", "--size", "64", "--backend", "sim"]) == 130
    assert "Finished candidates are kept: the same command goes on" in capsys.readouterr().err


def test_a_row_holds_all_that_is_not_the_stages_own():
    def rendered(*tunables):
        found = outcome(*(Candidate(t) for t in tunables))
        found.defaults = {"TILE": 16, "PAD": 0, "STAGES": 2}
        found.choices = {name: () for name in found.defaults}
        return tune.render(found, 140)

    two = rendered({"TILE": 8, "PAD": 1, "STAGES": 2}, {"TILE": 16, "PAD": 1, "STAGES": 2})
    assert re.search(r"1 +TILE=8 PAD=1 ", two) and re.search(r"2 +TILE=16 PAD=1 ", two)
    assert "The same in all: PAD=1\n" in two
    one = rendered({"TILE": 8, "PAD": 1, "STAGES": 2})
    assert re.search(r"1 +TILE=8 PAD=1 ", one) and "The same in all" not in one
    assert re.search(r"1 +the stage's own ", rendered({"TILE": 16, "PAD": 0, "STAGES": 2}))


def test_the_command_for_a_search_that_is_missing(monkeypatch):
    monkeypatch.setattr(tune, "winners", lambda device: {})
    with pytest.raises(TilescopeError) as e:
        tune.winner(stage.find("tiled"), Problem(8, 16, 32), devices.find("h200"))
    assert "make tune KERNEL=tiled M=8 N=16 K=32`" in e.value.remedy
