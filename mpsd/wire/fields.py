"""Declare the fields of results: name, type and meaning of each, once.

The maps of answers, the tables of docs/protocol.md, its JSON schema and the values of the Python client are made of these
declarations (api/protocol_page.py, api/client_values.py); `*_results.py` have them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from mpsd.wire.plain import plain

Map = Mapping[str, Any]


class Kind(NamedTuple):
    """A type: in the words of the page, as JSON Schema, and as the Python client has it.

    within: the map that it consists of, if the row of the page lists its fields.
    """

    words: str
    schema: Map
    hint: str
    within: "Result | None" = None


class Field(NamedTuple):
    """A field of a result."""

    name: str
    kind: Kind
    meaning: str = ""


class Result:
    """The map of a result.

    name: of the class in the Python client, empty without one; what: its docstring.  extends: the result whose fields come
    first.  descriptors: the field in which the class has the descriptors of the answer, as Python source.
    """

    def __init__(
        self, name: str, what: str, *own: Field, extends: "Result | None" = None, descriptors: str = ""
    ) -> None:
        self.name, self.what, self.own, self.extends, self.descriptors = name, what, own, extends, descriptors
        self.fields: tuple[Field, ...] = (*(extends.fields if extends else ()), *own)
        self.names = tuple(each.name for each in self.fields)

    def of(self, *sources: object, **given: Any) -> Map:
        """Return the map: the given values, and for other fields the attribute of the first source that has it."""
        return {name: given[name] if name in given else plain(_first(sources, name)) for name in self.names}


NOTHING = Result("", "The result of a method that answers with an empty map.")


def _first(sources: tuple[object, ...], name: str) -> Any:
    for source in sources:
        if hasattr(source, name):
            return getattr(source, name)
    raise AttributeError(f"no source of the result has {name}")


WHOLE = Kind("whole number", {"type": "integer"}, "int")
NUMBER = Kind("number", {"type": "number"}, "float")
TIME = Kind("time", {"type": "number"}, "float")
TEXT = Kind("text", {"type": "string"}, "str")
UUID = Kind("UUID", {"type": "string"}, "str")
BOOLEAN = Kind("boolean", {"type": "boolean"}, "bool")
PRIORITY = Kind("0 or 1", {"enum": [0, 1]}, "int")
UUIDS = Kind("array of UUIDs", {"type": "array"}, "tuple[str, ...]")
TEXTS = Kind("array of text", {"type": "array"}, "tuple[str, ...]")
WHOLES = Kind("array of whole numbers", {"type": "array"}, "tuple[int, ...]")
ALLOCATIONS = Kind("array of [offset, bytes, commit]", {"type": "array"}, "tuple[tuple[int, ...], ...]")
BYTES_BY_GPU = Kind("map from UUID to bytes", {"type": "object"}, "Mapping[str, int]")
FACTS = Kind("map", {"type": "object"}, "Mapping[str, Any]")


def choice(of: type[StrEnum] | tuple[str, ...]) -> Kind:
    *most, last = (f'"{each}"' for each in of)
    return Kind(f"{', '.join(most)} or {last}", {"enum": [str(each) for each in of]}, "str")


def maybe(inner: Kind) -> Kind:
    comma = "," if inner.words == BYTES_BY_GPU.words else ""
    schema = {"anyOf": [inner.schema, {"type": "null"}]}
    return Kind(f"{inner.words}{comma} or nil", schema, f"{inner.hint} | None", inner.within)


def record(of: Result) -> Kind:
    return Kind("map", {"type": "object"}, of.name, of)


def array(of: Result) -> Kind:
    return Kind("array of maps", {"type": "array"}, f"tuple[{of.name}, ...]", of)
