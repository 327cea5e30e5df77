"""The relay's copying, on real sockets: bytes, descriptors, credentials, and how each end ends."""

import os
import resource
import socket
import struct
import time
from contextlib import ExitStack, suppress

import pytest
import trio
import trio.testing

from mpsd.errors import ProtocolError, WrongSpeaker
from mpsd.host import peers
from mpsd.model.process import Credentials
from mpsd.relay import message
from mpsd.relay.forwarding import Forwarding, LinkSide
from tests.descriptors import descriptors
from tests.lingering import lingering
from tests.running import running

UCRED = struct.Struct("3i")
SO_SNDBUFFORCE = 32  # socket(7); not in the standard library
PRIVILEGED = peers.may_impersonate()
PATIENCE = 5.0


def pair():
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ends


@pytest.fixture
def ends():
    """The client, the relay's two ends, the domain."""
    client, link_client = pair()
    link_domain, domain = pair()
    yield client, link_client, link_domain, domain
    for end in (client, link_client, link_domain, domain):
        end.close()


async def well():
    return True


async def ill():
    return False


async def through(ends, talk):
    """Run a link while `talk(client, domain)` speaks for both ends; what run() returned."""
    client, link_client, link_domain, domain = ends
    link = Forwarding(link_client, PRIVILEGED)
    results: list[LinkSide] = []

    async def run():
        results.append(await link.run(link_domain, PATIENCE, well))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await talk(client, domain)
    return results[0], link


async def test_bytes_pass_unread_both_ways(ends):
    async def talk(client, domain):
        client.send(b"\0ask\xff" * 1000)
        got = await message.receive(domain)
        domain.send(b"reply")
        back = await message.receive(client)
        assert (got.data, back.data) == (b"\0ask\xff" * 1000, b"reply")
        client.close()

    end, link = await through(ends, talk)
    assert end is LinkSide.CLIENT
    assert link.has_spoken


async def test_descriptors_pass_and_are_not_leaked(ends):
    before = descriptors()
    memory = os.memfd_create("x", os.MFD_CLOEXEC)

    async def talk(client, domain):
        socket.send_fds(client, [b"x"], [memory])
        got = await message.receive(domain)
        os.write(got.descriptors[0], b"hello")
        got.close()
        domain.send(b"thanks")
        await message.receive(client)
        client.close()

    _, link = await through(ends, talk)
    assert os.pread(memory, 5, 0) == b"hello"
    os.close(memory)
    link.close()
    ends[0].close()
    assert descriptors() <= before


@pytest.mark.root
async def test_the_domain_sees_the_client_s_own_credentials(ends):
    async def talk(client, domain):
        client.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, UCRED.pack(os.getppid(), 4711, 4712))])
        got = await message.receive(domain)
        assert got.credentials == Credentials(os.getppid(), 4711, 4712)
        client.close()

    await through(ends, talk)


@pytest.mark.root
@pytest.mark.parametrize("speaker", [os.getpid(), 0], ids=["known", "in another pid namespace"])
async def test_a_message_without_a_sender_is_never_mpsds_own(ends, speaker):
    """As one from before SO_PASSCRED, or of nobody in another pid namespace: the domain took it for root's."""
    client, link_client, link_domain, domain = ends
    for end in (client, link_client):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    client.send(b"x")
    link_client.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    link = Forwarding(link_client, PRIVILEGED, speaker=speaker)
    if speaker:
        with pytest.raises(WrongSpeaker, match="pid 0 speaks"):
            await link.run(link_domain, PATIENCE, well)
        return
    async with running(link.run, link_domain, PATIENCE, well):
        assert (await message.receive(domain)).credentials == Credentials(os.getpid(), 65534, 65534)


@pytest.mark.parametrize("is_by_domain", [False, True])
async def test_descriptors_are_noted_before_they_pass_and_end_the_way_back(ends, is_by_domain):
    """From then on the client may have a channel to a server, whatever it does to its connection."""
    client, link_client, link_domain, domain = ends
    link, told, memory = Forwarding(link_client, PRIVILEGED), [], os.memfd_create("x", os.MFD_CLOEXEC)
    sender, receiver = (domain, client) if is_by_domain else (client, domain)
    link.note_descriptors(told.append)
    async with running(link.run, link_domain, PATIENCE, well):
        client.send(b"hello")
        await message.receive(domain)
        assert not told
        socket.send_fds(sender, [b"x"], [memory])
        (await message.receive(receiver)).close()
        assert told == [is_by_domain]
    assert link.transcript is None
    os.close(memory)


