"""A lease that is held inside a `with` block."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from mpsd_client import Call, Lease, Selector, _lease_queue, calls, leased, until_granted
from msgspec.structs import replace

from mpsd.model.lease import LeaseState
from tests.unit.api.fake_daemon import FakeDaemon, open_daemon


async def hold(daemon: FakeDaemon, short_dir: Path, percent: float, wait: float, inside: Callable[[Lease], object]) -> None:
    daemon.listen(short_dir)
    call = calls.lease_create("held", Selector.of_token("0123456789abcdef"), sm_percent=percent, wait_seconds=wait)

    def work() -> None:
        with leased(call, path=short_dir / "mpsd.sock") as lease:
            inside(lease)

    with trio.fail_after(20):
        await trio.to_thread.run_sync(work)


async def test_it_is_active_in_the_block_and_released_after_it(tmp_path: Path, short_dir: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        states: list[str] = []
        await hold(daemon, short_dir, 30, 0, lambda lease: states.append(lease.state))
        assert states == ["active"]
        assert 3 not in daemon.fakes.leases.made


async def test_an_exception_releases_it_and_one_that_has_ended_is_no_error(tmp_path: Path, short_dir: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        with pytest.raises(ZeroDivisionError):
            await hold(daemon, short_dir, 30, 0, lambda lease: 1 // 0)
        assert 3 not in daemon.fakes.leases.made
    async with open_daemon(tmp_path / "again") as daemon:
        await hold(daemon, short_dir, 30, 0, lambda lease: daemon.fakes.leases.made.pop(lease.id))


async def test_the_block_waits_until_a_queued_lease_is_active(tmp_path: Path, short_dir: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        states: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, daemon, short_dir, 90.0, 60.0, lambda lease: states.append(lease.state))
            made = daemon.fakes.leases.made
            while 3 not in made:  # noqa: ASYNC110
                await trio.sleep(0.005)
            assert made[3].state is LeaseState.QUEUED
            assert not states
            made[3] = replace(made[3], state=LeaseState.ACTIVE)
        assert states == ["active"]


async def test_a_lease_that_mpsd_gives_up_is_a_timeout(tmp_path: Path, short_dir: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.leases.settled = given_up(daemon)  # type: ignore[method-assign]
        with pytest.raises(TimeoutError, match=r"lease 3 was given up: no room for it within its wait_seconds"):
            await hold(daemon, short_dir, 90, 60, lambda lease: pytest.fail("it has no lease"))


def test_a_lease_that_mpsd_never_gives_up_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the clock was set back: a kubelet waited for it, and all other containers of the node with it."""
    queued = Lease(
        7, 0, False, "queued", 0.0, None, 0, "late", Selector.of_token("a-token"), (), 30.0, 30.0, 40, {}, 0, "shared",
        "", 1, None, 0.1, "",
    )  # fmt: skip
    said: list[str] = []

    class Mpsd:
        def ask(self, call: Call[Lease]) -> Lease:
            said.append(call.method)
            assert len(said) < 100, "it looks for ever"
            return queued

    monkeypatch.setattr(_lease_queue, "LATE_SECONDS", 0.1)
    monkeypatch.setattr(_lease_queue, "_LOOK_SECONDS", 0.01)
    assert until_granted(Mpsd(), queued) is None  # type: ignore[arg-type]
    assert set(said[:-1]) == {"lease.get"}
    assert said[-1] == "lease.release"


def given_up(daemon: FakeDaemon) -> Callable[[], object]:
    """Forget a queued lease before its creation is answered."""

    async def settled() -> None:
        await trio.lowlevel.checkpoint()
        daemon.fakes.leases.unsettled.clear()
        daemon.fakes.leases.made.pop(3, None)

    return settled
