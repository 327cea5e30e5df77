"""Follow the state of a service in a thread of its own: by long polls, and again after mpsd was restarted."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from mpsd_client import Client, ErrorCode, Refused, calls, values

from mpsctl.starter.mpsd_connection import NO_ANSWER

_POLL_SECONDS = 3.0  # length of a long poll; between two, the thread checks whether mpsd is stopping
_AGAIN_SECONDS = 1.0
_CLOCK_SECONDS = 1.0  # tolerance: mpsd reports wall-clock times, but counts by another clock


@dataclass(frozen=True, slots=True)
class Here:
    """mpsd answers.  is_privileged: it enforces leases.  is_same_namespace: it is in the same pid namespace as this process."""

    is_privileged: bool
    is_same_namespace: bool


@dataclass(frozen=True, slots=True)
class Gone:
    why: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A new view of the service.  None: the arena does not exist, or no member has ever joined it."""

    service: values.Service | None


@dataclass(frozen=True, slots=True)
class Stopping:
    """mpsd is stopping and admits no new clients.  ends_at: when it ends the remaining ones; None: it waits for them."""

    ends_at: float | None


News = Here | Gone | Seen | Stopping


def follow(name: str, connect: Callable[[], Client], tell: Callable[[News], None]) -> None:
    """Pass all changes to `tell`, for ever; connect again after each failure."""
    while True:
        try:
            with connect() as mpsd:
                is_privileged = bool(mpsd.ask(calls.status()).facts.get("is_privileged", True))
                tell(Here(is_privileged, mpsd.hello.pid == os.getpid()))
                _look(name, mpsd, tell)
        except (*NO_ANSWER, Refused) as exc:
            tell(Gone(str(exc)))
        time.sleep(_AGAIN_SECONDS)


def _look(name: str, mpsd: Client, tell: Callable[[News], None]) -> None:
    revision: int | None = None
    seen: object = None  # what the last view has that does not change its revision, or is of another arena
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
            now = (found.id, found.replica.pid if found.replica else None)
            if found.revision != revision or now != seen:
                tell(Seen(found))
            revision, seen = found.revision, now


def _why_not_obey(name: str, owner_uid: int, uid: int) -> str:
    """Return why this user may not run another user's service; empty if it may.  mpsd itself refuses ordinary users, but
    shows an operator every service."""
    if ":" in name or owner_uid in (uid, 0):
        return ""
    return f"service {name} belongs to user {owner_uid}, and you are user {uid}: name it {owner_uid}:{name} to run it"


def _is_sooner(at: float | None, before: float | None) -> bool:
    return at is not None and (before is None or at < before - _CLOCK_SECONDS)
