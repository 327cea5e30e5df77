"""Permissions for a service: its members, its owner, and users who may see its arena."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from mpsd.api.authority import Peer
from mpsd.model.lease import Grant
from mpsd.model.process import ProcessId
from mpsd.model.service import Elasticity, ServiceSettings, ServiceView, Share
from mpsd.wire.rpc import Notification
from tests.unit.api.fake_daemon import OPERATOR, OWNER, STRANGER, audit_text, open_daemon
from tests.unit.api.fake_services import UUIDS

READER = Peer(777, 2000, False, gids=(1100,))  # of the group that may read the arena
WRITER = Peer(778, 2001, False, gids=(1100,))  # and later may write it


async def test_who_may_read_the_arena_sees_the_service_and_no_more(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[READER.pid] = 1
        caller = await daemon.call_as(READER)
        assert (await caller.ask("service.get", name="1000:weights"))["writer_pid"] == 586
        assert [each["name"] for each in (await caller.ask("service.list"))["items"]] == ["weights"]
        await caller.ask("arena.open", name="1000:weights", access="read")
        assert await caller.refusal("service.join", id=1) == "NOT_ALLOWED"
        assert await caller.refusal("service.handover", name="weights") == "NOT_ALLOWED"
        assert await caller.refusal("service.change", name="weights", standbys=8) == "NOT_ALLOWED"
        assert await caller.refusal("service.move", name="weights", gpu="1") == "NOT_ALLOWED"


async def test_a_page_of_services_describes_no_service_of_another_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page described all services of all users, on the event loop."""
    async with open_daemon(tmp_path) as daemon:
        arenas, failover, described = daemon.fakes.arenas.made, daemon.fakes.failover, []
        for each in range(100, 120):
            arenas[each] = replace(arenas[1], id=each, name=f"weights-{each}")
            failover.views[each] = replace(failover.views[1], id=each, name=f"weights-{each}")

        def view(arena_id: int) -> ServiceView:
            described.append(arena_id)
            return failover.views[arena_id]

        monkeypatch.setattr(failover, "view", view)
        page = await (await daemon.call_as(OPERATOR)).ask("service.list", limit=2, after=101)
        assert ([each["id"] for each in page["items"]], page["next"]) == ([102, 103], 103)
        assert described == [102, 103, 104], "and the one that shows that there is another page"


