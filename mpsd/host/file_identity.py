"""Recognise a file also after it was renamed."""

import os
from contextlib import suppress
from pathlib import Path

FileId = tuple[int, int]  # device and inode


def identity_of(found: os.stat_result) -> FileId:
    return found.st_dev, found.st_ino


def identity_at(path: str | Path) -> FileId | None:
    """Return the identity of what the path leads to; None if it cannot be reached."""
    with suppress(OSError):
        return identity_of(os.stat(path))
    return None
