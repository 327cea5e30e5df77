"""Sizes, durations and shares: what people write, what they read, and what is neither."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpsctl.quantities import (
    Share,
    Unfit,
    parse_duration,
    parse_percent,
    parse_share,
    parse_size,
    show_duration,
    show_percent,
    show_size,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [("4G", 4 * GIB), ("512M", 512 << 20), ("1.5g", 3 * GIB // 2), ("2GiB", 2 * GIB), ("2GB", 2 * GIB), ("1T", 1 << 40),
     ("64K", 64 << 10)],
)  # fmt: skip
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "4", "G", "-1G", "0G", "4 G", "4P", "1e3G", "٣G", "4G4M", "99999999999T", "0.00001K"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(Unfit, match="4G"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("1d2h3m4s", 93784),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "s", "-5s", "0s", "5 m", "5w", "5m!", "h5", "1h 30m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Unfit, match="30s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "share"),
    [("30%", Share(percent=30)), ("0.5%", Share(percent=0.5)), ("100%", Share(percent=100)), ("40", Share(count=40))],
)
def test_a_share_is_read(text: str, share: Share) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-3", "40.5", "30 %", "%", "70000", "٣"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(Unfit, match="30%"):
        parse_share(text)


def test_a_number_of_sms_is_no_percentage() -> None:
    with pytest.raises(Unfit):
        parse_percent("40")


@pytest.mark.parametrize(
    ("size", "text"),
    [(4 * GIB, "4G"), (3 * GIB // 2, "1.5G"), (512 << 20, "512M"), (143771 << 20, "140G"), (1 << 40, "1T"), (7, "7")],
)
def test_a_size_is_shown(size: int, text: str) -> None:
    assert show_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.4, "0s"),
        (45.4, "45s"),
        (59.6, "1m00s"),
        (125, "2m05s"),
        (7500, "2h05m"),
        (90000, "1d01h"),
        (86399.7, "1d00h"),
    ],
)
def test_a_duration_is_shown(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@pytest.mark.parametrize(
    ("percent", "text"), [(30, "30%"), (12.5, "12.5%"), (33.3333, "33.3%"), (100, "100%"), (0.7576, "0.758%")]
)
def test_a_share_is_shown(percent: float, text: str) -> None:
    assert show_percent(percent) == text


@given(st.integers(1, 1 << 50))
def test_a_size_that_was_shown_can_be_written(size: int) -> None:
    """The shown value is exact to three digits."""
    if size >= 1024:
        assert parse_size(show_size(size)) == pytest.approx(size, rel=0.006)


@given(st.integers(1, 10**8))
def test_a_duration_that_was_shown_can_be_written(seconds: int) -> None:
    assert parse_duration(show_duration(seconds)) == pytest.approx(seconds, abs=3600 if seconds >= 86400 else 60)
