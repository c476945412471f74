"""The command line's grammar: `tiled2d --size 512 --tile 16`, and equally `KERNEL=tiled2d SIZE=512 TILE=16` as the Makefile
passes it. A name that a verb does not know is a tunable of the stage; what nobody knows is refused by name.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from . import stage as stages
from .errors import TilescopeError, nearest

PROGRAM = "python -m harness"


def text(name: str) -> Callable[[str], str]:
    """Converts an option's value: any text but none."""

    def convert(value: str) -> str:
        if not value:
            raise TilescopeError(f"{name}= has no value.")
        return value

    return convert


def integer(name: str) -> Callable[[str], int]:
    """Converts an option's value to an integer, or raises TilescopeError naming the option."""

    def convert(value: str) -> int:
        try:
            return int(value if value.isascii() else "")
        except ValueError:
            raise TilescopeError(f"{name}={value!r} is not an integer.") from None

    return convert


def number(name: str) -> Callable[[str], float]:
    """Converts an option's value to a number, or raises TilescopeError naming the option."""

    def convert(value: str) -> float:
        try:
            return float(value if value.isascii() else "")
        except ValueError:
            raise TilescopeError(f"{name}={value!r} is not a number.") from None

    return convert


def one_of(*words: str) -> Callable[[str], Callable[[str], str]]:
    """Makes a converter that takes one of the words, in any case."""

    def kind(name: str) -> Callable[[str], str]:
        def convert(value: str) -> str:
            if value.lower() not in words:
                raise TilescopeError(
                    f"unknown {name} {value!r}.{nearest(value.lower(), list(words))}",
                    f"Choose one of {', '.join(words)}."
                    if len(words) > 1
                    else f"Choose {words[0]}, or leave {name} out.",
                )
            return value.lower()

        return convert

    return kind


@dataclass(frozen=True)
class Option:
    """`--name VALUE`, and equally NAME=VALUE. `kind` makes the converter, given the name to complain about."""

    name: str
    help: str
    kind: Callable[[str], Callable[[str], Any]] = text
    default: Any = None


@dataclass(frozen=True)
class Verb:
    """A command: its function, options, the option that a bare word is, and whether other names are tunables."""

    call: Callable[[argparse.Namespace], int]
    options: dict[str, Option]
    bare: str | None
    tunables: bool

    @property
    def summary(self) -> str:
        return (self.call.__doc__ or "").strip().splitlines()[0]


VERBS: dict[str, Verb] = {}


def verb(*options: Option, bare: str | None = None, tunables: bool = False) -> Callable[[Callable], Callable]:
    """Registers a function as the verb of its name. Its docstring's first line is the help."""

    def register(call: Callable[[argparse.Namespace], int]) -> Callable:
        VERBS[call.__name__.strip("_").replace("_", "-")] = Verb(call, {o.name: o for o in options}, bare, tunables)
        return call

    return register


def parse(name: str, words: list[str]) -> argparse.Namespace:
    """A verb's arguments: each option as an attribute, and `tunables` for the names it does not know."""
    command = VERBS[name]
    known, tunables = _pairs(name, command, words)
    parser = _Parser(
        prog=f"{PROGRAM} {name}", description=command.call.__doc__, allow_abbrev=False, usage=_usage(name, command)
    )
    for option in command.options.values():
        shown = (
            f" (default {option.default})"
            if option.default not in (None, 0, "") and "default" not in option.help
            else ""
        )
        parser.add_argument(
            f"--{option.name}", type=option.kind(option.name.upper()), default=option.default, help=option.help + shown
        )
    args = parser.parse_args([f"--{k}={v}" if v is not None else k for k, v in known.items()])
    args.tunables = tunables
    return args


def _pairs(name: str, command: Verb, words: list[str]) -> tuple[dict[str, str | None], dict[str, str]]:
    """Each option and each tunable given, by name, however it was spelt. Raises TilescopeError on one given twice."""
    known: dict[str, str | None] = {}
    tunables: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word in ("-h", "--help"):
            return {"--help": None}, {}
        if match := re.fullmatch(r"(?:--)?([A-Za-z_][\w-]*)=(.*)", word, re.S):
            key, value = match[1], match[2]
        elif re.match(r"--[A-Za-z_]", word):
            key = word[2:]
            value = next(rest, "")
            if not value or value.startswith("--"):
                raise TilescopeError(f"{word} has no value.")
        elif command.bare and not word.startswith("-"):
            key, value = command.bare, word
        else:
            raise TilescopeError(f"{name} does not take {word!r}.", f"See `{PROGRAM} {name} --help`.")
        key = key.replace("-", "_")
        target = known if key.lower() in command.options else tunables
        key = key.lower() if target is known else key.upper()
        if key in target:
            raise TilescopeError(f"{key.upper()} is given twice: {target[key]} and {value}.")
        if target is tunables and not command.tunables:
            raise TilescopeError(
                f"{name} does not take {key}.{nearest(key, [o.upper() for o in command.options])}", _takes(command)
            )
        target[key] = value
    return known, tunables


def tunables(args: argparse.Namespace, kernel: str, name: str) -> dict[str, str]:
    """The tunables given, once each is known to be one of the stage. Raises TilescopeError naming the nearest known word."""
    has = {t.upper(): t for t in stages.find(kernel).tunables}
    for key in args.tunables:
        if key not in has:
            near = nearest(key, [*has, *(o.upper() for o in VERBS[name].options)])
            tunables = f"{kernel} has the tunables {', '.join(has)}." if has else f"{kernel} has no tunables."
            raise TilescopeError(
                f"unknown {key}: it is neither an option of {name} nor a tunable of {kernel}.{near}", tunables
            )
    return {has[key]: value for key, value in args.tunables.items()}


def required(value: str | None, name: str, option: str = "KERNEL") -> str:
    if not value:
        known = f"Known: {', '.join(stages.names())}; or a path to a stage file."
        raise TilescopeError(f"{name} needs {option}=.", known if option == "KERNEL" else "`make index` lists them.")
    return value


def _takes(command: Verb) -> str:
    return f"It takes {', '.join(o.upper() for o in command.options)}."


def _usage(name: str, command: Verb) -> str:
    bare = f" {command.bare.upper()}" if command.bare else ""
    if bare and "default" in command.options[command.bare].help:
        bare = f" [{bare.strip()}]"
    return f"{PROGRAM} {name}{bare} [--option X | OPTION=X{' | TUNABLE=X' if command.tunables else ''} ...]"


def overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:{width}}  {v.summary}" for name, v in VERBS.items())
    return f"usage: {PROGRAM} VERB [--option X | OPTION=X ...]\n\n{verbs}\n\n`{PROGRAM} VERB --help` lists a verb's options.\n"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise TilescopeError(message)
