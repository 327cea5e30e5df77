"""Every method with every kind of caller: who may, what a stranger sees, and what is recorded."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpsd.api.authority import Peer
from mpsd.api.method_table import METHODS, Privilege
from mpsd.model.arena import GRANULE
from tests.unit.api.fake_daemon import OPERATOR, OWNER, STRANGER, audit_text, open_daemon
from tests.unit.api.fake_incidents import ADDRESS

DAEMONS_USER = Peer(11, 999, True)
OTHER_OWNER = Peer(700, 2000, False)

# One valid call of each method; lease 1, client 586 and arena 1, which it writes, are user 1000's.
CALLS: dict[str, dict[str, Any]] = {
    "status": {},
    "health": {},
    "device.list": {},
    "lease.create": {"name": "more", "selector": {"kind": "pid", "value": "self"}, "sm_percent": 10},
    "lease.renew": {"id": 1, "ttl_seconds": 120},
    "lease.release": {"id": 1},
    "lease.get": {"id": 1},
    "lease.list": {},
    "queue.list": {},
    "client.list": {},
    "client.why": {"pid": 586},
    "client.terminate": {"pid": 586},
    "client.stop": {"cgroup": "/users/1000"},
    "client.move": {"pid": 586, "domain": "d3"},
    "domain.list": {},
    "domain.create": {},
    "domain.drain": {"name": "d1"},
    "domain.recycle": {"name": "d3"},
    "limits.get": {},
    "limits.set": {"default_active_thread_percentage": 50},
    "fault.list": {},
    "fault.get": {"number": 1},
    "fault.report": {"code": 700},
    "fault.guards": {"base": 1 << 45, "bytes": 2 << 20},
    "blame.list": {},
    "blame.pardon": {"key": "lease:1:1000"},
    "arena.create": {"name": "more", "gpu": "0", "capacity_bytes": 1 << 30},
    "arena.get": {"name": "weights"},
    "arena.list": {},
    "arena.open": {"name": "1000:weights", "access": "read", "takes": 127},
    "arena.put": {"id": 1, "generation": 7, "allocations": [[GRANULE, GRANULE]]},
    "arena.drop": {"id": 1, "generation": 7, "offsets": [0]},
    "arena.commit": {"id": 1, "generation": 7, "has_layout": False},
    "arena.take": {"id": 1},
    "arena.layout": {"id": 1},
    "arena.keep_state": {"id": 1, "generation": 7},
    "arena.state": {"id": 1},
    "arena.close": {"id": 1},
    "arena.seal": {"id": 1, "generation": 7},
    "arena.change": {"id": 1, "mode": 0o600},
    "arena.remove": {"name": "cache"},
    "arena.make_room": {"gpu": "0", "bytes": 1},
    "service.enlist": {"name": "1000:weights"},
    "service.join": {"id": 1},
    "service.ready": {"id": 1},
    "service.follow": {"id": 1},
    "service.serving": {"id": 1, "generation": 7},
    "service.yielded": {"id": 1, "generation": 7},
    "service.failed": {"id": 1, "why": "out of memory"},
    "service.leave": {"id": 1},
    "service.get": {"name": "1000:weights"},
    "service.list": {},
    "service.handover": {"name": "weights"},
    "service.change": {"name": "weights", "standbys": 2},
    "service.move": {"name": "weights", "gpu": "1"},
    "service.replicate": {"id": 1, "generation": 7, "of": "weights"},
    "events.subscribe": {"topics": ["*"]},
    "events.unsubscribe": {},
}
FDS = {name: (os.memfd_create("any"),) for name in ("arena.put", "arena.keep_state")}

NEEDS_OPERATOR = {name for name, method in METHODS.items() if method.privilege is Privilege.OPERATOR}
NEEDS_CLIENT = {name for name, method in METHODS.items() if method.privilege is Privilege.CLIENT}
NEEDS_OWNER = {name for name, method in METHODS.items() if method.privilege is Privilege.OWNER}
NEEDS_ARENA = {name for name, method in METHODS.items() if method.privilege is Privilege.ARENA}
NEEDS_HOLDER = {name for name, method in METHODS.items() if method.privilege is Privilege.HOLDER}
HIDING = NEEDS_OWNER | NEEDS_ARENA | NEEDS_HOLDER
HIDDEN = {"lease": "NO_SUCH_LEASE", "client": "NO_SUCH_CLIENT", "arena": "NO_SUCH_ARENA", "service": "NO_SUCH_ARENA"}
HOLDS_NOT = {"NOT_ALLOWED", "STALE_GENERATION"}


def said(name: str) -> dict[str, Any]:
    """Return the parameters and descriptors of a valid call."""
    return {**CALLS[name], "fds": FDS.get(name, ())}


def test_every_method_has_its_call() -> None:
    assert set(CALLS) == set(METHODS)


def test_privileges_are_what_they_were_meant_to_be() -> None:
    """A change of this list is a change of who may do what."""
    assert {
        "client.move", "domain.create", "domain.drain", "domain.recycle", "limits.set", "blame.list",
        "blame.pardon",
    } == NEEDS_OPERATOR  # fmt: skip
    assert {"fault.report", "fault.guards"} == NEEDS_CLIENT
    assert {
        "lease.renew", "lease.release", "lease.get", "client.why", "client.terminate", "arena.change", "arena.remove",
        "service.handover", "service.change", "service.move",
    } == NEEDS_OWNER  # fmt: skip
    assert {"arena.get", "arena.open", "service.get"} == NEEDS_ARENA
    assert {
        "arena.put", "arena.drop", "arena.commit", "arena.take", "arena.layout", "arena.keep_state", "arena.state",
        "arena.close", "arena.seal",
        "service.join", "service.ready", "service.follow", "service.serving", "service.yielded", "service.failed",
        "service.leave", "service.replicate",
    } == NEEDS_HOLDER  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("peer", [OPERATOR, DAEMONS_USER], ids=["root", "the daemon's user"])
async def test_an_operator_may_do_everything(name: str, peer: Peer, tmp_path: Path) -> None:
    """But be a client without being one, nor have to do with the memory of an arena that another process holds."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[peer.pid] = 1
        caller = await daemon.call_as(peer)
        if name in NEEDS_CLIENT:
            assert await caller.refusal(name, **CALLS[name]) == "NO_SUCH_CLIENT"
        elif name in NEEDS_HOLDER:
            assert await caller.refusal(name, **said(name)) in HOLDS_NOT
        else:
            await caller.ask(name, **said(name))