async def test_when_the_domain_ends_the_client_is_not_told_by_the_link(ends):
    """Closed, it would run without MPS: the code that knows why the domain ended decides what the client gets."""
    async def talk(client, domain):
        client.send(b"hello")
        await message.receive(domain)
        domain.close()

    end, link = await through(ends, talk)
    assert end is LinkSide.DOMAIN
    assert [each.data for each in link.transcript] == [b"hello"]
    with pytest.raises(BlockingIOError):
        ends[0].recv(1)


async def test_another_domain_is_brought_to_the_same_point(ends):
    """The client's messages are sent again, and the domain's repeated answers are not passed on twice."""
    client, link_client, link_domain, domain = ends
    link = Forwarding(link_client, PRIVILEGED)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, link_domain, PATIENCE, well)
        domain.send(b"greeting")
        assert (await message.receive(client)).data == b"greeting"
        client.send(b"one")
        assert (await message.receive(domain)).data == b"one"
        domain.close()
    again, second = pair()
    with again, second:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run, again, PATIENCE, well)
            second.send(b"greeting")
            assert (await message.receive(second)).data == b"one"
            second.send(b"answer")
            assert (await message.receive(client)).data == b"answer"
            client.close()


async def test_a_domain_that_says_something_else_is_not_the_same_conversation(ends):
    _, link_client, link_domain, domain = ends
    link = Forwarding(link_client, PRIVILEGED, transcript=[b"greeting"])
    domain.send(b"another greeting")
    assert await link.run(link_domain, PATIENCE, well) is LinkSide.DOMAIN


async def test_a_domain_is_freed_of_a_client_that_keeps_it_waiting(ends, autojump_clock):
    """A vendor daemon waits for one silent peer without limit, and serves no other in that time."""
    client, link_client, link_domain, domain = ends
    link = Forwarding(link_client, PRIVILEGED)
    domain.send(b"greeting")
    assert await link.run(link_domain, PATIENCE, well) is LinkSide.SLOW_CLIENT
    assert client.recv(100) == b"greeting"
    with pytest.raises(BlockingIOError):
        client.recv(1)  # it does not know


async def test_words_that_freeze_a_domain_are_as_bad_as_silence(ends, autojump_clock):
    """A vendor daemon that does not understand a message waits for more, and answers no other client in that time."""
    client, link_client, link_domain, _ = ends
    link = Forwarding(link_client, PRIVILEGED)
    client.send(b"junk")
    assert await link.run(link_domain, PATIENCE, ill) is LinkSide.SLOW_CLIENT


@pytest.mark.parametrize("what", ["descriptors", "many", "large ones"])
async def test_words_that_cannot_be_repeated_freeze_no_domain(ends, autojump_clock, what):
    """A client whose transcript its own words ended held its domain for ever, and 30 s after an answer."""
    client, link_client, link_domain, domain = ends
    link = Forwarding(link_client, PRIVILEGED)
    if what == "descriptors":
        memory = os.memfd_create("x", os.MFD_CLOEXEC)
        socket.send_fds(client, [b"junk"], [memory])
        os.close(memory)
    for _ in range({"descriptors": 0, "many": 20, "large ones": 2}[what]):
        client.send(b"junk\0" * (4000 if what == "large ones" else 1))
    with trio.fail_after(PATIENCE):
        assert await link.run(link_domain, PATIENCE, ill) is LinkSide.SLOW_CLIENT
    assert link.transcript is None
    domain.send(b"what?")
    with trio.fail_after(PATIENCE + 1):
        assert await link.run(link_domain, PATIENCE, well) is LinkSide.SLOW_CLIENT


async def test_a_client_with_a_channel_is_not_blamed_for_its_domain(ends, autojump_clock):
    client, link_client, link_domain, domain = ends
    socket.send_fds(domain, [b"a channel"], [0])
    link = Forwarding(link_client, PRIVILEGED)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, link_domain, PATIENCE, ill)
        await trio.testing.wait_all_tasks_blocked()
        client.send(b"thanks")
        with trio.move_on_after(60) as waiting:
            await trio.sleep_forever()
        assert waiting.cancelled_caught
        assert link.is_granted
        nursery.cancel_scope.cancel()


