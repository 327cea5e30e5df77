"""Serve the metrics of a daemon over HTTP, and count the events and times for them.

    /metrics    every number, for Prometheus
    /healthz    200 while a new client would be served, else 503; with the reasons
    /           the live page, for people (live_page.py)

`serve` loads Prometheus' library and h11, since most daemons never need them.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import structlog
import trio
from msgspec import Struct

from mpsd.api.event_bus import EventBus
from mpsd.api.ports import Ports
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host.arrivals import ACCEPT_PAUSE_SECONDS
from mpsd.host.descriptors import Closings
from mpsd.metrics.admission_timer import TimedAdmission
from mpsd.metrics.counters import Counters
from mpsd.metrics.listener import MetricsListener, open_door
from mpsd.metrics.reader import guarded, share_at
from mpsd.metrics.source import MetricsSource, Readings
from mpsd.relay.assignment import Admission
from mpsd.threads import run_in_thread

log = structlog.get_logger()
_AGAIN_SECONDS = 5.0  # the port may still belong to a daemon that is ending
_REUSE_SECONDS = 1.0  # numbers are collected at most so often, for all readers: ten thousand leases take some milliseconds


class MetricsSettings(Struct, frozen=True):
    """The configuration's [metrics]."""

    listen: str
    max_connections: int = 32
    token_file: str = ""


class Metrics:
    """Guards that requests, however many, take no more of the daemon's time than one collection a second."""

    def __init__(self, settings: MetricsSettings, events: EventBus, ranges: UidRanges = NO_RANGES) -> None:
        """Count from now on."""
        self.tallies = Counters()
        self._settings, self._events, self._ranges = settings, events, ranges
        self._open: list[tuple[int | str, trio.CancelScope]] = []  # of each connection, with its share; the oldest first
        events.listeners.append(self.tallies.hear)

    # -- hooks -------------------------------------------------------------------------------------------------------

    def took_handshake(self, seconds: float) -> None:
        """Count a connection's time with its domain, even if the handshake failed."""
        self.tallies.handshake.observe(seconds)

    def timing(self, admission: Admission) -> TimedAdmission:
        """Return the admission with a clock that counts the time of each."""
        return TimedAdmission(admission, self.tallies.admission)

    # -- the server --------------------------------------------------------------------------------------------------

    async def serve(
        self, services: Ports, readings: Readings, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled.  Reports `started` at once: if it cannot listen, it logs that and tries again."""
        from mpsd.metrics import pages  # with the libraries: they are loaded only for a server

        task_status.started()
        source = MetricsSource(services, self._events, self.tallies, readings)
        answer = pages.answerer(source, _REUSE_SECONDS, self._settings.listen, await self._token())

        async def take(stream: trio.SocketStream) -> None:
            share = share_at(stream, self._ranges)
            async with stream:
                await self._take(guarded(stream, closings, self._ranges), share, answer)

        closings = Closings()
        with await self._open_door() as door:
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        nursery.start_soon(take, await door.listener.accept())
                    except OSError as exc:
                        log.error("metrics.accept_failed", why=exc.strerror)
                        await trio.sleep(ACCEPT_PAUSE_SECONDS)

    async def _token(self) -> str:
        """Return the token of the live page; empty without one, and then no reader is an operator."""
        from mpsd.metrics.live_page import read_token

        path = self._settings.token_file
        if not path:
            return ""
        try:
            return await run_in_thread(read_token, path)
        except (OSError, ValueError) as exc:
            log.error("metrics.no_token", file=path, why=str(exc))
            return ""

    async def _open_door(self) -> MetricsListener:
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

    async def _take(
        self, stream: trio.abc.Stream, share: int | str, answer: Callable[[trio.abc.Stream], Awaitable[str]]
    ) -> None:
        """Serve one connection.  A failure in it ends this connection and nothing else."""
        with self._place(share) as scope:
            try:
                trouble = await answer(stream)
            except Exception:
                log.exception("metrics.bug")
                return
            if trouble:
                log.debug("metrics.dropped", why=trouble)
        if scope.cancelled_caught:
            log.debug("metrics.dropped", why="too many connections, and this was the oldest of the user with most")

    @contextmanager
    def _place(self, share: int | str) -> Iterator[trio.CancelScope]:
        """Take a place; if none is free, cancel the oldest connection of the user, or machine, with most.

        Otherwise clients that keep connections open could keep all others out, and a storm of them could end each scrape.
        """
        if len(self._open) >= self._settings.max_connections:
            [(greediest, _)] = Counter([*(each for each, _ in self._open), share]).most_common(1)
            oldest = next(place for place in self._open if place[0] == greediest)
            self._open.remove(oldest)
            oldest[1].cancel()
        with trio.CancelScope() as scope:
            self._open.append((share, scope))
            try:
                yield scope
            finally:
                with suppress(ValueError):
                    self._open.remove((share, scope))
