"""Whose clients are in a domain: it counts against these users, above all where its server does not answer."""

import os
import subprocess
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from mpsd.domains.domain import Domain
from mpsd.domains.domain_view import view_of
from mpsd.domains.rules.placement import PlacementRequest, Rules, _is_charged
from mpsd.host import processes
from mpsd.model.domain import Defaults, DomainState, ServerView
from mpsd.model.process import ProcessId
from tests.unit.domains.test_ending_strangers import GPUS, SERVER, Vendor

OURS = processes.process_id(os.getpid())
VICTIM, ATTACKER = 7, 666


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


class Shared:
    """A domain with clients of two users."""

    def __init__(self, attackers: ProcessId) -> None:
        self.domain = Domain("default", 1, GPUS, Vendor(), 48, state=DomainState.READY)  # type: ignore[arg-type]
        for process, uid in ((OURS, VICTIM), (attackers, ATTACKER)):
            self.domain.join(process, uid)
            self.domain.attach(process)
            self.domain.admit(process)
        self.answers(OURS.pid, attackers.pid)

    def answers(self, *pids: int) -> None:
        view = ServerView(SERVER, 0, "ACTIVE", pids, "default", GPUS)
        self.domain._believe({SERVER: view}, trio.current_time())

    @property
    def users(self) -> set[int]:
        return set(view_of(self.domain, Defaults()).users)


async def test_an_ended_client_whose_child_has_its_connections_counts(
    child: "subprocess.Popen[bytes]", autojump_clock: trio.testing.MockClock
) -> None:
    """A domain that such a client blocked (H200) counted against the others there alone: one user could block all domains."""
    attackers = processes.process_id(child.pid)
    shared = Shared(attackers)
    child.kill()
    child.wait()
    shared.domain.leave(attackers)
    assert shared.users == {VICTIM, ATTACKER}, "the server may not answer any more"
    shared.answers(OURS.pid, attackers.pid)
    assert shared.users == {VICTIM, ATTACKER}
    shared.answers(OURS.pid)
    assert shared.users == {VICTIM}
    assert attackers not in shared.domain.uids


async def test_one_that_ends_while_the_server_does_not_answer_counts_until_an_answer(
    child: "subprocess.Popen[bytes]", autojump_clock: trio.testing.MockClock
) -> None:
    """A user who blocked a domain could wait until then with the end of the client, and block the next one: the domain counted
    against the others there alone.  One who ends a client that hangs because of another user is in that domain as before."""
    ending = processes.process_id(child.pid)
    domains = []
    for _ in range(2):
        shared = Shared(ending)
        shared.domain.unanswered_since = trio.current_time()
        domains.append(shared.domain)
    await trio.sleep(60)
    child.kill()
    child.wait()
    for domain in domains:
        domain.leave(ending)
        domain.silenced.set()
    views = [replace(view_of(each, Defaults()), clients=2) for each in domains]
    assert [each.users for each in views] == [{VICTIM, ATTACKER}] * 2
    rules = Rules(max_domains=2, is_multiuser=True)
    attacker = PlacementRequest(ATTACKER, frozenset(GPUS))
    assert _is_charged(attacker, views[0], views, rules), "several such domains"
    assert not _is_charged(attacker, views[0], views[:1], rules)
    shared.answers(OURS.pid)
    assert shared.users == {VICTIM}


async def test_one_that_leaves_for_another_domain_counts_no_more(
    child: "subprocess.Popen[bytes]", autojump_clock: trio.testing.MockClock
) -> None:
    leaving = processes.process_id(child.pid)
    shared = Shared(leaving)
    shared.domain.leave(leaving)
    assert shared.users == {VICTIM}
