"""Descriptors that systemd kept while there was no mpsd, and passes at its start (sd_listen_fds(3)).

They are what a keeper gave it before it ended (native/keeper/handover.c).
"""

import os
from collections.abc import MutableMapping
from dataclasses import dataclass

from mpsd.wire.keeper import Entry, parse_stored

_FIRST = 3
_MOST = 65536
_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


@dataclass(frozen=True, slots=True)
class Stored:
    """Owns a descriptor.  name: systemd's.  entry: what the keeper knew it by; None: it is of no keeper."""

    name: str
    descriptor: int
    entry: Entry | None


def take_stored(environ: MutableMapping[str, str]) -> list[Stored]:
    """Takes the descriptors, and the variables that tell of them: no child is to think that they are its own."""
    pid, count, names = (environ.get(name, "") for name in _VARIABLES[:3])
    for variable in _VARIABLES:
        environ.pop(variable, None)
    if pid != str(os.getpid()) or not count.isdecimal() or len(count) > 5 or not 0 < int(count) <= _MOST:
        return []
    words = names.split(":") + [""] * int(count)
    found = []
    for descriptor, name in zip(range(_FIRST, _FIRST + int(count)), words, strict=False):
        try:
            os.set_inheritable(descriptor, False)
        except OSError:
            continue  # it is not there
        found.append(Stored(name, descriptor, parse_stored(name)))
    return found
