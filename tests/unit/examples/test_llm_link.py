"""The LLM example's members and their socket: a member never waits for a front end."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from link import MOST_UNSENT, Link

from tests.integration.process import wait_for


@pytest.fixture
def front(short_dir: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(short_dir / "llm.sock"))
        made.listen()
        yield made


@pytest.fixture
def link(short_dir: Path) -> Iterator[Link]:
    made = Link(str(short_dir / "llm.sock"), {"generation": 1})
    yield made
    made.close()


def heard(link: Link) -> list[tuple[str, object]]:
    return wait_for("something to hear", link.hear)


def test_hello_comes_first_and_again_with_every_connection(front: socket.socket, link: Link) -> None:
    link.say("tokens", "nobody hears this")
    for number in (1, 2):
        wait_for("a connection", lambda number=number: link.hear() or link.connections == number)
        with front.accept()[0] as peer:
            assert json.loads(peer.recv(99)) == {"hello": {"generation": 1}}
            peer.send(b'{"cancel":3}\n{"al')
            assert heard(link) == [("cancel", 3)]
            peer.send(b'l":{}}\n')
            assert heard(link) == [("all", {})]


def test_without_a_front_end_it_tries_again(link: Link) -> None:
    assert link.hear() == []
    link.say("tokens", [])
    link.wait(0.0)
    link.finish(0.0)
    assert link.connections == 0


def test_a_front_end_that_does_not_read_is_given_up(front: socket.socket, link: Link) -> None:
    link.hear()
    with front.accept()[0] as peer:
        for _ in range(MOST_UNSENT // (1 << 20) + 2):
            link.say("tokens", "x" * (1 << 20))
        while peer.recv(1 << 20):
            pass  # to the end: it has hung up
