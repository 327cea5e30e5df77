"""Flat names for nested values: {"model": {"head": tensor}, "kv": [a, b]} is model.head, kv.0, kv.1.

Independent of PyTorch: the caller's functions recognize tensors and open up containers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from mpsd_client._layout import LayoutError

MOST_DEPTH = 32


def flatten(
    state: Mapping[str, Any], is_tensor: Callable[[Any], bool], open_up: Callable[[Any], Mapping[str, Any] | None]
) -> dict[str, Any]:
    """Return the tensors by name.  open_up: returns the contents of a value that is not a tensor, mapping, list or tuple; None
    if it does not know the value.

    Raises LayoutError for an unknown value, two tensors of one name, a key that is not text or a number, and a nesting deeper
    than MOST_DEPTH.
    """
    found: dict[str, Any] = {}
    for key, value in state.items():
        _walk(_named("", key), value, is_tensor, open_up, found, MOST_DEPTH)
    return found


def _walk(
    name: str,
    value: Any,
    is_tensor: Callable[[Any], bool],
    open_up: Callable[[Any], Mapping[str, Any] | None],
    found: dict[str, Any],
    depth: int,
) -> None:
    if is_tensor(value):
        if name in found:
            raise LayoutError(f"two tensors have the name {name}")
        found[name] = value
        return
    inside = _inside(value, open_up)
    if inside is None or depth == 0:
        raise LayoutError(f"{name}: neither a tensor nor something that holds tensors, but {type(value).__name__}")
    for key, each in inside.items():
        _walk(_named(name, key), each, is_tensor, open_up, found, depth - 1)


def _inside(value: Any, open_up: Callable[[Any], Mapping[str, Any] | None]) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    return open_up(value)


def _named(before: str, key: Any) -> str:
    if not isinstance(key, str | int) or key == "":
        raise LayoutError(f"{before or 'the state'}: {key!r:.80} is no name")
    return f"{before}.{key}" if before else str(key)
