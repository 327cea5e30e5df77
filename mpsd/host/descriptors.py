"""Own the descriptors that come with a request or go with its response, and close each of them once.

    kernel --received--> Descriptors --take--> a service        of a request; those not taken are closed
    a service --give--> Descriptors --sent--> kernel            of a response; sent or not, mpsd's copy is closed

A client can send a descriptor of any kind: fstat(2) and close(2) of it can wait for the client's file server, or for a socket
to linger.  So services get only kinds that never wait (`is_prompt`).  Threads close the others, and only the client that sent
them waits.
"""

import errno
import fcntl
import os
import resource
import socket
import stat
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import trio
from msgspec import Struct, field

from mpsd.host.file_servers import closing
from mpsd.host.syscalls import device_number, device_of, type_of
from mpsd.threads import run_in_thread

FULL = (errno.EMFILE, errno.ENFILE)  # no descriptor is free
SPARE_DESCRIPTORS = 16  # reserved for reading processes when all others are in use (app/descriptor_limit.py)
_raising = threading.Lock()  # protects the limit of this process; no other lock is taken while it is held
MOST_CLOSINGS = 8  # threads for one user; to close usual descriptors takes a fraction of a millisecond
MOST_HELD = 512  # descriptors in one user's requests that run: four of the largest
KERNELS_MOST = 253  # SCM_MAX_FD: with less room the kernel itself closes the excess, during recvmsg
GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm")  # each stands for its major number
ANCILLARY_BYTES = socket.CMSG_SPACE(KERNELS_MOST * array("i").itemsize)


class Descriptors(Struct, eq=False):
    """Guards that each descriptor is taken once, to be closed or kept.

    files: how many were regular files, and are taken.
    """

    held: list[int] = field(default_factory=list)
    files: int = 0

    def __len__(self) -> int:
        return len(self.held) + self.files

    def take_files(self) -> list[int]:
        """Return the regular files among them, which no service gets; the caller has to close them."""
        files = [fd for fd in self.held if is_file(fd)]
        self.held = [fd for fd in self.held if fd not in files]
        self.files += len(files)
        return files

    def take(self) -> list[int]:
        """Return all descriptors; the caller has to close them."""
        taken, self.held = self.held, []
        return taken

    def give(self, fds: Iterable[int]) -> None:
        """Take ownership of these descriptors."""
        self.held.extend(fds)


async def close_apart(close: Callable[[], None]) -> None:
    """Run `close` in a thread and wait for it: a client decides how long that takes.  If cancelled, the thread continues."""
    closed = trio.Event()
    _start(close, closed.set)
    await closed.wait()


class Closings:
    """Guards that one user's descriptors take few threads, since a user can make each closing last for ever, and that not all
    of mpsd's own descriptors are copies of one user's.

    While `most` threads close, or requests hold `most_held`, mpsd should receive no further descriptors of this user (`room`);
    one message can bring 253.
    """

    def __init__(self, most: int = MOST_CLOSINGS, most_held: float = MOST_HELD) -> None:
        self._most, self._most_held = most, most_held
        self._under_way: Counter[int] = Counter()  # by share (UidRanges.share_of)
        self._held: Counter[int] = Counter()  # by share: of requests that run
        self._ended = trio.Event()

    async def room(self, share: int) -> None:
        """Wait until mpsd may receive descriptors of this user; the caller receives them before it awaits anything else."""
        while not self.has_room(share):
            await self._ended.wait()  # as long as the user likes

    def has_room(self, share: int) -> bool:
        return self._under_way[share] < self._most and self._held[share] < self._most_held

    @contextmanager
    def holding(self, share: int, count: int) -> Iterator[None]:
        """Count descriptors that a request brought, while it runs."""
        self._held[share] += count
        try:
            yield
        finally:
            self._held[share] -= count
            if not self._held[share]:
                del self._held[share]
            if count:
                self._tell_ended()

    async def close(self, share: int, fds: Collection[int]) -> None:
        """Close the descriptors in threads and wait for that.  If cancelled, the threads continue, and still count."""
        if fds:
            closed = trio.Event()
            self.begin(share, fds, closed.set)
            await closed.wait()

    def begin(self, share: int, fds: Collection[int], ended: Callable[[], None] = lambda: None) -> None:
        """Close the descriptors in threads; call `ended` when they are closed."""
        self._under_way[share] += close_beside(fds, share, ended, partial(self._end, share))

    def _end(self, share: int) -> None:
        self._under_way[share] -= 1
        if not self._under_way[share]:
            del self._under_way[share]
        self._tell_ended()

    def _tell_ended(self) -> None:
        self._ended.set()
        self._ended = trio.Event()


