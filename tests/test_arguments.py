"""The command line's grammar: both spellings, tunables, everything given twice or unknown refused by name."""

from __future__ import annotations

import pytest

from harness import cli
from harness.arguments import one_of, parse, required, tunables
from harness.errors import TilescopeError

assert cli  # the verbs register themselves


@pytest.mark.parametrize(
    "words",
    [
        "tiled2d --size 512 --bm 32 --beta -1 --json -",
        "KERNEL=tiled2d SIZE=512 BM=32 BETA=-1 JSON=-",
        "--kernel=tiled2d --size=512 --BM=32 --beta=-1 --json=-",
        "kernel=tiled2d size=512 bm=32 Beta=-1 json=-",
    ],
)
def test_one_grammar(words):
    args = parse("profile", words.split())
    assert (args.kernel, args.size, args.beta, args.json, args.tunables) == ("tiled2d", 512, -1.0, "-", {"BM": "32"})
    assert (args.m, args.alpha, args.device, args.record) == (None, 1.0, None, "yes")


def test_paths_are_bare_words():
    assert parse("profile", ["./a=b/my.cu"]).kernel == "./a=b/my.cu"
    assert parse("show", ["profiles/tiled/x"]).run == "profiles/tiled/x"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("tiled --size 3 SIZE=4", "SIZE is given twice: 3 and 4"),
        ("tiled KERNEL=naive", "KERNEL is given twice"),
        ("tiled naive", "KERNEL is given twice"),
        ("tiled TILE=2 --tile 4", "TILE is given twice"),
        ("tiled --size", "--size has no value"),
        ("tiled --out --size 3", "--out has no value"),
        ("tiled SIZE=x", "SIZE='x' is not an integer"),
        ("tiled SIZE=1e3", "SIZE='1e3' is not an integer"),
        ("tiled SIZE=", "SIZE='' is not an integer"),
        ("tiled OUT=", "OUT= has no value"),
        ("tiled ALPHA=x", "ALPHA='x' is not a number"),
        ("tiled -x", "does not take '-x'"),
        ("tiled BACKEND=gpus", "Did you mean gpu"),
        ("tiled DISTRIBUTION=normals", "Did you mean normal"),
    ],
)
def test_refused(words, complaint):
    with pytest.raises(TilescopeError, match=complaint):
        parse("profile", words.split())


def test_a_verb_without_tunables_names_what_it_takes():
    with pytest.raises(TilescopeError, match="list does not take SIZE") as e:
        parse("list", ["SIZE=3"])
    assert e.value.remedy == "It takes JSON."


@pytest.mark.parametrize(
    ("words", "near"),
    [("TILES=3", "TILE"), ("SIZ=3", "SIZE"), ("DEVISE=h200", "DEVICE"), ("XYZZY=1", None), ("ARCH=90", None)],
)
def test_unknown_names_get_the_nearest_known_one(words, near):
    with pytest.raises(TilescopeError, match=f"unknown {words.split('=')[0]}") as e:
        tunables(parse("profile", ["tiled", words]), "tiled", "profile")
    assert (f"Did you mean {near}?" if near else "Did you mean") in e.value.what or near is None


def test_known_tunables_keep_the_stage_s_spelling():
    assert tunables(parse("profile", ["tiled", "tile=8"]), "tiled", "profile") == {"TILE": "8"}


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help(verb, capsys):
    with pytest.raises(SystemExit, match="0"):
        parse(verb, ["--help"])
    assert capsys.readouterr().out.startswith(f"usage: python -m harness {verb}")


def test_an_option_of_one_word_is_chosen_or_left_out():
    with pytest.raises(TilescopeError) as e:
        one_of("full")("SET")("half")
    assert e.value.remedy == "Choose full, or leave SET out."


def test_a_run_that_is_not_named_is_found_in_the_index():
    with pytest.raises(TilescopeError) as e:
        required(None, "show", "RUN")
    assert e.value.what == "show needs RUN=." and e.value.remedy == "`make index` lists them."
