"""The answers of a daemon to Prometheus and to a health check."""

import json
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from mpsd.api.event_bus import EventBus
from mpsd.errors import Refused
from mpsd.metrics.counters import MOST_VALUES, OTHER, Counters, Histogram
from mpsd.model.arena import GRANULE, KeeperView
from mpsd.model.domain import DomainState
from mpsd.model.lease import Grant, Refusal
from mpsd.model.process import Credentials, ProcessId
from mpsd.model.service import MemberState, MemberView, Phase, ServiceSettings, ServiceView
from tests.unit.api.fake_services import UUIDS
from tests.unit.metrics.fake_daemon import FakeDaemon


@pytest.fixture
def daemon() -> FakeDaemon:
    return FakeDaemon.furnish()


# -- numbers -------------------------------------------------------------------------------------------------------------


def test_clients_are_counted_as_client_list_tells_them(daemon: FakeDaemon) -> None:
    """Two run, two wait; one that was admitted without a domain yet is starting."""
    daemon.fakes.leases.admit(900, 1000, Grant("no lease"))
    assert daemon.values("mpsd_clients") == {"running": 2, "waiting": 2, "starting": 1}


def test_a_client_that_waits_again_is_counted_once(daemon: FakeDaemon) -> None:
    entry = daemon.fakes.leases.waiting[0]
    daemon.fakes.leases.granted[entry.process] = Grant("no lease")
    assert sum(daemon.values("mpsd_clients").values()) == 4


def test_leases_reserve_on_their_gpus(daemon: FakeDaemon) -> None:
    """Two of 30 % of every GPU; one that is queued reserves nothing."""
    assert daemon.values("mpsd_leases") == {"active": 2, "queued": 0}
    assert daemon.values("mpsd_sm_reserved_ratio") == pytest.approx(dict.fromkeys(UUIDS, 0.6))
    assert daemon.values("mpsd_memory_reserved_bytes") == dict.fromkeys(UUIDS, 0)


def test_the_queue_says_how_long_the_first_has_waited(daemon: FakeDaemon) -> None:
    assert daemon.values("mpsd_queue_length") == {"client": 2, "lease": 0}
    assert daemon.values("mpsd_queue_oldest_wait_seconds") == {"mpsd_queue_oldest_wait_seconds": 1.5}
    daemon.fakes.leases.waiting.clear()
    assert daemon.values("mpsd_queue_oldest_wait_seconds") == {"mpsd_queue_oldest_wait_seconds": 0}


def test_every_state_of_a_domain_has_a_number(daemon: FakeDaemon) -> None:
    """A series that comes and goes cannot be alarmed on."""
    states = daemon.values("mpsd_domains")
    assert set(states) == {state.value for state in DomainState} - {"gone"}
    assert (states["ready"], states["fault"], states["dead"]) == (2, 1, 0)
    assert daemon.values("mpsd_domains_spare") == {"mpsd_domains_spare": 1}
    assert daemon.values("mpsd_domain_clients") == {"d1": 1, "d2": 1, "d3": 0}
    assert set(daemon.values("mpsd_domain_places").values()) == {48}


def test_what_others_count_is_read_from_them(daemon: FakeDaemon) -> None:
    lost = daemon.values("mpsd_log_lines_lost")
    assert (lost["log"], lost["audit"]) == (2, 1)
    assert daemon.values("mpsd_relay_connections") == {"mpsd_relay_connections": 7}
    assert daemon.values("mpsd_api_connections") == {"mpsd_api_connections": 3}


def test_no_label_has_a_name_that_a_user_has_chosen(daemon: FakeDaemon) -> None:
    """Every program that reaches the address reads them (docs/security.md)."""
    chosen = {arena.name for arena in daemon.fakes.services().arenas.arenas()}
    assert chosen == {"weights", "cache"}
    text = daemon.pages()["/metrics"]().body.decode()
    assert not [name for name in chosen if name in text]


