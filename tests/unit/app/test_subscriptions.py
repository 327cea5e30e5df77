"""How the parts are joined."""

import os
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from mpsd.app.subscriptions import _adopt, _has_company, _watch
from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.faults.known_clients import KnownClients
from mpsd.model.domain import DomainState
from mpsd.model.fault import Party
from mpsd.model.process import Credentials, ProcessId


@pytest.mark.parametrize("has_channel", [False, True])
def test_the_watch_of_a_client_has_the_user_who_connected(has_channel: bool) -> None:
    """And whether it may have asked for a context: one with a channel may have, as a client of an earlier mpsd."""
    process = ProcessId(7, 7)
    watched: list[tuple[object, ...]] = []
    book = SimpleNamespace(grant_of=lambda process: None, uid_of=lambda process: 1000)
    attachments = SimpleNamespace(watch=lambda *words: watched.append(words))
    domain = SimpleNamespace(name="default", gpus=("GPU",), channels={process} if has_channel else set())
    _watch(attachments, book, bool, process, domain, True, False)  # type: ignore[arg-type]
    [(watched_process, name, gpus, _, *facts)] = watched
    assert (watched_process, name, gpus, facts) == (process, "default", ("GPU",), [True, 1000, has_channel, False])


def test_an_adopted_client_counts_against_the_user_who_connected() -> None:
    """Its process, here our own, has another effective uid by now."""
    adopted: list[tuple[ProcessId, Credentials]] = []
    book = SimpleNamespace(adopt=lambda *words: adopted.append(words))
    process = ProcessId(os.getpid(), 7)
    _adopt(book, process, SimpleNamespace(uids={process: 12345}))  # type: ignore[arg-type]
    assert adopted == [(process, Credentials(process.pid, 12345, os.getegid()))]


@pytest.mark.parametrize(
    ("has_channel", "state", "is_there", "has_company"),
    [
        (True, DomainState.READY, True, True),
        (True, DomainState.FAULT, True, False),
        (False, DomainState.READY, True, False),
        (True, DomainState.READY, False, False),
    ],
    ids=["beside a client", "that has lost its context", "that only connected once", "of a domain that has forgotten it"],
)
async def test_a_killed_client_is_held_for_the_clients_in_its_domain(
    has_channel: bool, state: DomainState, is_there: bool, has_company: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Another user's process that had connected there once, before, cost each killed client's lease two seconds."""
    killed, other = ProcessId(7, 7), ProcessId(8, 7)
    domain = Domain("default", 1, ("GPU",), None, 48, state=state, members={killed: 0.0, other: 0.0})  # type: ignore[arg-type]
    domain.channels = {killed, other} if has_channel else {killed}
    parties = KnownClients(lambda process: Party(process, 1000, "x"), lambda: 0)
    parties.meet(killed, "default")
    if not is_there:
        parties.part(killed)
    await trio.sleep(60.0)
    domain.asked_at = trio.current_time()
    domain.forget_absent()
    domain.leave(killed)
    pool = Pool(None, None, (), None, None, None, None, {"default": domain})  # type: ignore[arg-type]
    assert _has_company(pool, parties, killed, "default") is has_company
    parties = KnownClients(lambda process: Party(process, 1000, "x"), lambda: 0)
    assert _has_company(pool, parties, killed, "default") is (has_company or not is_there), "if it has ended an hour ago"