async def test_a_domain_may_keep_its_client_waiting(ends, autojump_clock):
    """A server has to start, or another user's clients have to finish: others may talk to the domain in that time."""
    client, link_client, link_domain, _ = ends
    link = Forwarding(link_client, PRIVILEGED)
    asked = trio.Event()

    async def is_well():
        asked.set()
        return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run, link_domain, PATIENCE, is_well)
        client.send(b"hello")
        await asked.wait()
        await trio.sleep(3600)
        client.close()


async def test_the_last_words_of_a_domain_still_reach_the_client(ends):
    async def talk(client, domain):
        client.send(b"hello")
        await message.receive(domain)
        domain.send(b"no")
        domain.close()
        assert (await message.receive(client)).data == b"no"

    end, _ = await through(ends, talk)
    assert end is LinkSide.DOMAIN


async def test_a_message_that_would_be_cut_is_refused(ends):
    client, link_client, *_ = ends
    client.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE if os.geteuid() == 0 else socket.SO_SNDBUF, 4 * message.MAX_BYTES)
    try:
        client.send(bytes(message.MAX_BYTES + 1))
    except OSError:
        pytest.skip("the kernel's bound on datagrams is lower here")
    with pytest.raises(ProtocolError, match="over 262144 bytes"):
        await message.receive(link_client)


async def test_a_message_waits_for_room_for_its_descriptors(ends, autojump_clock):
    """While mpsd could open no more files, it dropped the connection, and the client ran without MPS."""
    client, link_client, *_ = ends
    socket.send_fds(client, [b"words"], [0])
    (soft, hard), came = resource.getrlimit(resource.RLIMIT_NOFILE), []

    async def look():
        came.append(await message.look_at(link_client))

    async with trio.open_nursery() as nursery:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            nursery.start_soon(look)
            await trio.sleep(10)
            assert not came
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (came[0].data, len(came[0].descriptors)) == (b"words", 1)
    came[0].close()


async def test_a_domain_that_is_slow_to_read_loses_nothing(ends):
    async def send_all(client):
        for number in range(500):
            await message.send(client, message.Message(b"%d" % number + bytes(1000), [], None), None)

    async def talk(client, domain):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, client)
            await trio.testing.wait_all_tasks_blocked()  # everything on the way is full
            got = [int((await message.receive(domain)).data.rstrip(b"\0")) for _ in range(500)]
        assert got == list(range(500))
        client.close()

    await through(ends, talk)


# -- what a stranger sends may be slow to close ------------------------------------------------------------------------


def send_lingering(client):
    with ExitStack() as sent:
        fd = sent.enter_context(lingering())
        socket.send_fds(client, [b"words"], [fd])
        os.close(fd)
        return sent.pop_all()  # until its end the link does not read the peer's messages


async def test_what_was_never_read_keeps_nobody_waiting(ends):
    client, link_client, _, _ = ends
    with send_lingering(client):
        began = time.monotonic()
        Forwarding(link_client, PRIVILEGED).close()
        assert time.monotonic() - began < PATIENCE
        with trio.fail_after(PATIENCE):
            await trio.lowlevel.wait_readable(client)
        assert client.recv(1) == b"", "closed, for the keeper to close its copy without waiting"


async def test_a_message_that_is_done_with_keeps_nobody_waiting(ends):
    client, link_client, _, _ = ends
    with send_lingering(client):
        came = await message.receive(link_client)
        assert came is not None
        began = time.monotonic()
        came.close()
        assert time.monotonic() - began < PATIENCE
        assert not came.descriptors


async def test_the_kernels_own_are_closed_too(ends):
    client, link_client, _, _ = ends
    fd = os.memfd_create("handshake", os.MFD_CLOEXEC)
    socket.send_fds(client, [b"words"], [fd])
    os.close(fd)
    came = await message.receive(link_client)
    [received] = came.descriptors
    came.close()
    with trio.fail_after(PATIENCE):
        while is_open(received):  # noqa: ASYNC110
            await trio.sleep(0.001)


def is_open(descriptor):
    with suppress(OSError):
        return bool(os.fstat(descriptor))
    return False