def close_beside(
    fds: Collection[int], share: int, ended: Callable[[], None], ended_one: Callable[[], None] = lambda: None
) -> int:
    """Close another process's descriptors in threads; return how many threads that takes.

    `ended_one` is called on the event loop for each thread that has ended, and `ended` after the last.  Each regular file gets
    a separate thread: a silent file server must not keep the other files open.  The kernel frees the number of a descriptor as
    soon as close(2) begins.  share: of the user who sent them (UidRanges.share_of).
    """
    files = [fd for fd in fds if is_file(fd)]
    others = [fd for fd in fds if fd not in files]
    works = [partial(_close_named, [fd], share) for fd in files]
    if others or not files:
        are_prompt = all(map(is_prompt, others))  # a GPU's driver may take long, and no file server does
        works.append(partial(close_all, others) if are_prompt else partial(_close_named, others, share))
    left = len(works)

    def end_one() -> None:
        nonlocal left
        left -= 1
        ended_one()
        if not left:
            ended()

    for work in works:
        _start(work, end_one)
    return len(works)


def _close_named(fds: Collection[int], share: int) -> None:
    with closing(share):
        close_all(fds)


def _start(close: Callable[[], None], ended: Callable[[], None]) -> None:
    """Run `close` in a thread, later if none can be started now, and then call `ended` on the event loop."""
    token = trio.lowlevel.current_trio_token()

    def tell(_: object) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(ended)

    try:
        trio.lowlevel.start_thread_soon(close, tell)
    except RuntimeError:  # open descriptors are better than a stopped event loop
        trio.lowlevel.spawn_system_task(_start_later, close, ended)


async def _start_later(close: Callable[[], None], ended: Callable[[], None]) -> None:
    with suppress(OSError):
        await run_in_thread(close, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
    ended()


def close_soon(fds: Collection[int]) -> None:
    """Close descriptors in a thread without waiting: the last close of GPU memory or of a large memory file is slow."""
    if not fds:
        return
    try:
        trio.lowlevel.start_thread_soon(partial(close_all, fds), lambda outcome: None)
    except RuntimeError:  # mpsd cannot start another thread
        close_all(fds)


def close_all(fds: Collection[int]) -> None:
    for fd in fds:
        with suppress(OSError):  # close(2) frees the number even if it reports a file server's error
            os.close(fd)


def is_prompt(fd: int) -> bool:
    """Return whether the descriptor is a memory file or an open device of the GPU's driver: close(2) then waits for no user.

    With another device it can: vhost waits for a thread of the process that has opened it, which its user can stop.  Not a
    device with O_PATH, which its file server need only call one; users mount without devices, and can open none there.
    """
    return _is_memory(fd) or (_is_gpu_device(fd) and not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH)


def _is_gpu_device(fd: int) -> bool:
    kind, major, _ = device_of(fd)
    return stat.S_ISCHR(kind) and any(major == _major_of(path) for path in GPU_DEVICES)


def _major_of(path: str) -> int | None:
    try:
        return device_number(path)[1]
    except OSError:  # no driver, or not all of it, is loaded
        return None


def is_file(fd: int) -> bool:
    """Return whether the descriptor is a regular file but not a memory file: close(2) may then ask a file server."""
    return not _is_memory(fd) and stat.S_ISREG(type_of(fd))


def _is_memory(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return True


def received(ancillary: Iterable[tuple[int, int, bytes]]) -> Descriptors:
    """Return the descriptors in recvmsg's ancillary data."""
    fds = array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return Descriptors(fds.tolist())


def rights(fds: Collection[int]) -> list[tuple[int, int, Any]]:
    """Return the ancillary data for sendmsg; empty without descriptors."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []


@contextmanager
def spare_descriptors() -> Iterator[None]:
    """Raise mpsd's limit of descriptors for a moment; other threads can use the spare ones in that time."""
    with _raising:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft + SPARE_DESCRIPTORS, hard), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
