"""A server that died under its clients: its domain accepts no newcomers, even while its vendor daemon still reports it
running."""

import subprocess
from collections.abc import Iterator

import pytest

from mpsd.domains.domain import Domain
from mpsd.model.domain import DomainState, ServerView

GPUS = ("GPU-a",)


@pytest.fixture
def server() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def serving(server: "subprocess.Popen[bytes]", *clients: int) -> Domain:
    view = ServerView(server.pid, 0, "ACTIVE", clients, "default", GPUS)
    return Domain("default", 1, GPUS, None, 48, state=DomainState.READY, servers={server.pid: view})


@pytest.mark.parametrize(("clients", "is_ill"), [((101,), True), ((), False)], ids=["with clients", "idle"])
async def test_a_domain_is_ill_from_the_death_of_a_server_with_clients(
    server: "subprocess.Popen[bytes]", clients: tuple[int, ...], is_ill: bool
) -> None:
    """A server without clients may go whenever it likes: the next client gets another one."""
    domain = serving(server, *clients)
    assert not domain.is_ill
    server.kill()
    server.wait()
    assert domain.is_ill == is_ill
