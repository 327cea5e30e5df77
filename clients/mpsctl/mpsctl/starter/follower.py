"""What mpsd says of the service, for a thread that only asks: by long polls, and again when mpsd has been started again."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from mpsd_client import Client, Disconnected, ErrorCode, ProtocolError, Refused, calls, values

from mpsctl.session import NoMpsd

_POLL_SECONDS = 3.0  # that mpsd is stopping is seen between two
_AGAIN_SECONDS = 1.0
_CLOCK_SECONDS = 1.0  # mpsd counts by another clock than it tells


@dataclass(frozen=True, slots=True)
class Here:
    """mpsd is there.  is_privileged: it enforces leases.  is_same_namespace: its pids are ours."""

    is_privileged: bool
    is_same_namespace: bool


@dataclass(frozen=True, slots=True)
class Gone:
    why: str


@dataclass(frozen=True, slots=True)
class Seen:
    """None: there is no such arena, or nobody has ever joined it."""

    service: values.Service | None


@dataclass(frozen=True, slots=True)
class Stopping:
    """mpsd is, and takes nobody new.  ends_at: when it ends whoever is still there; None: it waits for them."""

    ends_at: float | None


News = Here | Gone | Seen | Stopping


def follow(name: str, connect: Callable[[], Client], tell: Callable[[News], None]) -> None:
    """For ever."""
    while True:
        try:
            with connect() as mpsd:
                is_privileged = bool(mpsd.ask(calls.status()).facts.get("is_privileged", True))
                tell(Here(is_privileged, mpsd.hello.pid == os.getpid()))
                _look(name, mpsd, tell)
        except (NoMpsd, Disconnected, TimeoutError, ProtocolError, Refused) as exc:
            tell(Gone(str(exc)))
        time.sleep(_AGAIN_SECONDS)


def _look(name: str, mpsd: Client, tell: Callable[[News], None]) -> None:
    revision: int | None = None
    stopping: Stopping | None = None
    while True:
        status = mpsd.ask(calls.status())
        if status.state == "stopping" and (stopping is None or _is_sooner(status.ends_at, stopping.ends_at)):
            stopping = Stopping(status.ends_at)
            tell(stopping)
        try:
            found = mpsd.ask(calls.service_get(name, revision, _POLL_SECONDS))
        except Refused as exc:
            if exc.code != ErrorCode.NO_SUCH_ARENA:
                raise
            revision = None
            tell(Seen(None))
            time.sleep(_AGAIN_SECONDS)
        else:
            if why := _why_not_obey(name, found.owner_uid, mpsd.hello.uid):
                raise Refused(ErrorCode.NOT_ALLOWED, ErrorCode.NOT_ALLOWED.name, why)
            if found.revision != revision:
                tell(Seen(found))
            revision = found.revision


def _why_not_obey(name: str, owner_uid: int, uid: int) -> str:
    """As mpsd says to users; an operator is told of every service."""
    if ":" in name or owner_uid in (uid, 0):
        return ""
    return f"service {name} belongs to user {owner_uid}, and you are user {uid}: name it {owner_uid}:{name} to run it"


def _is_sooner(at: float | None, before: float | None) -> bool:
    return at is not None and (before is None or at < before - _CLOCK_SECONDS)