def test_events_are_counted(daemon: FakeDaemon) -> None:
    for lease_id in (1, 2, None):
        daemon.bus.publish("client.admitted", {"uid": 1000, "lease_id": lease_id})
    daemon.bus.publish("client.refused", {"uid": 1000, "way": "error"})
    for gpu in UUIDS:
        daemon.bus.publish("fault.xid", {"xid": 31, "gpu": gpu})
    daemon.bus.publish("domain.fault", {"domain": "d1"})
    daemon.bus.publish("domain.starting", {"domain": "d1", "was": None})
    daemon.bus.publish("domain.ready", {"domain": "d1", "was": "dead"})
    daemon.bus.publish("domain.gone", {"domain": "d1", "was": "dead"})
    assert daemon.values("mpsd_clients_admitted") == {"yes": 2, "no": 1}
    assert daemon.values("mpsd_clients_refused") == {"wait": 0, "error": 1, "end": 0}
    assert daemon.values("mpsd_xids") == {f"{gpu}31": 1 for gpu in UUIDS}
    assert daemon.values("mpsd_domain_faults") == {"mpsd_domain_faults_total": 1}
    assert daemon.values("mpsd_vendor_restarts") == {"mpsd_vendor_restarts_total": 1}
    assert daemon.values("mpsd_events")["fault.xid"] == 2


def test_arenas_are_counted_by_who_has_them_open(daemon: FakeDaemon) -> None:
    """On each GPU, also with zero: an alert cannot use a series that comes and goes."""
    arenas = daemon.fakes.arenas
    assert daemon.values("mpsd_arenas") == {"written": 1, "read": 0, "unheld": 1}
    assert daemon.values("mpsd_arena_memory_bytes") == {
        f"{gpu}{state}": GRANULE if (gpu, state) in ((UUIDS[0], "written"), (UUIDS[0], "unheld")) else 0
        for gpu in UUIDS
        for state in ("written", "read", "unheld")
    }
    assert daemon.values("mpsd_arena_capacity_bytes") == {UUIDS[0]: 16 << 30, UUIDS[1]: 0}
    assert daemon.values("mpsd_arena_allocations") == {UUIDS[0]: 2, UUIDS[1]: 0}
    arenas.made[1] = replace(arenas.made[1], writer=None, readers=(ProcessId(5, 5),), gpu="GPU-that-has-gone")
    assert daemon.values("mpsd_arenas") == {"written": 0, "read": 1, "unheld": 1}
    assert daemon.values("mpsd_arena_capacity_bytes")["GPU-that-has-gone"] == 8 << 30


def test_what_becomes_of_arenas_is_counted(daemon: FakeDaemon) -> None:
    for seconds in (0.02, 0.2, None, "long"):
        daemon.bus.publish("arena.fenced", {"seconds": seconds})
    daemon.bus.publish("arena.lost", {"name": "weights"})
    daemon.bus.publish("arena.evicted", {"name": "cache"})
    fenced = {
        sample.name: sample.value for sample in daemon.families()["mpsd_fence_seconds"].samples if "le" not in sample.labels
    }
    assert fenced == {"mpsd_fence_seconds_count": 2, "mpsd_fence_seconds_sum": pytest.approx(0.22)}
    assert daemon.values("mpsd_arenas_lost") == {"mpsd_arenas_lost_total": 1}
    assert daemon.values("mpsd_arenas_evicted") == {"mpsd_arenas_evicted_total": 1}


SERVICE = ServiceView(
    1, "llm", 1000, UUIDS[0], Phase.SERVING, 7, ProcessId(5, 5), 1, ServiceSettings(),
    (
        MemberView(ProcessId(5, 5), "d1", 0, MemberState.READY, True, True, 1.0),
        MemberView(ProcessId(6, 6), "d2", 0, MemberState.WARMING, False, True, 2.0),
    ),
    0, None,
)  # fmt: skip


