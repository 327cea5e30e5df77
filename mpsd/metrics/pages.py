"""Build the HTTP pages: the numbers, the health, and the live page.

Separate from server.py, so that Prometheus' library is loaded only by daemons that serve numbers.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping

import trio
from msgspec import Struct, field
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
    """Return the pages by path.  reuse_seconds: for this time the same numbers are shown again."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families(source))
    ProcessCollector(registry=registry)
    numbers = Numbers(registry, reuse_seconds, clock)

    async def show_numbers(visit: Visit) -> HttpAnswer:
        return HttpAnswer(200, numbers.text(), CONTENT_TYPE_PLAIN_0_0_4)

    async def show_health(visit: Visit) -> HttpAnswer:
        return _health(source)

    return {"/metrics": show_numbers, "/healthz": show_health}


class Numbers(Struct):
    """Guards that numbers are collected at most once in reuse_seconds, however many requests come."""

    registry: CollectorRegistry
    reuse_seconds: float
    clock: Callable[[], float]
    _text: bytes = b""
    _until: float = field(default=float("-inf"))

    def text(self) -> bytes:
        if self.clock() >= self._until:
            self._text = generate_latest(self.registry)
            self._until = self.clock() + self.reuse_seconds
        return self._text


def _health(source: MetricsSource) -> HttpAnswer:
    health = report_health(source.services)
    return HttpAnswer(200 if health["ok"] else 503, json.dumps(health).encode() + b"\n", "application/json")
