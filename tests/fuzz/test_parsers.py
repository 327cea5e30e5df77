"""No reader of foreign bytes is without an entry point for random ones, or a reason."""

import pytest

from tests.fuzz.__main__ import CORPUS
from tests.fuzz.parsers import C_TARGETS, NOT_FUZZED, PYTHON_TARGETS, ROOT, driven, readers, reads_bytes, reads_bytes_in_c


def test_every_reader_is_driven_or_says_why_not() -> None:
    missed = readers() - driven() - set(NOT_FUZZED)
    assert not missed, f"give it a target (targets.py, c/), or a line with the reason in NOT_FUZZED: {sorted(missed)}"


def test_the_table_speaks_of_what_is_there() -> None:
    assert [module for module in driven() if not (ROOT / module).exists()] == []
    assert set(NOT_FUZZED) - readers() == set()
    assert set(NOT_FUZZED) & driven() == set()


@pytest.mark.parametrize("name", [*C_TARGETS, *PYTHON_TARGETS])
def test_every_target_has_a_corpus(name: str) -> None:
    assert any((CORPUS / name).iterdir())


@pytest.mark.parametrize(
    "text", ["def parse_word(text): ...", "struct.unpack('I', data)", "json.loads(text)", "sock.recv(5)", "open('/proc/1')"]
)
def test_a_reader_is_known_by_what_it_does(text: str) -> None:
    assert reads_bytes(text)
    assert not reads_bytes("def render(number): return str(number)")


@pytest.mark.parametrize("text", ["n = recvmsg(fd, &message, 0);", "x = strtoull(text, &end, 10);", "mpsd_unpack_int(&at, &n)"])
def test_so_is_one_in_c(text: str) -> None:
    assert reads_bytes_in_c(text)
    assert not reads_bytes_in_c("/* pread(fd) */ int n = 5;")
