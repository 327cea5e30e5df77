"""Events: the receivers, the order, and the count of events that a slow reader has lost."""

import socket
from pathlib import Path
from typing import Any

import pytest
import trio

from mpsd.api.authority import Peer
from mpsd.api.topics import FAMILIES
from mpsd.model.lease import LeaseState
from mpsd.wire.rpc import Notification, Response
from tests.unit.api.fake_daemon import OPERATOR, OWNER, STRANGER, Caller, FakeDaemon, open_daemon
from tests.unit.api.fake_services import FakeQueued


async def subscriber(daemon: FakeDaemon, peer: Peer, *topics: str) -> Caller:
    caller = await daemon.call_as(peer)
    await caller.ask("events.subscribe", topics=list(topics))
    return caller


async def next_event(caller: Caller) -> dict[str, Any]:
    frame = await caller.receive()
    assert isinstance(frame, Notification)
    assert frame.method == "event"
    return dict(frame.params)


async def told(daemon: FakeDaemon, caller: Caller, family: str, **facts: Any) -> list[dict[str, Any]]:
    """Every event that comes before a last one, of this family, that the caller may know."""
    daemon.bus.publish(f"{family}.last", facts)
    found = []
    while (event := await next_event(caller))["topic"] != f"{family}.last":
        found.append(event)
    return found


