"""The stat of a process, whole or in part, and of any bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.host.process_stat import Stat, parse_stat

STAT = "4711 (a) b)) {state} 1 2 3 0 -1 {flags} " + "0 " * 10 + "5 0 777 " + "0 " * 8 + "{pending} " + "0 " * 20 + "{code}\n"
PF_EXITING = 4
SIGKILL = 256  # of the pending ones


@pytest.mark.parametrize(
    ("state", "flags", "is_over"),
    [
        pytest.param("R", 0, False, id="it runs"),
        pytest.param("D", PF_EXITING, True, id="killed, on its way"),
        pytest.param("R", PF_EXITING, True, id="ends by itself"),
        pytest.param("Z", 0, True, id="a zombie"),
    ],
)
def test_each_field(state: str, flags: int, is_over: bool) -> None:
    found = parse_stat(STAT.format(state=state, flags=flags, pending=SIGKILL, code=139).encode())
    assert found == Stat(state, 1, flags, 5, 777, SIGKILL, 139)
    assert (found.is_over, found.is_killed) == (is_over, True)


@given(st.integers(0, len(STAT)))
def test_half_a_line_tells_nothing(length: int) -> None:
    whole = STAT.format(state="Z", flags=4, pending=0, code=9).encode()
    assert parse_stat(whole[:length]) is None or length >= len(whole) - len("\n")


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_not(text: bytes) -> None:
    parse_stat(b"1 (x) " + text)
