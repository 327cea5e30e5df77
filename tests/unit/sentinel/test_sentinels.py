"""The sentinels of all domains: the test that proves them, and the faults for which they end."""

from collections import Counter
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from mpsd.domains.domain import Domain
from mpsd.errors import VendorFailed
from mpsd.model.domain import DomainState, ServerView
from mpsd.model.fault import FaultClass, Observation, Source
from mpsd.sentinel.protection import Protection, SentinelSettings
from mpsd.sentinel.sentinels import Sentinels


@pytest.mark.parametrize("is_required", [True, False])
async def test_a_test_that_could_not_be_made_is_made_again_where_no_client_starts_without(
    autojump_clock: object, is_required: bool
) -> None:
    """Where the others start without, they use the GPU by now, and the test's exception would stop them for a moment."""
    tests = 0

    async def prove() -> str:
        nonlocal tests
        tests += 1
        if tests < 3:
            raise VendorFailed("the GPU is full")
        return ""

    settings = SentinelSettings(True, is_required, 10.0, 0.0, None)  # type: ignore[arg-type]
    sentinels = Sentinels(SimpleNamespace(notify=lambda: None), settings, prove)  # type: ignore[arg-type]
    with trio.move_on_after(600):
        await sentinels._test()
    assert (tests, sentinels.why_off) == ((3, "") if is_required else (1, "the GPU is full"))


async def test_a_test_that_failed_is_not_made_again(autojump_clock: object) -> None:
    """Each has an SM exception, which is not contained here."""
    tests = 0

    async def prove() -> str:
        nonlocal tests
        tests += 1
        return "another client did not go on"

    settings = SentinelSettings(True, True, 10.0, 0.0, None)  # type: ignore[arg-type]
    sentinels = Sentinels(SimpleNamespace(notify=lambda: None), settings, prove)  # type: ignore[arg-type]
    with trio.move_on_after(600):
        await sentinels._test()
    assert (tests, sentinels.why_off) == (1, "another client did not go on")


def an_xid(number: int, pid: int) -> Observation:
    text = f"NVRM: Xid (PCI:0000:00:06): {number}, pid={pid}, name=x, channel 0x0000000a"
    return Observation(Source.KERNEL_LOG, 0, xid=number, text=text)


@pytest.mark.parametrize(
    ("seen", "ends"),
    [
        pytest.param(Observation(Source.UVM_EVENTS, 0, FaultClass.MMU, is_proof=True), True, id="a memory fault"),
        pytest.param(Observation(Source.UVM_EVENTS, 0, FaultClass.MMU), False, id="of another space, perhaps"),
        pytest.param(an_xid(31, pid=7), True, id="that the driver reports"),
        pytest.param(an_xid(31, pid=8), True, id="also of one with a context by the log alone"),
        pytest.param(an_xid(31, pid=1), True, id="that names the server, as after a client was killed in mid-kernel"),
        pytest.param(an_xid(31, pid=6), True, id="that names the sentinel's client, the oldest in the server"),
        pytest.param(an_xid(31, pid=9), False, id="of a process that was only placed there"),
        pytest.param(replace(an_xid(31, pid=7), is_contained=True), False, id="contained"),
        pytest.param(an_xid(13, pid=7), False, id="an SM exception"),
        pytest.param(an_xid(63, pid=7), False, id="another Xid"),
    ],
)
async def test_a_memory_fault_ends_the_sentinel(seen: Observation, ends: bool) -> None:
    """A client with two VA spaces faulted without proof: the stopped client stayed, and kept the server from all others.

    A user who has only a connection, and faults past MPS, had the sentinel of a domain of all users ended again and again.
    Where only clients counted, one that was killed in mid-kernel left all others standing still: the driver names the server.
    """
    ended: list[str] = []

    async def give_way() -> None:
        ended.append("d2")

    settings = SentinelSettings(True, False, 10.0, 0.0, None)  # type: ignore[arg-type]
    sentinels = Sentinels(SimpleNamespace(notify=lambda: None), settings)  # type: ignore[arg-type]
    server = ServerView(1, 0, "ACTIVE", (7,), "d2", ("GPU-a",))
    domain = Domain("d2", 2, ("GPU-a",), None, 48, servers={1: server}, contexts={1: Counter([8])})  # type: ignore[arg-type]
    domain.sentinel = SimpleNamespace(pids=frozenset({6}))  # type: ignore[assignment]
    protection = SimpleNamespace(watchers={"GPU-a": None}, give_way=give_way, domain=domain)
    sentinels._protections = {"d2": protection}  # type: ignore[dict-item]
    async with trio.open_nursery() as sentinels._nursery:
        sentinels.give_way(replace(seen, domain="default"))
        sentinels.give_way(replace(seen, domain="d2"))
        await trio.testing.wait_all_tasks_blocked()
    assert bool(ended) is ends


