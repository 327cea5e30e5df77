"""How a member of a service goes on without mpsd, fails, is refused, closes; against a socket that answers."""

import errno
import os
import threading
from typing import Any

import pytest
from mpsd_client import Arena, Dismissed, ErrorCode, Refused, Service, State, StateError, _service_arena
from mpsd_client._values import Instruction

from tests.unit.client.fake_mpsd import FIELDS, WAIT, FakeArena, FakeMpsd, Waiting
from tests.unit.client.service_fixtures import LAYOUT, answering_mpsd, arena_of_all, open_service, serve, until  # noqa: F401


def test_a_term_goes_on_while_mpsd_is_gone_and_all_is_said_again_afterwards(mpsd: FakeMpsd, service: Service) -> None:
    term = serve(mpsd, service)
    term.publish(step=1)
    mpsd.stop()
    term.publish(step=2)
    with mpsd.changed:
        mpsd.said.clear()
        mpsd.now = Instruction(1, "serve", 4, LAYOUT, 0, 0, os.getpid(), "", is_moving=False)  # the state was lost
    mpsd.start()
    for method in ("service.join", "arena.keep_state", "service.serving"):
        mpsd.wait_for(method)
    assert not term.is_over
    term.publish(step=3)
    assert mpsd.kept is not None
    kept = mpsd.kept.read()
    assert kept is not None
    assert (kept["step"], kept.generation) == (3, 4)


def test_a_standby_stays_ready_across_a_restart_of_mpsd(mpsd: FakeMpsd, service: Service) -> None:
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready")
    mpsd.stop()
    with mpsd.changed:
        mpsd.said.clear()
    mpsd.start()
    mpsd.wait_for("service.ready")
    mpsd.tell("serve", generation=4)
    assert waiting.get().generation == 4


def test_a_refusal_that_passes_is_asked_again_and_one_that_does_not_is_the_end(mpsd: FakeMpsd, service: Service) -> None:
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready")
    mpsd.refusals["service.follow"] = (ErrorCode.KEEPER_FAILED, "KEEPER_FAILED")
    mpsd.tell()
    mpsd.wait_for("service.join", 3)
    assert waiting.thread.is_alive()
    mpsd.refusals["service.follow"] = (ErrorCode.NO_SUCH_ARENA, "NO_SUCH_ARENA")
    with pytest.raises(Dismissed, match="NO_SUCH_ARENA"):
        waiting.get()


FULL = (ErrorCode.UNUSABLE_PATH, "UNUSABLE_PATH")


