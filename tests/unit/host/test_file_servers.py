"""Which FUSE connections are aborted, by the numbers of the file systems of files that do not close."""

from collections.abc import Collection
from pathlib import Path

import pytest

from mpsd.host import file_servers

UID, OVERLAY = 1000, 99  # the number of a file system without a connection


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
    ("numbers", "share", "aborted"),
    [
        pytest.param([41], UID, {"41"}, id="of these files"),
        pytest.param([41, 42], UID, {"41"}, id="not one without a request"),
        pytest.param([41], UID + 1, set(), id="not another user's"),
        pytest.param([OVERLAY], UID, {"41", "43"}, id="all that answer nothing, where an overlay hides it"),
        pytest.param([43, OVERLAY], UID, {"41", "43"}, id="also with a file of another one"),
        pytest.param([OVERLAY], UID + 1, set(), id="nor then another user's"),
        pytest.param([], UID, set(), id="none without a file"),
    ],
)
def test_a_silent_server_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: Collection[int], share: int, aborted: set[str]
) -> None:
    """A user's overlay over a silent server kept as many of mpsd's threads and descriptors as the user liked."""
    busy = [3, 1, 0, 2, 1]
    made = Connections(tmp_path, {"41": [1], "42": [0], "43": [5, 2, 7], "44": busy})
    monkeypatch.setattr(file_servers, "FUSE_CONNECTIONS", tmp_path)
    monkeypatch.setattr("time.sleep", made.pause)
    mounted_by = {tmp_path.stat().st_uid: UID}
    assert file_servers.abort(numbers, share, lambda uid: mounted_by.get(uid, uid)) == len(aborted)
    assert made.aborted == aborted


def test_without_control_files_nothing_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_servers, "FUSE_CONNECTIONS", tmp_path / "none")
    assert file_servers.abort([41], UID, int) == 0