async def test_a_member_may_be_another_users_where_the_mode_lets_it_write(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.arenas.made[1] = replace(daemon.fakes.arenas.made[1], mode=0o660)
        daemon.fakes.processes[WRITER.pid] = 1
        caller = await daemon.call_as(WRITER)
        await caller.ask("service.enlist", name="1000:weights")
        assert daemon.fakes.failover.enlisted_for == {ProcessId(WRITER.pid, 1): 1000}
        assert await caller.refusal("service.join", id=1) == "NOT_ALLOWED"  # it has it not open
        await caller.ask("arena.open", name="1000:weights", access="read")
        response = await caller.call("service.join", id=1)
        assert response.error is not None
        assert response.error["message"] == "pid 778 is no member"  # as far as the one in memory goes


@pytest.mark.parametrize(
    ("peer", "name", "code"),
    [
        (READER, "weights", "NOT_ALLOWED"),
        (READER, "2000:weights", "NO_SUCH_ARENA"),
        (OPERATOR, "weights", "NOT_ALLOWED"),
        (OPERATOR, "0:weights", "NO_SUCH_ARENA"),
        (STRANGER, "weights", "NO_SUCH_ARENA"),
        (STRANGER, "1000:weights", "NO_SUCH_ARENA"),
    ],
)
async def test_nobody_takes_another_users_arena_for_ones_own(tmp_path: Path, peer: Peer, name: str, code: str) -> None:
    """Its maker could read all commits. An arena that a user may not read does not exist for that user."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[peer.pid] = 1
        caller = await daemon.call_as(peer)
        for access in ("read", "write"):
            response = await caller.call("arena.open", name=name, access=access)
            assert response.error is not None
            assert response.error["name"] == code
            is_told = "name it 1000:weights" in response.error["message"]
            assert is_told or access == "write" or code != "NOT_ALLOWED"
        if code == "NOT_ALLOWED":
            assert await caller.refusal("service.enlist", name=name) == code
        if not peer.is_operator:
            assert await caller.refusal("service.get", name=name) == code


async def test_roots_arena_needs_no_owner_and_ones_own_may_have_it(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes |= {READER.pid: 1, OWNER.pid: 10 * OWNER.pid}
        caller, owner = await daemon.call_as(READER), await daemon.call_as(OWNER)
        for name in ("weights", "1000:weights"):
            await owner.ask("arena.open", name=name, access="read")
        daemon.fakes.arenas.made[1] = replace(daemon.fakes.arenas.made[1], owner_uid=0)
        await caller.ask("arena.open", name="weights", access="read")
        assert await caller.refusal("arena.create", name="1000:mine", gpu="0", capacity_bytes=1 << 21) == "NOT_ALLOWED"
        made = await caller.ask("arena.create", name="2000:mine", gpu="0", capacity_bytes=1 << 21)
        assert (made["name"], made["owner_uid"]) == ("mine", 2000)


async def test_an_operator_names_the_owner_of_a_service_that_root_of_a_container_made(tmp_path: Path) -> None:
    """A starter of root's would obey it: the owner has root's uid."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.arenas.made[1] = replace(daemon.fakes.arenas.made[1], owner_uid=0, pid_namespace=77)
        caller = await daemon.call_as(OPERATOR)
        refused = (await caller.call("service.get", name="weights")).error
        assert refused is not None
        assert "made in another container: name it 0:weights to use it" in refused["message"]
        assert (await caller.ask("service.get", name="0:weights"))["writer_pid"] == 586


async def test_who_enlists_for_an_arena_that_is_anothers_alone_is_an_owner_to_be(tmp_path: Path) -> None:
    """For placement it counts as a member of another service: one user cannot keep another's clients out of domains."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[STRANGER.pid] = 1
        caller = await daemon.call_as(STRANGER)
        await caller.ask("service.enlist", name="weights")
        assert daemon.fakes.failover.enlisted_for == {ProcessId(STRANGER.pid, 1): STRANGER.uid}


async def test_who_enlists_does_not_learn_whether_anothers_own_arena_exists(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[STRANGER.pid] = 1
        caller = await daemon.call_as(STRANGER)
        for name in ("1000:weights", "1000:none"):
            refused = (await caller.call("service.enlist", name=name)).error
            assert refused is not None
            assert (refused["name"], refused["message"]) == ("NO_SUCH_ARENA", f"no arena is called {name}")


async def test_who_replicates_does_not_learn_whether_anothers_own_arena_exists(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[STRANGER.pid] = 1
        caller = await daemon.call_as(STRANGER)
        own = await caller.ask("arena.create", name="mine", gpu="0", capacity_bytes=1 << 21)
        await caller.ask("arena.open", name="mine", access="write")
        for name in ("1000:weights", "1000:none", "weights", "none"):
            refused = (await caller.call("service.replicate", id=own["id"], generation=1, of=name)).error
            assert refused is not None
            assert (refused["name"], refused["message"]) == ("NO_SUCH_ARENA", f"no arena is called {name}")


async def test_the_audit_has_the_report_by_which_a_replica_gets_the_services_name(tmp_path: Path) -> None:
    """A replica reports each second, for as long as it follows."""
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        for has_gpu_failed in (False, True, False):
            await caller.ask("service.replicate", id=1, generation=7, of="1000:weights", has_gpu_failed=has_gpu_failed)
    assert audit_text(tmp_path).count("service.replicate") == 1
    assert "done: it has the service's name now: GPU-a has failed" in audit_text(tmp_path)


async def test_what_is_nil_stays_and_0_takes_away(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        changed = await caller.ask("service.change", name="weights", standbys=2, sm_percent=30, memory_bytes=1 << 30)
        assert changed["settings"] == {
            "standbys": 2, "sm_percent": 30.0, "memory_bytes": 1 << 30, "heartbeat_seconds": 0.0, "until_done": False,
            "elastic": "off",
        }  # fmt: skip
        others = {"heartbeat_seconds": 1.5, "until_done": True, "elastic": "batch"}
        changed = await caller.ask("service.change", name="weights", sm_percent=0, **others)
        assert changed["settings"] == {
            "standbys": 2, "sm_percent": None, "memory_bytes": 1 << 30, "heartbeat_seconds": 1.5, "until_done": True,
            "elastic": "batch",
        }  # fmt: skip


async def test_what_no_gpu_has_is_promised_to_no_member(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        before = (await caller.ask("service.get", name="weights"))["settings"]
        response = await caller.call("service.change", name="weights", standbys=2, memory_bytes=900 << 40)
        assert response.error is not None
        assert response.error["message"].startswith("memory_bytes: found 989560464998400; GPU-")
        assert (await caller.ask("service.get", name="weights"))["settings"] == before


async def test_what_happens_to_a_service_is_told_to_its_owner(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        for peer in (STRANGER, OWNER, OPERATOR):
            caller = await daemon.call_as(peer)
            await caller.ask("events.subscribe", topics=["service.*"])
            daemon.bus.publish("service.promoted", {"id": 1, "name": "weights", "owner_uid": 1000, "to_pid": 586})
            await caller.ask("health")
            if peer is STRANGER:
                assert caller.events == []
            elif not caller.events:  # it may come behind the answer
                assert isinstance(await caller.receive(), Notification)


@pytest.mark.parametrize("method", ["service.handover", "service.change", "service.move"])
@pytest.mark.parametrize(("namespaces", "bound", "may"), [((1,), 77, False), ((77, 1), 77, True), ((77, 1), 0, False)])
async def test_a_container_ends_no_member_outside_by_its_service(
    tmp_path: Path, method: str, namespaces: tuple[int, ...], bound: int, may: bool
) -> None:
    """Its root can take the uid of the service's owner.  A handover ends a writer that does not yield; so does a short
    heartbeat, and fewer standbys end the others."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.namespaces[586] = namespaces
        daemon.fakes.namespaces[587] = namespaces
        caller = await daemon.call_as(replace(OWNER, bound=bound))
        response = await caller.call(method, name="weights", **({"gpu": "1"} if method == "service.move" else {}))
        assert (response.error is None) == may, response.error
        if response.error:
            assert "outside of your container" in response.error["message"]


async def test_a_container_moves_no_service_to_a_process_outside(tmp_path: Path) -> None:
    """If that does not serve in time, mpsd ends it.  The replica that is behind least, on another GPU, is the container's."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.namespaces |= {586: (77, 1), 587: (77, 1), 588: (1,)}
        replica = daemon.fakes.failover.views[1].replica
        assert replica is not None
        daemon.fakes.failover.replicas.by_gpu[UUIDS[1]] = replace(replica, process=ProcessId(588, 1))
        caller = await daemon.call_as(replace(OWNER, bound=77))
        assert await caller.refusal("service.move", name="weights", gpu="1") == "NOT_ALLOWED"
        assert daemon.fakes.failover.said == []


@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize("mode", [0o640, 0o600])
async def test_who_waits_for_a_service_gets_the_arena_that_has_its_name_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_left: bool, mode: int
) -> None:
    """A replica replaces the arena: the old one has another name, and no members, and soon no service."""
    async with open_daemon(tmp_path) as daemon:
        failover, arenas = daemon.fakes.failover, daemon.fakes.arenas
        get, old = failover.get, arenas.made[1]

        async def moves(arena_id: int, after: int | None, wait_seconds: float) -> ServiceView:
            if arena_id == 1:
                arenas.made[1] = replace(old, name="weights.replaced-1")
                arenas.made[9] = replace(old, id=9, mode=mode)
                failover.views[9] = replace(failover.views[1], id=9, gpu=UUIDS[1])
                if not is_left:
                    del failover.views[1]
            return await get(arena_id, after, wait_seconds)

        monkeypatch.setattr(failover, "get", moves)
        daemon.fakes.processes[READER.pid] = 1
        caller = await daemon.call_as(READER)
        if mode == 0o600:
            assert await caller.refusal("service.get", name="1000:weights", after=12, wait_seconds=5) == "NO_SUCH_ARENA"
        else:
            assert (await caller.ask("service.get", name="1000:weights", after=12, wait_seconds=5))["gpu"] == UUIDS[1]


@pytest.mark.parametrize(
    ("grant", "why"),
    [
        (None, ""),
        (Grant("lease 1"), ""),
        (Grant("lease 1", sm_percent=10.0), "has 10 % of the SMs there, and each member is to have 30 %"),
        (Grant("lease 1", sm_percent=30.0, memory_bytes={UUIDS[1]: 2 << 30}), "has 2G there, and each member is to have 4G"),
        (Grant("lease 1", sm_percent=30.0, memory_bytes={UUIDS[1]: 4 << 30}), ""),
        (Grant("lease 1", sm_percent=30.0, memory_bytes={UUIDS[0]: 2 << 30}), ""),
    ],
)
async def test_a_service_moves_only_to_a_process_with_what_each_member_is_to_have(
    tmp_path: Path, grant: Grant | None, why: str
) -> None:
    """Its lease there is the room: a service would serve with less after the move than before.

    Another replica, on another GPU, is behind less.
    """
    async with open_daemon(tmp_path) as daemon:
        fakes = daemon.fakes
        view = fakes.failover.views[1]
        assert view.replica is not None
        settings = ServiceSettings(sm_percent=30.0, memory_bytes=4 << 30)
        fakes.failover.views[1] = replace(view, settings=settings, replica=replace(view.replica, process=ProcessId(588, 1)))
        fakes.failover.replicas.by_gpu[UUIDS[1]] = view.replica
        if grant is not None:
            fakes.leases.admit(587, 1000, grant, view.replica.process)
        caller = await daemon.call_as(OWNER)
        response = await caller.call("service.move", name="weights", gpu="1")
        if not why:
            assert response.error is None
            assert fakes.failover.said == [("move", 1, UUIDS[1], 600.0)]
            return
        assert response.error is not None
        assert (response.error["name"], fakes.failover.said) == ("NO_ROOM", [])
        asked = f"service weights cannot move to GPU {UUIDS[1]}: pid 587, which keeps its replica, "
        assert response.error["message"] == asked + why


@pytest.mark.parametrize(("gpu", "code"), [("7", "NO_SUCH_DEVICE"), ("0", "BAD_REQUEST")])
async def test_a_service_moves_to_no_gpu_that_is_missing_or_its_own(tmp_path: Path, gpu: str, code: str) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        assert await caller.refusal("service.move", name="weights", gpu=gpu) == code
        assert await caller.refusal("service.move", name="no-such-service", gpu="1") == "NO_SUCH_ARENA"


async def test_an_elastic_service_moves_to_a_process_with_the_share_that_it_was_dealt(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        fakes = daemon.fakes
        view = fakes.failover.views[1]
        assert view.replica is not None
        settings, share = ServiceSettings(sm_percent=50.0, elastic=Elasticity.BATCH), Share(20.0)
        fakes.failover.views[1] = replace(view, settings=settings, share=share)
        fakes.failover.replicas.by_gpu[UUIDS[1]] = view.replica
        fakes.leases.admit(587, 1000, Grant("lease 1", sm_percent=20.0), view.replica.process)
        caller = await daemon.call_as(OWNER)
        assert (await caller.ask("service.move", name="weights", gpu="1"))["move"]["state"] == "done"
