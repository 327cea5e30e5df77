"""Which process may speak on a connection: a client can give it away, with the limits that it has."""

import os

import pytest

from mpsd.errors import WrongSpeaker
from mpsd.host import processes
from mpsd.model.process import ProcessId
from mpsd.relay import message
from mpsd.relay.forwarding import Forwarding
from tests.running import running
from tests.unit.relay.test_forwarding import PATIENCE, pair, well


@pytest.mark.parametrize("age", [0, 1], ids=["the same", "a later one"])
async def test_a_later_process_with_the_pid_does_not_speak_for_the_one_before(age: int) -> None:
    """It has the pid of the process that connected, but not its lease: it got that one's limits, or none."""
    (client, link_client), (link_domain, domain) = pair(), pair()
    now = processes.find(os.getpid())
    assert now is not None
    link = Forwarding(link_client, False, speaker=now.pid, process=ProcessId(now.pid, now.start_time - age))
    client.send(b"hello")
    if age:
        with pytest.raises(WrongSpeaker, match="a later process"):
            await link.run(link_domain, PATIENCE, well)
    else:
        async with running(link.run, link_domain, PATIENCE, well):
            assert (await message.receive(domain)).data == b"hello"
    for end in (client, link_client, link_domain, domain):
        end.close()


async def test_what_a_client_said_before_it_ended_reaches_its_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    (client, link_client), (link_domain, domain) = pair(), pair()
    link = Forwarding(link_client, False, speaker=os.getpid(), process=processes.find(os.getpid()))
    monkeypatch.setattr(processes, "find", lambda pid: None)
    client.send(b"goodbye")
    client.close()
    await link.run(link_domain, PATIENCE, well)
    assert (await message.receive(domain)).data == b"goodbye"
    for end in (link_client, link_domain, domain):
        end.close()
