"""Both clients against the socket itself: they behave alike, know every method, and survive failures."""

import dataclasses
import functools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import trio
from mpsd_client import AsyncClient, Call, Client, ErrorCode, Event, Lost, Page, Refused, Selector, calls, values

from mpsd import errors
from mpsd.api.method_table import METHODS
from mpsd.host.descriptors import close_all
from mpsd.host.processes import process_id
from mpsd.model.arena import GRANULE
from mpsd.model.lease import Grant
from tests.unit.api.fake_daemon import FakeDaemon, open_daemon

T = TypeVar("T")
MEMORY = os.memfd_create("memory")

# One call for each method; the subscriptions are the clients' own.
CALLS: dict[str, Call[Any]] = {
    "status": calls.status(),
    "health": calls.health(),
    "device.list": calls.device_list(),
    "lease.create": calls.lease_create("job", Selector.of_uid(7), sm_percent=10, gpus=["0"], memory_bytes={"0": 1 << 30}),
    "lease.renew": calls.lease_renew(1, 60),
    "lease.get": calls.lease_get(1),
    "lease.list": calls.lease_list(),
    "lease.release": calls.lease_release(1),
    "queue.list": calls.queue_list(),
    "client.list": calls.client_list(),
    "client.why": calls.client_why(586),
    "client.terminate": calls.client_terminate(586),
    "client.stop": calls.client_stop(586, grace_seconds=1),
    "client.move": calls.client_move(586, "d3"),
    "domain.list": calls.domain_list(),
    "domain.create": calls.domain_create(["0"]),
    "domain.drain": calls.domain_drain("d1"),
    "domain.recycle": calls.domain_recycle("d3"),
    "limits.get": calls.limits_get(),
    "limits.set": calls.limits_set(default_client_priority=1, default_device_pinned_mem_limit={"0": 1 << 30}),
    "fault.list": calls.fault_list(0, domain="d1", fault_class="mmu", since=1.5, culprit_uid=1000, newest_first=False),
    "fault.get": calls.fault_get(1),
    "fault.report": calls.fault_report(700, "CUDA_ERROR_ILLEGAL_ADDRESS", kernel="k", pc=1, address=2**64 - 1, text="so"),
    "fault.guards": calls.fault_guards(1 << 45, 2 << 20),
    "blame.list": calls.blame_list(),
    "blame.pardon": calls.blame_pardon("lease:1:1000"),
    "arena.create": calls.arena_create("kv", "0", 1 << 30, window_bytes=4 << 30, mode=0o640, ttl_seconds=60),
    "arena.get": calls.arena_get("weights"),
    "arena.list": calls.arena_list(),
    "arena.open": calls.arena_open("1000:cache", "read", 1.0),
    "arena.put": calls.arena_put(1, 7, [(GRANULE, GRANULE), (4 * GRANULE, 2 * GRANULE)], [MEMORY, MEMORY]),
    "arena.drop": calls.arena_drop(1, 7, [0]),
    "arena.commit": calls.arena_commit(1, 7),
    "arena.take": calls.arena_take(1, limit=1),
    "arena.layout": calls.arena_layout(1),
    "arena.close": calls.arena_close(1),
    "arena.seal": calls.arena_seal(1, 7),
    "arena.change": calls.arena_change(1, capacity_bytes=16 << 30, mode=0o644, ttl_seconds=0),
    "arena.remove": calls.arena_remove("cache"),
    "arena.make_room": calls.arena_make_room("0", 1 << 30),
    "arena.keep_state": calls.arena_keep_state(1, 7, MEMORY),
    "arena.state": calls.arena_state(1),
    "service.enlist": calls.service_enlist("1000:weights"),
    "service.join": calls.service_join(1, rank=1, heartbeat_seconds=0.5),
    "service.ready": calls.service_ready(1),
    "service.follow": calls.service_follow(1, after=3, wait_seconds=0.1),
    "service.serving": calls.service_serving(1, 7),
    "service.yielded": calls.service_yielded(1, 7),
    "service.failed": calls.service_failed(1, "so"),
    "service.leave": calls.service_leave(1),
    "service.get": calls.service_get("weights", after=3, wait_seconds=0.1),
    "service.list": calls.service_list(),
    "service.handover": calls.service_handover("weights", 586, wait_seconds=1),
    "service.move": calls.service_move("1000:weights", "1", 60.0),
    "service.replicate": calls.service_replicate(1, 7, "1000:weights", 1.5, state_generation=7, sequence=3, wait_seconds=0.1),
    "service.change": calls.service_change("weights", standbys=2, sm_percent=0, memory_bytes=1 << 30, heartbeat_seconds=0),
}


