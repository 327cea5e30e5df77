"""Which GPUs a client's CUDA_VISIBLE_DEVICES names."""

import pytest

from mpsd.relay.assignment import named

A, B = "GPU-a1b2", "GPU-c3d4"
GPUS = frozenset((A, B))


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (A, {A}), (f"{B},{A}", {A, B}), (f" {A} , GPU-c", {A, B}), (f"{A},{A}", {A}),
        ("", ()), ("0", ()), (f"{A},0", ()), ("GPU-", ()), ("GPU-x", ()), (f"{A},", ()),
    ],
)  # fmt: skip
def test_only_uuids_are_names(visible: str, found: set[str]) -> None:
    assert named(visible, GPUS) == frozenset(found)


def test_more_words_than_gpus_are_not_read() -> None:
    """The ten thousand words that an environment has room for took 50 ms of the event loop, for each connection."""
    assert named(f"{A},{B},{A}", GPUS) == frozenset()
