"""Convert values to MessagePack's types: nil, booleans, numbers, strings, arrays, maps."""

import math
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from mpsd.model.process import ProcessId

_LEAST, _MOST = -(2**63), 2**64 - 1


def plain(value: Any) -> Any:
    """Never fails: a value without such a form becomes its text."""
    match value:
        case Enum():
            return plain(value.value)
        case None | bool():
            return value
        case str():
            return value.encode(errors="replace").decode()  # a lone surrogate, from a file name
        case int():
            return int(value) if _LEAST <= value <= _MOST else str(value)
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(plain(key)): plain(each) for key, each in value.items()}
        case Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case bytes() | bytearray() | memoryview():
            return repr(bytes(value))
        case Collection():
            return [plain(each) for each in value]
    return repr(value)


def process_facts(of: ProcessId | None) -> Mapping[str, int | None]:
    return {"pid": of.pid if of else None, "start_time": of.start_time if of else None}
