"""A server that died under its clients: its domain accepts no newcomers, even while its vendor daemon still reports it
running."""

import subprocess

import pytest

from mpsd.domains.domain import Domain
from mpsd.model.domain import DomainState, ServerView
from tests.leaderless import leaderless

GPUS = ("GPU-a",)


def serving(child: "subprocess.Popen[bytes]", *clients: int) -> Domain:
    view = ServerView(child.pid, 0, "ACTIVE", clients, "default", GPUS)
    return Domain("default", 1, GPUS, None, 48, state=DomainState.READY, servers={child.pid: view})


@pytest.mark.parametrize(("clients", "is_ill"), [((101,), True), ((), False)], ids=["with clients", "idle"])
async def test_a_domain_is_ill_from_the_death_of_a_server_with_clients(
    child: "subprocess.Popen[bytes]", clients: tuple[int, ...], is_ill: bool
) -> None:
    """A server without clients may go whenever it likes: the next client gets another one."""
    domain = serving(child, *clients)
    assert not domain.is_ill
    child.kill()
    child.wait()
    assert domain.is_ill == is_ill


async def test_nor_is_it_by_the_end_of_its_first_thread_alone() -> None:
    """The others go on, and serve; its domain got no newcomers."""
    with leaderless() as made:
        assert not serving(made, 101).is_ill
