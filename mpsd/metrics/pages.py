"""Build the HTTP pages: the numbers, the health, and the live page.

Separate from server.py, so that Prometheus' library is loaded only by daemons that serve numbers.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping

import trio
from msgspec import Struct
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from mpsd.api.methods.daemon import report_health
from mpsd.metrics.families import Families
from mpsd.metrics.http import HttpAnswer, Page, Visit, converse
from mpsd.metrics.live_page import LivePage
from mpsd.metrics.source import MetricsSource


def answerer(
    source: MetricsSource, reuse_seconds: float, listen: str, token: str
) -> Callable[[trio.abc.Stream], Awaitable[str]]:
    """Return a function that serves one connection (http.py, converse)."""
    live = LivePage(source.readings.ask, source.events, listen, token, reuse_seconds)
    pages = {**live.pages(), **{path: live.guarded(page) for path, page in build(source, reuse_seconds).items()}}
    return lambda stream: converse(stream, pages)


def build(source: MetricsSource, reuse_seconds: float, clock: Callable[[], float] = time.monotonic) -> Mapping[str, Page]:
    """Return the pages by path.  reuse_seconds: for this time the same answer is given again."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families(source))
    ProcessCollector(registry=registry)
    makers = {
        "/metrics": lambda: HttpAnswer(200, generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4),
        "/healthz": lambda: _health(source),
    }
    return {path: ReusedPage(make, reuse_seconds, clock).show for path, make in makers.items()}


class ReusedPage(Struct):
    """Guards that an answer is made at most once in reuse_seconds, however many requests come."""

    make: Callable[[], HttpAnswer]
    reuse_seconds: float
    clock: Callable[[], float]
    _answer: HttpAnswer | None = None
    _until: float = 0.0

    async def show(self, visit: Visit) -> HttpAnswer:
        if self._answer is None or self.clock() >= self._until:
            self._answer = self.make()
            self._until = self.clock() + self.reuse_seconds
        return self._answer


def _health(source: MetricsSource) -> HttpAnswer:
    health = report_health(source.services)
    return HttpAnswer(200 if health["ok"] else 503, json.dumps(health).encode() + b"\n", "application/json")
