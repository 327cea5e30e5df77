"""Declare parameters, and convert a received map to a frozen, checked value.

A message is a frozen Struct.  The annotation of a field has its type, its kind and its meaning:
``pid: Annotated[int, whole(1, 99), "of the client"] = 7``.  A field without a default is required.  The tables of
docs/protocol.md and the JSON schema are made of these; messages.py has them.
"""

import math
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from mpsd.errors import BadRequest
from mpsd.model.describe import describe
from mpsd.wire.plain import plain

M = TypeVar("M", bound=Struct)
_WORD = re.compile(r"[A-Za-z0-9._-]*")
_LABEL = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*)?")
_OWNED = re.compile(r"(?:(?:0|[1-9][0-9]{0,9}):)?[A-Za-z0-9._-]+")


class Unfit(ValueError):
    """A value is not of its kind; never leaves `parse`."""


class ParamKind(Struct, frozen=True):
    """A type of parameter: its text in docs/protocol.md, its parser, which raises Unfit, and its JSON Schema."""

    words: str
    parse: Callable[[Any], Any]
    schema: Mapping[str, Any]


class Param(Struct, frozen=True):
    """The declaration of one parameter."""

    name: str
    default: Any
    kind: ParamKind
    meaning: str

    @property
    def is_required(self) -> bool:
        return self.default is NODEFAULT


@cache
def walk(message: type[Struct]) -> tuple[Param, ...]:
    """Return the parameters of a message, in the order of declaration."""
    return tuple(Param(each.name, each.default, *each.type.__metadata__) for each in fields(message))


def parse(message: type[M], given: Mapping[str, Any], where: str = "") -> M:
    """Return a message from a received map; raise BadRequest, which names the first error."""
    known = {each.name: each for each in walk(message)}
    for name in given:
        if name not in known:
            accepted = ", ".join(known) or "none"
            raise BadRequest(f"unknown parameter {describe(where + name)}; accepted: {accepted}")
    values: dict[str, Any] = {}
    for name, each in known.items():
        if name in given:
            values[name] = _parse_one(where + name, each.kind, given[name])
        elif each.is_required:
            raise BadRequest(f"parameter {where}{name} is missing: {each.kind.words}")
    return message(**values)


def schema_of(message: type[Struct]) -> Mapping[str, Any]:
    """Return the parameters of a message as JSON Schema (2020-12).  Defaults are as they are on the wire."""
    named = walk(message)
    return {
        "type": "object",
        "properties": {each.name: _property(each) for each in named},
        "required": [each.name for each in named if each.is_required],
        "additionalProperties": False,
    }


def _property(of: Param) -> Mapping[str, Any]:
    default = {} if of.is_required else {"default": plain(of.default)}
    return {**of.kind.schema, **default, "description": of.meaning}


def _parse_one(name: str, kind: ParamKind, value: Any) -> Any:
    try:
        return kind.parse(value)
    except Unfit:
        raise BadRequest(f"parameter {name}: found {_shown(value)}; accepted: {kind.words}") from None


def _shown(value: Any) -> str:
    return "nil" if value is None else describe(value)


# -- kinds ---------------------------------------------------------------------------------------------------------------


def _kind(
    words: str, schema: Mapping[str, Any], fits: Callable[[Any], object], convert: Callable[[Any], Any] = lambda value: value
) -> ParamKind:
    """Make a kind from the check and the conversion of a value."""

    def take(value: Any) -> Any:
        if not fits(value):
            raise Unfit
        return convert(value)

    return ParamKind(words, take, schema)


def _string(words: str, least: int, most: int, fits: Callable[[str], object], pattern: str = "") -> ParamKind:
    """Make a kind of text from its length and one more check."""
    schema = {"type": "string", "minLength": least, "maxLength": most, **({"pattern": f"^{pattern}$"} if pattern else {})}
    return _kind(words, schema, lambda value: isinstance(value, str) and least <= len(value) <= most and fits(value))


def text(least: int, most: int) -> ParamKind:
    """Printable text: it must not move a terminal's cursor.  Bounds are in characters."""
    return _string(f"printable text, {least} to {most} characters", least, most, str.isprintable)


def word(least: int, most: int) -> ParamKind:
    """A name that is safe in a path, a log and a command line."""
    words = f"letters, digits, dots, underscores and hyphens, {least} to {most} characters"
    return _string(words, least, most, _WORD.fullmatch, _WORD.pattern)


