"""The two public sockets: what a connection has before mpsd has done anything with it."""

import os
import shutil
import socket
import struct
from types import SimpleNamespace

import structlog.testing
import trio

from mpsd.host.pipe_directory import PipeDirectory
from mpsd.notify import Changed
from mpsd.relay.public_sockets import DOORS, LinkedSockets, RelayedSockets


class NoKeeper:
    def hold(self, name, end, note=0): ...
    def drop(self, name): ...


def sender_of_a_word_after_accept(sockets: RelayedSockets, door: str) -> int:
    """The pid in the credentials of a message that comes right after accept(2)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(os.fspath(sockets.directory.path / door))
        accepted, _ = sockets.listeners[door].accept()
        with accepted:
            client.send(b"x")
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            _, [(_, _, sender)], _, _ = accepted.recvmsg(1, 64)
    return int(struct.unpack("3i", sender)[0])


def test_each_message_has_a_sender_from_accept_on(short_dir):
    """One that was sent before mpsd set SO_PASSCRED had none."""
    directory = PipeDirectory(short_dir / "pipe")
    directory.open()
    first, later = (RelayedSockets(directory, None, NoKeeper()) for _ in range(2))
    first.open([])
    held = [(f"listen.{door}", end.dup(), directory.inode_of(door)) for door, end in first.listeners.items()]
    for door in DOORS:
        assert sender_of_a_word_after_accept(first, door) == os.getpid()
    for _, end, _ in held:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)  # as an earlier release left it
    later.open(held)
    for door in DOORS:
        assert sender_of_a_word_after_accept(later, door) == os.getpid()
    first.remove()
    later.remove()


class Pool:
    """Places at the next of the domains; `place` and `changed` are the real one's."""

    gpus = ()

    def __init__(self):
        self.placed = 0
        self.domains = Changed()

    async def place(self, ask, process):
        self.placed += 1
        control = SimpleNamespace(socket_path=lambda door: f"/domain/{self.placed}/{door}")
        return SimpleNamespace(control=control)

    async def changed(self):
        await self.domains.wait()


async def test_a_new_domain_counts_while_a_door_cannot_be_made(short_dir, autojump_clock):
    """The first one may have been restarted: it is a spare until a client is placed there, which no list shows."""
    directory, pool = PipeDirectory(short_dir / "pipe"), Pool()
    directory.open()
    os.rmdir(directory.path)
    linked = LinkedSockets(directory, pool)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(linked.run)
        await trio.sleep(1)
        assert pool.placed == 1
        pool.domains.notify()
        await trio.sleep(1)
        assert pool.placed == 2
        directory.open()  # made again, by app/public_paths.py
        linked.open_again("control")
        assert os.readlink(directory.path / "control") == "/domain/2/control"
        nursery.cancel_scope.cancel()


async def test_the_same_reason_why_a_door_leads_nowhere_is_logged_once(short_dir, autojump_clock):
    """Each change of a domain logged it, and each 5 s did."""
    directory, pool = PipeDirectory(short_dir / "pipe"), Pool()
    directory.open()
    os.rmdir(directory.path)
    linked = LinkedSockets(directory, pool)
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(linked.run)
            for is_there in (False, False, True, False):
                if is_there:
                    directory.open()
                elif directory.path.exists():
                    shutil.rmtree(directory.path)
                await trio.sleep(20)
                pool.domains.notify()
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
    assert len([each for each in logs if each["event"] == "door.not_led"]) == 2, "once before it was there, and once after"
