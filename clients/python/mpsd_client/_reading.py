"""Decode the map of a result into a frozen value.

Fields that a newer mpsd adds are ignored.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mpsd_client._errors import ProtocolError

T = TypeVar("T")


def read(kind: type[T], found: Any) -> T:
    """Return a value of `kind` from the map of a result.  Raises ProtocolError."""
    try:
        readers = _readers(typing.cast(Any, kind))
        return kind(**{name: reader(found[name]) for name, reader in readers.items()})
    except (KeyError, TypeError) as exc:
        raise ProtocolError(f"a {kind.__name__} was expected: {exc!r}") from None


@functools.cache
def _readers(kind: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Return the decoder of each field."""
    return {name: _reader(hint) for name, hint in typing.get_type_hints(kind).items()}


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the decoder of a type: arrays become tuples, maps with a dataclass become its values, other values stay."""
    inner = typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return functools.partial(read, hint)
    if typing.get_origin(hint) is tuple:
        one = _reader(inner[0])
        return lambda found: tuple(one(each) for each in found)
    if types.NoneType in inner:
        other = _reader(inner[0])
        return lambda found: None if found is None else other(found)
    return lambda found: found