class SilentDomain:
    """Make a domain of two GPUs with the server 1.  reported: the GPU with an exception that its sentinel has reported."""

    def __init__(self, state: DomainState, reported: str) -> None:
        self.ended: list[bool] = []
        settings = SentinelSettings(True, False, 10.0, 0.0, None)  # type: ignore[arg-type]
        self.sentinels = Sentinels(SimpleNamespace(changed=trio.sleep_forever), settings)  # type: ignore[arg-type]
        server = ServerView(1, 0, "ACTIVE", (7,), "d2", ("GPU-a", "GPU-b"))
        self.domain = Domain("d2", 2, ("GPU-a", "GPU-b"), None, 48, state=state, servers={1: server})  # type: ignore[arg-type]
        protection = Protection(self.domain, *[None] * 5)  # type: ignore[arg-type]
        watchers = {each: SimpleNamespace(decided=trio.Event(), is_armed=False, end=self._end) for each in self.domain.gpus}
        protection.watchers = watchers  # type: ignore[assignment]
        if reported:
            watchers[reported].decided.set()
        self.sentinels._protections = {"d2": protection}

    async def _end(self, *, unless_contained: bool) -> None:
        self.ended.append(unless_contained)


@pytest.mark.parametrize(
    ("seen", "state", "reported", "ended"),
    [
        pytest.param(an_xid(43, pid=1), DomainState.READY, "", [True] * 2, id="of the server"),
        pytest.param(an_xid(43, pid=1), DomainState.FAULT, "", [True] * 2, id="that cannot end its clients"),
        pytest.param(an_xid(43, pid=1), DomainState.CONTAINED, "GPU-a", [], id="that is contained"),
        pytest.param(an_xid(43, pid=1), DomainState.CONTAINED, "GPU-b", [False] * 2, id="on another GPU"),
        pytest.param(an_xid(43, pid=7), DomainState.READY, "", [], id="of a client, which may be past MPS"),
        pytest.param(an_xid(31, pid=1), DomainState.READY, "", [], id="of a memory fault"),
    ],
)
async def test_an_exception_that_no_sentinel_reports_ends_it(
    autojump_clock: object, seen: Observation, state: DomainState, reported: str, ended: list[bool]
) -> None:
    """One that comes between the stop of its client and its event: all clients of the domain hung for ever.

    So they did after two exceptions, if the sentinel of the second GPU was armed and contained the second exception.
    """
    domain = SilentDomain(state, reported)
    async with trio.open_nursery() as domain.sentinels._nursery:
        domain.sentinels.pass_on(replace(seen, domain="d2", gpu="GPU-a"))
        await trio.sleep(1)
        assert not domain.ended, "its event can come later than the Xid"
    assert domain.ended == ended


async def test_an_xid_starts_no_task_where_the_domain_has_no_sentinel() -> None:
    """Each Xid of an SM started one that lasts two seconds, and a server with a failed kernel has one on each SM."""
    domain, passed_on = SilentDomain(DomainState.READY, ""), []
    domain.sentinels._protections["d2"].watchers.clear()
    domain.sentinels.observed.subscribe(passed_on.append)
    seen = replace(an_xid(43, pid=1), domain="d2", gpu="GPU-a")
    async with trio.open_nursery() as nursery:
        domain.sentinels._nursery = nursery
        domain.sentinels.pass_on(seen)
        assert (passed_on, len(nursery.child_tasks)) == ([seen], 0)
        async with domain.sentinels._protections["d2"]._one_at_a_time:  # one is being started
            domain.sentinels.pass_on(seen)
            assert (passed_on, len(nursery.child_tasks)) == ([seen] * 2, 1)
        nursery.cancel_scope.cancel()