@asynccontextmanager
async def serving(tmp_path: Path, short_dir: Path, **settings: Any) -> AsyncIterator[tuple[FakeDaemon, Path]]:
    async with open_daemon(tmp_path, **settings) as daemon:
        daemon.bus.publish("fault.xid", {"xid": 31, "domain": "d1"})
        this = process_id(os.getpid())
        assert this is not None
        daemon.fakes.processes[this.pid] = this.start_time
        yield daemon, daemon.listen(short_dir)


def admit_this_process(daemon: FakeDaemon) -> None:
    """It is a client, writes arena 1, and is the member that serves it."""
    this = process_id(os.getpid())
    assert this is not None
    daemon.fakes.arenas.made[1] = msgspec.structs.replace(daemon.fakes.arenas.made[1], writer=this)
    served = daemon.fakes.failover.views[1]
    member = msgspec.structs.replace(served.members[0], process=this)
    daemon.fakes.failover.views[1] = msgspec.structs.replace(served, members=(member,))
    daemon.fakes.leases.admit(os.getpid(), os.getuid(), Grant("none"), process_id(os.getpid()))


async def blocking(work: Callable[..., T], *arguments: Any) -> T:
    """In a thread, as a program that knows nothing of trio."""
    with trio.fail_after(20):
        return await trio.to_thread.run_sync(functools.partial(work, *arguments), abandon_on_cancel=True)


def test_every_method_has_its_call() -> None:
    assert {call.method for call in CALLS.values()} == set(METHODS) - {"events.subscribe", "events.unsubscribe"}
    assert {name.replace(".", "_") for name in CALLS} <= set(dir(calls))


def test_codes_are_mpsds() -> None:
    assert {code.name: code.value for code in ErrorCode} == {code.name: code.value for code in errors.ErrorCode}


@pytest.mark.parametrize("name", CALLS)
async def test_every_result_is_read_by_both(name: str, tmp_path: Path, short_dir: Path) -> None:
    call = CALLS[name]

    def ask(path: Path) -> Any:
        with Client(path, program="a test") as mpsd:
            return mpsd.ask(call)

    async with serving(tmp_path, short_dir) as (daemon, path):
        admit_this_process(daemon)
        one = await blocking(ask, path)
    async with serving(tmp_path, short_dir) as (daemon, path), AsyncClient(path) as mpsd:
        admit_this_process(daemon)
        other = await mpsd.ask(call)
    assert type(one) is type(other)
    if name not in ("status", "health"):  # the time has gone on
        assert without_descriptors(one) == without_descriptors(other)


def without_descriptors(found: Any) -> Any:
    """The caller closes the descriptors."""
    if isinstance(found, values.Taken):
        close_all(found.fds)
        return dataclasses.replace(found, fds=())
    if isinstance(found, values.ArenaLayout | values.KeptState) and found.fd is not None:
        os.close(found.fd)
        return dataclasses.replace(found, fd=None)
    return found


async def test_values_have_their_types(tmp_path: Path, short_dir: Path) -> None:
    async with serving(tmp_path, short_dir) as (_, path), AsyncClient(path) as mpsd:
        assert mpsd.hello.is_operator == (mpsd.hello.uid == 0) or mpsd.hello.is_operator
        lease = await mpsd.ask(calls.lease_get(1))
        assert (lease.selector.kind, lease.gpus, lease.sm_percent) == ("token", (), 30.0)
        [first, _] = (await mpsd.ask(calls.device_list())).items
        assert isinstance(first, values.Device)
        why = await mpsd.ask(calls.client_why(586))
        assert why.grant is not None
        assert why.grant.rule == "lease 1, by uid 1000"
        domain = (await mpsd.ask(calls.domain_list())).items[0]
        assert isinstance(domain.servers[0], values.Server)


async def test_a_fault_is_read_to_its_last_part(tmp_path: Path, short_dir: Path) -> None:
    async with serving(tmp_path, short_dir) as (_, path), AsyncClient(path) as mpsd:
        report = await mpsd.ask(calls.fault_get(1))
        [row] = (await mpsd.ask(calls.fault_list(limit=1))).items
    assert isinstance(report, values.Incident)
    assert [getattr(report, each.name) for each in dataclasses.fields(row)] == [
        getattr(row, each.name) for each in dataclasses.fields(row)
    ]
    assert report.culprit is not None
    assert (report.culprit.pid, report.culprit.key, report.xids[0].number) == (586, "lease:1:1000", 31)
    assert report.evidence[0].process == report.culprit
    assert (report.evidence[0].is_proof, report.evidence[2].process) == (True, None)
    assert report.deeds[0].after_seconds == 0.002


