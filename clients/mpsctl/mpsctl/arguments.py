"""Declarations of commands and their arguments.  Both the argparse parser and the manual page are made of them.

The parser reports a wrong command line in one line, and exits with status 2.
"""

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from mpsctl import __version__
from mpsctl.quantities import Unfit

if TYPE_CHECKING:
    from mpsctl.session import Session

USAGE = 2


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a command.  name: with leading dashes, an option; without, a positional argument.

    count: "" exactly one, "?" at most one, "*" any number (an option may be repeated), "+" one or more.
    instead: options with the same word here exclude each other, and one of them is required.
    """

    name: str
    help: str
    metavar: str = ""
    parse: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    count: str = ""
    default: Any = None
    is_flag: bool = False
    instead: str = ""

    @property
    def is_option(self) -> bool:
        return self.name.startswith("-")

    @property
    def shown(self) -> str:
        """The placeholder for its value in usage and manual, without the name of an option; empty for a flag."""
        if self.is_flag:
            return ""
        return self.metavar or ("{" + ",".join(self.choices) + "}" if self.choices else self.name.lstrip("-").upper())


@dataclass(frozen=True, slots=True)
class Command:
    """A command.  words: as typed, "lease create".  more: additional text for the manual.  run: returns the exit status."""

    words: str
    help: str
    run: Callable[["Session"], int]
    arguments: tuple[Argument, ...] = ()
    more: str = ""


EVERYWHERE = (
    Argument("--json", "print JSON: one document, or one object a line for output without an end", is_flag=True),
    Argument("--socket", "mpsd's; otherwise mpsd.sock in $CUDA_MPS_PIPE_DIRECTORY, or in /tmp/nvidia-mps", metavar="PATH"),
)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        for pattern, plain in _PLAINER:
            message = re.sub(pattern, plain, message)
        self.exit(USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            self.error(f'unknown command "{value}"{likely(value, action.choices)}')
        raise argparse.ArgumentError(action, f'found "{value}"; accepted: {", ".join(action.choices)}')


_PLAINER = (  # the words of argparse -> those of mpsctl
    (r"^the following arguments are required: (.*)", r"missing: \1"),
    (r"^one of the arguments (\S+) is required", r"missing: \1"),
    (r"^one of the arguments (.*) is required", r"missing: one of \1"),
    (r": expected one argument$", ": its value is missing"),
)


def likely(word: str, known: Iterable[str]) -> str:
    """Return a question after the known words that look like this one; empty without any."""
    import difflib  # for mistakes only

    found = difflib.get_close_matches(word, list(known), 3)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def build_parser(commands: Sequence[Command], groups: dict[str, str]) -> argparse.ArgumentParser:
    """Return the parser of all commands.  groups: the help texts of the first words that have commands below them."""
    shared = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    _add(shared, EVERYWHERE)
    parser = Parser(prog="mpsctl", description="The person's tool for mpsd.", parents=[shared], allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"mpsctl {__version__}")
    parser.set_defaults(command=None, parser=parser)
    levels = {"": parser.add_subparsers(metavar="COMMAND", title="commands")}
    for command in commands:
        group, _, word = command.words.rpartition(" ")
        if group not in levels:
            levels[group] = _add_group(levels[""].add_parser(group, help=groups[group], parents=[shared], allow_abbrev=False))
        made = levels[group].add_parser(
            word, help=_escaped(command.help), description=_escaped(command.help) + ".", parents=[shared], allow_abbrev=False
        )
        made.set_defaults(command=command, parser=made)
        _add(made, command.arguments)
        if command.words in groups:  # the group's word is a command by itself too
            levels[command.words] = _add_group(made, required=False)
    return parser


def _add_group(parser: argparse.ArgumentParser, *, required: bool = True) -> Any:
    return parser.add_subparsers(metavar="COMMAND", title="commands", required=required)


def _add(parser: argparse.ArgumentParser, arguments: Iterable[Argument]) -> None:
    exclusive: dict[str, Any] = {}
    for each in arguments:
        if each.instead and each.instead not in exclusive:
            exclusive[each.instead] = parser.add_mutually_exclusive_group(required=True)
        _add_one(exclusive.get(each.instead, parser), each)


def _add_one(parser: Any, each: Argument) -> None:
    if each.is_flag:
        parser.add_argument(each.name, action="store_true", help=_escaped(each.help))
        return
    how: dict[str, Any] = {"help": _escaped(each.help), "metavar": each.shown, "type": _type(each)}
    if each.choices:
        how["choices"] = each.choices
    if each.is_option:
        how |= {"action": "append" if each.count == "*" else "store"}
    elif each.count:
        how |= {"nargs": each.count}
    if each.default is not None:
        how |= {"default": each.default}
    parser.add_argument(each.name, **how)


def _escaped(text: str) -> str:
    """Escape percent signs, which argparse would expand."""
    return text.replace("%", "%%")


def _type(each: Argument) -> Callable[[str], Any]:
    def take(text: str) -> Any:
        try:
            return each.parse(text)
        except Unfit as exc:
            raise argparse.ArgumentTypeError(f'found "{text}"; accepted: {exc}') from None

    return take
