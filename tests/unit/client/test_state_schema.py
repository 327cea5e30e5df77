"""The fields of a record, and the text that both sides compare."""

import random
import struct
from collections.abc import Mapping

import pytest
from mpsd_client import Record, Schema

from tests.seeds import seeds

FIELDS = {
    "done": "bool", "step": "uint64", "token": "int32", "rng": "uint64[4]", "loss": "float32",
    "id": "text[6]", "raw": "bytes[3]",
}  # fmt: skip
TEXT = """\
mpsd-state-1 72
done bool 0
step uint64 8
token int32 16
rng uint64[4] 24
loss float32 56
id text[6] 60
raw bytes[3] 66
"""
VALUES = {"done": True, "step": 2**64 - 1, "token": -5, "rng": (1, 2, 3, 4), "loss": 0.5, "id": "aü", "raw": b"\1\0\2"}


def test_fields_lie_as_a_c_compiler_lays_them_out() -> None:
    schema = Schema.of(FIELDS)
    assert schema.text == TEXT
    assert struct.calcsize("@?QiQQQQf6s3s0Q") == schema.record_bytes


def test_the_text_says_all_that_there_is() -> None:
    schema = Schema.parse(TEXT)
    assert schema.text == TEXT
    assert {name: each.type for name, each in schema.fields.items()} == FIELDS


@pytest.mark.parametrize("seed", seeds(5, 15))
def test_any_fields_come_back_from_their_text(seed: int) -> None:
    chance = random.Random(seed)
    kinds = ["bool", "int8", "uint16", "int32", "uint64", "float16", "float64", "int8[3]", "float32[7]", "bytes[5]", "text[9]"]
    fields = {f"f{number}": chance.choice(kinds) for number in range(chance.randrange(1, 30))}
    schema = Schema.of(fields)
    assert Schema.parse(schema.text).text == schema.text
    ends = 0
    for field in schema.fields.values():
        assert field.offset >= ends
        assert field.offset % field.alignment == 0
        ends = field.offset + field.bytes
    assert ends <= schema.record_bytes < ends + 8


def packed(schema: Schema, values: Mapping[str, object]) -> bytes:
    data = bytearray(schema.record_bytes)
    for name, value in values.items():
        field = schema.fields[name]
        data[field.offset : field.offset + field.bytes] = field.pack(value)
    return bytes(data)


def test_values_come_back_as_they_were() -> None:
    schema = Schema.of(FIELDS)
    record = Record(schema, packed(schema, VALUES), 3, 9)
    assert dict(record) == VALUES
    assert record.view("rng").tolist() == [1, 2, 3, 4]
    assert bytes(record.view("raw")) == b"\1\0\2"
    with pytest.raises(KeyError):
        record["other"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", -1), ("step", 2**64), ("step", 1.5), ("step", "1"), ("step", None), ("step", (1,)),
        ("token", 2**31), ("rng", (1, 2, 3)), ("rng", (1, 2, 3, 4, 5)), ("rng", 1), ("rng", (1, 2, 3, -1)),
        ("id", "1234567"), ("id", "üüüü"), ("id", 5), ("raw", b"1234"), ("raw", None),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"field {name} is"):
        Schema.of(FIELDS).fields[name].pack(value)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="none"),
        pytest.param({"a b": "int8"}, id="a name with a blank"),
        pytest.param({"": "int8"}, id="no name"),
        pytest.param({"1a": "int8"}, id="a digit first"),
        pytest.param({"ä": "int8"}, id="no ASCII"),
        pytest.param({"a\n": "int8"}, id="a line's end"),
        pytest.param({"a" * 65: "int8"}, id="a long name"),
        pytest.param({"a": "int7"}, id="no such type"),
        pytest.param({"a": "text"}, id="text without a size"),
        pytest.param({"a": "int8[0]"}, id="an array of nothing"),
        pytest.param({"a": "int8[-1]"}, id="fewer than nothing"),
        pytest.param({"a": "int8[2][2]"}, id="two dimensions"),
        pytest.param({"a": "bytes[1048577]"}, id="too large"),
        pytest.param({f"field{number}": "int8" for number in range(400)}, id="too much text"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"field|record|text"):
        Schema.of(fields)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("mpsd-state-2 8\na uint64 0\n", id="another format"),
        pytest.param("mpsd-state-1\na uint64 0\n", id="no size"),
        pytest.param("mpsd-state-1 8\na uint64 0", id="cut off"),
        pytest.param("mpsd-state-1 8\n", id="no fields"),
        pytest.param("mpsd-state-1 8\na uint64\n", id="no offset"),
        pytest.param("mpsd-state-1 8\na uint64 0 0\n", id="too many words"),
        pytest.param("mpsd-state-1 8\na uint64 1\n", id="beyond the record"),
        pytest.param("mpsd-state-1 8\na uint64 -1\n", id="before the record"),
        pytest.param("mpsd-state-1 8\na uint64 99999999999999\n", id="far beyond"),
        pytest.param("mpsd-state-1 8\na uint32 0\nb uint32 2\n", id="overlapping"),
        pytest.param("mpsd-state-1 8\na uint32 0\na uint32 4\n", id="one name twice"),
        pytest.param("mpsd-state-1 99999999\na uint32 0\n", id="a huge record"),
        pytest.param("mpsd-state-1 8\n\na uint64 0\n", id="an empty line"),
    ],
)
def test_a_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"schema|field|record"):
        Schema.parse(text)


@pytest.mark.parametrize("seed", seeds(2, 3))
def test_garbled_texts_are_refused_or_read_within_their_record(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        text = list(TEXT)
        for _ in range(chance.randrange(1, 4)):
            text[chance.randrange(len(text))] = chance.choice("\n 0179[]ab\x00ü")
        try:
            schema = Schema.parse("".join(text))
        except ValueError:
            continue
        record = Record(schema, bytes(schema.record_bytes), 1, 1)
        assert len(record) == len(dict(record))
