"""The servers that have work of a process that is to be ended."""

import pytest

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.model.domain import DomainState, ServerView
from mpsd.model.process import ProcessId
from mpsd.stop.stopper import Stopper
from mpsd.stop.targets import Targets
from tests.inspecting import INSPECTOR

CLIENT, LATER = ProcessId(101, 7), ProcessId(101, 8)


@pytest.mark.parametrize(
    ("admitted", "process", "is_found"),
    [
        pytest.param(CLIENT, CLIENT, True, id="a client"),
        pytest.param(None, CLIENT, True, id="one that mpsd did not admit"),
        pytest.param(CLIENT, LATER, False, id="a process with the pid of an ended one"),
    ],
)
def test_a_server_that_lists_a_pid_has_work_of_its_client(
    admitted: ProcessId | None, process: ProcessId, is_found: bool
) -> None:
    """A user who ended an own process with the pid of another user's ended client ended what its child still had."""
    pool = Pool(None, None, (), None, None, None, None)  # type: ignore[arg-type]
    domain = pool.domains["d2"] = Domain("d2", 2, ("GPU-a",), None, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.servers = {1: ServerView(1, 0, "ACTIVE", (101,), "d2", ("GPU-a",))}
    if admitted is not None:
        domain.admit(admitted)
    stopper = Stopper(pool, Targets(pool, INSPECTOR, lambda: ()))
    assert stopper._servers(process, set()) == ([(domain, 1)] if is_found else [])
