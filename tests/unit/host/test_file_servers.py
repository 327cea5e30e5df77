"""Which FUSE connections of a user are aborted."""

from pathlib import Path

import pytest

from mpsd.host import file_servers

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


def test_without_control_files_nothing_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_servers, "FUSE_CONNECTIONS", tmp_path / "none")
    assert file_servers.abort(UID, int) == 0
