"""How an option is declared, and how an untrusted table of values becomes a frozen, checked one.

Does not know which options exist (options.py), and reads no file.  A section is a frozen dataclass whose fields were made by
`option` or `section`; all facts about an option (type, default, help, accepted values) are declared there, once.
"""

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from mpsd.config.value_checks import ANYTHING, Accept
from mpsd.model.describe import describe


class Option(Struct, frozen=True):
    """All facts about one option; `key` is dotted, as `domains.spares`."""

    key: str
    kind: Any
    default: Any
    help: str
    accept: Accept
    needs_restart: bool
    environ: str

    @property
    def accepted(self) -> str:
        """The accepted type and range, in words."""
        if typing.get_origin(self.kind) is Literal:
            return "one of " + ", ".join(f'"{choice}"' for choice in typing.get_args(self.kind))
        if self.accept.words and _base(self.kind) in (str, Mapping):
            return self.accept.words
        return ", ".join(filter(None, (_KIND_WORDS[_base(self.kind)], self.accept.words)))


class Problem(Struct, frozen=True):
    """One error: the source, the key, the value found, and the accepted values."""

    source: str
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.source}: {self.key}: {self.message}" if self.key else f"{self.source}: {self.message}"


def option(
    default: Any,
    help: str,
    *,
    accept: Accept = ANYTHING,
    needs_restart: bool = False,
    environ: str = "",
) -> Any:
    """Declare a dataclass field that is an option.  `needs_restart`: a reload cannot change it."""
    facts = {"help": help, "accept": accept, "needs_restart": needs_restart, "environ": environ}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=facts)
    return dataclasses.field(default=default, metadata=facts)


def section(kind: type) -> Any:
    """Declare a dataclass field that is a table of options."""
    return dataclasses.field(default_factory=kind)


def walk(kind: type, prefix: str = "") -> Iterator[Option]:
    """Yield every option of a section and of the sections in it, in the order of their declaration."""
    hints = typing.get_type_hints(kind)
    for each in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[each.name]):
            yield from walk(hints[each.name], f"{prefix}{each.name}.")
        else:
            yield Option(prefix + each.name, hints[each.name], getattr(kind(), each.name), **each.metadata)


def value_at(config: Any, key: str) -> Any:
    """Return the value that `config` has for a dotted key."""
    for name in key.split("."):
        config = getattr(config, name)
    return config


def flatten(table: Mapping[str, Any], kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values of a nested table; descends only where `kind` has a section."""
    hints = typing.get_type_hints(kind)
    for name, value in table.items():
        inner = hints.get(name)
        if isinstance(value, Mapping) and inner is not None and dataclasses.is_dataclass(inner):
            yield from flatten(value, typing.cast(type, inner), f"{prefix}{name}.")
        else:
            yield prefix + name, value


def check(source: str, key: str, value: Any, options: Mapping[str, Option]) -> Problem | None:
    """Return the error in one key or its value; None if they are valid."""
    found = options.get(key)
    if found is None:
        return Problem(source, key, _unknown(key, options))
    if not _has_kind(value, found.kind) or not found.accept.test(value):
        return Problem(source, key, f"found {describe(value)}; accepted: {found.accepted}")
    return None


def build(kind: type, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Return an instance of the section `kind` from checked values by dotted key; missing ones take their defaults."""
    hints = typing.get_type_hints(kind)
    arguments: dict[str, Any] = {}
    for each in dataclasses.fields(kind):
        key, inner = prefix + each.name, hints[each.name]
        if dataclasses.is_dataclass(inner):
            arguments[each.name] = build(typing.cast(type, inner), values, f"{key}.")
        elif key in values:
            arguments[each.name] = float(values[key]) if inner is float else values[key]
    return kind(**arguments)


def parse_word(text: str, kind: Any) -> Any:
    """Parse an environment variable or an argument; text that is not a number stays text, which `check` refuses."""
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return text


_KIND_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Mapping: "a table of strings",
}


def _base(kind: Any) -> Any:
    return typing.get_origin(kind) or kind


def _has_kind(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return isinstance(value, str) and value in typing.get_args(kind)
    if _base(kind) is Mapping:
        return isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values())
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # a NaN does not equal itself
    return type(value) is kind


def _unknown(key: str, options: Mapping[str, Option]) -> str:
    sections = {name.rpartition(".")[0] for name in options} - {""}
    if key in sections:
        return f"this is a section: write [{key}] and its options below it"
    near = _near(key, options, sections)
    if near:
        return f"no such option; did you mean {near}?"
    inside = key.rpartition(".")[0]
    siblings = [name for name in options if name.rpartition(".")[0] == inside]
    return "no such option; accepted: " + ", ".join(siblings or sorted(sections))


def _near(key: str, options: Mapping[str, Option], sections: set[str]) -> str:
    """Return what was probably meant: a section, an option elsewhere, or a misspelt one; empty if nothing is close."""
    close = difflib.get_close_matches(key, sections, n=1, cutoff=0.7)
    if close and "." not in key:
        return f"[{close[0]}]"
    by_name = {name.rpartition(".")[2]: name for name in options}
    if close := difflib.get_close_matches(key, options, n=1, cutoff=0.8):
        return close[0]
    close = difflib.get_close_matches(key.rpartition(".")[2], by_name, n=1, cutoff=0.75)
    return by_name[close[0]] if close else ""