def test_services_are_counted(daemon: FakeDaemon) -> None:
    """One without processes is unserved for good reason: its owner has ended it."""
    found = [
        SERVICE,
        replace(SERVICE, protection="no standby is ready"),
        replace(SERVICE, phase=Phase.IDLE, protection="no standby is ready"),
        replace(SERVICE, phase=Phase.IDLE, members=()),
    ]
    services = replace(daemon.fakes.services(), failover=SimpleNamespace(services=lambda: found))
    daemon.fakes.services = lambda: services  # type: ignore[method-assign]
    phases = daemon.values("mpsd_services")
    assert (phases["serving"], phases["idle"], phases["fencing"]) == (2, 2, 0)
    assert daemon.values("mpsd_services_unserved") == {"mpsd_services_unserved": 1}
    assert daemon.values("mpsd_services_unprotected") == {"mpsd_services_unprotected": 1}
    assert daemon.values("mpsd_service_members") == {"ready": 3, "warming": 3, "faulted": 0, "silent": 0}


def test_promotions_are_counted_and_timed(daemon: FakeDaemon) -> None:
    daemon.bus.publish("service.promoted", {"cause": "fault", "detect_ms": 0.5, "fence_ms": 12.0, "promote_ms": None})
    daemon.bus.publish("service.promoted", {"cause": "first", "promote_ms": 2})
    causes = daemon.values("mpsd_service_promotions")
    assert (causes["fault"], causes["first"], causes["asked"]) == (1, 1, 0)
    samples = daemon.families()["mpsd_service_promotion_seconds"].samples
    sums = {sample.labels["part"]: sample.value for sample in samples if sample.name.endswith("_sum")}
    assert sums == pytest.approx({"detect": 0.0005, "fence": 0.012, "promote": 0.002})


@pytest.mark.parametrize(
    ("view", "works", "held"),
    [
        (KeeperView("works", (4711, 4712), 7), 1, 7),
        (KeeperView("it hung up", (), 3), 0, 3),
        (KeeperView("it does not answer", (4711,), 0), 0, 0),
        (KeeperView("there is none", (), 0), 1, 0),
        (None, 1, 0),
    ],
)
def test_the_keeper_is_told_of(view: KeeperView | None, works: int, held: int, daemon: FakeDaemon) -> None:
    services = replace(daemon.fakes.services(), keeper=lambda: view)
    daemon.fakes.services = lambda: services  # type: ignore[method-assign]
    assert daemon.values("mpsd_keeper_works") == {"mpsd_keeper_works": works}
    assert daemon.values("mpsd_keeper_descriptors") == {"mpsd_keeper_descriptors": held}
    assert daemon.values("mpsd_keeper_processes") == {"mpsd_keeper_processes": len(view.pids) if view else 0}


def test_a_label_from_outside_has_a_bounded_number_of_values() -> None:
    tallies, bus = Counters(), EventBus()
    bus.listeners.append(tallies.hear)
    for number in range(10 * MOST_VALUES):
        bus.publish("fault.xid", {"xid": number})
    assert len(tallies.xids) == MOST_VALUES + 1
    assert tallies.xids[OTHER, OTHER] == 9 * MOST_VALUES


def test_a_histogram_is_cumulated_and_its_bounds_are_inclusive() -> None:
    histogram = Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(seconds)
    assert histogram.cumulated() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert histogram.sum == 12.0


class Book:
    """An admission that takes a second, and refuses a pid that is not a process."""

    def grant_of(self, process: ProcessId) -> Grant | None:
        return Grant("known") if process.pid == 1 else None

    def identity_of(self, process: ProcessId) -> None:
        return None

    async def admit(self, process: ProcessId | None, credentials: Credentials, told: Callable[[str], None]) -> Grant:
        await trio.sleep(1)
        if process is None:
            raise Refused(Refusal.ERROR, "no")
        return Grant("new")


