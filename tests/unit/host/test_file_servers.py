"""Which FUSE connections of a user are aborted."""

import errno
import os
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpsd.host import cached_names, file_servers
from tests.held_directory import MOST_SECONDS, held

UID = 1000


class Connections:
    """The control files; `waiting` has the numbers of waiting requests that successive looks find, the last for all later."""

    def __init__(self, place: Path, waiting: dict[str, list[int]]) -> None:
        self._place, self._waiting = place, waiting
        for name, (first, *_) in waiting.items():
            (place / name).mkdir()
            (place / name / "waiting").write_text(str(first))
            (place / name / "abort").touch()

    def pause(self, seconds: float) -> None:
        for name, counts in self._waiting.items():
            if len(counts) > 1:
                counts.pop(0)
            (self._place / name / "waiting").write_text(str(counts[0]))

    @property
    def aborted(self) -> set[str]:
        return {name for name in self._waiting if (self._place / name / "abort").read_text()}


@pytest.mark.parametrize(
    ("share", "aborted"),
    [
        pytest.param(UID, {"41", "43"}, id="none that answers"),
        pytest.param(UID + 1, set(), id="none of another user"),
    ],
)
def test_silent_servers_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int, aborted: set[str]) -> None:
    """A silent server that another one, or an overlay, hid kept as many of mpsd's threads and descriptors as its user liked."""
    busy = [3, 1, 0, 2, 1]
    made = Connections(tmp_path, {"41": [1], "42": [0], "43": [5, 2, 7], "44": busy})
    monkeypatch.setattr(file_servers, "FUSE_CONNECTIONS", tmp_path)
    monkeypatch.setattr("time.sleep", made.pause)
    mounted_by = {tmp_path.stat().st_uid: UID}
    assert file_servers.abort(share, lambda uid: mounted_by.get(uid, uid)) == len(aborted)
    assert made.aborted == aborted


@pytest.mark.root
@pytest.mark.parametrize("is_known", [True, False], ids=["this kernel", "before 5.12"])
def test_a_held_directory_delays_no_abort(
    short_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """A user who held it kept the thread waiting that listed it, and mpsd aborted no file server of any user in that time."""
    made = Connections(short_dir, {"41": [1]})
    monkeypatch.setattr(file_servers, "FUSE_CONNECTIONS", short_dir)
    if not is_known:
        unknown = SimpleNamespace(mpsd_cached_open=lambda *_: -errno.EINVAL, mpsd_cached_numbers=lambda *_: -errno.ENOSYS)
        monkeypatch.setattr(cached_names, "lib", unknown)
    with held(str(short_dir), tmp_path / "mount") if is_known else nullcontext():
        began = time.monotonic()
        assert file_servers.abort(os.geteuid(), int) == 1
        assert time.monotonic() - began < MOST_SECONDS / 2
    assert made.aborted == {"41"}


def test_without_control_files_nothing_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_servers, "FUSE_CONNECTIONS", tmp_path / "none")
    assert file_servers.abort(UID, int) == 0
