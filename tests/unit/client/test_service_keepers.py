"""A member of a service when mpsd's keeper has died: who serves gives everything again, and goes on; standbys wait for that."""

import threading
from collections.abc import Callable

import pytest
from mpsd_client import Arena, Dismissed, ErrorCode, Record, Refused, Service, State, StateReader
from mpsd_client import _following as following
from mpsd_client._imager import ImageError
from mpsd_client._service_arena import ServiceArena

from tests.unit.client.fake_mpsd import FIELDS, FakeArena, FakeMpsd, Waiting
from tests.unit.client.service_fixtures import LAYOUT, answering_mpsd, arena_of_all, open_service, serve, until  # noqa: F401


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RESTORE_SECONDS", 0.01)
    monkeypatch.setattr(following, "HAND_SECONDS", 0.01)


def lose(mpsd: FakeMpsd, order: str = "", generation: int = 5) -> None:
    mpsd.tell(order, generation=generation, commit=mpsd.now.commit + 1, layout_hash="", state_serial=0)


def test_a_term_goes_on_and_its_state_stays_the_same(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    """The program's references to the state (a publisher, a view) stay valid; the arena gave it to mpsd."""
    term = serve(mpsd, service)
    assert arena.state is term.state
    step = term.state.publisher("step")
    mpsd.wait_for("service.serving")
    arena.restored = (5, 9)
    lose(mpsd)
    assert mpsd.wait_for("service.serving", 2) == {"id": 7, "generation": 5}
    step(1)
    term.publish(step=2)
    assert (term.state.published, term.is_over, term.is_dismissed, term.generation) == ((4, 2), False, False, 4)
    mpsd.tell("yield", state_serial=9)
    until(lambda: term.is_over)
    with term:
        pass
    assert mpsd.wait_for("service.yielded") == {"id": 7, "generation": 5, "sequence": 0, "why_no_image": ""}
    assert mpsd.count("arena.keep_state") == 1


@pytest.mark.parametrize(
    "why", [Refused(ErrorCode.NO_ROOM, "NO_ROOM", "full"), ConnectionRefusedError("away"), OSError(16, "not committed")]
)
def test_what_cannot_be_given_again_is_tried_again_and_the_term_goes_on(
    mpsd: FakeMpsd, service: Service, arena: FakeArena, why: Exception
) -> None:
    term = serve(mpsd, service)
    mpsd.wait_for("service.serving")
    arena.restore_trouble = why
    before = mpsd.count("service.follow")
    lose(mpsd)
    mpsd.wait_for("service.follow", before + 4)
    term.publish(step=1)
    assert (mpsd.count("service.serving"), mpsd.count("arena.keep_state")) == (1, 1)
    arena.restore_trouble, arena.restored = None, (5, 9)
    mpsd.wait_for("service.serving", 2)


def test_why_it_cannot_be_given_again_is_said_once(
    mpsd: FakeMpsd, service: Service, arena: FakeArena, caplog: pytest.LogCaptureFixture
) -> None:
    """The client asks each second; another reason is logged, and so is success. The next loss is logged anew."""
    caplog.set_level("INFO", "mpsd_client")
    serve(mpsd, service)
    mpsd.wait_for("service.serving")
    for generation in (5, 6):
        caplog.clear()
        arena.restore_trouble = OSError(5, "cuMemExportToShareableHandle: the driver says 1")
        lose(mpsd, generation=generation)
        mpsd.wait_for("service.follow", mpsd.count("service.follow") + 4)
        arena.restore_trouble = Refused(ErrorCode.NO_ROOM, "NO_ROOM", "full")
        mpsd.wait_for("service.follow", mpsd.count("service.follow") + 4)
        arena.restore_trouble, arena.restored = None, (generation, generation)
        mpsd.wait_for("service.serving", generation - 3)
        said = [(each.levelname, each.getMessage()) for each in caplog.records if each.name == "mpsd_client"]
        assert [level for level, _ in said] == ["WARNING", "WARNING", "INFO"], said
        assert all("arena llm " in text for _, text in said)
        assert "driver says 1" in said[0][1]
        assert "full" in said[1][1]


def test_no_more_reasons_are_said_than_somebody_would_read(
    mpsd: FakeMpsd, service: Service, arena: FakeArena, caplog: pytest.LogCaptureFixture
) -> None:
    serve(mpsd, service)
    mpsd.wait_for("service.serving")
    arena.restore_trouble = OSError(5, "0")
    lose(mpsd)
    for number in range(1, following.MOST_REASONS + 4):
        mpsd.wait_for("service.follow", mpsd.count("service.follow") + 2)
        arena.restore_trouble = OSError(5, str(number))
    mpsd.wait_for("service.follow", mpsd.count("service.follow") + 2)
    assert len(caplog.records) == following.MOST_REASONS


def test_who_is_found_not_to_be_the_writer_serves_no_more(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    term = serve(mpsd, service)
    mpsd.wait_for("service.serving")
    arena.restore_trouble = Refused(ErrorCode.STALE_GENERATION, "STALE_GENERATION", "another has written since")
    lose(mpsd, generation=6)
    until(lambda: term.is_over)
    with pytest.raises(Dismissed, match="another has written since"):
        term.publish(step=1)


def test_what_was_lost_is_given_again_before_a_yield(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    """Also if mpsd has not reported the loss yet."""
    term = serve(mpsd, service)
    mpsd.wait_for("service.serving")
    mpsd.tell("yield")
    until(lambda: term.is_over)
    arena.restored = (5, 9)
    with term:
        pass
    assert mpsd.wait_for("service.yielded") == {"id": 7, "generation": 5, "sequence": 0, "why_no_image": ""}


def test_a_standby_keeps_what_it_has_until_that_is_there_again(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    """It is the memory of the one that serves, and that has not lost it."""
    arena.next_layout = arena.layout
    mpsd.tell(writer_pid=1)
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready")
    lose(mpsd)
    mpsd.wait_until_known()
    waiting.thread.join(0.05)
    assert arena.done == []
    mpsd.tell(layout_hash=LAYOUT, state_serial=9, commit=arena.committed + 2)
    until(lambda: "refresh" in arena.done)
    arena.committed = mpsd.now.commit
    mpsd.tell("serve", generation=6)
    waiting.get()


def test_who_serves_next_after_all_is_lost_has_none_of_it(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    """The one before has ended before it could give it again."""
    called = threading.Event()
    service.on_commit(lambda of: called.set())
    mpsd.tell(writer_pid=1)
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready")
    lose(mpsd)
    arena.next_layout = None
    mpsd.tell("serve", generation=6)
    term = waiting.get()
    assert (arena.done, arena.layout, term.record) == (["refresh", "promoted 6"], None, None)
    assert not called.is_set(), "there is nothing to adopt"


@pytest.mark.parametrize("is_damaged", [False, True], ids=["image", "damaged image"])
def test_who_serves_next_after_all_is_lost_begins_with_the_newest_image(
    mpsd: FakeMpsd, service: Service, arena: FakeArena, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    """mpsd learns that it serves before the image has come, which may take long.  Its heartbeats begin with its term: the
    image's state stands still while the program adopts the rest.  Without the image it does not begin."""
    adopted: list[bytes | None] = []
    service.on_commit(lambda of: adopted.append(of.layout))
    mpsd.tell(writer_pid=1)
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready")

    def fill(place: ServiceArena, of: Arena, begun: Callable[[], object]) -> tuple[bool, Record | None]:
        assert (arena.done, of.layout) == (["refresh", "promoted 6"], None)
        begun()
        assert mpsd.wait_for("service.serving") == {"id": 7, "generation": 6}
        assert mpsd.wait_for("service.join", 2)["heartbeat_seconds"] == following.ADOPT_SECONDS
        if is_damaged:
            raise ImageError("damaged")
        arena.layout = b"of the image"
        with State.create(FIELDS, generation=6) as state:
            state.publish(step=5)
            return True, StateReader.open(state.fd).read()

    monkeypatch.setattr(ServiceArena, "fill", fill)
    lose(mpsd)
    arena.next_layout = None
    mpsd.tell("serve", generation=6)
    if is_damaged:
        with pytest.raises(ImageError, match="damaged"):
            waiting.get()
        assert "damaged" in mpsd.wait_for("service.failed")["why"]
        assert adopted == []
        return
    term = waiting.get()
    assert (adopted, term.record["step"], term.state.published) == ([b"of the image"], 5, (6, 1))
    assert mpsd.wait_for("service.join", 3)["heartbeat_seconds"] == service.heartbeat < following.ADOPT_SECONDS


def test_mpsd_learns_that_it_serves_also_where_it_could_not_take_that_at_first(
    mpsd: FakeMpsd, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the member, as one that does not take over in time, while that filled its arena."""
    mpsd.tell(writer_pid=1)
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready")

    def fill(place: ServiceArena, of: Arena, begun: Callable[[], object]) -> tuple[bool, Record | None]:
        begun()
        del mpsd.refusals["service.serving"]
        assert mpsd.wait_for("service.serving") == {"id": 7, "generation": 6}
        return True, None

    monkeypatch.setattr(ServiceArena, "fill", fill)
    mpsd.refusals["service.serving"] = (ErrorCode.TOO_MANY, "TOO_MANY")
    mpsd.tell("serve", generation=6)
    assert waiting.get().generation == 6


def test_a_word_that_promotes_is_old_where_the_memory_was_lost_since(
    mpsd: FakeMpsd, service: Service, arena: FakeArena
) -> None:
    """The arena was refreshed to the current contents, which are empty, and the record of that answer belongs to the lost
    memory."""
    with State.create(FIELDS, generation=3) as before:
        before.publish(step=9)
        mpsd.keep(before)
        waiting = Waiting(service.active)
        mpsd.wait_for("service.ready")
        arena.next_layout, arena.generation = None, 5
        mpsd.tell("serve", generation=4, commit=2)
        until(lambda: arena.done == ["refresh"])
        waiting.thread.join(0.05)
        assert arena.done == ["refresh"]
        mpsd.lose()
        mpsd.tell("serve", generation=5)
        assert waiting.get().record is None