async def test_admissions_are_timed(daemon: FakeDaemon, autojump_clock: trio.testing.MockClock) -> None:
    """Real seconds are counted; that the fake's second is another does no harm.  A refusal is not an admission."""
    timed, me = daemon.metrics.timing(Book()), Credentials(2, 0, 0)
    assert timed.grant_of(ProcessId(1, 1)) == Grant("known")
    assert timed.identity_of(ProcessId(1, 1)) is None
    assert await timed.admit(ProcessId(2, 2), me, print) == Grant("new")
    with pytest.raises(Refused):
        await timed.admit(None, me, print)
    daemon.metrics.took_handshake(0.3)
    counts = {name: family.samples for name, family in daemon.families().items() if family.type == "histogram"}
    assert {name: [s.value for s in found if s.name.endswith("_count")] for name, found in counts.items()} == {
        "mpsd_admission_seconds": [1],
        "mpsd_handshake_seconds": [1],
        "mpsd_fence_seconds": [0],
        "mpsd_service_promotion_seconds": [0, 0, 0],
    }


def test_many_who_ask_get_one_collection(daemon: FakeDaemon) -> None:
    now = [0.0]
    shown = daemon.pages(lambda: now[0], reuse_seconds=1.0)
    first = shown["/metrics"]().body
    daemon.bus.publish("fault.xid", {"xid": 31})
    assert shown["/metrics"]().body == first
    now[0] = 1.0
    assert shown["/metrics"]().body != first


def test_an_idle_daemon_has_every_family(daemon: FakeDaemon) -> None:
    """Except families for events that never happened, with label values that are unknown before."""
    empty = FakeDaemon.furnish()
    empty.fakes.leases.made.clear()
    empty.fakes.domains.known.clear()
    assert set(empty.families()) == set(daemon.families())


# -- health --------------------------------------------------------------------------------------------------------------


def health_of(daemon: FakeDaemon) -> tuple[int, Any]:
    answer = daemon.pages()["/healthz"]()
    return answer.status, json.loads(answer.body)


def test_health_is_told_with_its_reasons(daemon: FakeDaemon) -> None:
    assert health_of(daemon)[0] == 200
    assert health_of(daemon)[1]["problems"] == []
    assert daemon.values("mpsd_healthy") == {"mpsd_healthy": 1}
    daemon.fakes.is_stopping = True
    status, said = health_of(daemon)
    assert status == 503
    assert said["state"] == "stopping"
    assert "quitting" in said["problems"][0]
    assert daemon.values("mpsd_healthy") == {"mpsd_healthy": 0}


def test_health_is_looked_at_once_a_second_for_all_readers(daemon: FakeDaemon) -> None:
    """Each look lists all domains and clients, and a reader can ask without a pause."""
    now = [0.0]
    health = daemon.pages(lambda: now[0], reuse_seconds=1.0)["/healthz"]
    assert health().status == 200
    daemon.fakes.is_stopping = True
    now[0] = 0.99
    assert health().status == 200
    now[0] = 1.0
    assert health().status == 503


def test_a_daemon_without_a_ready_domain_is_not_healthy(daemon: FakeDaemon) -> None:
    daemon.fakes.domains.known.clear()
    daemon.fakes.domains.add("d1", DomainState.SILENT)
    status, said = health_of(daemon)
    assert (status, said["ok"]) == (503, False)
    assert "d1 is silent" in said["problems"][0]


def test_nothing_asks_a_vendor_daemon(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """`servers` is the question that can wait for one."""

    async def asked(*anything: object) -> None:
        raise AssertionError("a vendor daemon was asked")

    monkeypatch.setattr(daemon.fakes.board, "servers", asked)
    daemon.pages()["/metrics"]()
    daemon.pages()["/healthz"]()


def test_the_library_is_not_loaded_where_nobody_asks() -> None:
    code = "import sys, mpsd.app.settings; print(sorted({'prometheus_client', 'h11'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "[]\n"
