"""A restarted mpsd and a domain whose vendor daemon lives, but does not answer it."""

import errno
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.domains.lifecycle import live
from mpsd.domains.pool import Pool
from mpsd.domains.rules.vendor_limits import ClientLimits
from mpsd.domains.settings import PoolSettings
from mpsd.domains.store import SqliteStore
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.model.domain import Defaults, DomainState, ServerView
from mpsd.model.process import ProcessId
from mpsd.model.stop import Asker, Manner, Target, TargetKind, Way
from mpsd.stop.stopper import Stopper
from mpsd.stop.targets import Targets
from tests.inspecting import INSPECTOR

GPUS = ("GPU-a",)
BASELINES = {77: ClientLimits(50.0, (1 << 30,), 0)}
OWNER = 1000
PAUSE_SECONDS = 3600.0


class Silent:
    """A vendor daemon that answers no command."""

    is_exposed = False
    silence_seconds = 15.0
    process: ProcessId | None = None
    lives = True

    def is_alive(self) -> bool:
        return self.lives

    async def commands(self, lines: Sequence[str]) -> str:
        await trio.sleep(5.0)
        raise VendorFailed("no answer")

    async def start(self, visible: str | None, options: tuple[str, ...]) -> None:
        raise VendorFailed("it does not start")


class Restart:
    """A pool with one domain of an earlier mpsd, in which a client was placed."""

    def __init__(self, directory: Path, client: ProcessId) -> None:
        store = SqliteStore(directory / "db")
        store.save_member("d2", client, OWNER)
        settings = PoolSettings(directory, 0, 2, 48, 60.0, 60.0, PAUSE_SECONDS, PAUSE_SECONDS, False, (), None)
        self.pool = Pool(settings, None, (), Defaults(), store, None, None)  # type: ignore[arg-type]
        self.vendor = Silent()
        self.domain = Domain("d2", 2, GPUS, self.vendor, 48, key="own:eve")  # type: ignore[arg-type]
        self.domain.guard.is_on, self.domain.guard.baselines = True, dict(BASELINES)
        self.pool.domains["d2"] = self.domain

    async def begin(self, nursery: trio.Nursery) -> None:
        """Run the domain until mpsd has failed to adopt it."""
        self.pool._nursery = nursery
        nursery.start_soon(live, self.pool, self.domain)
        while self.domain.state is not DomainState.DEAD:
            await self.pool.changed()


@pytest.fixture
def client(child: "subprocess.Popen[bytes]") -> ProcessId:
    found = processes.find(child.pid)
    assert found is not None
    return found


async def test_it_keeps_its_key_its_limits_and_its_clients(
    tmp_path: Path, client: ProcessId, autojump_clock: trio.testing.MockClock
) -> None:
    """They were forgotten: once it answered, others shared the domain of a client alone, and its limits were taken for set."""
    restart = Restart(tmp_path, client)
    async with trio.open_nursery() as nursery:
        await restart.begin(nursery)
        domain = restart.domain
        assert (domain.key, domain.guard.is_on, domain.guard.baselines) == ("own:eve", True, BASELINES)
        assert restart.pool.home_of(client) is domain
        forgotten: list[tuple[ProcessId, Domain]] = []
        restart.pool.member_forgotten.subscribe(lambda *which: forgotten.append(which))
        restart.vendor.lives = False
        await trio.sleep(1.5 * PAUSE_SECONDS)
        assert forgotten == [(client, domain)], "it has no context that it could have lost"
        assert (domain.key, domain.guard.is_on, list(domain.members)) == ("", False, [])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_back", [False, True])
async def test_one_that_has_a_channel_in_two_domains_is_in_the_last_one_and_takes_a_place_in_the_other(
    tmp_path: Path, client: ProcessId, autojump_clock: trio.testing.MockClock, is_back: bool
) -> None:
    """The next mpsd knew the last one alone: the other looked empty, and the next user hung there."""
    restart = Restart(tmp_path, client)
    restart.pool.store.save_member("d3", client, OWNER)
    if is_back:
        restart.pool.store.save_member("d2", client, OWNER)
    async with trio.open_nursery() as nursery:
        await restart.begin(nursery)
        domain = restart.domain
        assert (client in domain.members, domain.channels) == (is_back, {client})
        assert domain.occupancy == 1
        assert [restart.pool.store.members(name) for name in ("d2", "d3")] == [[(client, OWNER)]] * 2
        assert restart.pool.store.left("d2") == ([] if is_back else [client])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("has_left", [False, True])
async def test_its_clients_are_no_strangers_though_mpsd_could_not_read_them_for_a_while(
    tmp_path: Path, client: ProcessId, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, has_left: bool
) -> None:
    """One process that a user holds in /proc keeps all of that user's from being read; mpsd ended the work of their clients."""
    restart = Restart(tmp_path, client)
    if has_left:
        restart.pool.store.save_member("d3", client, OWNER)

    def refuse(pid: int) -> list[bytes]:
        raise TimeoutError(errno.ETIMEDOUT, "it does not answer")

    async with trio.open_nursery() as nursery:
        with monkeypatch.context() as held:
            held.setattr(processes, "_stat", refuse)
            await restart.begin(nursery)
            await trio.sleep(5.0)
        view = ServerView(77, OWNER, "ACTIVE", (client.pid,), "d2", GPUS)
        restart.domain.is_adopted = False
        restart.domain._believe({77: view}, trio.current_time())
        assert restart.domain.strangers == frozenset()
        nursery.cancel_scope.cancel()


async def test_a_stop_waits_for_it_only_where_its_process_was_placed(
    tmp_path: Path, client: ProcessId, child: "subprocess.Popen[bytes]", autojump_clock: trio.testing.MockClock
) -> None:
    """It waited 15 s for each of others' domains, and killed a client there without having ended its work."""
    restart = Restart(tmp_path, client)
    stopper = Stopper(restart.pool, Targets(restart.pool, INSPECTOR, lambda: ()))
    async with trio.open_nursery() as nursery:
        await restart.begin(nursery)
        began = trio.current_time()
        assert await stopper._look([ProcessId(client.pid + 1, 1)]) == {"d2"}
        assert trio.current_time() - began <= 1.0
        report = await stopper.stop(Target(TargetKind.PID, str(client.pid)), Manner(Way.TERMINATE), Asker(None, 1))
        assert [each.why.count("domain d2 does not answer") for each in report.stopped] == [1]
        nursery.cancel_scope.cancel()
    assert child.poll() is None