def owned_word(most: int) -> ParamKind:
    """A name like `word`, of at least one character, which a uid and a colon may precede to name that user's."""
    words = f"{word(1, most).words}, which a uid and a colon may precede"
    own = most + len("4294967295:")
    return _string(
        words, 1, own, lambda value: _OWNED.fullmatch(value) and len(value.rpartition(":")[2]) <= most, _OWNED.pattern
    )


def label(most: int) -> ParamKind:
    """A name like `word`, or empty; it cannot look like an option or a hidden file."""
    return _string(f"{word(0, most).words}, not first a dot or a hyphen", 0, most, _LABEL.fullmatch, _LABEL.pattern)


def whole(least: int, most: int) -> ParamKind:
    schema = {"type": "integer", "minimum": least, "maximum": most}
    words = f"whole number, {least} to {_power(most)}"
    return _kind(words, schema, lambda value: type(value) is int and least <= value <= most)


def number(least: float, most: float, *, may_be_least: bool = True) -> ParamKind:
    def fits(value: Any) -> bool:
        is_within = type(value) in (int, float) and math.isfinite(value) and least <= value <= most
        return is_within and (may_be_least or value != least)

    low, high = f"{least:g}", f"{most:g}".replace("e+0", "e")
    words = f"number, {low} to {high}" if may_be_least else f"number, more than {low}, at most {high}"
    bound = "minimum" if may_be_least else "exclusiveMinimum"
    return _kind(words, {"type": "number", bound: least, "maximum": most}, fits, float)


def boolean() -> ParamKind:
    return _kind("boolean", {"type": "boolean"}, lambda value: type(value) is bool)


def choice(of: type[StrEnum]) -> ParamKind:
    words, known = "one of " + ", ".join(f'"{each}"' for each in of), [each.value for each in of]
    return _kind(words, {"enum": known}, lambda value: isinstance(value, str) and value in known, of)


def maybe(inner: ParamKind) -> ParamKind:
    schema = {"anyOf": [inner.schema, {"type": "null"}]}
    return ParamKind(f"{inner.words}; or nil", lambda value: None if value is None else inner.parse(value), schema)


def or_zero(inner: ParamKind) -> ParamKind:
    def take(value: Any) -> Any:
        return 0.0 if type(value) in (int, float) and value == 0 else inner.parse(value)

    return ParamKind(f"0, or {inner.words}", take, {"anyOf": [{"const": 0}, inner.schema]})


def multiple(of: int, least: int, most: int) -> ParamKind:
    inner = whole(least, most)
    schema = {**inner.schema, "multipleOf": of}
    return _kind(f"{inner.words}, a multiple of {of}", schema, lambda value: inner.parse(value) % of == 0)


def array(inner: ParamKind, most: int, least: int = 0) -> ParamKind:
    count = f"{least} to {most}" if least else f"at most {most}"
    return _kind(
        f"array of {count}: {inner.words}",
        {"type": "array", "items": inner.schema, "minItems": least, "maxItems": most},
        lambda value: isinstance(value, list) and least <= len(value) <= most,
        lambda value: tuple(map(inner.parse, value)),
    )


def pair(first: tuple[str, ParamKind], second: tuple[str, ParamKind]) -> ParamKind:
    """An array of two, each with its name for people."""
    return _kind(
        f"[{first[0]}, {second[0]}]: {first[1].words}; {second[1].words}",
        {"type": "array", "prefixItems": [first[1].schema, second[1].schema], "minItems": 2, "maxItems": 2},
        lambda value: isinstance(value, list) and len(value) == 2,
        lambda value: (first[1].parse(value[0]), second[1].parse(value[1])),
    )


def table(key: ParamKind, inner: ParamKind, most: int) -> ParamKind:
    return _kind(
        f"map of at most {most}, from {key.words} to {inner.words}",
        {"type": "object", "propertyNames": key.schema, "additionalProperties": inner.schema, "maxProperties": most},
        lambda value: isinstance(value, dict) and len(value) <= most,
        lambda value: {key.parse(name): inner.parse(each) for name, each in value.items()},
    )


def record(name: str, message: type[Struct]) -> ParamKind:
    """A map with declared parameters; an error in the map names the inner parameter."""
    words = "map: " + ", ".join(each.name for each in walk(message))
    return _kind(
        words, schema_of(message), lambda value: isinstance(value, dict), lambda value: parse(message, value, f"{name}.")
    )


def _power(most: int) -> str:
    """Write a bound of whole numbers as people do."""
    bits = (most + 1).bit_length() - 1
    return f"2^{bits} - 1" if most + 1 == 1 << bits and bits >= 31 else str(most)
