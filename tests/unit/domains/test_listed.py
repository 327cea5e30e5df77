"""Which process a server means by a pid that it lists."""

import os

import pytest

from mpsd.domains.domain import Domain
from mpsd.domains.listed import listed_process, may_be_listed
from mpsd.host import processes
from mpsd.model.domain import ServerView
from mpsd.model.process import ProcessId

OTHER = processes.process_id(os.getppid())
BEFORE = ProcessId(os.getppid(), 7)  # an ended client, which had the pid of our parent


@pytest.mark.parametrize(
    ("admitted", "found"),
    [
        pytest.param(None, OTHER, id="a client that bypassed mpsd"),
        pytest.param(OTHER, OTHER, id="an admitted client"),
        pytest.param(BEFORE, None, id="an ended one, of which a child has the connection"),
    ],
)
def test_the_process_of_a_listed_pid(admitted: ProcessId | None, found: ProcessId | None) -> None:
    domain = Domain("default", 1, (), None, 48)  # type: ignore[arg-type]
    if admitted:
        domain.admit(admitted)
    assert listed_process(domain.admitted, os.getppid()) == found


def test_our_own_pid_is_that_of_no_client() -> None:
    """It stands for clients of other pid namespaces."""
    assert listed_process({}, os.getpid()) is None


def test_a_process_that_has_gone() -> None:
    domain = Domain("default", 1, (), None, 48)  # type: ignore[arg-type]
    assert listed_process(domain.admitted, 4_194_305) is None


async def test_an_answer_without_the_clients_of_a_starting_server_shows_no_end_of_their_work() -> None:
    """Without the line that a server is ready, as in a flooded log, mpsd asks for no clients there for 15 s.  It freed what an
    ended one had, then took a process with the same pid, of any user, for it, and convicted that one of a fault."""
    domain = Domain("default", 1, (), None, 48)  # type: ignore[arg-type]
    domain.admit(BEFORE)
    domain._believe({1: ServerView(1, 1000, "INITIALIZING", (), "default", ())}, 2.0)
    assert may_be_listed(domain, BEFORE, 1.0)
    domain._believe({1: ServerView(1, 1000, "ACTIVE", (BEFORE.pid,), "default", ())}, 3.0)
    assert may_be_listed(domain, BEFORE, 1.0)
    assert listed_process(domain.admitted, BEFORE.pid) is None, "a child has its connection"
    domain._believe({1: ServerView(1, 1000, "ACTIVE", (), "default", ())}, 4.0)
    assert not may_be_listed(domain, BEFORE, 1.0)
    assert not domain.admitted
