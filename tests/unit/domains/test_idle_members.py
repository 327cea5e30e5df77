"""A process that has connected to a domain, and has no context there, when another user's client has joined."""

import os

import pytest
import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.domains.rules.placement import PlacementRequest
from mpsd.domains.upkeep import Upkeep
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId

IDLE, OTHER = ProcessId(101, 7), ProcessId(201, 7)


@pytest.mark.parametrize(
    ("key", "has_channel", "is_connecting", "is_bound"),
    [
        pytest.param("own:1", False, False, False, id="clients of another key have it"),
        pytest.param("", False, False, True, id="clients without a key have it"),
        pytest.param("own:1", True, False, True, id="it may have a server there"),
        pytest.param("own:1", False, True, True, id="it has another connection there"),
    ],
)
async def test_it_leaves_a_domain_of_another_key(key: str, has_channel: bool, is_connecting: bool, is_bound: bool) -> None:
    """A process that had connected once got a context in the domain that a lease with `--domain own` had since; and one of a
    user in quarantine got it in the domain of all others, as often as the user had such processes."""
    pool = Pool(None, None, (), None, None, None, None)  # type: ignore[arg-type]
    domain = pool.domains["d2"] = Domain("d2", 2, ("GPU-a",), None, 48, state=DomainState.READY, key=key)  # type: ignore[arg-type]
    domain.members, domain.channels = {IDLE: 0.0, OTHER: 0.0}, {OTHER} | ({IDLE} if has_channel else set())
    domain.handshakes[IDLE] += is_connecting
    assert pool._is_bound(domain, PlacementRequest(1000, frozenset()), IDLE) is is_bound
    assert (IDLE in domain.members) is is_bound


@pytest.mark.parametrize("has_channel", [False, True])
async def test_it_lets_its_domain_be_drained(has_channel: bool, autojump_clock: trio.testing.MockClock) -> None:
    """A client whose sentinel did not start in a worn server came back to it each second, for ever, so that mpsd never replaced
    the server."""
    pool = Pool(None, None, (), None, None, None, None)  # type: ignore[arg-type]
    domain = pool.domains["d2"] = Domain("d2", 2, ("GPU-a",), None, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.join(IDLE, 1000)
    with domain.handshake(IDLE):
        await trio.sleep(60.0)
        if has_channel:
            domain.attach(IDLE)
    domain.is_draining = True
    assert pool._is_bound(domain, PlacementRequest(1000, frozenset()), IDLE) is has_channel
    assert bool(domain.occupancy) is has_channel


@pytest.mark.parametrize("has_channel", [False, True])
async def test_it_keeps_no_domain_that_its_clients_have_left(has_channel: bool, autojump_clock: trio.testing.MockClock) -> None:
    """It counts against no user: with one such process in each, a user had all domains of a GPU contained, for an hour."""
    process = processes.process_id(os.getppid())
    domain = Domain("d2", 2, ("GPU-a",), None, 48, state=DomainState.CONTAINED)  # type: ignore[arg-type]
    domain.join(process, 1000)
    if has_channel:
        domain.attach(process)
    await trio.sleep(60.0)
    domain.asked_at = trio.current_time()
    domain.forget_absent()
    upkeep = Upkeep(Pool(None, None, (), None, None, None, None), 1.0, None)  # type: ignore[arg-type]
    assert upkeep._is_drained(domain, trio.current_time()) is not has_channel
    assert bool(domain.occupancy) is has_channel
