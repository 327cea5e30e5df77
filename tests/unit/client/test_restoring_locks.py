"""What restore_if_missing leaves alone."""

import fcntl
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mpsd_client import Call, ErrorCode, ImageError, Refused, _restoring, restore_image
from mpsd_client._imager import NoSuchImage
from mpsd_client._restoring import KILLED_TTL, is_missing, restore_if_missing


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


class OneArena:
    """An mpsd with an arena that no process has, and that has no layout."""

    def __init__(self, *, may_remove: bool = True, **facts: object) -> None:
        self._may_remove, self.is_there = may_remove, True
        empty = {"id": 1, "layout_hash": "", "unheld_since": 1.0, "used_bytes": 0, "state_serial": 0, "ttl_seconds": None}
        self._found = SimpleNamespace(**empty | facts)

    def ask(self, call: Call[Any]) -> Any:
        if call.method == "arena.remove":
            if not self._may_remove:
                raise Refused(ErrorCode.NOT_ALLOWED, "NOT_ALLOWED", "it belongs to root")
            self.is_there = False
        return self._found


def test_an_arena_that_cannot_be_removed_is_there() -> None:
    """Root's, which everyone finds by its name."""
    assert not is_missing(OneArena(may_remove=False), "weights")


@pytest.mark.parametrize(
    ("facts", "is_removed"),
    [
        pytest.param({}, True, id="empty: its keeper has died, or nothing was ever committed"),
        pytest.param({"used_bytes": 2 << 20}, False, id="memory that was committed without a layout, as the shim's"),
        pytest.param({"state_serial": 3}, False, id="a service's forward state alone"),
        pytest.param({"used_bytes": 2 << 20, "ttl_seconds": 3600.0}, False, id="with a time to live of its owner's"),
        pytest.param({"used_bytes": 2 << 20, "ttl_seconds": KILLED_TTL}, True, id="what a killed restorer left"),
    ],
)
def test_contents_without_a_layout_are_no_reason_to_restore_an_older_image(facts: dict[str, Any], is_removed: bool) -> None:
    mpsd = OneArena(**facts)
    assert (is_missing(mpsd, "weights"), mpsd.is_there) == (is_removed, not is_removed)


@pytest.mark.parametrize("others", [[], ["model-1"]], ids=["without an image", "with an image of another arena"])
def test_an_arena_that_was_made_in_advance_stays_without_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    """It may have a mode of its own, and the settings of its service, which go with it."""
    (tmp_path / "complete").mkdir()
    for name in others:
        (tmp_path / "complete" / name).touch()
    mpsd = OneArena()

    def find(*_: object) -> None:
        assert others, "an imager is not needed"
        raise NoSuchImage("there is no image of an arena weights")

    monkeypatch.setattr(_restoring, "ImageSource", find)
    monkeypatch.setattr(_restoring, "Client", lambda *_, **__: nullcontext(mpsd))
    restore_if_missing("weights", "0", None, tmp_path, mode=0o600, ttl=0.0)
    assert mpsd.is_there


class Source:
    """An image of one arena, of which all bytes are there at once."""

    blocks, layout, imager = 1, None, SimpleNamespace(answer=lambda *_: {}, progress=(1, 1))

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wanted(self, name: str, gpu: str) -> tuple[str, str, int, int]:
        return name, gpu, 2 << 20, 1 << 30

    def put(self, *_: object) -> None:
        pass

    def fill(self, *_: object, **__: object) -> None:
        pass

    def state(self, generation: int) -> None:
        return None


def test_an_arena_that_is_complete_never_has_the_time_to_live_of_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its restorer may be killed after each call.  A service that adopts the arena then would lose it whenever all members are
    gone for a minute."""
    found: list[tuple[bool, object]] = []

    def ask(call: Call[Any]) -> Any:
        is_complete, ttl = found[-1] if found else (False, None)
        found.append((is_complete or call.method == "arena.commit", call.params.get("ttl_seconds", ttl)))
        return SimpleNamespace(id=1, name="weights", gpu="0", generation=1)

    monkeypatch.setattr(_restoring, "ImageSource", Source)
    restore_image(SimpleNamespace(ask=ask), "first", "weights", gpu="0")
    assert (False, KILLED_TTL) in found
    assert [each for each in found if each == (True, KILLED_TTL)] == []
    assert found[-1] == (True, 0.0)
