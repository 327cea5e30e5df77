"""Layouts of arenas: what is written is read back, what cannot be is refused and named; a tensor lies where its memory is."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from mpsd_client import Layout, LayoutError, MpsdError, TensorSpec
from mpsd_client._layout import (
    DATA_TYPES,
    FORMAT,
    MOST_BYTES,
    MOST_DIMENSIONS,
    MOST_NAME,
    Spans,
    decode,
    dense_strides,
    encode,
    encode_json,
    place,
    span_bytes,
)

GOOD = {"offset": 4096, "bytes": 48, "dtype": "float32", "shape": [3, 4], "strides": [4, 1]}
shapes = some.lists(some.integers(0, 9), max_size=5).map(tuple)


@some.composite
def specs(draw: some.DrawFn) -> TensorSpec:
    shape = draw(shapes)
    strides = tuple(draw(some.integers(0, 100)) for _ in shape)
    kind = draw(some.sampled_from(sorted(DATA_TYPES)))
    return TensorSpec(draw(some.integers(0, 1 << 40)) * DATA_TYPES[kind].bytes, kind, shape, strides)


def written(**changes: Any) -> bytes:
    """Return a layout with one tensor, with the given changes; `...` removes the field."""
    tensor = {key: value for key, value in (GOOD | changes).items() if value is not ...}
    return json.dumps({"format": FORMAT, "tensors": {"x": tensor}}).encode()


@given(some.dictionaries(some.text(min_size=1, max_size=20), specs(), max_size=8), some.none() | some.lists(some.integers()))
def test_what_is_written_is_read_back_in_its_order(tensors: dict[str, TensorSpec], extra: Any) -> None:
    found = decode(encode(Layout(tensors, extra)))
    assert (list(found.tensors.items()), found.extra) == (list(tensors.items()), extra)


def test_the_text_is_what_other_languages_expect() -> None:
    """The format is an interface: compare with a golden copy."""
    spec = TensorSpec(2 << 20, "bfloat16", (2, 3), (8, 1))
    assert json.loads(encode(Layout({"kv": spec}, {"position": 7}))) == {
        "format": "mpsd-tensors-1",
        "tensors": {"kv": {"offset": 2 << 20, "bytes": 22, "dtype": "bfloat16", "shape": [2, 3], "strides": [8, 1]}},
        "extra": {"position": 7},
    }


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe{}", "no JSON"),
        (b"[" * 200000, "no JSON"),
        (b"[]", "not of the format"),
        (b"{}", "not of the format"),
        (b'{"format": "mpsd-tensors-2", "tensors": {}}', "not of the format"),
        (b'{"format": "mpsd-tensors-1"}', "no tensors"),
        (b'{"format": "mpsd-tensors-1", "tensors": []}', "no tensors"),
        (b'{"format": "mpsd-tensors-1", "tensors": {"x": 7}}', "tensor x: an object"),
        (b'{"format": "mpsd-tensors-1", "tensors": {"": {}}}', "name has 1 to"),
        (json.dumps({"format": FORMAT, "tensors": {"n" * (MOST_NAME + 1): GOOD}}).encode(), "name has 1 to"),
        (written(dtype="float31"), "no data type"),
        (written(dtype=["float32"]), "no data type"),
        (written(dtype=...), "no data type"),
        (written(shape=[3]), "1 sizes, 2 strides"),
        (written(shape="34"), "shape is a list"),
        (written(shape=[3, -4]), "shape is a list"),
        (written(shape=[3, 4.0]), "shape is a list"),
        (written(shape=[True, 4]), "shape is a list"),
        (written(shape=[1] * (MOST_DIMENSIONS + 1)), "shape is a list"),
        (written(strides=[4, -1]), "strides is a list"),
        (written(strides=...), "strides is a list"),
        (written(strides=[1 << 63, 1]), "strides is a list"),
        (written(strides=[1 << 40, 1]), "48 bytes are said"),
        (written(bytes=47), "47 bytes are said"),
        (written(bytes=...), "counts of bytes"),
        (written(offset=-4), "counts of bytes"),
        (written(offset=1 << 60), "counts of bytes"),
        (written(offset=None), "counts of bytes"),
        (written(offset=4098), "no multiple of its 4 bytes"),
        (written(offset=(1 << 47) - 4), "48 bytes are said"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_layout_that_cannot_be_is_refused_and_named(data: bytes, words: str) -> None:
    with pytest.raises(LayoutError, match=words) as caught:
        decode(data)
    assert isinstance(caught.value, MpsdError)
    decode(written())  # its twin without the fault


@given(some.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    with pytest.raises(LayoutError):
        decode(data)


@pytest.mark.parametrize(
    ("extra", "words"),
    [(object(), "none"), (float("nan"), "none"), ({(1, 2): 3}, "none"), ("x" * MOST_BYTES, "mpsd takes")],
    ids=["object", "nan", "keys", "size"],
)
def test_what_json_has_not_is_not_written(extra: Any, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        encode(Layout({}, extra))
    with pytest.raises(LayoutError, match=words):
        encode_json(extra)


@pytest.mark.parametrize(
    "spec",
    [TensorSpec(0, "float32", (2,), (-1,)), TensorSpec(2, "float32", (2,), (1,)), TensorSpec(0, "float31", (2,), (1,))],
    ids=["backwards", "crooked", "unknown"],
)
def test_a_tensor_that_could_not_be_read_is_not_written(spec: TensorSpec) -> None:
    """Otherwise the adopter of the commit would find out, too late."""
    with pytest.raises(LayoutError):
        encode(Layout({"x": spec}))


def test_a_foreign_name_does_nothing_to_a_terminal() -> None:
    """The name of a tensor is what the arena's owner wrote, and messages are printed as they are."""
    found = {"format": FORMAT, "tensors": {"w\x1b]0;owned\x07\n\u202e\ud800\u00e9": 1}}
    with pytest.raises(LayoutError) as caught:
        decode(json.dumps(found).encode())
    assert str(caught.value) == "tensor w\\x1b]0;owned\\x07\\n\\u202e\\ud800\u00e9: an object is expected"


