"""Give mpsd's numbers their names for Prometheus.  docs/monitoring.md lists them and is checked against this.

Everything is read from mpsd's state on request; nothing is kept up to date for it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from mpsd import __version__
from mpsd.api.methods.daemon import report_health
from mpsd.api.methods.queue import all_waiting
from mpsd.api.ports import Ports
from mpsd.metrics.counters import Histogram
from mpsd.metrics.source import MetricsSource
from mpsd.model.arena import Arena
from mpsd.model.domain import DomainState
from mpsd.model.lease import FULL_PERCENT, Lease, LeaseState, Refusal
from mpsd.model.service import Cause, MemberState, Phase, is_unserved

WAITING, STARTING, RUNNING = "waiting", "starting", "running"  # of clients, as client.list has them
UUID = "UUID"  # the label of a GPU, as dcgm-exporter has it: the numbers can be joined
_ARENA_STATES = ("written", "read", "unheld")


class Families(Collector):
    """Every family, collected anew for each request."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        for subject in _SUBJECTS:
            yield from subject(self._source)


def _of_daemon(source: MetricsSource) -> Iterator[Metric]:
    services = source.services
    facts = {name: str(value).lower() for name, value in services.facts.items()}
    build = {"version": __version__, "backend": facts.get("backend", ""), "privileged": facts.get("is_privileged", "")}
    yield _labelled("mpsd_build_info", "Which mpsd this is; always 1.", tuple(build), [(tuple(build.values()), 1)])
    yield GaugeMetricFamily("mpsd_start_time_seconds", "When mpsd started, since the epoch.", services.started_at)
    is_healthy = report_health(services)["ok"]
    yield GaugeMetricFamily("mpsd_healthy", "Whether a client that comes would be served.", float(is_healthy))
    yield _counter("mpsd_events", "Events, by topic.", "topic", source.tallies.topics)
    yield CounterMetricFamily("mpsd_events_lost", "Events that slow subscribers did not get.", source.events.lost)
    lost = {"log": source.readings.log_lines_lost(), "audit": source.readings.audit_lines_lost()}
    yield _counter("mpsd_log_lines_lost", "Lines that could not be written, by file.", "file", lost)


def _of_connections(source: MetricsSource) -> Iterator[Metric]:
    readings = source.readings
    relayed = readings.relay_connections()
    yield GaugeMetricFamily("mpsd_relay_connections", "Connections of CUDA processes that are open at mpsd.", relayed)
    connected = readings.api_connections()
    yield GaugeMetricFamily("mpsd_api_connections", "Connections at mpsd.sock.", connected)
    subscribers = source.events.subscribers
    yield GaugeMetricFamily("mpsd_api_subscribers", "Connections at mpsd.sock that wait for events.", subscribers)


def _of_clients(source: MetricsSource) -> Iterator[Metric]:
    states = _states_of_clients(source.services)
    yield _gauge("mpsd_clients", "Client processes, by state.", "state", states)
    tallies = source.tallies
    admitted = dict.fromkeys(("yes", "no"), 0) | tallies.admitted
    yield _counter("mpsd_clients_admitted", "Clients that were let in, by whether they had a lease.", "lease", admitted)
    refused = {way.value: 0 for way in Refusal} | tallies.refused
    yield _counter("mpsd_clients_refused", "Clients that were refused, by the way of refusal.", "way", refused)
    yield _histogram("mpsd_admission_seconds", "From a client's arrival to its grant, its time in the queue included.",
                     tallies.admission)  # fmt: skip
    yield _histogram("mpsd_handshake_seconds", "A connection's time with its domain, its turn there included.",
                     tallies.handshake)  # fmt: skip


def _states_of_clients(services: Ports) -> Mapping[str, int]:
    """Count clients by state like client.list, but without a check of each process: those that a server lists run."""
    domains = services.domains
    running = {pid for view in domains.views() for server in domains.servers(view.name) for pid in server.client_pids}
    waiting = {entry.process for entry in all_waiting(services) if entry.process is not None}
    starting = {process for process in services.leases.grants() if process.pid not in running} - waiting
    return {WAITING: len(waiting), STARTING: len(starting), RUNNING: len(running)}


