"""What a restarted mpsd makes of the reports that a sentinel kept for it."""

import os
import time

import pytest
import trio

from mpsd.domains.domain import Domain
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.model.fault import Observation
from mpsd.sentinel.containment import Containment
from mpsd.sentinel.messages import SentinelKind, SentinelReport, SentinelStep

PC = 0x7F0000001000


def containment_of(seen: list[Observation]) -> Containment:
    domain = Domain("a", 1, ("GPU-0",), None, 48, state=DomainState.READY)
    return Containment(domain, "GPU-0", 0.0, seen.append, lambda domain, at_ns: False)


def taken(*looks: SentinelReport, clients: frozenset[int] = frozenset()) -> list[Observation]:
    """Return what follows from these looks after an exception at PC, once all clients had time to be looked at."""
    seen: list[Observation] = []
    containment = containment_of(seen)
    known = {process for pid in clients if (process := processes.find(pid))}
    containment.hear(SentinelReport(SentinelKind.FAULT, time_ns=time.monotonic_ns(), pc=PC), known, lambda task: None)
    for look in looks:
        containment.hear(look, set(), lambda task: None)
    for inquiry in list(containment._inquiries):
        containment._judge(inquiry)
    return [each for each in seen if each.process is not None]


def look(at_ns: int, pc: int = PC) -> SentinelReport:
    return SentinelReport(SentinelKind.HOLDS, os.getpid(), 0, at_ns, pc, is_culprit=True)


async def test_a_later_exception_does_not_move_the_announced_end() -> None:
    """`domain.contained` is published once, with the time at which the clients are ended."""
    domain = Domain("a", 1, ("GPU-0",), None, 48, state=DomainState.READY)
    containment = Containment(domain, "GPU-0", 100.0, lambda seen: None, lambda domain, at_ns: False)
    for ago_seconds in (50, 0):
        began_ns = time.monotonic_ns() - ago_seconds * 10**9
        containment.hear(SentinelReport(SentinelKind.FAULT, time_ns=began_ns, pc=PC), set(), lambda task: None)
    assert domain.ends_by - trio.current_time() <= 50


@pytest.mark.parametrize(("seconds", "count"), [(4, 1), (6, 0)])
async def test_a_sentinel_that_ends_long_after_the_exception_is_no_fault(seconds: int, count: int) -> None:
    """Else its domain's last client would be accused of it, since it is alone there."""
    seen: list[Observation] = []
    containment = containment_of(seen)
    began_ns = time.monotonic_ns()
    containment.hear(SentinelReport(SentinelKind.FAULT, time_ns=began_ns, pc=PC), set(), lambda task: None)
    end = SentinelReport(SentinelKind.FAILED, time_ns=began_ns + seconds * 10**9, count=SentinelStep.END)
    containment.hear(end, set(), lambda task: None)
    assert len([each for each in seen if not each.is_contained]) == count


async def test_a_client_that_was_named_to_the_sentinel_late_is_found_too() -> None:
    """The exception and the naming can cross: then the looks at all other clients come first."""
    others = SentinelReport(SentinelKind.HOLDS, os.getpid(), 0, time.monotonic_ns(), PC)
    late = SentinelReport(SentinelKind.HOLDS, os.getppid(), 0, time.monotonic_ns(), PC, is_culprit=True)
    found = taken(others, late, clients=frozenset({os.getpid()}))
    assert [each.process for each in found if each.is_proof] == [processes.find(os.getppid())]


async def test_a_look_at_a_process_whose_pid_another_one_has_now_accuses_nobody() -> None:
    """The client has ended since, while no mpsd ran; this process began later."""
    assert [each.process for each in taken(look(time.monotonic_ns()))] == [processes.find(os.getpid())]
    assert taken(look(1)) == []


@pytest.mark.parametrize("pc", [PC, PC + 8])
async def test_a_late_look_after_an_earlier_exception_does_not_count_for_the_next(pc: int) -> None:
    found = taken(look(time.monotonic_ns(), pc), clients=frozenset({os.getpid()}))
    assert bool(found) is (pc == PC)


async def test_the_time_to_look_at_clients_is_each_exceptions_own(autojump_clock: object) -> None:
    """A second exception within a second was judged by the looks that had come when the first one's time was over."""
    seen: list[Observation] = []
    containment = containment_of(seen)
    async with trio.open_nursery() as nursery:
        for pc in (PC, PC + 8):
            report = SentinelReport(SentinelKind.FAULT, time_ns=time.monotonic_ns(), pc=pc)
            containment.hear(report, set(), nursery.start_soon)
            await trio.sleep(0.7)
        containment.hear(look(time.monotonic_ns(), PC + 8), set(), nursery.start_soon)
    assert [each.process for each in seen if each.is_proof] == [processes.find(os.getpid())]


async def test_an_exception_keeps_its_verdict_where_another_one_follows_within_a_second(autojump_clock: object) -> None:
    """Its client was named to the sentinel late, or the look at another one took long."""
    seen: list[Observation] = []
    containment = containment_of(seen)
    async with trio.open_nursery() as nursery:
        for pc in (PC, PC + 8):
            report = SentinelReport(SentinelKind.FAULT, time_ns=time.monotonic_ns(), pc=pc)
            containment.hear(report, set(), nursery.start_soon)
        containment.hear(look(time.monotonic_ns(), PC), set(), nursery.start_soon)
    assert [(each.process, each.pc) for each in seen if each.is_proof] == [(processes.find(os.getpid()), PC)]
