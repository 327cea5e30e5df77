"""The options of the log and the audit; options.py has the others."""

from dataclasses import dataclass
from typing import Literal

from mpsd.config.schema import option
from mpsd.config.value_checks import ROTATION_BYTES, SOCKET_PATH_BYTES, absolute_path, between, or_empty


@dataclass(frozen=True, slots=True)
class LogOptions:
    """mpsd's own log: standard error in the foreground, mpsd.log in the log directory otherwise."""

    level: Literal["debug", "info", "warning", "error"] = option("info", "The least important events that are written.")
    format: Literal["auto", "human", "json"] = option(
        "auto", '"auto": human on a terminal, JSON otherwise.', needs_restart=True
    )
    max_bytes: int = option(
        67108864,
        "mpsd.log is renamed to mpsd.log.1 when it reaches this, and so is each audit file. 0: never.",
        accept=ROTATION_BYTES,
    )
    max_days: int = option(
        0,
        "And when so many days are over, counted from 1970, but not twice within half that time of mpsd's run: a clock that is "
        "set does not remove the kept files. 0: never.",
        accept=between(0, 3650),
    )
    kept: int = option(3, "Renamed files of each name that are kept: mpsd.log.1 is the newest.", accept=between(1, 1000))
    audit_socket: str = option(
        "",
        'A syslog socket that audit lines are sent to as well, as "/dev/log": journald\'s, where systemd runs. "": none.',
        accept=or_empty(absolute_path(SOCKET_PATH_BYTES)),
        needs_restart=True,
    )
