"""The metrics of a daemon: what is counted meanwhile, the clock at its doors, and the door at which numbers are asked for.

    /metrics    every number, for Prometheus
    /healthz    200 while a client that comes would be served, else 503; with the reasons

Prometheus' library and h11 are loaded by `serve`, since most daemons never need it.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
import trio

from mpsd.api.events import EventBus
from mpsd.api.services import Services
from mpsd.metrics.door import Door, open_door
from mpsd.metrics.source import Readings, Source
from mpsd.metrics.tallies import Tallies
from mpsd.metrics.timing import Admission, TimedAdmission

log = structlog.get_logger()
_AGAIN_SECONDS = 5.0  # a daemon that is just ending may still have the port
_REUSE_SECONDS = 1.0  # numbers are collected at most so often, whoever asks: ten thousand leases take some milliseconds


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The configuration's [metrics]."""

    listen: str
    max_connections: int = 32


class Metrics:
    """Guards that whoever asks, however often, takes no more of the daemon's time than one collection a second."""

    def __init__(self, settings: MetricsSettings, events: EventBus) -> None:
        """Counts from now on."""
        self.tallies = Tallies()
        self._settings, self._events = settings, events
        self._open: deque[trio.CancelScope] = deque()  # one a connection, the oldest first
        events.listeners.append(self.tallies.hear)

    # -- hooks -------------------------------------------------------------------------------------------------------

    def took_handshake(self, seconds: float) -> None:
        """A connection's time with its domain, whether it came about or not."""
        self.tallies.handshake.observe(seconds)

    def timing(self, admission: Admission) -> TimedAdmission:
        """The same, and the time of each admission is counted."""
        return TimedAdmission(admission, self.tallies.admission)

    # -- the door ----------------------------------------------------------------------------------------------------

    async def serve(
        self, services: Services, readings: Readings, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Until cancelled.  Started at once: where it cannot listen it says so, and tries again."""
        from mpsd.metrics import pages  # with the libraries: not worth their time where nobody asks

        answer = pages.answerer(Source(services, self._events, self.tallies, readings), _REUSE_SECONDS)

        async def take(stream: trio.abc.Stream) -> None:
            await self._take(stream, answer)

        task_status.started()
        with await self._open_door() as door:
            await trio.serve_listeners(take, [door.listener])

    async def _open_door(self) -> Door:
        told = ""
        while True:
            try:
                door = open_door(self._settings.listen)
            except OSError as exc:
                if told != (told := str(exc)):
                    log.error("metrics.unusable", listen=self._settings.listen, why=told)
                await trio.sleep(_AGAIN_SECONDS)
            else:
                log.info("metrics.listening", listen=self._settings.listen)
                return door

    async def _take(self, stream: trio.abc.Stream, answer: Callable[[trio.abc.Stream], Awaitable[str]]) -> None:
        """One conversation.  Whatever goes wrong in here ends it and nothing else."""
        with self._place() as scope:
            try:
                trouble = await answer(stream)
            except Exception:
                log.exception("metrics.bug")
                return
            if trouble:
                log.debug("metrics.dropped", why=trouble)
        if scope.cancelled_caught:
            log.debug("metrics.dropped", why="too many connections, and this was the oldest")

    @contextmanager
    def _place(self) -> Iterator[trio.CancelScope]:
        """One of the places, whose scope is cancelled when somebody needs it and there is no other: otherwise whoever holds
        connections open could keep all others from asking."""
        if len(self._open) >= self._settings.max_connections:
            self._open.popleft().cancel()
        with trio.CancelScope() as scope:
            self._open.append(scope)
            try:
                yield scope
            finally:
                if scope in self._open:
                    self._open.remove(scope)
