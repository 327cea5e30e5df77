"""A daemon of the API's fakes, and its metrics."""

from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from mpsd.api.event_bus import EventBus
from mpsd.metrics import pages
from mpsd.metrics.http import HttpAnswer, Page, Visit
from mpsd.metrics.server import Metrics, MetricsSettings
from mpsd.metrics.source import MetricsSource, Readings
from tests.unit.api.fake_services import NOW, Fakes, furnished


def _answer(page: Page) -> HttpAnswer:
    """Return the answer of a page that waits for nothing."""
    try:
        page(Visit("", {})).send(None)  # type: ignore[attr-defined]
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


class FakeDaemon:
    def __init__(self, fakes: Fakes, bus: EventBus, metrics: Metrics, readings: Readings) -> None:
        self.fakes, self.bus, self.metrics, self.readings = fakes, bus, metrics, readings

    @classmethod
    def furnish(cls, listen: str = "", **settings: Any) -> "FakeDaemon":
        bus = EventBus(clock=lambda: NOW)
        metrics = Metrics(MetricsSettings(listen, **settings), bus)
        readings = Readings(lambda: 7, lambda: 3, lambda: 2, lambda: 1)
        return cls(furnished(bus.publish), bus, metrics, readings)

    def source(self) -> MetricsSource:
        return MetricsSource(self.fakes.services(), self.bus, self.metrics.tallies, self.readings)

    def pages(self, clock: Callable[[], float] = lambda: 0.0, reuse_seconds: float = 0.0) -> Any:
        made = pages.build(self.source(), reuse_seconds, clock)
        return {path: partial(_answer, page) for path, page in made.items()}

    def families(self) -> dict[str, Metric]:
        text = self.pages()["/metrics"]().body.decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def values(self, family: str) -> dict[str, float]:
        """By the value of the only label; of a family without one, by the sample's name."""
        found = self.families()[family].samples
        return {"".join(sample.labels.values()) or sample.name: sample.value for sample in found}
