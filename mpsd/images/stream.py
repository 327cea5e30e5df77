"""The two pipes of a transfer: messages and blocks, with a deadline for each piece."""

import fcntl
import os
import select
import struct
import time
from contextlib import suppress

import msgspec

from mpsd.errors import BadRequest, MpsdError
from mpsd.images.rules.block_hash import Bytes
from mpsd.images.rules.manifest import MOST_MANIFEST_BYTES
from mpsd.images.rules.transfer import decode_message

STALL_SECONDS = 300.0  # the other side may sync some hundred MiB to a slow disk meanwhile
_LENGTH = struct.Struct("<I")
_PIECE_BYTES = 2 << 20  # has the stall time: a side that sends or takes a byte now and then would hold blocks without end
_PIPE_BYTES = 1 << 20  # as much as a user may ask for; with the usual 64 KiB both sides wake 16 times as often


class StreamBroken(MpsdError):
    """The other side has ended, or stands still."""


class Stream:
    """Sends to one descriptor and receives from another.  The caller owns both."""

    def __init__(self, incoming: int, outgoing: int, stall_seconds: float = STALL_SECONDS) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._stall_seconds = stall_seconds
        with suppress(OSError):  # a socket, or no more is allowed
            fcntl.fcntl(outgoing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def send_message(self, message: msgspec.Struct) -> None:
        body = msgspec.msgpack.encode(message)
        if len(body) > MOST_MANIFEST_BYTES:
            raise BadRequest(f"the image's description of {len(body)} bytes is over the limit of {MOST_MANIFEST_BYTES}")
        self.send(_LENGTH.pack(len(body)) + body)

    def receive_message(self, kind: type) -> object:
        """Raise StreamBroken, or BadRequest for what is no message of this kind."""
        return decode_message(self.receive_body(), kind)

    def receive_body(self) -> bytearray:
        """Return the bytes of a message.  Raise StreamBroken, or BadRequest: the message is too long."""
        (length,) = _LENGTH.unpack(self.receive(_LENGTH.size))
        if length > MOST_MANIFEST_BYTES:  # before waiting for it
            raise BadRequest(f"the other side announces a message of {length} bytes, the limit is {MOST_MANIFEST_BYTES}")
        return self.receive(length)

    def send(self, data: Bytes) -> None:
        """Send all of it.  Raise StreamBroken."""
        at, piece_end, deadline = 0, 0, 0.0
        was_blocking = os.get_blocking(self._outgoing)
        os.set_blocking(self._outgoing, False)  # only while we write: the open file may be another process's too
        try:
            with memoryview(data) as view:
                while at < len(view):
                    if at >= piece_end:
                        piece_end, deadline = at + _PIECE_BYTES, time.monotonic() + self._stall_seconds
                    self._wait(self._outgoing, select.POLLOUT, deadline)
                    with suppress(BlockingIOError):
                        at += os.write(self._outgoing, view[at:])
        except BrokenPipeError:
            raise StreamBroken("the other side has ended") from None
        finally:
            os.set_blocking(self._outgoing, was_blocking)

    def receive(self, size: int) -> bytearray:
        """Return so many bytes.  Raise StreamBroken."""
        at, piece_end, deadline = 0, 0, 0.0
        data = bytearray(size)
        with memoryview(data) as view:
            while at < size:
                if at >= piece_end:
                    piece_end, deadline = at + _PIECE_BYTES, time.monotonic() + self._stall_seconds
                self._wait(self._incoming, select.POLLIN, deadline)
                count = os.readv(self._incoming, [view[at:]])
                if not count:
                    raise StreamBroken("the other side has ended")
                at += count
        return data

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        waiting = select.poll()
        waiting.register(descriptor, event)
        # Behind the deadline, a side that has something at each look goes on: it is quick, and this process was not.
        while not waiting.poll(max(0, deadline - time.monotonic()) * 1000):
            if time.monotonic() >= deadline:
                what = "sends" if event == select.POLLIN else "takes"
                limit = f"{_PIECE_BYTES >> 20} MiB in {self._stall_seconds:g} s"
                raise StreamBroken(f"the other side has stood still, or {what} less than {limit}")
