"""Arenas at the socket: permissions, holders, waiting writers, and receivers of events."""

from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from mpsd.api.authority import Peer
from mpsd.errors import KeeperFailed
from mpsd.host.descriptors import close_all
from mpsd.model.arena import GRANULE, Portion
from mpsd.model.process import ProcessId
from mpsd.wire.rpc import Notification, Request, Response, encode
from tests.unit.api.fake_daemon import OPERATOR, OWNER, STRANGER, Caller, FakeDaemon, audit_text, open_daemon
from tests.unit.api.fake_services import UUIDS

MEMBER = Peer(800, 2000, False, gids=(1100, 2000), gid=2000)  # of the group that may read "weights"
HIDDEN, NO, BUSY, STALE = "NO_SUCH_ARENA", "NOT_ALLOWED", "ARENA_BUSY", "STALE_GENERATION"


def add_processes(daemon: FakeDaemon) -> None:
    daemon.fakes.processes |= {peer.pid: 10 * peer.pid for peer in (OWNER, MEMBER, STRANGER, OPERATOR)}


async def outcome(caller: Caller, method: str, **said: Any) -> str:
    response = await caller.call(method, **said)
    return str(response.error["name"]) if response.error else "done"


RULES: dict[str, tuple[str, dict[str, Any], tuple[str, str, str, str]]] = {
    # whether:                                                        owner, of the group, others, an operator
    "get": ("arena.get", {"name": "weights"}, ("done", "done", HIDDEN, "done")),
    "get what is private": ("arena.get", {"name": "cache"}, ("done", HIDDEN, HIDDEN, "done")),
    "read": ("arena.open", {"name": "1000:weights", "access": "read"}, ("done", "done", HIDDEN, "done")),
    "read what is private": ("arena.open", {"name": "1000:cache", "access": "read"}, ("done", HIDDEN, HIDDEN, "done")),
    "write": ("arena.open", {"name": "1000:weights", "access": "write"}, ("done", NO, HIDDEN, BUSY)),
    "write what is private": ("arena.open", {"name": "1000:cache", "access": "write"}, ("done", HIDDEN, HIDDEN, "done")),
    "change": ("arena.change", {"id": 1, "mode": 0o666}, ("done", NO, HIDDEN, "done")),
    "remove": ("arena.remove", {"name": "cache"}, ("done", HIDDEN, HIDDEN, "done")),
    "remove what may be read": ("arena.remove", {"name": "weights"}, (BUSY, NO, HIDDEN, BUSY)),
    "take": ("arena.take", {"id": 1}, ("done", NO, HIDDEN, NO)),
    "take what is private": ("arena.take", {"id": 2}, (NO, HIDDEN, HIDDEN, NO)),
    "commit": ("arena.commit", {"id": 1, "generation": 7, "has_layout": False}, ("done", STALE, HIDDEN, STALE)),
    "keep a state": ("arena.keep_state", {"id": 1, "generation": 7}, ("done", STALE, HIDDEN, STALE)),
    "get the state": ("arena.state", {"id": 1}, ("done", NO, HIDDEN, NO)),
    "get the state of what is private": ("arena.state", {"id": 2}, (NO, HIDDEN, HIDDEN, NO)),
    "close": ("arena.close", {"id": 1}, ("done", NO, HIDDEN, NO)),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
async def test_who_may_what(rule: str, tmp_path: Path) -> None:
    method, said, expected = RULES[rule]
    found = []
    for peer in (OWNER, MEMBER, STRANGER, OPERATOR):
        async with open_daemon(tmp_path) as daemon:
            add_processes(daemon)
            fds = [daemon.any_fd()] if method == "arena.keep_state" else []
            found.append(await outcome(await daemon.call_as(peer), method, fds=fds, **said))
    assert tuple(found) == expected


async def test_a_list_has_what_its_reader_may_see(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        for peer, names in (
            (OWNER, ["weights", "cache"]),
            (MEMBER, ["weights"]),
            (STRANGER, []),
            (OPERATOR, ["weights", "cache"]),
        ):
            page = await (await daemon.call_as(peer)).ask("arena.list")
            assert [each["name"] for each in page["items"]] == names
        page = await (await daemon.call_as()).ask("arena.list", limit=1)
        assert ([each["id"] for each in page["items"]], page["next"]) == ([1], 1)


async def test_who_has_it_open_goes_on_when_the_mode_is_changed(tmp_path: Path) -> None:
    """As with an open file; who comes then is not let in."""
    async with open_daemon(tmp_path) as daemon:
        add_processes(daemon)
        owner, member = await daemon.call_as(OWNER), await daemon.call_as(MEMBER)
        await member.ask("arena.open", name="1000:weights", access="read")
        await owner.ask("arena.change", id=1, mode=0o600)
        await member.ask("arena.take", id=1)
        assert await outcome(member, "arena.open", name="1000:weights", access="read") == HIDDEN
        await member.ask("arena.close", id=1)
        assert await outcome(member, "arena.take", id=1) == HIDDEN


async def test_a_holder_counts_against_the_user_of_its_connection(tmp_path: Path) -> None:
    """Its program may be another user's by now."""
    async with open_daemon(tmp_path) as daemon:
        add_processes(daemon)
        for peer in (OWNER, MEMBER):
            await (await daemon.call_as(peer)).ask("arena.open", name="1000:weights", access="read")
        assert sorted(map(str, daemon.fakes.arenas.charged.values())) == sorted(map(str, (OWNER.uid, MEMBER.uid)))


async def test_a_holder_is_a_process_and_not_a_connection(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        add_processes(daemon)
        first = await daemon.call_as(OWNER)
        assert (await first.ask("arena.open", name="cache", access="write"))["generation"] == 8
        first.close()
        await daemon.until(0)
        again = await daemon.call_as(OWNER)
        assert (await again.ask("arena.open", name="cache", access="write"))["generation"] == 8
        await again.ask("arena.put", fds=[daemon.any_fd()], id=2, generation=8, allocations=[[GRANULE, GRANULE]])


@pytest.mark.parametrize(
    ("process", "start_time"),
    [
        pytest.param(None, 5860, id="one that had ended when it was asked for, or of another pid namespace"),
        pytest.param(ProcessId(586, 5860), None, id="one that has ended since"),
        pytest.param(ProcessId(586, 5860), 99999, id="one whose pid is another's now"),
    ],
)
@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("arena.open", {"name": "cache", "access": "write"}),
        ("arena.put", {"id": 1, "generation": 7, "allocations": [[GRANULE, GRANULE]]}),
        ("arena.take", {"id": 1}),
        ("arena.close", {"id": 1}),
    ],
)
async def test_nobody_is_taken_for_another(
    method: str, said: dict[str, Any], process: ProcessId | None, start_time: int | None, tmp_path: Path
) -> None:
    """A connection may outlive the process that made it."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes.pop(586)
        caller = await daemon.call_as(replace(OWNER, process=process))
        if start_time:
            daemon.fakes.processes[586] = start_time
        before = daemon.fakes.changes()
        fds = [daemon.any_fd()] if method == "arena.put" else []
        assert await outcome(caller, method, fds=fds, **said) == "NO_SUCH_CLIENT"
        assert daemon.fakes.changes() == before


async def test_an_opening_that_brings_no_memory_is_none(tmp_path: Path) -> None:
    """The keeper is silent: who had the arena not before has it not now, and who had it still has it."""
    async with open_daemon(tmp_path) as daemon:
        add_processes(daemon)
        caller = await daemon.call_as(MEMBER)
        taking, daemon.fakes.arenas.take = daemon.fakes.arenas.take, refuse_to_take  # type: ignore[method-assign]
        said = {"name": "1000:weights", "access": "read", "takes": 5}
        assert await outcome(caller, "arena.open", **said) == "KEEPER_FAILED"
        assert daemon.fakes.arenas.made[1].readers == ()
        await caller.ask("arena.open", name="1000:weights", access="read")
        assert await outcome(caller, "arena.open", **said) == "KEEPER_FAILED"
        assert [each.pid for each in daemon.fakes.arenas.made[1].readers] == [MEMBER.pid]
        daemon.fakes.arenas.take = taking  # type: ignore[method-assign]
        found = await caller.ask("arena.open", **said)
        assert (found["items"], found["has_layout"], found["next"]) == ([[0, GRANULE, 1]], True, None)
        fds = caller.take_fds()
        close_all(fds)
        assert len(fds) == 2


async def refuse_to_take(*asked: Any, **more: Any) -> Portion:
    raise KeeperFailed("it does not answer")


async def test_who_waits_to_write_holds_up_nobody(tmp_path: Path) -> None:
    """Neither others nor the user's own other connections; and is let in when the writer is fenced."""
    other = Peer(588, 1000, False)
    async with open_daemon(tmp_path) as daemon:
        add_processes(daemon)
        daemon.fakes.processes[other.pid] = 1
        waiting, own, others = await daemon.call_as(other), await daemon.call_as(other), await daemon.call_as(STRANGER)
        await waiting.send(encode(Request(9, "arena.open", {"name": "weights", "access": "write", "wait_seconds": 3600})))
        await wait_all_tasks_blocked()
        assert daemon.fakes.arenas.waiting == 1
        await own.ask("arena.get", name="weights")
        await own.ask("arena.open", name="weights", access="read")
        await others.ask("health")
        daemon.fakes.arenas.fence(1)
        frame = await waiting.receive()
        assert frame is not None
        assert not isinstance(frame, Notification)
        assert daemon.fakes.arenas.made[1].writer == ProcessId(588, 1)


async def test_who_waits_to_write_is_refused_by_a_mode_that_was_changed_since(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[588] = 1
        made = daemon.fakes.arenas.made
        waiting = await daemon.call_as(Peer(588, 1000, False))
        await waiting.send(encode(Request(9, "arena.open", {"name": "weights", "access": "write", "wait_seconds": 3600})))
        await wait_all_tasks_blocked()
        assert daemon.fakes.arenas.waiting == 1
        made[1] = replace(made[1], owner_uid=STRANGER.uid, mode=0o644)
        daemon.fakes.arenas.fence(1)
        frame = await waiting.receive()
        assert isinstance(frame, Response)
        assert frame.error is not None
        assert frame.error["name"] == "NOT_ALLOWED"
        assert made[1].writer is None


async def test_what_one_waits_for_in_vain_is_busy(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(Peer(700, 1000, False))
        assert await outcome(caller, "arena.open", name="weights", access="write", wait_seconds=0.01) == BUSY
        assert daemon.fakes.arenas.waiting == 0


@pytest.mark.parametrize("has_more_to_say", [False, True], ids=["silent", "with another request behind"])
async def test_who_hangs_up_waits_no_longer(has_more_to_say: bool, tmp_path: Path) -> None:
    """The caller does not become a writer unknowingly; the audit records the outcome of the request."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[588] = 1
        caller = await daemon.call_as(Peer(588, 1000, False))
        await caller.send(encode(Request(9, "arena.open", {"name": "weights", "access": "write", "wait_seconds": 3600})))
        await wait_all_tasks_blocked()
        if has_more_to_say:
            await caller.send(encode(Request(10, "health", {})))
        assert daemon.fakes.arenas.waiting == 1
        caller.close()
        await daemon.until(0)
        assert daemon.fakes.arenas.waiting == 0
        daemon.audit.close()
    assert '"outcome":"given up"' in audit_text(tmp_path)


async def test_who_only_says_no_more_still_waits(tmp_path: Path) -> None:
    """shutdown(SHUT_WR) is not hanging up: the answer is wanted."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[588] = 1
        caller = await daemon.call_as(Peer(588, 1000, False))
        await caller.send(encode(Request(9, "arena.open", {"name": "weights", "access": "write", "wait_seconds": 3600})))
        caller.sock.shutdown(1)
        await wait_all_tasks_blocked()
        daemon.fakes.arenas.fence(1)
        frame = await caller.receive()
        assert frame is not None
        assert daemon.fakes.arenas.made[1].writer == ProcessId(588, 1)


async def test_an_arena_is_of_who_made_it(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        add_processes(daemon)
        caller = await daemon.call_as(MEMBER)
        made = await caller.ask("arena.create", name="kv.cache_1-a", gpu="1", capacity_bytes=GRANULE, mode=0o640)
        assert (made["owner_uid"], made["owner_gid"], made["gpu"], made["mode"]) == (2000, 2000, UUIDS[1], 0o640)
        assert (made["writer_pid"], made["reader_pids"], made["ttl_seconds"]) == (None, [], None)
        assert await outcome(caller, "arena.create", name="kv.cache_1-a", gpu="1", capacity_bytes=GRANULE) == "BAD_REQUEST"
        assert await outcome(caller, "arena.create", name="other", gpu="7", capacity_bytes=GRANULE) == "NO_SUCH_DEVICE"
        assert await outcome(caller, "arena.create", name="other", gpu="1", capacity_bytes=1 << 40) == "NO_ROOM"


async def test_a_process_that_has_ended_makes_no_arena(tmp_path: Path) -> None:
    """Neither one that ended before mpsd asked for it, whose pid namespace is not known, nor one that has ended since."""
    async with open_daemon(tmp_path) as daemon:
        never_seen = await daemon.call_as(MEMBER)
        add_processes(daemon)
        ended = await daemon.call_as(OWNER)
        del daemon.fakes.processes[OWNER.pid]
        for caller in (never_seen, ended):
            assert await outcome(caller, "arena.create", name="more", gpu="0", capacity_bytes=GRANULE) == "NO_SUCH_CLIENT"
        assert "more" not in {arena.name for arena in daemon.fakes.arenas.made.values()}


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "..\n", "a\0", "x" * 129, "ä", "a;b", 7, None], ids=lambda name: ascii(name)[:20]
)
async def test_a_name_that_is_none_is_refused(name: Any, tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        assert await outcome(caller, "arena.create", name=name, gpu="0", capacity_bytes=GRANULE) == "BAD_REQUEST"
        assert await outcome(caller, "arena.get", name=name) == "BAD_REQUEST"


async def test_room_is_made_without_naming_what_one_may_not_see(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.arenas.made[2] = replace(daemon.fakes.arenas.made[2], owner_uid=2000)
        caller = await daemon.call_as(OWNER)
        assert await caller.ask("arena.make_room", gpu="0", bytes=1) == {
            "freed_bytes": 0, "names": [], "why": "mpsd evicts no arena: vault.eviction is off",
        }  # fmt: skip
        evicted = daemon.fakes.arenas.made[2]

        async def evict(gpu: str, wanted_bytes: int, uid: int, *, is_operator: bool) -> Any:
            return [evicted, replace(evicted, name="mine", owner_uid=1000)], ""

        daemon.fakes.arenas.make_room = evict  # type: ignore[method-assign]
        made = await caller.ask("arena.make_room", gpu="0", bytes=1)
        assert made == {"freed_bytes": 2 * GRANULE, "names": ["mine"], "why": ""}


async def test_who_is_told_of_an_arena(tmp_path: Path) -> None:
    """Its owner, users who may read it, and operators; events without an owner go to operators alone."""
    facts = {"id": 1, "name": "weights", "owner_uid": 1000, "owner_gid": 1100, "mode": 0o640}
    async with open_daemon(tmp_path) as daemon:
        callers = {peer: await daemon.call_as(peer) for peer in (OWNER, MEMBER, STRANGER, OPERATOR)}
        for caller in callers.values():
            await caller.ask("events.subscribe", topics=["arena.*"])
        daemon.bus.publish("arena.committed", facts)
        daemon.bus.publish("arena.committed", {**facts, "mode": 0o600})
        daemon.bus.publish("arena.lost", {"name": "weights"})
        told = {}
        for peer, caller in callers.items():
            await wait_all_tasks_blocked()
            await caller.ask("health")
            told[peer] = [event.params["topic"] for event in caller.events]
    committed = "arena.committed"
    assert told == {OWNER: [committed] * 2, MEMBER: [committed], STRANGER: [], OPERATOR: [committed] * 2 + ["arena.lost"]}


async def test_a_daemon_without_a_vault_says_so(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.api._services = replace(daemon.fakes.services(), arenas=None, keeper=lambda: None)
        caller = await daemon.call_as(OWNER)
        for method, said in (("arena.list", {}), ("arena.get", {"name": "x"}), ("arena.take", {"id": 1})):
            assert await outcome(caller, method, **said) == KeeperFailed.code.name
        told = await caller.ask("status")
        assert (told["arenas"], told["keeper"]) == (0, None)


async def test_status_tells_of_the_keeper(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        told = await (await daemon.call_as(STRANGER)).ask("status")
        assert (told["arenas"], told["keeper"]) == (2, {"state": "works", "pid": 4711, "pids": [4711], "descriptors": 2})


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("arena.open", {"name": "weights", "access": "rw"}),
        ("arena.open", {"name": "weights", "access": "read", "wait_seconds": 3601}),
        ("arena.open", {"name": "weights"}),
        ("arena.take", {"id": 1, "limit": 129}),
        ("arena.take", {"id": 1, "limit": 0}),
        ("arena.take", {"id": -1}),
        ("arena.take", {"id": "1"}),
        ("arena.drop", {"id": 1, "generation": 7, "offsets": []}),
        ("arena.drop", {"id": 1, "generation": 7, "offsets": [1]}),
        ("arena.commit", {"id": 1, "generation": -1, "has_layout": False}),
        ("arena.commit", {"id": 1, "generation": 7}),
        ("arena.commit", {"id": 1, "generation": 7, "has_layout": 0}),
        ("arena.change", {"id": 1, "mode": 0o1777}),
        ("arena.change", {"id": 1, "capacity_bytes": 0}),
        ("arena.make_room", {"gpu": "0", "bytes": 0}),
        ("arena.keep_state", {"id": 1}),
        ("arena.keep_state", {"id": 1, "generation": 7}),
        ("arena.state", {}),
        ("arena.create", {"name": "x", "gpu": "0", "capacity_bytes": 1 << 62}),
        ("arena.create", {"name": "x", "gpu": "0", "capacity_bytes": GRANULE, "ttl_seconds": 0}),
        ("arena.put", {"id": 1, "generation": 7, "allocations": [[0]]}),
        ("arena.put", {"id": 1, "generation": 7, "allocations": [[0, GRANULE, 1]]}),
        ("arena.put", {"id": 1, "generation": 7, "allocations": [[0, 0]]}),
        ("arena.put", {"id": 1, "generation": 7, "allocations": [[-GRANULE, GRANULE]]}),
        ("arena.put", {"id": 1, "generation": 7, "allocations": [[0, GRANULE + 1]]}),
        ("arena.put", {"id": 1, "generation": 7, "allocations": [["0", GRANULE]]}),
        ("arena.put", {"id": 1, "generation": 7, "allocations": [[0, GRANULE]] * 129}),
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_refused(method: str, said: dict[str, Any], tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        before = daemon.fakes.changes()
        caller = await daemon.call_as(OWNER)
        assert await outcome(caller, method, **said) == "BAD_REQUEST"
        assert daemon.fakes.changes() == before
        with trio.fail_after(5):
            await caller.ask("health")
