"""The numbers of a directory of images for Prometheus.  docs/images.md lists them."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from mpsd.images.store import Images
from mpsd.model.visible_text import visible


def metrics_text(images: Images) -> str:
    registry = CollectorRegistry()
    registry.register(_Families(images))
    return generate_latest(registry).decode()


class _Families(Collector):
    def __init__(self, images: Images) -> None:
        self._images = images

    def collect(self) -> Iterator[Metric]:
        listing = self._images.listing()
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        newest: dict[str, float] = {}
        for each in listing.images:
            counts[each.series] += 1
            sizes[each.series] += each.content_bytes
            newest[each.series] = each.instant  # they come oldest first
        yield _by_arena("mpsd_images", "Complete images, by arena or group.", counts)
        yield _by_arena("mpsd_images_bytes", "Bytes of the images' arenas, shared blocks counted for each.", sizes)
        yield _by_arena("mpsd_images_last_timestamp_seconds", "The moment of the newest image, since the epoch.", newest)
        yield GaugeMetricFamily("mpsd_images_damaged", "Images whose manifest cannot be read.", len(listing.damaged))
        stored = self._images.directory.stored_bytes()
        yield GaugeMetricFamily("mpsd_images_stored_bytes", "Disk space of all images.", stored)
        failures = self._images.directory.failures()
        yield CounterMetricFamily("mpsd_images_failures", "Images that were begun and failed.", failures.count)


def _by_arena(name: str, help: str, values: "Counter[str] | dict[str, float]") -> GaugeMetricFamily:
    made = GaugeMetricFamily(name, help, labels=("arena",))
    for arena, value in sorted(values.items()):
        made.add_metric((visible(arena),), value)
    return made
