"""Upkeep while a vendor daemon, the disk or NVML fails."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.domains.rules.placement import Create, PlacementRequest
from mpsd.domains.rules.spares import SparePlan
from mpsd.domains.settings import PoolSettings
from mpsd.domains.upkeep import Upkeep
from mpsd.errors import MpsdError, UnusablePath, VendorFailed
from mpsd.host import processes
from mpsd.model.device import Device
from mpsd.model.domain import Defaults, DomainState, ServerView
from mpsd.model.process import ProcessId
from tests.unit.domains.test_ending_strangers import SERVER, Vendor

GPUS = ("GPU-a",)


class Failing(Vendor):
    """A vendor daemon that does not answer some commands."""

    silence_seconds, was_left_exposed = 15.0, False

    def __init__(self, unanswered: str) -> None:
        super().__init__()
        self.unanswered, self.is_killed, self.is_stuck = unanswered, False, False

    async def commands(self, lines: Sequence[str]) -> str:
        return "".join([await self.command(line) for line in lines])

    async def command(self, line: str, seconds: float | None = None) -> str:
        self.told.append(line)
        if line.startswith(self.unanswered):
            raise VendorFailed(f"{line} was not answered")
        return ""

    async def kill(self) -> bool:
        self.is_killed = True
        return not self.is_stuck

    def is_alive(self) -> bool:
        return not self.is_killed  # nor one that is stuck in its exit, as with a file that it cannot close


class Store:
    """A store whose writes work."""

    def __getattr__(self, name: str) -> object:
        return lambda *values: None


SETTINGS = PoolSettings(
    home=Path("/"), spares=1, max_domains=8, clients_per_server=48, idle_seconds=60.0, poll_seconds=60.0, restart_seconds=1.0,
    restart_max_seconds=60.0, is_multiuser=False, vendor_options=(), visible_devices=None,
)  # fmt: skip


def a_pool(domain: Domain) -> Pool:
    pool = Pool(SETTINGS, None, (), Defaults(), Store(), None, None)  # type: ignore[arg-type]
    pool.domains[domain.name] = domain
    return pool


@pytest.mark.parametrize(
    ("unanswered", "disk"),
    [
        pytest.param("shutdown_server", None, id="a server does not shut down"),
        pytest.param("get_server_list", None, id="the list of servers is not answered"),
        pytest.param("set_default_active_thread_percentage", None, id="the defaults are not taken"),
        pytest.param("nothing", UnusablePath("the disk is full"), id="the disk is full"),
    ],
)
async def test_a_domain_that_cannot_be_recycled_is_restarted(
    unanswered: str, disk: MpsdError | None, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """It stayed RECYCLING for ever, and all clients of its GPUs waited for it."""

    def guard(pool: Pool, domain: Domain) -> None:
        if disk is not None:
            raise disk

    vendor = Failing(unanswered)
    servers = {SERVER: ServerView(SERVER, 0, "ACTIVE", (), "default", GPUS)}
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.FAULT, servers=servers)  # type: ignore[arg-type]
    monkeypatch.setattr(Pool, "begin_guarding", guard)
    upkeep = Upkeep(a_pool(domain), 1.0, None)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        upkeep._begin(nursery, domain, upkeep.recycle)
    assert vendor.is_killed
    assert "default" not in upkeep._busy


@pytest.mark.parametrize("age", [0, -1], ids=["the client", "a later process with its pid"])
async def test_a_later_process_with_the_pid_of_an_ended_client_keeps_no_domain_in_fault(
    child: "subprocess.Popen[bytes]", age: int
) -> None:
    """Its vendor daemon hangs, and lists the ended client: a user could take that pid, and so keep the domain from others."""
    servers = {SERVER: ServerView(SERVER, 0, "FAULT", (child.pid,), "default", GPUS)}
    domain = Domain("default", 1, GPUS, Failing("nothing"), 48, state=DomainState.FAULT, servers=servers)  # type: ignore[arg-type]
    process = processes.find(child.pid)
    assert process is not None
    domain.admit(ProcessId(process.pid, process.start_time + age))
    assert Upkeep._lives(domain) is (age == 0)


async def test_a_domain_that_can_be_recycled_is_ready() -> None:
    vendor = Failing("nothing")
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.FAULT)  # type: ignore[arg-type]
    upkeep = Upkeep(a_pool(domain), 1.0, None)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        upkeep._begin(nursery, domain, upkeep.recycle)
    assert (domain.state, vendor.is_killed) == (DomainState.READY, False)


async def test_no_client_waits_for_a_killed_vendor_daemon_that_does_not_end(autojump_clock: trio.testing.MockClock) -> None:
    """Its domain stayed RECYCLING, so that newcomers waited for it and got no other one."""
    vendor = Failing("nothing")
    vendor.is_stuck = True
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain.find_hindered("its vendor server, pid 7, is stopped")
    pool, newcomer = a_pool(domain), PlacementRequest(7, frozenset(GPUS))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Upkeep(pool, 1.0, None).run)  # type: ignore[arg-type]
        with trio.fail_after(30.0):
            while not (vendor.is_killed and isinstance(pool.decide(newcomer, None, pool.views()), Create)):
                await pool.changed()
        nursery.cancel_scope.cancel()


async def test_nor_for_one_that_is_killed_because_it_cannot_be_recycled(autojump_clock: trio.testing.MockClock) -> None:
    vendor = Failing("set_default_active_thread_percentage")
    vendor.is_stuck = True
    domain = Domain("default", 1, GPUS, vendor, 48, state=DomainState.FAULT)  # type: ignore[arg-type]
    pool = a_pool(domain)
    upkeep = Upkeep(pool, 1.0, None)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        upkeep._begin(nursery, domain, upkeep.recycle)
    assert isinstance(pool.decide(PlacementRequest(7, frozenset(GPUS)), None, pool.views()), Create)


async def test_a_silent_nvml_delays_no_other_upkeep(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """A hung GPU stopped it for all domains, and the quit of mpsd found a domain that had gone."""
    has_answered, read = trio.Event(), []

    async def read_devices() -> tuple[Device, ...]:
        read.append(trio.current_time())
        await has_answered.wait()
        return ()

    vendor = Failing("nothing")
    spare = Domain("d2", 2, GPUS, vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]
    pool = a_pool(spare)
    monkeypatch.setattr("mpsd.domains.upkeep.plan_spares", lambda *facts: SparePlan(warm=("d2",)))
    upkeep = Upkeep(pool, 1.0, read_devices)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upkeep.run)
        await trio.sleep(30.0)
        assert len(read) == 1
        other = pool.domains["default"] = Domain("default", 1, GPUS, vendor, 48, state=DomainState.FAULT)  # type: ignore[arg-type]
        pool.notify()
        await trio.sleep(10.0)
        assert other.state is DomainState.READY
        pool.stopping.set()
        del pool.domains["d2"]
        has_answered.set()
        pool.notify()


async def test_no_spare_is_made_on_a_gpu_that_was_drained_while_nvml_was_silent(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Its server would keep the GPU from the reset for which it is drained."""
    has_answered, made, looks = trio.Event(), list[Sequence[str]](), list[float]()

    async def read_devices() -> tuple[Device, ...]:
        await has_answered.wait()
        return ()

    pool = a_pool(Domain("default", 1, GPUS, Failing("nothing"), 48, state=DomainState.READY))  # type: ignore[arg-type]
    monkeypatch.setattr("mpsd.domains.upkeep.plan_spares", lambda *facts: SparePlan(create=1))
    monkeypatch.setattr(Pool, "create", lambda pool, gpus: made.append(gpus))
    upkeep = Upkeep(pool, 1.0, read_devices)
    look = upkeep._look

    def counted(nursery: trio.Nursery) -> None:
        looks.append(trio.current_time())
        look(nursery)

    monkeypatch.setattr(upkeep, "_look", counted)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upkeep.run)
        await trio.sleep(30.0)
        pool.drain_gpu(GPUS[0], "it is reset")
        has_answered.set()
        looks.clear()
        await trio.sleep(30.0)
        assert made == []
        assert len(looks) < 100, "it looks all the time for a spare that is not due"
        nursery.cancel_scope.cancel()