def _of_queue(source: MetricsSource) -> Iterator[Metric]:
    queue = list(all_waiting(source.services))
    kinds = Counter("lease" if entry.process is None else "client" for entry in queue)
    yield _gauge("mpsd_queue_length", "Waiting leases and clients.", "kind", {"lease": 0, "client": 0} | kinds)
    oldest = max((entry.waited_seconds for entry in queue), default=0.0)
    yield GaugeMetricFamily("mpsd_queue_oldest_wait_seconds", "How long the one has waited that came first.", oldest)


def _of_leases(source: MetricsSource) -> Iterator[Metric]:
    leases = source.services.leases.leases()
    states = {state.value: 0 for state in LeaseState} | Counter(lease.state.value for lease in leases)
    yield _gauge("mpsd_leases", "Leases, by state.", "state", states)
    gpus = [device.uuid for device in source.services.board.devices]
    shares, sizes = _reserved(leases, gpus)
    yield _gauge("mpsd_sm_reserved_ratio", "SM share that active leases have reserved; 1: the whole GPU.", UUID, shares)
    yield _gauge("mpsd_memory_reserved_bytes", "Memory that active leases have reserved.", UUID, sizes)


def _reserved(leases: Iterable[Lease], gpus: list[str]) -> tuple[Mapping[str, float], Mapping[str, int]]:
    """Return shares and bytes by GPU."""
    percents, sizes = dict.fromkeys(gpus, 0.0), dict.fromkeys(gpus, 0)
    for lease in leases:
        if lease.state is LeaseState.ACTIVE:
            spec = lease.spec
            for gpu in spec.gpus or gpus:
                percents[gpu] = percents.get(gpu, 0.0) + spec.sm_percent
                sizes[gpu] = sizes.get(gpu, 0) + spec.memory_bytes.get(gpu, 0)
    return {gpu: percent / FULL_PERCENT for gpu, percent in percents.items()}, sizes


def _of_gpus(source: MetricsSource) -> Iterator[Metric]:
    devices = source.services.board.devices
    yield _labelled(
        "mpsd_gpu_info",
        "A GPU of the daemon; always 1.",
        (UUID, "ordinal", "name", "pci_bus_id"),
        [((device.uuid, str(device.ordinal), device.name, device.pci_bus_id), 1) for device in devices],
    )
    sizes = {device.uuid: device.total_bytes for device in devices}
    yield _gauge("mpsd_gpu_memory_bytes", "The memory of a GPU.", UUID, sizes)


def _of_domains(source: MetricsSource) -> Iterator[Metric]:
    views, tallies = source.services.domains.views(), source.tallies
    states = {state.value: 0 for state in DomainState if state is not DomainState.GONE}
    states |= Counter(view.state.value for view in views)
    yield _gauge("mpsd_domains", "Fault domains, by state.", "state", states)
    spares = sum(not view.is_public and view.state is DomainState.READY for view in views)
    yield GaugeMetricFamily("mpsd_domains_spare", "Fault domains that are ready and have no client yet.", spares)
    yield _gauge("mpsd_domain_clients", "Places taken in a fault domain.", "domain", {v.name: v.clients for v in views})
    yield _gauge("mpsd_domain_places", "Places that a fault domain has.", "domain", {v.name: v.capacity for v in views})
    yield CounterMetricFamily("mpsd_domain_faults", "How often a fault domain faulted.", tallies.domain_faults)
    yield CounterMetricFamily("mpsd_vendor_restarts", "How often a vendor daemon died and was started again.",
                              tallies.vendor_restarts)  # fmt: skip
    xids = CounterMetricFamily("mpsd_xids", "GPU errors in the kernel log, by NVIDIA's number.", labels=(UUID, "xid"))
    for labels, count in tallies.xids.items():
        xids.add_metric(labels, count)
    yield xids


