"""Declare parameters, and convert another user's map to a frozen, checked value.

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


def text(least: int, most: int) -> ParamKind:
    """Printable text: it must not move a terminal's cursor.  Bounds are in characters."""

    def take(value: Any) -> str:
        if not isinstance(value, str) or not least <= len(value) <= most or not value.isprintable():
            raise Unfit
        return value

    schema = {"type": "string", "minLength": least, "maxLength": most}
    return ParamKind(f"printable text, {least} to {most} characters", take, schema)


def word(least: int, most: int) -> ParamKind:
    """A name that is safe in a path, a log and a command line."""

    def take(value: Any) -> str:
        if not isinstance(value, str) or not least <= len(value) <= most or not _WORD.fullmatch(value):
            raise Unfit
        return value

    schema = {"type": "string", "minLength": least, "maxLength": most, "pattern": f"^{_WORD.pattern}$"}
    return ParamKind(f"letters, digits, dots, underscores and hyphens, {least} to {most} characters", take, schema)


def owned_word(most: int) -> ParamKind:
    """A name like `word`, of at least one character, which a uid and a colon may precede to name that user's."""

    def take(value: Any) -> str:
        if not isinstance(value, str) or not _OWNED.fullmatch(value) or len(value.rpartition(":")[2]) > most:
            raise Unfit
        return value

    schema = {"type": "string", "minLength": 1, "maxLength": most + 11, "pattern": f"^{_OWNED.pattern}$"}
    words = f"letters, digits, dots, underscores and hyphens, 1 to {most} characters, which a uid and a colon may precede"
    return ParamKind(words, take, schema)


def label(most: int) -> ParamKind:
    """A name like `word`, or empty; it cannot look like an option or a hidden file."""
    inner = word(0, most)

    def take(value: Any) -> str:
        found: str = inner.parse(value)
        if found[:1] in (".", "-"):
            raise Unfit
        return found

    schema = {**inner.schema, "pattern": "^([A-Za-z0-9_][A-Za-z0-9._-]*)?$"}
    return ParamKind(f"{inner.words}, not first a dot or a hyphen", take, schema)


def whole(least: int, most: int) -> ParamKind:
    def take(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise Unfit
        return value

    return ParamKind(f"whole number, {least} to {_power(most)}", take, {"type": "integer", "minimum": least, "maximum": most})


def number(least: float, most: float, *, may_be_least: bool = True) -> ParamKind:
    def take(value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
            raise Unfit
        if value == least and not may_be_least:
            raise Unfit
        return float(value)

    low, high = f"{least:g}", f"{most:g}".replace("e+0", "e")
    words = f"number, {low} to {high}" if may_be_least else f"number, more than {low}, at most {high}"
    bound = "minimum" if may_be_least else "exclusiveMinimum"
    return ParamKind(words, take, {"type": "number", bound: least, "maximum": most})


def boolean() -> ParamKind:
    def take(value: Any) -> bool:
        if type(value) is not bool:
            raise Unfit
        return value

    return ParamKind("boolean", take, {"type": "boolean"})


def choice(kind: type[StrEnum]) -> ParamKind:
    def take(value: Any) -> StrEnum:
        if not isinstance(value, str) or value not in set(kind):
            raise Unfit
        return kind(value)

    return ParamKind("one of " + ", ".join(f'"{each}"' for each in kind), take, {"enum": [each.value for each in kind]})


def maybe(inner: ParamKind) -> ParamKind:
    schema = {"anyOf": [inner.schema, {"type": "null"}]}
    return ParamKind(f"{inner.words}; or nil", lambda value: None if value is None else inner.parse(value), schema)


def or_zero(inner: ParamKind) -> ParamKind:
    def take(value: Any) -> Any:
        return 0.0 if type(value) in (int, float) and value == 0 else inner.parse(value)

    return ParamKind(f"0, or {inner.words}", take, {"anyOf": [{"const": 0}, inner.schema]})


def multiple(of: int, least: int, most: int) -> ParamKind:
    inner = whole(least, most)

    def take(value: Any) -> int:
        if inner.parse(value) % of:
            raise Unfit
        return int(value)

    return ParamKind(f"{inner.words}, a multiple of {of}", take, {**inner.schema, "multipleOf": of})


def array(inner: ParamKind, most: int, least: int = 0) -> ParamKind:
    def take(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise Unfit
        return tuple(inner.parse(each) for each in value)

    count = f"{least} to {most}" if least else f"at most {most}"
    schema = {"type": "array", "items": inner.schema, "minItems": least, "maxItems": most}
    return ParamKind(f"array of {count}: {inner.words}", take, schema)


def pair(first: tuple[str, ParamKind], second: tuple[str, ParamKind]) -> ParamKind:
    """An array of two, each with its name for people."""
    kinds = (first[1], second[1])

    def take(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(kinds):
            raise Unfit
        return tuple(kind.parse(each) for kind, each in zip(kinds, value, strict=True))

    schema = {"type": "array", "prefixItems": [each.schema for each in kinds], "minItems": 2, "maxItems": 2}
    return ParamKind(f"[{first[0]}, {second[0]}]: {first[1].words}; {second[1].words}", take, schema)


def table(key: ParamKind, inner: ParamKind, most: int) -> ParamKind:
    def take(value: Any) -> Mapping[str, Any]:
        if not isinstance(value, dict) or len(value) > most:
            raise Unfit
        return {key.parse(name): inner.parse(each) for name, each in value.items()}

    schema = {"type": "object", "propertyNames": key.schema, "additionalProperties": inner.schema, "maxProperties": most}
    return ParamKind(f"map of at most {most}, from {key.words} to {inner.words}", take, schema)


def record(name: str, message: type[Struct]) -> ParamKind:
    """A map with parameters of its own; an error in it names the inner parameter."""

    def take(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Unfit
        return parse(message, value, f"{name}.")

    return ParamKind("map: " + ", ".join(each.name for each in walk(message)), take, schema_of(message))


def _power(most: int) -> str:
    """Write a bound of whole numbers as people do."""
    bits = (most + 1).bit_length() - 1
    return f"2^{bits} - 1" if most + 1 == 1 << bits and bits >= 31 else str(most)