async def test_events_come_in_their_order_with_their_facts(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await subscriber(daemon, OPERATOR, "*")
        for number in range(100):
            daemon.bus.publish("domain.ready", {"domain": f"d{number}", "state": LeaseState.ACTIVE})
        for number in range(100):
            event = await next_event(caller)
            assert event["topic"] == "domain.ready"
            assert event["facts"] == {"domain": f"d{number}", "state": "active"}


async def test_only_what_was_subscribed_to_comes(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await subscriber(daemon, OPERATOR, "lease.*", "client.left")
        for topic in ("domain.ready", "lease.expired", "client.admitted", "client.left", "leases.x", "new.kind"):
            daemon.bus.publish(topic, {})
        assert [event["topic"] for event in await told(daemon, caller, "lease")] == ["lease.expired", "client.left"]


@pytest.mark.parametrize("family", [*FAMILIES, "unheard_of"])
async def test_a_stranger_is_told_nothing_of_others(family: str, tmp_path: Path) -> None:
    """An event without an owner is for operators; so is one of a family without a rule."""
    async with open_daemon(tmp_path) as daemon:
        stranger = await subscriber(daemon, STRANGER, "*")
        facts = {"owner_uid": 1000, "uid": 1000, "pid": 586, "domain": "d1", "culprit": {"pid": 586}}
        daemon.bus.publish(f"{family}.something", facts)
        daemon.bus.publish(f"{family}.something", {"pid": 586})
        for event in await told(daemon, stranger, "domain"):
            assert family in ("domain", "gpu", "fault")
            assert family != "fault" or not {"pid", "uid", "culprit"} & set(event["facts"])


async def test_an_owner_is_told_of_what_is_the_owners(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        owner = await subscriber(daemon, OWNER, "lease.*", "client.*")
        daemon.bus.publish("lease.expired", {"owner_uid": 1000, "lease_id": 1})
        daemon.bus.publish("lease.expired", {"owner_uid": 2000, "lease_id": 2})
        daemon.bus.publish("client.left", {"uid": 2000, "pid": 700})
        daemon.bus.publish("client.left", {"uid": 1000, "pid": 586})
        known = await told(daemon, owner, "lease", owner_uid=1000)
        assert [event["topic"] for event in known] == ["lease.expired", "client.left"]


async def test_root_of_a_container_is_told_nothing_of_leases_for_all_users(tmp_path: Path) -> None:
    """It has the uid of the operator who made them; the lists keep them back."""
    async with open_daemon(tmp_path) as daemon:
        inside, operator = Peer(999, OPERATOR.uid, is_operator=False, bound=4026531999), await daemon.call_as()
        reader = await subscriber(daemon, inside, "lease.*")
        selector = {"kind": "token", "value": "a secret"}
        await operator.ask("lease.create", name="for all", selector=selector, sm_percent=100, wait_seconds=60)
        daemon.fakes.leases.waiting.insert(0, FakeQueued(1, OPERATOR.uid, "no share is free", lease_id=3))
        assert (await reader.ask("queue.list"))["items"] == []
        assert [row["lease_id"] for row in (await operator.ask("queue.list"))["items"]][:1] == [3]
        assert await told(daemon, reader, "lease", owner_uid=OPERATOR.uid) == reader.events == []


async def test_a_change_by_one_is_told_to_the_other(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        waiting, changing = await subscriber(daemon, OPERATOR, "lease.released"), await daemon.call_as(OWNER)
        await changing.ask("lease.release", id=1)
        assert (await next_event(waiting))["facts"]["lease_id"] == 1


async def test_a_slow_reader_is_told_how_much_it_lost_and_where(tmp_path: Path) -> None:
    """Every event is either delivered or counted, at the place where it is missing."""
    async with open_daemon(tmp_path, max_queued_events=16) as daemon:
        caller = await subscriber(daemon, OPERATOR, "domain.*")
        for number in range(5000):
            daemon.bus.publish("domain.ready", {"number": number})
        house_lost = daemon.bus.lost
        expected, lost = 0, 0
        while expected < 5000:
            frame = await caller.receive()
            assert isinstance(frame, Notification)
            if frame.method == "events.lost":
                lost += frame.params["count"]
                expected += frame.params["count"]
            else:
                assert frame.params["facts"]["number"] == expected
                expected += 1
        assert lost == house_lost > 0


async def test_a_reader_that_does_not_read_costs_a_bounded_queue_and_nobody_else(tmp_path: Path) -> None:
    async with open_daemon(tmp_path, max_queued_events=16) as daemon:
        stuck, other = await subscriber(daemon, OPERATOR, "*"), await subscriber(daemon, OPERATOR, "*")
        for number in range(3000):
            daemon.bus.publish("domain.ready", {"number": number, "words": "x" * 200})
            assert (await next_event(other))["facts"]["number"] == number
        [slow] = [each for each in daemon.bus._subscriptions if each.lost]
        assert len(slow._queue) <= 17
        assert slow.lost > 1000
        stuck.sock.close()
        await daemon.until(1)
        assert daemon.bus.subscribers == 1
        assert daemon.bus.lost == slow.lost


async def test_events_begin_after_the_answer_to_subscribe(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_until_told, daemon, nursery.cancel_scope)
            await caller.ask("events.subscribe", topics=["*"])
            assert caller.events == []
            await next_event(caller)
            nursery.cancel_scope.cancel()


async def publish_until_told(daemon: FakeDaemon, scope: trio.CancelScope) -> None:
    while not scope.cancel_called:
        daemon.bus.publish("domain.ready", {})
        await trio.lowlevel.checkpoint()


async def test_another_subscription_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await subscriber(daemon, OPERATOR, "domain.*")
        daemon.bus.publish("domain.ready", {})
        await next_event(caller)
        await caller.ask("events.subscribe", topics=["fault.*"])
        daemon.bus.publish("domain.ready", {})
        daemon.bus.publish("fault.xid", {})
        assert (await next_event(caller))["topic"] == "fault.xid"
        assert daemon.bus.subscribers == 1


async def test_after_unsubscribe_there_is_silence(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await subscriber(daemon, OPERATOR, "*")
        daemon.bus.publish("domain.ready", {})
        assert await caller.ask("events.unsubscribe") == {"lost": 0}
        caller.events.clear()
        daemon.bus.publish("domain.ready", {})
        await caller.ask("health")
        assert caller.events == []
        assert daemon.bus.subscribers == 0
        await caller.ask("events.subscribe", topics=["*"])
        daemon.bus.publish("domain.ready", {})
        await next_event(caller)


@pytest.mark.parametrize("topic", ["lease", "lease.", "leese.*", "lease.stolen", "domain.", ".*", "*.*", "LEASE.*", ""])
async def test_a_topic_that_there_is_not_is_refused(topic: str, tmp_path: Path) -> None:
    """A subscription to it would be silent for ever."""
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        assert await caller.refusal("events.subscribe", topics=["domain.*", topic]) == "BAD_REQUEST"
        assert daemon.bus.subscribers == 0


async def test_an_event_that_no_datagram_holds_is_told_without_its_facts(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await subscriber(daemon, OPERATOR, "*")
        daemon.bus.publish("domain.ready", {"words": "x" * 70000})
        assert (await next_event(caller))["facts"] == {}


async def test_a_subscriber_that_asks_and_reads_nothing_is_let_go(tmp_path: Path) -> None:
    """Events fill the socket, so the answer has no room."""
    async with open_daemon(tmp_path, send_seconds=0.05) as daemon:
        caller = await subscriber(daemon, OPERATOR, "*")
        for _ in range(5000):
            daemon.bus.publish("domain.ready", {"words": "x" * 200})
        await trio.testing.wait_all_tasks_blocked()
        caller.sock.send(b"\x94\x00\x07\xa6health\x90", socket.MSG_NOSIGNAL)
        await daemon.until(0)


async def test_an_answer_finds_its_way_between_events(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await subscriber(daemon, OPERATOR, "*")
        for _ in range(500):
            daemon.bus.publish("domain.ready", {"words": "x" * 200})
        response = await caller.call("health")
        assert isinstance(response, Response)
