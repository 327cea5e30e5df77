"""The error text for a vendor daemon that did not start."""

import pytest

from mpsd.domains.vendor_control import why_absent


@pytest.mark.parametrize(
    ("output", "status", "has_room", "said"),
    [
        (b"Cannot bind\nsecond line\n", 1, True, "Cannot bind"),
        (b"", 0, True, "it printed nothing"),
        (b" \n", 100, True, "no device is visible to it"),
        (b"of\0 a mishap", 1, True, "of a mishap"),
        (b"", 0, False, "it printed nothing; the disk of the state directory is full"),
        (b"Cannot write", 1, False, "Cannot write; the disk of the state directory is full"),
    ],
)
def test_its_own_first_line_or_what_is_known_besides(output: bytes, status: int, has_room: bool, said: str) -> None:
    assert why_absent(output, status, has_room=has_room) == said
