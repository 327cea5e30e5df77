"""The arena of a service's member: it exists, or the member restores it from an image, or creates it."""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import wraps
from typing import Protocol, TypeVar

from mpsd_client import _calls as calls
from mpsd_client import _cuda
from mpsd_client._arena import Arena
from mpsd_client._client import Client
from mpsd_client._early_imager import EarlyImager, early_imager
from mpsd_client._errors import ErrorCode, Refused
from mpsd_client._filling import fill_if_empty
from mpsd_client._record import Record
from mpsd_client._replica import Replica
from mpsd_client._restoring import restore_if_missing
from mpsd_client._schedule import ImageSchedule

FULL_SECONDS = 5.0  # between two attempts while mpsd's disk is full: with an image to restore each one starts an imager
_log = logging.getLogger("mpsd_client")


class _Named(Protocol):
    name: str


S = TypeVar("S", bound=_Named)


def insists(attempt: Callable[[S], Arena]) -> Callable[[S], Arena]:
    """Repeat `attempt` while mpsd's disk is full, for ever, as a standby waits: no member can do better.  Log that once."""

    @wraps(attempt)
    def insisting(service: S) -> Arena:
        has_said = False
        while True:
            try:
                return attempt(service)
            except Refused as exc:
                if exc.code != ErrorCode.UNUSABLE_PATH:
                    raise
                if not has_said:
                    _log.warning("service %s is opened as soon as mpsd can write to its disk: %s", service.name, exc.message)
                has_said = True
            time.sleep(FULL_SECONDS)

    return insisting


@dataclass(frozen=True, slots=True)
class ServiceArena:
    """What a member gives: see Service."""

    name: str
    capacity: int
    gpu: str | int | None
    window: int
    mode: int
    ttl: float
    path: str
    images: ImageSchedule | None
    replica_lag: float | None = None

    def __post_init__(self) -> None:
        if self.replica_lag is not None and (self.images is None or ":" in self.name):
            raise ValueError("replica_lag needs `images`, which bring the contents, and a service of this process's user")

    def replica(self) -> Replica | None:
        """Return a replica to keep, if that is wanted and the arena is on another GPU than this process's.

        Raises ValueError if this process sees the arena's GPU too: it would be lost with it."""
        if self.replica_lag is None or self.images is None:
            return None
        with Client(self.path, program="mpsd_client") as mpsd:
            try:
                found = mpsd.ask(calls.arena_get(self.name))
            except Refused as exc:
                if exc.code != ErrorCode.NO_SUCH_ARENA:
                    raise
                return None
            ours = self._gpu()
            uuids = [each.uuid for each in mpsd.pages(calls.device_list()) if ours in (str(each.ordinal), each.uuid)]
        if found.gpu in uuids:
            return None
        with suppress(LookupError):
            _cuda.device_of(found.gpu)
            raise ValueError(f"a replica of {self.name} must not see {found.gpu}, its GPU: set CUDA_VISIBLE_DEVICES={ours}")
        bound = self.replica_lag
        return Replica(self.name, self.path, self.images, bound, self.capacity, ours, self.window, self.mode, self.ttl)

    def early_imager(self) -> EarlyImager | None:
        """Start an imager for `restore`, if that will need one."""
        return early_imager(self.name, self.path, self.images.directory) if self.images else None

    def restore(self, early: EarlyImager | None) -> None:
        """Make the arena of the newest image if it does not exist.  The early imager ends with this."""
        if self.images:
            with ExitStack() as stack:
                if early is not None:
                    stack.callback(early.close)
                restore_if_missing(
                    self.name, self._gpu(), self.path, self.images.directory, mode=self.mode, ttl=self.ttl,
                    take_imager=early.take if early else lambda: None,
                )  # fmt: skip

    def fill(self, arena: Arena, begun: Callable[[], object]) -> tuple[bool, Record | None]:
        """Fill the arena, which this process writes, if it is empty and has an image: see fill_if_empty."""
        return fill_if_empty(arena, self.path, self.images.directory, self.ttl, begun) if self.images else (False, None)

    def open(self) -> Arena:
        """Open the arena for reading; create it if it does not exist."""
        refused: Refused | None = None
        for _ in range(2):
            try:
                return Arena.read(self.name, path=self.path)
            except Refused as exc:
                if exc.code != ErrorCode.NO_SUCH_ARENA:
                    raise
                if refused is not None:
                    raise refused from None
            refused = self._create()
        return Arena.read(self.name, path=self.path)

    def _create(self) -> Refused | None:
        """Create the arena.  Return a BAD_REQUEST, since another member may have created the arena in between."""
        asked = calls.arena_create(
            self.name,
            self._gpu(),
            self.capacity,
            window_bytes=self.window or None,
            mode=self.mode,
            ttl_seconds=self.ttl or None,
        )
        try:
            with Client(self.path, program="mpsd_client") as mpsd:
                mpsd.ask(asked)
        except Refused as exc:
            if exc.code != ErrorCode.BAD_REQUEST:
                raise
            return exc
        return None

    def _gpu(self) -> str:
        return _cuda.current_gpu() if self.gpu is None else str(self.gpu)