def _of_arenas(source: MetricsSource) -> Iterator[Metric]:
    services, tallies = source.services, source.tallies
    arenas = services.arenas.arenas() if services.arenas else []
    counts = dict.fromkeys(_ARENA_STATES, 0) | Counter(_state_of(arena) for arena in arenas)
    yield _gauge("mpsd_arenas", "Arenas, by the process that has them open.", "state", counts)
    gpus = [device.uuid for device in services.board.devices]
    sizes = Counter({(gpu, state): 0 for gpu in gpus for state in _ARENA_STATES})
    capacities, allocations = dict.fromkeys(gpus, 0), dict.fromkeys(gpus, 0)
    for arena in arenas:
        sizes[arena.gpu, _state_of(arena)] += arena.used_bytes
        capacities[arena.gpu] = capacities.get(arena.gpu, 0) + arena.capacity_bytes
        allocations[arena.gpu] = allocations.get(arena.gpu, 0) + arena.allocations
    yield _labelled(
        "mpsd_arena_memory_bytes", "Memory of arenas, by the process that has them open.", (UUID, "state"), sizes.items()
    )
    yield _gauge("mpsd_arena_capacity_bytes", "Memory that arenas may hold.", UUID, capacities)
    yield _gauge("mpsd_arena_allocations", "Committed allocations of arenas.", UUID, allocations)
    yield CounterMetricFamily("mpsd_arenas_evicted", "Arenas that made room for others.", tallies.arenas_evicted)
    yield CounterMetricFamily("mpsd_arenas_lost", "Arenas that lost their memory with their keeper.", tallies.arenas_lost)
    yield _histogram("mpsd_fence_seconds", "From the end of a process that held an arena to the end of the process's GPU work.",
                     tallies.fence)  # fmt: skip
    keeper = services.keeper()
    works = keeper is None or keeper.works
    yield GaugeMetricFamily("mpsd_keeper_works", "Whether all keepers of arenas answer.", float(works))
    held, count = (keeper.held, len(keeper.pids)) if keeper else (0, 0)
    yield GaugeMetricFamily("mpsd_keeper_descriptors", "Descriptors that the keepers of the arenas hold.", held)
    yield GaugeMetricFamily("mpsd_keeper_processes", "Keepers of the arenas: as many as their descriptors take.", count)


def _of_services(source: MetricsSource) -> Iterator[Metric]:
    services, tallies = source.services.failover.services() if source.services.failover else (), source.tallies
    phases = {phase.value: 0 for phase in Phase} | Counter(each.phase.value for each in services)
    yield _gauge("mpsd_services", "Services, by phase.", "phase", phases)
    unserved = sum(is_unserved(each) for each in services)
    yield GaugeMetricFamily("mpsd_services_unserved", "Services with members and without an active member.", unserved)
    unprotected = sum(each.phase is Phase.SERVING and bool(each.protection) for each in services)
    yield GaugeMetricFamily("mpsd_services_unprotected", "Services that a fault would interrupt for longer.", unprotected)
    replicas = [each.replica for each in services if each.replica]
    yield GaugeMetricFamily("mpsd_services_replicated", "Services with a replica on another GPU.", len(replicas))
    behind = sum(each.is_behind for each in replicas)
    yield GaugeMetricFamily("mpsd_services_behind", "Services whose replica is further behind than its bound.", behind)
    standings = {standing.value: 0 for standing in MemberState}
    standings |= Counter(member.standing.value for each in services for member in each.members)
    yield _gauge("mpsd_service_members", "Processes of services, the active ones too.", "standing", standings)
    causes = {cause.value: 0 for cause in Cause} | tallies.promotions
    yield _counter("mpsd_service_promotions", "Promotions, by their cause.", "cause", causes)
    took = HistogramMetricFamily("mpsd_service_promotion_seconds", "Duration of promotions, by their parts.", labels=("part",))
    for part, histogram in tallies.promotion.items():
        took.add_metric((part,), histogram.cumulated(), histogram.sum)
    yield took


def _state_of(arena: Arena) -> str:
    return "written" if arena.writer is not None else "read" if arena.readers else "unheld"


_SUBJECTS: tuple[Callable[[MetricsSource], Iterator[Metric]], ...] = (
    _of_daemon, _of_connections, _of_clients, _of_queue, _of_leases, _of_gpus, _of_domains, _of_arenas,
    _of_services,
)  # fmt: skip


# -- families ------------------------------------------------------------------------------------------------------------


def _gauge(name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
    return _labelled(name, help, (label,), [((each,), value) for each, value in values.items()])


def _labelled(name: str, help: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _counter(name: str, help: str, label: str, values: Mapping[Any, float]) -> Metric:
    """The exposition adds _total to `name`."""
    family = CounterMetricFamily(name, help, labels=(label,))
    for each, value in values.items():
        family.add_metric((str(each),), value)
    return family


def _histogram(name: str, help: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(name, help, histogram.cumulated(), histogram.sum)
