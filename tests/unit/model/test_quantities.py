"""Percentages and memory limits, as words and as numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.errors import BadRequest
from mpsd.model.quantities import GIB, MAX_LIMIT_BYTES, MIB, parse_limit, parse_percent, render_limit, render_percent

OVER = f"{MAX_LIMIT_BYTES // GIB + 1}G"


@pytest.mark.parametrize(
    ("word", "size"),
    [
        ("1G", GIB),
        ("1g", GIB),
        ("1GB", GIB),
        ("512M", 512 * MIB),
        ("512mb", 512 * MIB),
        ("512", 512 * MIB),
        ("512B", 512 * MIB),
        ("+2G", 2 * GIB),
        ("010M", 10 * MIB),
        ("0", 0),
        ("0M", 0),
        ("0G", 0),
        (f"{MAX_LIMIT_BYTES // GIB}G", MAX_LIMIT_BYTES),
    ],
)
def test_a_limit(word: str, size: int) -> None:
    assert parse_limit(word) == size


@pytest.mark.parametrize(
    "word",
    [
        "",
        "G",
        "M",
        "abc",
        "1T",
        "512K",
        "1.5G",
        "-1G",
        "-1",
        "0x10M",
        "1e3M",
        "1GG",
        "1 G",
        "١G",
        "1TM",
        "9" * 21,
        OVER,
        "18446744073709551615",
    ],
)
def test_no_limit(word: str) -> None:
    with pytest.raises(BadRequest):
        parse_limit(word)


@pytest.mark.parametrize("stray", ["G", "g", "M", "GB", "mb", "B", "T", "KiB"])
def test_a_unit_on_its_own_is_not_overlooked(stray: str) -> None:
    with pytest.raises(BadRequest, match=f'"1 {stray}" is no memory limit'):
        parse_limit("1", stray)
    assert parse_limit("1M", stray) == MIB
    assert parse_limit("1", "3") == MIB


@given(st.integers(0, MAX_LIMIT_BYTES // MIB))
def test_a_limit_is_printed_as_what_it_is(size: int) -> None:
    assert parse_limit(render_limit(size * MIB)) == size * MIB


@given(st.text(max_size=30))
def test_any_word_is_a_limit_or_a_refusal(word: str) -> None:
    try:
        assert 0 <= parse_limit(word, word) <= MAX_LIMIT_BYTES
    except BadRequest as refused:
        assert word in str(refused)


@given(st.text(max_size=30))
def test_any_word_is_a_percentage_or_none(word: str) -> None:
    value = parse_percent(word)
    assert value is None or 0 < value <= 100


@given(st.integers(1, 1000))
def test_a_percentage_is_printed_with_one_decimal(tenths: int) -> None:
    assert parse_percent(render_percent(tenths / 10)) == tenths / 10


@pytest.mark.parametrize(
    "word", [None, "", "x", "0", "-1", "100.0001", "1e400", "-1e400", "0x1p9999", "nan", "inf", "0x", "e5"]
)
def test_no_percentage(word: str | None) -> None:
    assert parse_percent(word) is None
