"""A member of a service: its requests to mpsd and its calls to its arena, in order; against a socket that answers."""

import gc
import os
import threading
import time
from typing import Any

import pytest
from mpsd_client import Dismissed, ErrorCode, Refused, Service, State, Term
from mpsd_client import _enlisting as enlisting
from mpsd_client import _service as module
from mpsd_client._capturing import capturing

from tests.unit.client.fake_mpsd import FIELDS, FakeArena, FakeMpsd, Waiting
from tests.unit.client.service_fixtures import LAYOUT, answering_mpsd, arena_of_all, open_service, serve, until  # noqa: F401


def test_a_member_enlists_before_cuda_and_joins_when_it_opens(mpsd: FakeMpsd, service: Service) -> None:
    assert os.environ.pop("MPSD_TEST_ENLISTED") == "llm"
    assert [name for name, _ in mpsd.said][:2] == ["service.enlist", "service.join"]
    assert mpsd.wait_for("service.join") == {"id": 7, "rank": 3, "heartbeat_seconds": 1.5}
    assert service.standby(timeout=0) is None
    assert mpsd.count("service.ready") == 1


def test_who_has_a_context_already_cannot_enlist(mpsd: FakeMpsd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enlisting, "has_cuda_begun", lambda: True)
    with pytest.raises(RuntimeError, match="CUDA has begun in this process"):
        Service("llm", capacity=1 << 21, schema=FIELDS, path=mpsd.path)
    assert not mpsd.count("service.enlist")


def test_the_one_that_is_promoted_has_the_last_record_and_the_memory(
    mpsd: FakeMpsd, service: Service, arena: FakeArena
) -> None:
    """In the thread that waited; and mpsd can hand on what it has from the first moment."""
    with State.create(FIELDS, generation=3) as before:
        before.publish(step=41, name="a")
        mpsd.keep(before)
        before.publish(step=42)
        began = time.monotonic_ns()
        term = serve(mpsd, service)
    assert arena.done == ["promoted 4"]
    assert arena.threads == {"standby"}
    assert term.record is not None
    assert (dict(term.record), term.record.generation) == ({"step": 42, "name": "a"}, 3)
    assert term.generation == 4
    assert began < term.promoted_ns < time.monotonic_ns()
    assert mpsd.wait_for("arena.keep_state") == {"id": 7, "generation": 4}
    assert mpsd.wait_for("service.serving") == {"id": 7, "generation": 4}
    assert mpsd.kept is not None
    kept = mpsd.kept.read()
    assert kept is not None
    assert (dict(kept), kept.generation, kept.sequence) == ({"step": 42, "name": "a"}, 4, 1)
    term.publish(step=43)
    kept = mpsd.kept.read()
    assert kept is not None
    assert kept["step"] == 43


def test_who_is_ready_needs_nothing_of_the_driver_to_be_promoted(
    mpsd: FakeMpsd, service: Service, arena: FakeArena
) -> None:
    """Before, the GPU refuses what it writes unasked; and so it does for what a commit brings, while that is looked at."""
    seen = []
    service.on_commit(lambda _: seen.append(arena.is_unlocked))
    assert not arena.is_unlocked
    assert service.standby(timeout=0) is None
    assert arena.is_unlocked
    with capturing():
        assert arena.is_unlocked
    assert arena.is_unlocked, "as it was"
    arena.next_layout = b"other"
    mpsd.tell(commit=2)
    until(lambda: service.standby(timeout=0) is None and seen)
    assert (seen, arena.is_unlocked) == ([False], True)


def test_a_graph_may_be_captured_before_that(service: Service, arena: FakeArena) -> None:
    with capturing():
        assert arena.is_unlocked
    assert not arena.is_unlocked


