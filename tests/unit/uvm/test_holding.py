"""The descriptors that a client has opened and closed since mpsd last looked; its death does not count as closing."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mpsd.host import processes
from mpsd.model.client import ShieldState
from mpsd.uvm.client_descriptors import ProcessEnded
from mpsd.uvm.holding import HeldSpace, SpaceChanges, close_all, find_closed, look
from mpsd.uvm.simulator import SimulatedDevices
from mpsd.uvm.space import Queue, Unavailable
from mpsd.uvm.status import UvmSettings
from tests.inspecting import INSPECTOR
from tests.unit.uvm.fake_clients import GPU, FakeClient, FakeSpace, a_client


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FakeClient]:
    with a_client(tmp_path) as client:
        yield client.begin()


def devices(client: FakeClient) -> SimulatedDevices:
    return SimulatedDevices(client.space.parent.parent, INSPECTOR)


def look_at(client: FakeClient, have: Sequence[HeldSpace] = ()) -> SpaceChanges:
    pidfd = processes.open_pidfd(client.process)
    assert pidfd is not None
    try:
        return look(client.process, pidfd, have, devices(client).open_spaces, INSPECTOR)
    finally:
        os.close(pidfd)


def test_nothing_new(client: FakeClient) -> None:
    have = look_at(client).found
    assert len(have) == 1
    assert look_at(client, have) == SpaceChanges([])
    close_all(have)


def test_what_was_closed_and_opened_again(client: FakeClient) -> None:
    before = look_at(client).found
    client.ask("close")
    client.ask("open")
    after = look_at(client, before)
    assert (after.lost, len(after.found)) == ([*before], 1)
    close_all([*before, *after.found])


def test_what_death_closed_is_not_lost(client: FakeClient) -> None:
    """Its own descriptors close before its pidfd is readable: if mpsd closed its duplicates then, the client's work would lose
    its address space."""
    have = look_at(client).found
    client.kill()
    client.wait_for_end()
    assert find_closed(have, INSPECTOR) == [*have]
    assert look_at(client, have) == SpaceChanges([])
    assert client.is_held
    close_all(have)


def test_of_one_that_has_gone(client: FakeClient) -> None:
    pidfd = processes.open_pidfd(client.process)
    assert pidfd is not None
    client.collect()
    with pytest.raises(ProcessEnded):
        look(client.process, pidfd, (), devices(client).open_spaces, INSPECTOR)
    os.close(pidfd)


class Deaf(FakeSpace):
    """The tools device is missing; the rest works."""

    def attach(self) -> Queue | None:
        raise Unavailable("no tools device")


def test_one_that_cannot_be_listened_to_may_still_have_a_shield(client: FakeClient) -> None:
    holding = HeldSpace(Deaf())
    holding.attach(client.process, (GPU,), UvmSettings(), INSPECTOR)
    assert holding.laying is not None
    holding.laying.attempt()
    assert (holding.queue, holding.why, holding.laying.state) == (None, "no tools device", ShieldState.ON)


def test_the_second_descriptor_is_held_and_nothing_else(client: FakeClient) -> None:
    space = FakeSpace()
    holding = HeldSpace(space)
    holding.attach(client.process, (GPU,), UvmSettings(), INSPECTOR)
    assert (holding.is_space, holding.laying, space.asked) == (False, None, [])
    holding.close()
    assert space.asked == [("close",)]