@given(shapes)
def test_dense_strides_fill_their_span_exactly(shape: tuple[int, ...]) -> None:
    elements = 1
    for size in shape:
        elements *= size
    assert span_bytes(shape, dense_strides(shape), 2) == 2 * elements
    assert TensorSpec(0, "int16", shape, dense_strides(shape)).is_contiguous


@pytest.mark.parametrize(
    ("shape", "strides", "is_contiguous"),
    [((3, 4), (1, 3), False), ((3, 1), (1, 77), True), ((), (), True), ((2, 2), (4, 1), False), ((2, 2), (0, 1), False)],
)
def test_what_is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], is_contiguous: bool) -> None:
    assert TensorSpec(0, "int8", shape, strides).is_contiguous is is_contiguous


def test_neighbouring_allocations_are_one_run() -> None:
    spans = Spans.of([(100, 50), (0, 40), (40, 20), (150, 1)])
    assert spans.runs == ((0, 60), (100, 151))


@pytest.mark.parametrize(
    ("offset", "size", "there"),
    [(0, 60, True), (0, 61, False), (60, 1, False), (99, 2, False), (100, 51, True), (-1, 1, False), (7, 0, True)],
)
def test_memory_is_there_only_as_a_whole(offset: int, size: int, there: bool) -> None:
    assert Spans.of([(0, 60), (100, 51)]).has(offset, size) is there


pairs = some.tuples(some.integers(0, 60), some.integers(1, 20))


@given(some.lists(pairs, max_size=6), some.integers(0, 80), some.integers(1, 9))
def test_spans_agree_with_a_set_of_bytes(allocations: list[tuple[int, int]], offset: int, size: int) -> None:
    there = {byte for start, length in allocations for byte in range(start, start + length)}
    assert Spans.of(allocations).has(offset, size) is there.issuperset(range(offset, offset + size))


def test_a_pointer_becomes_the_offset_of_its_memory() -> None:
    base, spans = 0x2000_0000_0000, Spans.of([(4096, 4096)])
    assert place("x", base + 5000, 3000, base, spans) == 5000
    assert place("nothing", 0, 0, base, spans) == 0


@pytest.mark.parametrize("address", [0, 0x2000_0000_0000, 0x2000_0000_0000 + 8000], ids=["null", "before", "over the end"])
def test_a_pointer_elsewhere_is_refused_by_the_name_of_its_tensor(address: int) -> None:
    with pytest.raises(LayoutError, match=r"tensor layers\.7: 3000 bytes at 0x"):
        place("layers.7", address, 3000, 0x2000_0000_0000, Spans.of([(4096, 4096)]))


@pytest.mark.parametrize(
    ("dtype", "shape", "strides", "words"),
    [
        ("f32", (4,), (1,), "no data type 'f32' is known"),
        ("float32", (-4,), (1,), r"shape \[-4\], strides \[1\]: .* none negative"),
        ("float32", (4,), (-1,), "none negative"),
        ("float32", (4, 4), (1,), "as many of each are wanted"),
        ("float32", (0,), (), "as many of each are wanted"),
    ],
)
def test_a_tensor_that_cannot_be_is_refused_when_it_is_looked_at(
    dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], words: str
) -> None:
    """By `commit`, and by `Arena.view`."""
    with pytest.raises(LayoutError, match=words):
        TensorSpec(0, dtype, shape, strides).bytes  # noqa: B018 - raises
