"""Notify the process that started mpsd: the front end by its ready descriptor, systemd by its notification socket.

Both are optional: nothing here raises, because a working daemon must not end if its starter does not listen.
Protocols: --ready-fd in docs/configuration.md; sd_notify(3).
"""

import os
import socket
import time
from collections.abc import Mapping

from mpsd import __version__


class Notifier:
    """The notification socket that systemd named; does nothing without one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))

    def ready(self) -> bool:
        """Report that the daemon listens.  MAINPID: this process, because systemd may have started `-f` of the front end."""
        return self._send("READY=1", f"MAINPID={os.getpid()}", f"STATUS=mpsd {__version__} is serving")

    def reloading(self) -> bool:
        """Report that a reload has begun; `ready` ends it.

        systemd uses the time to distinguish this reload from an older one.
        """
        return self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> bool:
        return self._send("STOPPING=1")

    def status(self, text: str) -> bool:
        """Set the line that `systemctl status` shows."""
        return self._send("STATUS=" + " ".join(text.split()))

    def _send(self, *lines: str) -> bool:
        """Send lines; return whether systemd's socket took them."""
        if self._address is None:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.setblocking(False)  # if systemd's queue is full, mpsd does not wait
                out.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True


def answer_ready(descriptor: int | None, status: int, message: str = "") -> None:
    """Answer the front end, once, and close: `0`, or an exit status and the text for the user."""
    if descriptor is None:
        return
    try:
        os.write(descriptor, f"{status}\n{message}".encode("utf-8", "backslashreplace")[:4096])  # within PIPE_BUF: in one piece
    except OSError:
        pass  # the front end was killed; the daemon continues
    finally:
        _close(descriptor)


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass  # not a descriptor: a hand-written --ready-fd


def _address(name: str) -> str | bytes | None:
    """Return a path or abstract address; None for addresses that this sd_notify does not support (vsock), or for none."""
    if name.startswith("@"):
        return b"\0" + name[1:].encode()
    return name if name.startswith("/") else None
