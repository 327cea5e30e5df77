"""Generate the calls of the Python client from the method table (`make docs`).

    python -m mpsd.api.client_calls clients/python/mpsd_client/_calls.py

A method with descriptors has its function in the client's _descriptor_calls.py, since only that knows how to send or read them.
"""

import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from msgspec.structs import fields

from mpsd.api.method_table import METHODS, Method
from mpsd.wire.fields import NOTHING
from mpsd.wire.messages import Page, SelectorParams
from mpsd.wire.params import Param, walk

WITH_DESCRIPTORS = tuple(name for name, each in METHODS.items() if each.takes or each.gives)
EVENTS = ("events.subscribe", "events.unsubscribe")  # client.py makes these, with the stream of events

_WIDTH = 128
_POSITIONAL = 3  # with no more parameters, all of them may be given by position
_NAMES = {
    ("fault.list", "after"): "after_number",
    ("fault.guards", "bytes"): "length",
    ("arena.make_room", "bytes"): "wanted_bytes",
}
_HEAD = '''"""The calls to mpsd: each function here makes one, and `Client.ask` or `AsyncClient.ask` sends it.

    lease = mpsd.ask(calls.lease_create("training", Selector.of_self(), sm_percent=30))

Permissions, units and errors: mpsd's docs/protocol.md, which has a chapter for each method.  mpsd uses its default for a
parameter that is None.  For a call that waits, set the client's `timeout_seconds` to more than the wait.  `make docs` makes
this module.
"""

from collections.abc import Mapping, Sequence

from mpsd_client import _values as values
from mpsd_client._call import Call as Call
from mpsd_client._call import after as after
from mpsd_client._call import make_call as _call
from mpsd_client._call import make_page as _page
from mpsd_client._call import make_report as _report
'''


class _Argument:
    """A parameter of a method, as the client's function has it."""

    def __init__(self, method: str, of: Param, kind: Any) -> None:
        family = method.partition(".")[0]
        self.wire = of.name
        self.name = _NAMES.get((method, of.name)) or (f"{_owner(family)}_id" if of.name == "id" else of.name)
        self.is_required = of.is_required
        is_limit = of.name == "limit"
        kinds = [each for each in get_args(kind) or (kind,) if each is not NoneType] if isinstance(kind, UnionType) else [kind]
        self.default = None if is_limit or self.is_required else of.default
        self.is_optional = not self.is_required and self.default is None
        self.hint = _hint(kinds[0]) + (" | None" if self.is_optional else "")

    def declared(self) -> str:
        default = oct(self.default) if self.wire == "mode" and self.default else _source(self.default)
        return f"{self.name}: {self.hint}" + ("" if self.is_required else f" = {default}")

    def given(self) -> str:
        """Return the argument of the call, as it is sent."""
        return f"{self.wire}={self.name}"


def source() -> str:
    """Return the source of the client's module of calls."""
    ours = [name for name in METHODS if name not in (*WITH_DESCRIPTORS, *EVENTS)]
    others = "".join(
        f"from mpsd_client._descriptor_calls import {name} as {name}\n" for name in sorted(map(_function, WITH_DESCRIPTORS))
    )
    imports = f"{_HEAD}{others}from mpsd_client._values import Page, Selector\n"
    return imports + "".join(_made(name, METHODS[name]) for name in ours)


def _made(name: str, method: Method) -> str:
    arguments = _arguments(name, method.ask)
    is_page = name.endswith(".list")
    kind = "None" if method.result is NOTHING else f"values.{method.result.name}"
    result = f"Page[{kind}]" if is_page else kind
    maker = "_page" if is_page else "_report" if method.result is NOTHING else "_call"
    words = [f'"{name}"', *([] if method.result is NOTHING else [kind]), *(each.given() for each in arguments)]
    head = _bracketed(f"def {_function(name)}(", _declared(arguments), f") -> Call[{result}]:", "")
    about = "\n".join(_about(method, arguments))
    return f"\n\n{head}\n{about}\n{_bracketed(f'    return {maker}(', words, ')', '    ')}\n"


def _arguments(name: str, ask: type) -> list[_Argument]:
    kinds = {each.name: get_args(each.type)[0] if get_origin(each.type) else each.type for each in fields(ask)}
    made = [_Argument(name, each, kinds[each.name]) for each in walk(ask)]
    if not issubclass(ask, Page):
        return made
    paging = [each for each in made if each.wire in ("after", "limit")]
    first = [each for each in paging if each.wire == "after" and each.name != "after"]
    own = [each for each in made if each not in paging]
    return [*first, *own, *(each for each in paging if each.wire == "limit")]


def _declared(arguments: list[_Argument]) -> list[str]:
    words = [each.declared() for each in arguments]
    if len(words) <= _POSITIONAL:
        return words
    needed = sum(each.is_required for each in arguments)
    return [*words[: needed + 1], "*", *words[needed + 1 :]] if needed < len(words) - 1 else words


def _about(method: Method, arguments: list[_Argument]) -> Iterator[str]:
    meanings = {each.name: each.meaning.replace("nil", "None") for each in walk(method.ask)}
    parts = [f"{each.name}: {meanings[each.wire]}." for each in arguments if each.wire not in ("id", "limit")]
    text = " ".join([f"{method.help}.", *parts]).replace("\\", "\\\\")
    lines = textwrap.wrap(text, _WIDTH - 4 - 6, break_on_hyphens=False)
    yield f'    """{lines[0]}' + ('"""' if len(lines) == 1 else "")
    yield from (f"    {each}" for each in lines[1:-1])
    if len(lines) > 1:
        yield f'    {lines[-1]}"""'


def _bracketed(before: str, words: list[str], behind: str, indent: str) -> str:
    """Return the words in brackets: on one line if they fit, else on indented lines."""
    line = before + ", ".join(words) + behind
    if len(line) <= _WIDTH:
        return line
    inner = textwrap.indent("\n".join(_filled(words)), f"{indent}    ")
    return f"{before}\n{inner}\n{indent}{behind}"


def _filled(words: list[str]) -> Iterator[str]:
    line = ""
    for each in words:
        if line and len(line) + len(each) > _WIDTH - 12:
            yield line.rstrip()
            line = ""
        line += f"{each}, "
    yield line.rstrip()


def _function(name: str) -> str:
    return name.replace(".", "_")


def _owner(family: str) -> str:
    return "lease" if family == "lease" else "arena"


def _hint(kind: Any) -> str:
    origin = get_origin(kind)
    if kind is SelectorParams:
        return "Selector"
    if origin is tuple:
        return f"Sequence[{_hint(get_args(kind)[0])}]"
    if origin is not None:
        return f"Mapping[{', '.join(map(_hint, get_args(kind)))}]"
    return "str" if issubclass(kind, str) else str(kind.__name__)


def _source(value: Any) -> str:
    """Return the value as Python source."""
    text = value.value if isinstance(value, Enum) else value
    return f'"{text}"' if isinstance(text, str) else repr(text)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(source())
