"""Which device a word names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.errors import NoSuchDevice
from mpsd.model.device_names import find_device, vendor_ordinal
from mpsd.model.domain import ServerView
from tests.unit.commands.language.fake_board import DEVICES

FIRST, SECOND = DEVICES


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("0", FIRST),
        ("00", FIRST),
        ("1", SECOND),
        (FIRST.uuid, FIRST),
        (FIRST.uuid.upper(), FIRST),
        ("GPU-196e", FIRST),
        ("GPU-196f", SECOND),
        ("gpu-196F0000", SECOND),
    ],
)
def test_a_device_is_named(name: str, found: object) -> None:
    assert find_device(DEVICES, name) is found


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("2", "names no device"),
        ("-1", "names no device"),
        ("+0", "names no device"),
        ("٠", "names no device"),
        ("0" * 4000, "names no device"),
        ("", "names no device"),
        ("GPU-", "names no device"),
        ("GPU-bogus", "names no device"),
        ("196e", "names no device"),
        (FIRST.uuid + "0", "names no device"),
        ("GPU-196", "names several devices"),
    ],
)
def test_a_device_is_not_named(name: str, why: str) -> None:
    with pytest.raises(NoSuchDevice, match=why):
        find_device(DEVICES, name)


def test_the_whole_uuid_wins_over_one_that_goes_on() -> None:
    longer = SECOND.__class__(2, FIRST.uuid + "-1", "", 0, "")
    assert find_device((*DEVICES, longer), FIRST.uuid) is FIRST


def test_a_daemon_without_devices_says_so() -> None:
    with pytest.raises(NoSuchDevice, match="it has no devices"):
        find_device((), "0")


@given(st.text(max_size=50))
def test_any_word_is_a_device_or_a_refusal(name: str) -> None:
    try:
        assert find_device(DEVICES, name) in DEVICES
    except NoSuchDevice as refused:
        assert name in str(refused)


def test_a_domain_numbers_its_own_devices() -> None:
    server = ServerView(1, 0, "ACTIVE", (), "gpu1-0", (SECOND.uuid,))
    assert vendor_ordinal(server, SECOND) == 0
    with pytest.raises(NoSuchDevice, match="server 1 does not run on device 0"):
        vendor_ordinal(server, FIRST)


def test_a_domain_with_every_device_numbers_them_alike() -> None:
    assert vendor_ordinal(ServerView(1, 0, "ACTIVE", (), "all"), SECOND) == 1
