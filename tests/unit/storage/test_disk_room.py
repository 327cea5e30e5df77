"""Room on the disk that is kept, and given back, without a change of the file's size."""

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.storage.disk_room import keep_room

BLOCK = 4096


@pytest.fixture
def file() -> Iterator[Path]:
    """Return a file on a tmpfs, where the kernel supports both."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as made:
        yield Path(made.name)


def taken(path: Path) -> int:
    return os.stat(path).st_blocks * 512


def test_room_is_kept_behind_the_end(file: Path) -> None:
    file.write_bytes(b"line\n")
    assert keep_room(file, 16 * BLOCK) == 0
    assert (file.stat().st_size, file.read_bytes()) == (5, b"line\n")
    assert taken(file) >= 16 * BLOCK


def test_what_was_read_takes_no_room_and_what_follows_stays_where_it_is(file: Path) -> None:
    file.write_bytes(b"x" * 10 * BLOCK + b"last\n")
    with file.open("ab") as writer:  # as the vendor's daemon has it open
        assert keep_room(file, BLOCK, read_bytes=10 * BLOCK + 5) == 0
        writer.write(b"next\n")
    assert file.stat().st_size == 10 * BLOCK + 10
    assert file.read_bytes()[10 * BLOCK :] == b"last\nnext\n"
    assert taken(file) <= 3 * BLOCK


def test_a_file_that_is_not_there_is_no_failure(file: Path) -> None:
    assert keep_room(file.with_name("nothing"), BLOCK) == errno.ENOENT
