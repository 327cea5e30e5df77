"""The requests of a process to its imager, one in each datagram: JSON, with descriptors.

    warm         before the others: the imager may make its context now, without an answer.  arena, directory: only if the
                 newest image of this arena fits beside it; or ""
    open         arena, gpu, base, window_bytes, capacity_bytes, directory; descriptor, of the first: the progress
    wait         -> ready, when everything before is done: a socket holds only so many descriptors
    allocations  arena, items: [offset, bytes, commit that it came with] each; a descriptor for each item
    drop         arena, offsets: of allocations that the arena does not have any more
    prepare      name: of the image, group: of its arenas, or "", epoch: null, or as rules/membership.py has it, parity: 0,
                 or for how many lost GPUs the image has the parity of the arenas instead of their blocks     -> prepared
    facts        arena, commit, generation, state_generation, has_layout, has_state; descriptors: the layout, the state
    stage        after the facts of all arenas; until: when the client no longer stands still, of the monotonic clock, or absent
                 is_waited_for, or absent: the client does nothing before `complete`, and need not be spared
                        -> staged: staged_bytes, direct_bytes; later complete: name, bytes, new_bytes

Or, to make an arena of an image:

    restore      image ("": the newest one of the arena), arena ("": the only one), directory, gpu (its UUID, an ordinal, or "":
                 the image's); descriptor: the progress
                        -> found: the arena's facts, others: names of arenas, if it is lost and the image has parity;
                           descriptors: the layout, the state, the allocations
    other        arena: of `others`, gpu and window_bytes, or `why` mpsd does not have it; its `allocations` follow
    fill         descriptors: the order, the blocks that are done; is_partial: blocks that cannot be had become zeros
                         -> filled: lost: [offset, bytes] of these.  Asked before `make`, it begins with the first memory, and
                         the answer comes after that without descriptors
    make         gpu, done: allocations that the starter has     -> made: a descriptor for each of the next allocations
    renew        wait_seconds: until there is another image, at most, or absent
                 -> renewed: image, instant, is_same_memory; descriptors: the layout, the state, the numbers of the blocks that
                 differ; without is_same_memory none

The allocations are a file with the offset and the bytes of each, 8 bytes each.  The order is a file with the numbers of all
blocks, 4 bytes each, as they are to be filled; the other file has a byte for each block, which becomes 1 when the block is in
the GPU's memory.  A block's number is its place among those of all allocations.
`renew` goes on with the newest image of the arena, if that has the same allocations: `fill` then makes the memory the same.

An answer has `is`. A failure is the answer `failed` with `why` and `is_missing` (no such image), and the image of `prepare` is
given up.  The imager ends when the process closes its end, but finishes an image that is staged.  A process that stops waiting
for `staged` closes its end first.

The progress is a file in memory with two numbers of 64 bits: the bytes that are copied, and those to copy, as known so far.
"""

import json
import os
import select
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

from mpsd.errors import MpsdError

MOST_BYTES = 128 << 10  # of a datagram
MOST_DESCRIPTORS = 128
MOST_LAYOUT_BYTES = 16 << 20
FAILURES = (MpsdError, OSError, ValueError, LookupError, MemoryError)  # that a request can meet; they are its answer


class Request:
    """One request with its descriptors, which it owns."""

    def __init__(self, asked: dict[str, Any], descriptors: list[int]) -> None:
        self.asked, self.descriptors = asked, descriptors

    def __enter__(self) -> "Request":
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class Channel:
    """The imager's end.  Raises ValueError for a message that is not a request."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)

    def receive(self) -> Request | None:
        """Wait for a request, for ever: the process asks when it wants.  None: it has closed its end."""
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._socket, MOST_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it has not read the last answer
            return None
        request = Request({}, descriptors)
        if not data:
            return None
        try:
            request.asked = json.loads(data)
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or not isinstance(request.asked.get("do"), str):
                raise ValueError("a request is too long, or none")
        except (ValueError, AttributeError):
            with request:
                raise ValueError(f"not a request: {data[:80]!r}") from None
        return request

    @property
    def has_ended(self) -> bool:
        """Whether the process has closed its end."""
        look = select.poll()
        look.register(self._socket, 0)
        return bool(look.poll(0))  # POLLHUP

    def answer(self, kind: str, descriptors: Sequence[int] = (), **facts: Any) -> bool:
        """Answer, and return whether the process is still there.  The caller keeps the descriptors."""
        try:
            socket.send_fds(self._socket, [json.dumps({"is": kind, **facts}).encode()], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True


class Progress:
    """Writes how much is copied into the file that the process gave.  For several threads."""

    def __init__(self, request: Request) -> None:
        [descriptor] = request.descriptors
        self._descriptor = os.dup(descriptor)
        self._lock = threading.Lock()
        self._copied = self._to_copy = 0

    def begin(self) -> None:
        """Begin another image."""
        with self._lock:
            self._copied = self._to_copy = 0
            self._write()

    def expect(self, size: int) -> None:
        with self._lock:
            self._to_copy += size
            self._write()

    def add(self, size: int) -> None:
        with self._lock:
            self._copied += size
            self._write()

    def _write(self) -> None:
        os.pwrite(self._descriptor, struct.pack("=QQ", self._copied, self._to_copy), 0)


def read_file(descriptor: int) -> bytes:
    """Read a layout or a forward state, which are files in memory."""
    size = os.fstat(descriptor).st_size
    if size > MOST_LAYOUT_BYTES:
        raise ValueError(f"a layout or forward state of {size} bytes")
    return os.pread(descriptor, size, 0)