@pytest.mark.parametrize("name", sorted(set(METHODS) - NEEDS_CLIENT))
@pytest.mark.parametrize("peer", [STRANGER, OTHER_OWNER], ids=["a stranger", "another owner"])
async def test_a_stranger_can_neither_see_nor_change(name: str, peer: Peer, tmp_path: Path) -> None:
    """The refusal is an answer, nothing changes, and the conversation goes on."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[peer.pid] = 1
        before = daemon.fakes.changes()
        caller = await daemon.call_as(peer)
        if name in NEEDS_OPERATOR:
            assert await caller.refusal(name, **CALLS[name]) == "NOT_ALLOWED"
        elif name in HIDING or name == "service.enlist":
            assert await caller.refusal(name, **said(name)) == HIDDEN[name.partition(".")[0]]
        else:
            shown = set(leaves(await caller.ask(name, **said(name))))
            of_others = {"training-1000", "a-secret-of-user-1000", 586, 587, "python3", "oob_write", ADDRESS, "train.service",
                         "weights", "cache"}  # fmt: skip
            assert not shown & of_others
        assert name in ("lease.create", "arena.create") or daemon.fakes.changes() == before
        await caller.ask("health")


def leaves(value: Any) -> Iterator[Any]:
    """Return every name, number and text in a result."""
    for each in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from leaves(each)
    if not isinstance(value, dict | list):
        yield value


@pytest.mark.parametrize("name", METHODS)
async def test_an_owner_may_what_is_the_owners(name: str, tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        if name in NEEDS_OPERATOR:
            assert await caller.refusal(name, **CALLS[name]) == "NOT_ALLOWED"
        else:
            await caller.ask(name, **said(name))


@pytest.mark.parametrize("name", sorted(HIDING))
async def test_what_is_anothers_and_what_is_not_there_look_alike(name: str, tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(STRANGER)
        key = next(key for key in ("id", "pid", "name") if key in CALLS[name])
        errors = []
        for value in (CALLS[name][key], "nobodys" if key == "name" else 77777):
            response = await caller.call(name, **{**said(name), key: value})
            assert response.error is not None
            errors.append({**response.error, "message": response.error["message"].replace(str(value), "N")})
        assert errors[0] == errors[1]


@pytest.mark.parametrize("peer", [OPERATOR, STRANGER], ids=["allowed", "refused"])
@pytest.mark.parametrize("name", METHODS)
async def test_every_attempt_to_change_is_recorded_and_nothing_else(name: str, peer: Peer, tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[peer.pid] = 1
        caller = await daemon.call_as(peer)
        refused = (await caller.call(name, **said(name))).error
        daemon.audit.close()
    lines = [json.loads(line) for line in audit_text(tmp_path).splitlines()]
    for line in lines:
        assert (line["uid"], line["pid"], line["method"]) == (peer.uid, peer.pid, name)
        assert line["outcome"].partition(":")[0] == (refused["name"] if refused else "done")
        assert set(line["what"]) >= set(CALLS[name])
    assert len(lines) == METHODS[name].changes


async def test_an_unknown_method_is_said_to_be_one(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        for name in ("lease.steal", "", "hello.", "\x1b[2J", "x" * 5000):
            response = await caller.call(name)
            assert response.error is not None
            assert response.error["name"] == "NO_SUCH_METHOD"
            assert len(response.error["message"]) < 200
            assert response.error["message"].isprintable()


async def test_a_bad_parameter_is_refused_and_the_conversation_goes_on(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        for name in METHODS:
            assert await caller.refusal(name, **CALLS[name], bogus=1) == "BAD_REQUEST"
        await caller.ask("health")
