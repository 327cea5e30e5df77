"""/dev/mpsd-fault as a program sees it: a second reader of kmod/include/mpsd_fault.h, independent of the daemon's."""

import ctypes
import errno
import fcntl
import os
import re
import select
import time
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from guest_run import SLOWDOWN

PATH = "/dev/mpsd-fault"
RING_RECORDS = 1024
WINDOW_BYTES = 2 << 20
WINDOW_MAX = 32 << 20
WAIT_SECONDS = 20 * SLOWDOWN

REPLAYABLE, INJECTED, FIRST, LOST = 1, 2, 4, 8


class Kind(IntEnum):
    FAULT = 1
    STOPPED = 2
    GONE = 3


class Action(IntEnum):
    CANCELLED = 0
    SUNK = 1
    ALREADY = 2


class Mode(IntEnum):
    OFF = 0
    REPORT = 1
    SINK = 2
    SINK_KILL = 3


def reasons() -> dict[str, int]:
    """Why a fault was not contained, by name; the header is the list."""
    header = Path(__file__).resolve().parents[3] / "kmod/include/mpsd_fault.h"
    return {name: int(number) for name, number in re.findall(r"\bMPSD_FAULT_WHY_(\w+) = (\d+)", header.read_text())}


WHY = reasons()
WHY_NAMES = {number: name for name, number in WHY.items()}


def of(kind: type, *names: str) -> list[tuple[str, type]]:
    """Fields of one type, for `_fields_`."""
    return [(name, kind) for name in names]


class Record(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint16),
        *of(ctypes.c_uint8, "major", "kind"),
        ("flags", ctypes.c_uint32),
        *of(ctypes.c_uint64, "sequence", "monotonic_ns", "gpu_ns", "address", "window_base", "window_bytes", "start_ns"),
        ("gpu_uuid", ctypes.c_uint8 * 16),
        ("tgid", ctypes.c_int32),
        *of(ctypes.c_uint32, "uid", "lost"),
        *of(ctypes.c_uint16, "channel", "client_id"),
        *of(ctypes.c_uint8, "ve_id", "gpc_id", "client_type", "engine_type", "access_type", "fault_type"),
        *of(ctypes.c_uint8, "reason", "action", "why", "gpu_instance"),
        ("reserved", ctypes.c_uint8 * 6),
        ("comm", ctypes.c_char * 16),
    ]

    @property
    def story(self) -> str:
        """Return the kind, and the outcome of a fault: "FAULT SUNK", "FAULT CANCELLED BUDGET", "STOPPED"."""
        if self.kind != Kind.FAULT:
            return Kind(self.kind).name
        why = [WHY_NAMES[self.why]] if self.why else []
        return " ".join([Kind.FAULT.name, Action(self.action).name, *why])


RECORD_BYTES = ctypes.sizeof(Record)
assert RECORD_BYTES == 128


class Info(ctypes.Structure):
    _fields_ = [
        *of(ctypes.c_uint32, "major", "record_bytes", "ring_records", "minor"),
        ("sequence", ctypes.c_uint64),
        ("driver", ctypes.c_char * 24),
    ]


class Policy(ctypes.Structure):
    _fields_ = [("mode", ctypes.c_uint32), ("max_windows", ctypes.c_uint32), ("window_bytes", ctypes.c_uint64)]


class Target(ctypes.Structure):
    _fields_ = [("tgid", ctypes.c_int32), ("flags", ctypes.c_uint32), ("address", ctypes.c_uint64)]


def command(direction: int, number: int, layout: type[ctypes.Structure]) -> int:
    """As <linux/ioctl.h> makes it; direction: 1 written, 2 read, 3 both."""
    return direction << 30 | ctypes.sizeof(layout) << 16 | ord("m") << 8 | number


INFO = command(2, 0xE0, Info)
POLICY = command(1, 0xE1, Policy)
EXEMPT = command(1, 0xE2, Target)
INJECT = command(1, 0xE3, Target)


def refusal(call: Any, *arguments: Any) -> str:
    """The name of the errno with which `call` fails; "" where it succeeds."""
    try:
        call(*arguments)
    except OSError as exc:
        return errno.errorcode[exc.errno or 0]
    return ""


class Device:
    """One open of the device; guards its descriptor."""

    def __init__(self, flags: int = os.O_RDWR | os.O_NONBLOCK) -> None:
        self.fd = os.open(PATH, flags | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        os.close(self.fd)

    def ask(self, number: int, value: ctypes.Structure) -> int:
        """The ioctl's answer; OSError where it is refused.  `value` may come back changed."""
        return fcntl.ioctl(self.fd, number, value)

    def info(self) -> Info:
        value = Info()
        self.ask(INFO, value)
        return value

    def set_policy(self, mode: int = Mode.REPORT, max_windows: int = 64, window_bytes: int = WINDOW_BYTES) -> None:
        self.ask(POLICY, Policy(mode, max_windows, window_bytes))

    def exempt(self, tgid: int, flags: int = 0) -> None:
        self.ask(EXEMPT, Target(tgid, flags, 0))

    def inject(self, tgid: int = 1, address: int = 0, flags: int = 0) -> None:
        self.ask(INJECT, Target(tgid, flags, address))

    def read(self, records: int = 64) -> list[Record]:
        """Up to so many; none: none waits."""
        try:
            data = os.read(self.fd, records * RECORD_BYTES)
        except BlockingIOError:
            return []
        assert len(data) % RECORD_BYTES == 0
        return [Record.from_buffer_copy(data, at) for at in range(0, len(data), RECORD_BYTES)]

    def drain(self) -> list[Record]:
        found: list[Record] = []
        while some := self.read():
            found += some
        return found

    def wait(self, *kinds: Kind) -> list[Record]:
        """What comes until records of each of `kinds` have come."""
        found: list[Record] = []
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        until = time.monotonic() + WAIT_SECONDS
        while not set(kinds) <= {record.kind for record in found}:
            assert time.monotonic() < until, f"{kinds} did not come; there came {[each.story for each in found]}"
            poll.poll(1000)
            found += self.read()
        return found
