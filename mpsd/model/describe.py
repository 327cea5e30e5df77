"""Write an untrusted value in an error message, as the author of a file or a request would."""

import json
from collections.abc import Mapping
from typing import Any

_SHOWN_BITS = 128
_FOUND_WORDS: tuple[tuple[Any, str], ...] = (
    (int, "a whole number"),
    (float, "a number"),
    (Mapping, "a table"),
    (list, "a list"),
)


def describe(value: Any) -> str:
    """Return a value as the author of the file would write it, with its type if that is the error."""
    if isinstance(value, bool):
        return f"{str(value).lower()} (a boolean)"
    if isinstance(value, str):
        shown = _printable(json.dumps(_cut(value), ensure_ascii=False))
        return shown + (f" ({len(value)} characters)" if len(value) > 100 else "")
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"a whole number of {value.bit_length()} bits"
    for kinds, name in _FOUND_WORDS:
        if isinstance(value, kinds):
            return f"{_cut(str(value))} ({name})"
    return f"{_cut(str(value))} ({type(value).__name__})"


def _printable(text: str) -> str:
    """Escape the characters that JSON leaves as they are but that move a terminal's cursor or reverse its text."""
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def _cut(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}..."
