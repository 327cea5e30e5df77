"""A replica that has the service's name commits what it has, also to an mpsd that was just killed."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from mpsd_client import Disconnected, ErrorCode, ImageSchedule, Refused, _replica
from mpsd_client._replica import Replica

Failure = Refused | Disconnected | OSError


class FakeMpsd:
    """The connections to it: each fails so once, until no failure is left."""

    def __init__(self, *failures: Failure) -> None:
        self.failures, self.said, self.connections = list(failures), list[str](), 0

    def __call__(self, path: str = "", **_: Any) -> "FakeMpsd":
        self.connections += 1
        return self

    def ask(self, call: Any) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.said.append(call.method)

    def close(self) -> None:
        pass

    def __enter__(self) -> "FakeMpsd":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def replica(monkeypatch: pytest.MonkeyPatch, mpsd: FakeMpsd) -> Replica:
    """Return one whose memory is that of the newest image."""
    monkeypatch.setattr(_replica, "Client", mpsd)
    monkeypatch.setattr(_replica, "LOOK_SECONDS", 0.01)
    made = Replica("llm", "/run/mpsd", ImageSchedule(1.0, "/images"), 60.0, 1 << 30, "GPU-1", 1 << 30, 0o600, 0.0)
    monkeypatch.setattr(made, "follow", lambda: False)
    layout = os.open("/dev/null", os.O_RDONLY)
    source = SimpleNamespace(layout=layout, state=lambda generation: None, close=lambda: os.close(layout))
    fakes: Any = {"_arena": SimpleNamespace(id=2, generation=3, refresh=lambda: None), "_source": source, "_image": ("i", 1.0)}
    vars(made).update(fakes, _mpsd=mpsd)
    return made


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(Disconnected(None), id="killed"),
        pytest.param(FileNotFoundError(2, "no socket"), id="not there yet"),
        pytest.param(Refused(ErrorCode.KEEPER_FAILED, "KEEPER_FAILED", "it starts"), id="without its keeper yet"),
    ],
)
def test_it_asks_again(monkeypatch: pytest.MonkeyPatch, failure: Failure) -> None:
    mpsd = FakeMpsd(failure, failure)
    replica(monkeypatch, mpsd).complete()
    assert mpsd.said[:2] == ["arena.commit", "arena.change"]
    assert mpsd.connections == 2


@pytest.mark.parametrize(("is_moving", "looks"), [(True, 0), (False, 1)])
def test_in_a_move_it_looks_for_no_later_image(monkeypatch: pytest.MonkeyPatch, is_moving: bool, looks: int) -> None:
    made, seen = replica(monkeypatch, FakeMpsd()), list[str]()
    monkeypatch.setattr(made, "follow", lambda: bool(seen.append("look")))
    made._is_moving = is_moving
    made.complete()
    assert len(seen) == looks


def test_in_a_move_its_imager_waits_for_the_next_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """mpsd is asked as soon as there is one, and waits no longer than an image may."""
    mpsd, waits = FakeMpsd(), list[float]()
    made = replica(monkeypatch, mpsd)
    monkeypatch.undo()
    source: Any = SimpleNamespace(renew=lambda seconds: waits.append(seconds) or [], image=made._image, close=lambda: None)
    made._source, made._arena = source, SimpleNamespace(layout=None)  # type: ignore[assignment]
    for made._is_moving in (False, True):
        assert not made.follow()
    assert waits == [0.0, _replica.MOVING_SECONDS]


def test_it_does_not_where_another_process_has_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="not the writer"):
        replica(monkeypatch, FakeMpsd(Refused(ErrorCode.STALE_GENERATION, "STALE_GENERATION", "not the writer"))).complete()


def test_it_gives_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_replica, "ANSWER_SECONDS", 0.05)
    with pytest.raises(Disconnected):
        replica(monkeypatch, FakeMpsd(*[Disconnected(None)] * 1000)).complete()