def test_a_full_disk_of_mpsds_delays_the_opening_and_ends_no_member(
    mpsd: FakeMpsd, arena: FakeArena, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten members that ended early made their starter give up, for good."""
    asked: list[str] = []

    def read(name: str, path: object) -> Any:
        asked.append(name)
        if len(asked) <= 12:
            raise Refused(*FULL, "vault.db cannot be written")
        return arena

    monkeypatch.setattr(_service_arena, "FULL_SECONDS", 0.001)
    monkeypatch.setattr(Arena, "read", read)
    with Service("llm", capacity=1 << 21, schema=FIELDS, path=mpsd.path) as service:
        opened: Any = service.open()
        assert opened is arena
    assert len(asked) == 13
    [said] = [each.getMessage() for each in caplog.records if "disk" in each.getMessage()]
    assert said == "service llm is opened as soon as mpsd can write to its disk: vault.db cannot be written"


def test_other_refusals_of_the_opening_are_raised_and_a_close_ends_the_wait(
    mpsd: FakeMpsd, arena: FakeArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [(ErrorCode.NOT_ALLOWED, "NOT_ALLOWED"), FULL]
    came = threading.Event()

    def read(name: str, path: object) -> Any:
        refusal = refusals[0]
        if refusal is FULL:
            came.set()
        raise Refused(*refusal, "why")

    monkeypatch.setattr(_service_arena, "FULL_SECONDS", 0.001)
    monkeypatch.setattr(Arena, "read", read)
    service = Service("llm", capacity=1 << 21, schema=FIELDS, path=mpsd.path)
    with pytest.raises(Refused, match="NOT_ALLOWED"):
        service.open()
    del refusals[0]
    waiting = Waiting(service.open)
    assert came.wait(WAIT)
    service.close()
    with pytest.raises(RuntimeError, match="is closed"):
        waiting.get()


def test_a_full_disk_of_mpsds_ends_no_term(mpsd: FakeMpsd, service: Service) -> None:
    """The state is given, and its publish returns, as soon as mpsd can store it."""
    mpsd.refusals["arena.keep_state"] = FULL
    waiting = Waiting(service.active)
    mpsd.wait_for("service.ready")
    mpsd.tell("serve", generation=4, writer_pid=os.getpid())
    term = waiting.get()
    mpsd.wait_for("service.join", 3)
    assert not term.is_over
    del mpsd.refusals["arena.keep_state"]
    term.publish(step=1)
    assert mpsd.wait_for("service.serving") == {"id": 7, "generation": 4}


def test_a_full_disk_of_mpsds_delays_a_yield_and_ends_no_member(mpsd: FakeMpsd, service: Service) -> None:
    term = serve(mpsd, service)
    term.publish(step=1)
    mpsd.refusals["service.yielded"] = FULL
    mpsd.tell("yield")
    until(lambda: term.is_over)
    with term:
        pass
    mpsd.wait_for("service.join", 3)
    del mpsd.refusals["service.yielded"]
    assert mpsd.wait_for("service.yielded") == {"id": 7, "generation": 4, "sequence": 0, "why_no_image": ""}
    mpsd.tell("standby")
    assert service.standby(timeout=0) is None


def test_a_full_disk_of_mpsds_delays_the_word_of_a_standby(mpsd: FakeMpsd, service: Service) -> None:
    mpsd.refusals["service.ready"] = FULL
    assert service.standby(timeout=0) is None
    mpsd.wait_for("service.join", 3)
    del mpsd.refusals["service.ready"]
    mpsd.wait_for("service.ready")


def test_an_exception_within_a_term_is_told_and_goes_on_its_way(mpsd: FakeMpsd, service: Service) -> None:
    with pytest.raises(ValueError, match="mine"), serve(mpsd, service):
        raise ValueError("mine")
    assert mpsd.wait_for("service.failed") == {"id": 7, "why": "ValueError('mine')"}
    with pytest.raises(Dismissed, match="it has failed"):
        service.standby()


@pytest.mark.parametrize("what", ["memory", "record", "callback"])
def test_who_cannot_take_over_says_so(mpsd: FakeMpsd, service: Service, arena: FakeArena, what: str) -> None:
    with State.create(FIELDS, generation=3) as before:
        before.publish(step=1)
        mpsd.keep(before)
        if what == "memory":
            arena.trouble = RuntimeError("no access")
        elif what == "record":
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), mpsd.kept_fd)
            mpsd.tell(state_serial=9)
        else:
            service.on_promote(lambda term: int(term.generation / 0))
        waiting = Waiting(service.standby)
        mpsd.wait_for("service.ready")
        mpsd.tell("serve", generation=4)
        expected = {"memory": RuntimeError, "record": StateError, "callback": ZeroDivisionError}[what]
        with pytest.raises(expected):
            waiting.get()
    assert expected.__name__ in mpsd.wait_for("service.failed")["why"]


def test_leaving_a_term_that_nobody_asked_for_ends_the_service(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    """In an order in which the next one need not wait for our end."""
    with serve(mpsd, service) as term:
        term.publish(step=1)
    assert arena.done == ["promoted 4", "yielded", "close"]
    words = [name for name, _ in mpsd.said if name in ("service.yielded", "service.leave")]
    assert words[0] == "service.yielded"
    assert "service.leave" in words
    with pytest.raises(RuntimeError, match="is closed"):
        service.standby()


@pytest.mark.parametrize("why", ["dismissed", "cannot yield"])
def test_who_may_still_write_does_not_say_that_it_has_left(
    mpsd: FakeMpsd, service: Service, arena: FakeArena, why: str
) -> None:
    """mpsd would promote the next one at once; closing the arena waits for the GPU, and reports that it has left."""
    term = serve(mpsd, service)
    term.publish(step=1)
    if why == "dismissed":
        mpsd.tell("leave", why="it is being fenced")
        until(lambda: term.is_over)
    else:
        arena.yield_trouble = OSError(errno.EBUSY, "something is not committed")
    service.close()
    assert arena.done[-1] == "close"
    assert not mpsd.count("service.leave")
    assert not mpsd.count("service.yielded")


def test_closing_wakes_whoever_waits(mpsd: FakeMpsd, service: Service) -> None:
    waiting = Waiting(service.standby)
    mpsd.wait_for("service.ready")
    service.close()
    service.close()
    with pytest.raises(Dismissed, match="was closed"):
        waiting.get()


def test_one_thread_waits_at_a_time(mpsd: FakeMpsd, service: Service) -> None:
    waiting = Waiting(service.standby)
    mpsd.wait_for("service.ready")
    with pytest.raises(RuntimeError, match="already"):
        service.standby()
    mpsd.tell("serve", generation=4)
    waiting.get()
    with pytest.raises(RuntimeError, match="already"):
        service.standby()


def test_active_says_that_it_was_not_its_turn(service: Service) -> None:
    with pytest.raises(TimeoutError, match="not this process's turn within 0 seconds"):
        service.active(timeout=0)


def test_what_is_not_open_cannot_stand_by(mpsd: FakeMpsd, arena: FakeArena) -> None:
    made = Service("llm", capacity=1 << 21, schema=FIELDS, path=mpsd.path)
    with pytest.raises(RuntimeError, match="is not open"):
        made.standby()
    mpsd.refusals["service.join"] = (ErrorCode.NOT_ALLOWED, "NOT_ALLOWED")
    with pytest.raises(Refused, match="NOT_ALLOWED"):
        made.open()
    assert arena.done == ["close"]
    made.close()


def test_a_child_after_fork_has_no_part_in_it(mpsd: FakeMpsd, service: Service, arena: FakeArena) -> None:
    term = serve(mpsd, service)
    term.publish(step=1)
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (service.standby, service.open, lambda: term.publish(step=2)):
            try:
                call()
            except (RuntimeError, StateError):
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
