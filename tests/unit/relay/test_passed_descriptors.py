"""Which descriptors of a client's message the relay passes on to a vendor daemon."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import trio

from mpsd.errors import FatalMessage
from mpsd.host import descriptors
from mpsd.relay import message
from mpsd.relay.forwarding import Forwarding
from tests.lingering import lingering
from tests.running import running
from tests.unit.relay.test_forwarding import PATIENCE, pair, well


@contextmanager
def made(kind: str) -> Iterator[int]:
    """Yield a descriptor of this kind, which the caller closes."""
    with ExitStack() as stack:
        match kind:
            case "a file":
                yield os.open(__file__, os.O_RDONLY)
            case "a path":
                yield os.open("/dev/null", os.O_PATH)
            case "a socket":
                left, right = socket.socketpair()
                stack.enter_context(right)
                yield left.detach()
            case "a connection that lingers":
                yield stack.enter_context(lingering())
            case "a pipe":
                reader, writer = os.pipe()
                stack.callback(os.close, writer)
                yield reader
            case "memory":
                yield os.memfd_create("memory", os.MFD_CLOEXEC)
            case "a GPU":  # stands for it
                yield os.open("/dev/null", os.O_RDONLY)
            case "another device":
                yield os.open("/dev/ptmx", os.O_RDONLY | os.O_NOCTTY)


@pytest.mark.parametrize("kind", ["a file", "a path", "another device", "a socket", "a connection that lingers", "a pipe"])
@pytest.mark.parametrize("others", [0, 1])
async def test_a_vendor_daemon_gets_no_descriptor_whose_close_may_wait(kind: str, others: int) -> None:
    """Not even SIGKILL ends a daemon that waits for a file server, of this file or of one in the queue of this socket, or for a
    thread of who opened this device."""
    (client, link_client), (link_domain, domain) = ends = pair(), pair()
    with made("memory") as memory, made(kind) as fd:
        socket.send_fds(client, [b"x"], [memory] * others + [fd])
        os.close(fd)
        os.close(memory)
        with pytest.raises(FatalMessage, match="of neither memory nor a GPU"), trio.fail_after(PATIENCE):
            await Forwarding(link_client, False).run(link_domain, PATIENCE, well)
        with pytest.raises(BlockingIOError):
            domain.recv(1)
    for end in (*ends[0], *ends[1]):
        end.close()


@pytest.mark.parametrize("kind", ["memory", "a GPU"])
async def test_a_vendor_daemon_gets_descriptors_that_the_kernel_itself_closes(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(descriptors, "GPU_DEVICES", ("/dev/null",))
    (client, link_client), (link_domain, domain) = ends = pair(), pair()
    with made(kind) as fd:
        socket.send_fds(client, [b"x"], [fd])
        os.close(fd)
    async with running(Forwarding(link_client, False).run, link_domain, PATIENCE, well):
        came = await message.receive(domain)
        assert came is not None
        assert len(came.descriptors) == 1
        came.close()
    for end in (*ends[0], *ends[1]):
        end.close()
