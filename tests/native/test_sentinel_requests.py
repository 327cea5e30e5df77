"""The requests of mpsd to mpsd-sentinel: an end that spares co-runners, malformed ones, more clients than there are places."""

import socket
import subprocess

import pytest

from tests.native.sentinel_fixtures import armed_sentinel, built_sentinel, count_of_descriptors, hold, lives_on, two_clients  # noqa: F401
from tests.native.sentinel_process import ARMED, CONTAINED, END, FAULT, REQUEST, UNLESS_CONTAINED, VERSION, Sentinel
from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import SANITIZER, Machine, eventually

pytestmark = pytest.mark.skipif(SANITIZER == "thread", reason="the watcher forks")


@pytest.mark.parametrize("after", [False, True], ids=["before an exception", "after one"])
def test_an_end_unless_contained_ends_no_co_runner(mps: Machine, sentinel: Sentinel, after: bool) -> None:
    victim, culprit = two_clients(mps, sentinel, "trap")
    assert sentinel.peer
    if after:
        culprit.open_gate()
        assert sentinel.comes(FAULT)
    sentinel.peer.send(REQUEST.pack(VERSION, END, UNLESS_CONTAINED, 0))
    if after:
        assert sentinel.comes(CONTAINED)
        late = mps.client("hold")
        sentinel.add(late.pid)
        assert hold(sentinel, 3), "it reads on after the request"
        late.kill()
    else:
        assert sentinel.process.wait(20) == 0
    culprit.kill()
    assert lives_on(victim)


@pytest.mark.parametrize(
    "request_bytes",
    [
        REQUEST.pack(VERSION + 1, END, 0, 0),
        REQUEST.pack(VERSION, END, 0, 1),
        REQUEST.pack(VERSION, 7, 0, 0),
        REQUEST.pack(VERSION, END, 0, 0)[:-1],
        REQUEST.pack(VERSION, END, 0, 0) + b"\0",
        REQUEST.pack(VERSION, 1, 1, 0),  # without a pidfd
    ],
)
def test_a_malformed_request_ends_the_connection_alone(sentinel: Sentinel, request_bytes: bytes) -> None:
    assert sentinel.peer
    sentinel.peer.send(request_bytes)
    sentinel.peer.settimeout(20)
    assert sentinel.peer.recv(100) == b""
    sentinel.connect()
    assert sentinel.comes(ARMED)


def test_an_end_with_a_descriptor_is_refused(sentinel: Sentinel) -> None:
    assert sentinel.peer
    socket.send_fds(sentinel.peer, [REQUEST.pack(VERSION, END, 0, 0)], [0])
    sentinel.peer.settimeout(20)
    assert sentinel.peer.recv(100) == b""
    assert sentinel.process.poll() is None


def test_more_clients_than_there_are_places_are_let_go(mps: Machine, sentinel: Sentinel) -> None:
    sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(70)]
    mps.started += sleepers  # type: ignore[arg-type]
    for each in sleepers:
        sentinel.add(each.pid)
    eventually(lambda: count_of_descriptors(sentinel, "pidfd") == 64 + 1)  # and that of the sentinel's client
    for each in sleepers:
        each.kill()
    eventually(lambda: count_of_descriptors(sentinel, "pidfd") == 1)