def test_a_promotion_brings_no_garbage_collection_about(
    mpsd: FakeMpsd, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Young objects were collected before the wait; a program that has turned that off is left alone."""
    gc.collect(0)  # else one may be due while they are made
    young = [[] for _ in range(300)]
    before = gc.get_count()[0]
    assert service.standby(timeout=0) is None
    assert gc.get_count()[0] < before - len(young) // 2
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", collected.append)
    gc.disable()
    try:
        assert service.standby(timeout=0) is None
    finally:
        gc.enable()
    assert collected == []


def test_who_cannot_have_its_memory_writable_is_not_ready(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    arena.unlock_trouble = OSError("cuMemSetAccess")
    with pytest.raises(OSError, match="cuMemSetAccess"):
        service.standby(timeout=0)
    assert mpsd.wait_for("service.failed")["why"] == "OSError('cuMemSetAccess')"
    assert not mpsd.count("service.ready")


def test_the_first_of_all_has_no_record_and_leaves_none_before_it_publishes(mpsd: FakeMpsd, service: Service) -> None:
    term = serve(mpsd, service, 1)
    assert term.record is None
    mpsd.wait_for("service.serving")
    assert mpsd.kept is not None
    assert mpsd.kept.read() is None


def test_nothing_is_acknowledged_that_a_further_standby_could_not_find(mpsd: FakeMpsd, service: Service) -> None:
    """The term begins at once; its first publish waits for mpsd, later ones for nothing."""
    mpsd.may_keep.clear()
    term = serve(mpsd, service)
    publishing = Waiting(lambda: term.publish(step=1))
    publishing.thread.join(0.05)
    assert publishing.thread.is_alive()
    assert term.state.published == (4, 0)
    mpsd.may_keep.set()
    publishing.get()
    assert term.state.published == (4, 1)


def test_a_promotion_waits_for_the_record_that_belongs_to_it(mpsd: FakeMpsd, service: Service) -> None:
    """The state of the one before is new in the very word that promotes."""
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready")
    with State.create(FIELDS, generation=3) as before:
        before.publish(step=9)
        with mpsd.changed:
            mpsd.keep(before)
            mpsd.tell("serve", generation=4)
    assert dict(waiting.get().record)["step"] == 9


def test_a_state_that_was_lost_is_no_record(mpsd: FakeMpsd, service: Service) -> None:
    """The arena's memory was in the same keeper: what the state describes is lost too."""
    with State.create(FIELDS, generation=3) as before:
        before.publish(step=4)
        mpsd.keep(before)
        mpsd.wait_for("arena.state")
        mpsd.lose()
        mpsd.wait_for("arena.state", 2)
        term = serve(mpsd, service)
    assert term.record is None


def test_fields_that_both_have_go_from_one_version_of_a_program_to_the_next(mpsd: FakeMpsd, service: Service) -> None:
    with State.create({"name": "text[8]", "old": "int8", "step": "int64"}, generation=3) as before:
        before.publish(name="b", step=5)
        mpsd.keep(before)
        term = serve(mpsd, service)
    assert term.record is not None
    assert term.record["step"] == 5
    term.publish()
    assert mpsd.kept is not None
    kept = mpsd.kept.read()
    assert kept is not None
    assert dict(kept) == {"step": 0, "name": "b"}, "step is of another type now"


def test_who_is_told_to_yield_stops_writing_first_and_may_come_again(
    mpsd: FakeMpsd, service: Service, arena: FakeArena
) -> None:
    with serve(mpsd, service) as term:
        term.publish(step=7)
        assert not term.is_over
        mpsd.tell("yield")
        until(lambda: term.is_over)
        term.publish(step=8)
    assert arena.done == ["promoted 4", "yielded"]
    assert mpsd.wait_for("service.yielded") == {"id": 7, "generation": 4, "sequence": 0, "why_no_image": ""}
    with pytest.raises(Dismissed, match="its term is over"):
        term.publish(step=9)
    mpsd.tell("standby", generation=5)
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready", 2)
    mpsd.tell("serve", generation=6)
    again = waiting.get()
    assert (again.generation, again.record["step"]) == (6, 8)
    mpsd.wait_for("service.serving", 2)
    again.publish(step=9)


def test_a_yield_that_mpsd_takes_back_is_none(mpsd: FakeMpsd, service: Service) -> None:
    term = serve(mpsd, service)
    mpsd.tell("yield")
    until(lambda: term._is_over)
    mpsd.tell("serve")
    until(lambda: not term._is_over)
    assert not term.is_over
    term.publish(step=1)


def test_a_yield_that_mpsd_takes_back_too_late_is_one(mpsd: FakeMpsd, service: Service) -> None:
    """The program has read that its term is over, and leaves its block: that is not the end of its work, nor of its service."""
    with serve(mpsd, service) as term:
        mpsd.tell("yield")
        until(lambda: term.is_over)
        mpsd.tell("serve")
        following = service._following
        assert following is not None
        until(lambda: following.told.what.order == "serve")
        assert term.is_over
    assert mpsd.count("service.yielded") == 1
    assert not mpsd.count("service.leave")


@pytest.mark.parametrize("order", ["leave", "standby"])
def test_who_is_dismissed_publishes_nothing_more(mpsd: FakeMpsd, service: Service, order: str, arena: FakeArena) -> None:
    """Either asked to leave, or found not to be the active, since another member serves."""
    with serve(mpsd, service) as term:
        step = term.publisher("step")
        step(1)
        mpsd.tell(order, generation=5, why="a fault has cost it its context")
        until(lambda: term.is_over)
        for publish in (lambda: term.publish(step=2), lambda: step(2)):
            with pytest.raises(Dismissed, match="a fault has cost it its context"):
                publish()
        assert term.state.published[1] == 1
    assert arena.done == ["promoted 4"], "its context may be lost"
    assert not mpsd.count("service.yielded")
    if order == "leave":
        with pytest.raises(Dismissed, match="a fault"):
            service.standby()


def test_a_standby_that_is_told_to_leave_hears_it(mpsd: FakeMpsd, service: Service) -> None:
    waiting = Waiting(service.standby)
    mpsd.wait_for("service.ready")
    mpsd.tell("leave")
    with pytest.raises(Dismissed, match="mpsd told this process to leave"):
        waiting.get()


def test_a_standby_follows_what_the_active_commits(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    seen: list[Any] = []
    service.on_commit(lambda of: seen.append((of.layout, threading.current_thread().name)))
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready")
    arena.next_layout = b"more"
    mpsd.tell(commit=2)
    until(lambda: seen == [(b"more", "standby")])
    mpsd.tell("serve", generation=4)
    waiting.get()
    assert arena.done == ["refresh", "promoted 4"]


def test_nobody_serves_with_other_memory_than_was_committed_last(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    """Under the same layout too: at the same address there may be other memory now."""
    arena.next_layout = arena.layout
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready")
    mpsd.tell("serve", generation=4, commit=2)
    waiting.get()
    assert arena.done == ["refresh", "promoted 4"]


@pytest.mark.parametrize("why", [ConnectionRefusedError("away"), Refused(ErrorCode.KEEPER_FAILED, "KEEPER_FAILED", "silent")])
def test_a_standby_outlives_an_mpsd_that_cannot_give_what_was_committed(
    mpsd: FakeMpsd, service: Service, arena: FakeArena, why: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready")
    arena.refresh_trouble = why
    mpsd.tell(commit=2)
    until(lambda: arena.done.count("refresh") > 1)
    arena.refresh_trouble = None
    mpsd.tell("serve", generation=4)
    waiting.get()
    assert arena.done[-2:] == ["refresh", "promoted 4"]
    assert not mpsd.count("service.failed")


def test_who_cannot_follow_what_was_committed_says_so(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    arena.next_layout = b"more"
    service.on_commit(lambda of: int("none"))
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready")
    mpsd.tell(commit=2)
    with pytest.raises(ValueError, match="none"):
        waiting.get()
    assert "ValueError" in mpsd.wait_for("service.failed")["why"]


def test_nobody_is_ready_while_another_builds(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    """An empty arena with a writer: the standby has nothing to warm up with yet."""
    arena.layout, arena.next_layout = None, b"weights"
    mpsd.tell(layout_hash="", writer_pid=1)
    mpsd.wait_until_known()
    waiting = Waiting(service.standby)
    waiting.thread.join(0.05)
    assert not mpsd.count("service.ready")
    mpsd.tell(layout_hash=LAYOUT, commit=2)
    mpsd.wait_for("service.ready")
    assert arena.done == ["refresh"]
    mpsd.tell("leave")
    with pytest.raises(Dismissed):
        waiting.get()


def test_an_empty_arena_without_a_writer_is_anybodys(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    arena.layout = None
    mpsd.tell(layout_hash="")
    mpsd.wait_until_known()
    promoted: list[Term] = []
    service.on_promote(promoted.append)
    term = serve(mpsd, service, 1)
    assert promoted == [term]
    assert term.arena.layout is None
