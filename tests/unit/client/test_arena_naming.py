"""Nested state gets flat names, as mpsd_client.torch saves it; numbers stand here for tensors, sets for modules."""

from collections.abc import Mapping
from typing import Any

import pytest
from mpsd_client import LayoutError
from mpsd_client._naming import MOST_DEPTH, flatten


def is_tensor(value: Any) -> bool:
    return isinstance(value, float)


def open_up(value: Any) -> Mapping[str, Any] | None:
    return {f"w{each}": float(each) for each in sorted(value)} if isinstance(value, set) else None


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ({}, []),
        ({"x": 1.0}, ["x"]),
        ({"kv": [1.0, (2.0, 3.0)]}, ["kv.0", "kv.1.0", "kv.1.1"]),
        ({"model": {1, 2}}, ["model.w1", "model.w2"]),
        ({"optimizer": {0: {"exp_avg": 1.0}, "m": {3}}}, ["optimizer.0.exp_avg", "optimizer.m.w3"]),
        ({"empty": [], "none": {}}, []),
    ],
)
def test_names_are_joined_by_dots(state: Mapping[str, Any], names: list[str]) -> None:
    assert list(flatten(state, is_tensor, open_up)) == names


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else 1.0


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": {"b": 1.0}, "a.b": 2.0}, "two tensors have the name a.b"),
        ({"step": 7}, "step: neither a tensor .* but int"),
        ({"kv": [1.0, None]}, "kv.1: neither a tensor .* but NoneType"),
        ({"kv": {(1, 2): 1.0}}, r"kv: \(1, 2\) is no name"),
        ({"": 1.0}, "the state: '' is no name"),
        ({"kv": nested(MOST_DEPTH + 2)}, "neither a tensor"),
    ],
    ids=["twice", "number", "none", "tuple", "empty", "deep"],
)
def test_what_has_no_name_is_refused(state: Mapping[str, Any], words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        flatten(state, is_tensor, open_up)
    assert flatten({"kv": nested(MOST_DEPTH)}, is_tensor, open_up)
