"""Telling whoever started us: the front end by its ready descriptor, systemd by its notification socket.

Both are courtesies: nothing in here raises, because a daemon that works must not end for want of a listener.
Protocols: --ready-fd in docs/configuration.md; sd_notify(3).
"""

import os
import socket
import time
from collections.abc import Mapping

from mpsd import __version__


class Notifier:
    """The notification socket that systemd named; silent where there is none."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self.watchdog_seconds = _watchdog_seconds(environ)  # None: systemd does not watch

    def ready(self) -> bool:
        """The daemon listens.  MAINPID: ours, because `-f` of the front end may have been somebody else."""
        return self._send("READY=1", f"MAINPID={os.getpid()}", f"STATUS=mpsd {__version__} is serving")

    def reloading(self) -> bool:
        """A reload has begun; `ready` ends it.  The time is how systemd tells this reload from an older one."""
        return self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> bool:
        return self._send("STOPPING=1")

    def status(self, text: str) -> bool:
        """One line for `systemctl status`."""
        return self._send("STATUS=" + " ".join(text.split()))

    def watchdog(self) -> bool:
        """Still alive; to be called every half of `watchdog_seconds`."""
        return self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> bool:
        """True when systemd's socket took it."""
        if self._address is None:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.setblocking(False)  # a full queue of systemd's is no reason to wait
                out.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True


def answer_ready(descriptor: int | None, status: int, message: str = "") -> None:
    """Answer the front end, once, and close: `0`, or an exit status and what to tell the user."""
    if descriptor is None:
        return
    try:
        os.write(descriptor, f"{status}\n{message}".encode("utf-8", "backslashreplace")[:4096])  # PIPE_BUF: in one piece
    except OSError:
        pass  # the front end was killed; the daemon goes on
    finally:
        _close(descriptor)


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass  # a number that was no descriptor: a hand-written --ready-fd


def _address(name: str) -> str | bytes | None:
    """A path or @abstract name; None for what sd_notify does not speak (vsock) or is not there."""
    if name.startswith("@"):
        return b"\0" + name[1:].encode()
    return name if name.startswith("/") else None


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """WATCHDOG_USEC, when it is meant for this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isascii() and text.isdigit() and int(text) > 0 else None