async def test_newest_first_is_walked_to_the_oldest(tmp_path: Path, short_dir: Path) -> None:
    async with serving(tmp_path, short_dir) as (_, path), AsyncClient(path) as mpsd:
        found = [each.number async for each in mpsd.pages(calls.fault_list(newest_first=True, limit=1))]
        assert found == [3, 2, 1]
        assert [each.number async for each in mpsd.pages(calls.fault_list(1, limit=1))] == [2, 3]


async def test_pages_are_walked(tmp_path: Path, short_dir: Path) -> None:
    def walk(path: Path) -> list[int]:
        with Client(path) as mpsd:
            return [client.pid for client in mpsd.pages(calls.client_list(limit=1))]

    async with serving(tmp_path, short_dir) as (_, path):
        assert await blocking(walk, path) == [586, 587, 700, 701]
        async with AsyncClient(path) as mpsd:
            assert [client.pid async for client in mpsd.pages(calls.client_list(limit=3))] == [586, 587, 700, 701]


async def test_a_refusal_has_its_code(tmp_path: Path, short_dir: Path) -> None:
    def ask(path: Path) -> None:
        with Client(path) as mpsd:
            mpsd.ask(calls.lease_get(77))

    async with serving(tmp_path, short_dir) as (_, path):
        with pytest.raises(Refused) as refused:
            await blocking(ask, path)
        assert refused.value.code == ErrorCode.NO_SUCH_LEASE
        async with AsyncClient(path) as mpsd:
            with pytest.raises(Refused):
                await mpsd.ask(calls.lease_get(77))
            await mpsd.ask(calls.health())


async def test_events_come_to_a_program_that_blocks(tmp_path: Path, short_dir: Path) -> None:
    subscribed, told = trio.Event(), []

    def watch(path: Path) -> None:
        with Client(path) as mpsd:
            mpsd.subscribe("domain.*")
            trio.from_thread.run_sync(subscribed.set)
            for event in mpsd.events():
                told.append(event)
                mpsd.ask(calls.health())  # events that come in between are kept
                if len(told) == 20:
                    mpsd.unsubscribe()
                    return

    async with serving(tmp_path, short_dir) as (daemon, path):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(blocking, watch, path)
            await subscribed.wait()
            for number in range(20):
                daemon.bus.publish("domain.ready", {"number": number})
    assert [event.facts["number"] for event in told if isinstance(event, Event)] == list(range(20))


async def test_events_end_when_nothing_happens(tmp_path: Path, short_dir: Path) -> None:
    def watch(path: Path) -> list[Event | Lost]:
        with Client(path) as mpsd:
            mpsd.subscribe("*")
            return list(mpsd.events(timeout_seconds=0.05))

    async with serving(tmp_path, short_dir) as (_, path):
        assert await blocking(watch, path) == []


async def test_mpsd_may_be_given_more_time_than_a_wait_takes(tmp_path: Path, short_dir: Path) -> None:
    def ask(path: Path) -> values.Health:
        with Client(path, timeout_seconds=1e9) as mpsd:
            return mpsd.ask(calls.health())

    async with serving(tmp_path, short_dir) as (_, path):
        assert (await blocking(ask, path)).ok


async def test_many_tasks_share_one_connection(tmp_path: Path, short_dir: Path) -> None:
    """The task that reads, reads for all; if it is cancelled meanwhile, no data is lost."""
    told: list[Event | Lost] = []
    pids: list[int] = []

    async def listen(mpsd: AsyncClient, scope: trio.CancelScope) -> None:
        async for event in mpsd.events():
            told.append(event)
            if len(told) == 50:
                scope.cancel()

    async def ask(mpsd: AsyncClient, call: Call[Page[values.MpsClient]]) -> None:
        for _ in range(20):
            pids.extend(client.pid for client in (await mpsd.ask(call)).items)

    async def hesitate(mpsd: AsyncClient) -> None:
        for _ in range(20):
            with trio.move_on_after(0.0005):
                await mpsd.ask(calls.status())

    async with serving(tmp_path, short_dir) as (daemon, path), AsyncClient(path) as mpsd:
        await mpsd.subscribe("*")
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen, mpsd, nursery.cancel_scope)
                async with trio.open_nursery() as others:
                    for _ in range(5):
                        others.start_soon(ask, mpsd, calls.client_list())
                        others.start_soon(hesitate, mpsd)
                for number in range(50):
                    daemon.bus.publish("domain.ready", {"number": number})
    assert [event.facts["number"] for event in told if isinstance(event, Event)] == list(range(50))
    assert pids == [586, 587, 700, 701] * 100
