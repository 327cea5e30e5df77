"""Texts in a client's message that mpsd does not pass on: too long ones, and the commands of a container."""

import errno
import os
import struct
import time
import tracemalloc

import pytest

from mpsd.commands.language.command_table import COMMANDS, CommandPrivilege
from mpsd.errors import FatalMessage
from mpsd.host import processes
from mpsd.host.process_reader import Unanswered
from mpsd.relay import message
from mpsd.relay.forwarding import Forwarding
from mpsd.relay.texts import CHANGES, change_in
from tests.running import running
from tests.unit.relay.test_forwarding import PATIENCE, pair, well


@pytest.mark.parametrize(
    ("sent", "is_passed_on"),
    [
        pytest.param(b"\1\0\0\0" + b"x" * 4093, True, id="the longest that a vendor daemon survives"),
        pytest.param(b"\1\0\0\0" + b"x" * 4094, False, id="a byte more"),
        pytest.param(b"\1\0\0\0" + b"x" * 4094 + b"\0", False, id="with an end"),
        pytest.param((b"x" * 4000 + b"\0") * 3, True, id="several texts"),
        pytest.param((b"x" * 4093 + b"\0") * 3, True, id="several of the longest"),
        pytest.param(b"x" * 4093 + b"\0y\0" + b"x" * 4094 + b"\0y", False, id="between others"),
        pytest.param(struct.pack("<5000Q", *range(5000)), True, id="numbers"),
    ],
)
async def test_a_text_that_ends_a_vendor_daemon_is_not_passed_on(sent: bytes, is_passed_on: bool) -> None:
    """Driver 580's daemon dies of a command of 4,094 bytes, with the clients of other users."""
    (client, link_client), (link_domain, domain) = pair(), pair()
    link = Forwarding(link_client, False)
    client.send(sent)
    if is_passed_on:
        async with running(link.run, link_domain, PATIENCE, well):
            assert (await message.receive(domain)).data == sent  # type: ignore[union-attr]
    else:
        with pytest.raises(FatalMessage, match="text of 4094 bytes"):
            await link.run(link_domain, PATIENCE, well)
        with pytest.raises(BlockingIOError):
            domain.recv(1)
    for end in (client, link_client, link_domain, domain):
        end.close()


def test_a_message_of_zeros_is_looked_at_in_few_steps() -> None:
    """It was split into 200,000 empty texts: 16 connections of one user let requests of others wait 20 ms, and up to 95."""
    (client, link_client), zeros = pair(), message.Message(bytes(200_000), [], None)
    link = Forwarding(link_client, False)
    tracemalloc.start()
    link._check_text(zeros)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < len(zeros.data)
    for end in (client, link_client):
        end.close()


def test_the_commands_are_those_that_not_everybody_may_give() -> None:
    assert {*CHANGES} == {name for name, command in COMMANDS.items() if command.privilege is not CommandPrivilege.ANYONE}


@pytest.mark.parametrize(
    ("sent", "found"),
    [(f"\1\0{before}{name}{after}", name) for name in CHANGES for before in ("", " ", "x") for after in ("", " 1", "\n", "\0")]
    + [("quitter\0", ""), ("get_server_list", ""), ("ps", ""), ("\0" * 8, "")],
)  # fmt: skip
def test_a_command_is_found_wherever_it_is(sent: str, found: str) -> None:
    """What precedes it may be the end of a number that its sender chose."""
    assert change_in(sent.encode()) == found


def test_a_search_for_commands_takes_no_longer_where_many_bytes_look_like_them() -> None:
    """It took six times as long: each such message held the event loop for 5 ms, on a busy machine 12."""

    def least_seconds(data: bytes) -> float:
        times = []
        for _ in range(9):
            begin = time.thread_time()
            assert not change_in(data)
            times.append(time.thread_time() - begin)
        return min(times)

    assert least_seconds(b"t" * 200_000) < 3 * least_seconds(b"\1" * 200_000)


async def test_a_command_of_a_process_that_cannot_be_read_is_no_offence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted against root that any user had kept mpsd from reading root's processes."""

    def unread(pid: int) -> bool:
        raise Unanswered(errno.EBUSY, "processes of uid 0 are not read for 5 s")

    monkeypatch.setattr(processes, "is_in_our_namespace", unread)
    (client, link_client), (link_domain, domain) = pair(), pair()
    with client, link_client, link_domain, domain:
        client.send(b"shutdown_server 7 -f")
        with pytest.raises(Unanswered):
            await Forwarding(link_client, False, process=processes.find(os.getpid())).run(link_domain, PATIENCE, well)
        with pytest.raises(BlockingIOError):
            domain.recv(1)


@pytest.mark.parametrize(("is_inside", "is_trusted"), [(True, False), (False, False), (False, True)])
async def test_only_a_process_of_mpsds_pid_namespace_gives_commands(is_inside: bool, is_trusted: bool) -> None:
    """With ui.container_operators a container does, too."""
    (client, link_client), (link_domain, domain) = pair(), pair()
    link = Forwarding(link_client, False, is_trusted, process=processes.find(os.getpid()) if is_inside else None)
    client.send(b"shutdown_server 7 -f")
    if is_inside or is_trusted:
        async with running(link.run, link_domain, PATIENCE, well):
            assert (await message.receive(domain)).data == b"shutdown_server 7 -f"  # type: ignore[union-attr]
    else:
        with pytest.raises(FatalMessage, match="the command shutdown_server "):
            await link.run(link_domain, PATIENCE, well)
        with pytest.raises(BlockingIOError):
            domain.recv(1)
    for end in (client, link_client, link_domain, domain):
        end.close()
