"""What restore_if_missing leaves alone."""

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mpsd_client import Call, ErrorCode, ImageError, Refused
from mpsd_client._restoring import is_missing, restore_if_missing


@pytest.mark.root
def test_nobody_waits_for_another_users_directory(tmp_path: Path) -> None:
    """Its owner could lock it for ever, and with it the start of a service."""
    os.chown(tmp_path, 64321, 64321)
    with pytest.raises(ImageError, match="another user"):
        restore_if_missing("weights", "0", tmp_path / "no-daemon", tmp_path, mode=0o600, ttl=0.0)


def test_nobody_waits_for_who_opened_the_directory_earlier(tmp_path: Path) -> None:
    """Before it was closed to others, any user could open it, and keep its lock from then on."""
    tmp_path.chmod(0o755)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="no-daemon"):
            restore_if_missing("weights", "0", tmp_path / "no-daemon", tmp_path, mode=0o600, ttl=0.0)
    finally:
        os.close(held)
    assert (tmp_path / "restore-lock").stat().st_mode & 0o777 == 0o600


class AnothersArena:
    """An mpsd with an empty arena that the caller may not remove: root's, which everyone finds by its name."""

    def ask(self, call: Call[Any]) -> Any:
        if call.method == "arena.remove":
            raise Refused(ErrorCode.NOT_ALLOWED, "NOT_ALLOWED", "it belongs to root")
        return SimpleNamespace(id=1, layout_hash="", unheld_since=1.0)


def test_an_arena_that_cannot_be_removed_is_there() -> None:
    assert not is_missing(AnothersArena(), "weights")
