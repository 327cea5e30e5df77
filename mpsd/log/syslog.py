"""The machine's syslog, for records that must survive the loss of mpsd's own files: RFC 3164, as syslog(3) sends it.

At /dev/log journald listens under systemd, else rsyslog or another.  Only a sink's thread sends: it may wait.
"""

import os
import socket
import time
from enum import IntEnum

PROGRAM = "mpsd"
_AUTHPRIV = 10  # facility: security messages that not every user may read
_SECONDS = 2.0  # if a daemon does not read for so long, the line is lost and counted


class Severity(IntEnum):
    """Severities of RFC 3164, 4.1.1."""

    NOTICE = 5
    INFORMATIONAL = 6


def send_lines(path: str, severity: Severity, lines: bytes) -> None:
    """Send each line as a message, by a connection of its own: a syslog daemon may be restarted.  Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_SECONDS)
        sock.connect(path)
        for line in lines.splitlines():
            sock.send(_head(severity, time.localtime()) + line)


def _head(severity: Severity, now: time.struct_time) -> bytes:
    month, clock = time.strftime("%b", now), time.strftime("%H:%M:%S", now)
    return f"<{_AUTHPRIV * 8 + severity}>{month} {now.tm_mday:2d} {clock} {PROGRAM}[{os.getpid()}]: ".encode()
