"""The effects of the methods on leases, clients, domains and limits, and the pages of lists."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpsd.api.authority import Peer
from mpsd.domains.placement_waits import PlacementWait, Reason
from mpsd.errors import VendorFailed
from mpsd.model.domain import Defaults, DomainState
from mpsd.model.lease import Lease, LeaseSpec, LeaseState
from mpsd.model.process import ProcessId
from mpsd.model.stop import Manner, Target, TargetKind, Way
from mpsd.wire.rpc import MAX_BYTES, size
from tests.unit.api.fake_daemon import OPERATOR, OWNER, STRANGER, audit_text, open_daemon
from tests.unit.api.fake_services import NOW, UUIDS, selector_of
from tests.unit.commands.language.fake_board import GIB, MIB

SELF = {"kind": "pid", "value": "self"}


async def create(tmp_path: Path, peer: Peer = OWNER, **said: Any) -> Any:
    """The lease that was made, or the name of the refusal."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes.update({10: 100, 586: 5860})
        daemon.fakes.leases.made.clear()
        caller = await daemon.call_as(peer)
        response = await caller.call("lease.create", **{"name": "job", "selector": SELF, **said})
        return response.error["name"] if response.error else response.result


async def test_a_lease_says_what_was_asked(tmp_path: Path) -> None:
    lease = await create(
        tmp_path, gpus=["1"], sm_percent=25, memory_bytes={"1": 8 * GIB}, domain="group", group="team", processes=4,
        ttl_seconds=60, wait_seconds=5, level="batch", priority=1,
    )  # fmt: skip
    assert lease == {
        "id": 3, "owner_uid": 1000, "for_all_users": False, "state": "active", "created_at": NOW, "expires_at": NOW + 60,
        "clients": 0, "name": "job", "selector": {"kind": "pid", "value": "586", "start_time": 5860}, "gpus": [UUIDS[1]],
        "sm_percent": 25.0, "sm_reserved_percent": 25.0, "sm_count": 32, "memory_bytes": {UUIDS[1]: 8 * GIB}, "priority": 1,
        "domain": "group", "group": "team", "processes": 4, "ttl_seconds": 60.0, "wait_seconds": 5.0, "level": "batch",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("peer", "said", "owner_uid", "for_all_users"),
    [
        (OWNER, {}, 1000, False),
        (OWNER, {"owner_uid": 1000}, 1000, False),
        (OPERATOR, {}, 0, True),
        (OPERATOR, {"owner_uid": 1000}, 1000, False),
        (OPERATOR, {"owner_uid": 0}, 0, False),
    ],
)
async def test_whose_a_lease_is(peer: Peer, said: dict[str, Any], owner_uid: int, for_all_users: bool, tmp_path: Path) -> None:
    lease = await create(tmp_path, peer, **said)
    assert (lease["owner_uid"], lease["for_all_users"]) == (owner_uid, for_all_users)


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ({"owner_uid": 2000}, "NOT_ALLOWED"),
        ({"selector": {"kind": "uid", "value": "2000"}}, "NOT_ALLOWED"),
        ({"selector": {"kind": "pid", "value": "4242"}}, "BAD_REQUEST"),
        ({"selector": {"kind": "pid", "value": "586", "start_time": 1}}, "BAD_REQUEST"),
        ({"selector": {"kind": "pid", "value": "me"}}, "BAD_REQUEST"),
        ({"selector": {"kind": "pid", "value": "700"}}, "NOT_ALLOWED"),  # another user's
        ({"selector": {"kind": "pid", "value": "10"}}, "NOT_ALLOWED"),  # it went when its owner was asked for
        ({"sm_percent": 10, "sm_count": 10}, "BAD_REQUEST"),
        ({"sm_count": 133}, "BAD_REQUEST"),
        ({"gpus": ["7"]}, "NO_SUCH_DEVICE"),
    ],
)
async def test_what_is_refused(said: dict[str, Any], refusal: str, tmp_path: Path) -> None:
    assert await create(tmp_path, **said) == refusal


@pytest.mark.parametrize("count", [1, 2, 32, 33, 66, 131, 132])
async def test_an_sm_count_is_a_percentage_that_gives_so_many(count: int, tmp_path: Path) -> None:
    """Or as many more as the hardware's steps make it: 8 at least, and of more whole multiples of 2."""
    lease = await create(tmp_path, sm_count=count)
    assert lease["sm_count"] == max(8, count + count % 2)


@pytest.mark.parametrize(
    ("said", "percent"),
    [({}, 100.0), ({"memory_bytes": {"0": 1 << 30}}, 0.0), ({"memory_bytes": {"0": 1 << 30}, "sm_percent": 25}, 25.0)],
)
async def test_a_lease_that_names_memory_alone_reserves_no_sms(said: dict[str, Any], percent: float, tmp_path: Path) -> None:
    assert (await create(tmp_path, **said))["sm_percent"] == percent


@pytest.mark.parametrize("peer", [OWNER, OPERATOR])
async def test_a_pid_is_told_apart_from_later_ones(peer: Peer, tmp_path: Path) -> None:
    lease = await create(tmp_path, peer, selector={"kind": "pid", "value": "586"})
    assert lease["selector"] == {"kind": "pid", "value": "586", "start_time": 5860}


async def test_whoever_has_the_pid_of_who_connected_is_not_self(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        daemon.fakes.processes[586] = 99999
        assert await caller.refusal("lease.create", name="job", selector=SELF, sm_percent=1) == "BAD_REQUEST"


async def test_a_lease_lasts_as_long_again_unless_told_otherwise(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        assert (await caller.ask("lease.renew", id=1))["expires_at"] == NOW + 60
        assert (await caller.ask("lease.renew", id=1, ttl_seconds=5))["expires_at"] == NOW + 5


async def test_a_token_is_told_to_its_owner_alone(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        owner, operator = await daemon.call_as(OWNER), await daemon.call_as(OPERATOR)
        assert (await owner.ask("lease.get", id=1))["selector"]["value"] == "a-secret-of-user-1000"
        assert (await operator.ask("lease.get", id=1))["selector"]["value"] is None
        await operator.ask("lease.create", name="x", selector={"kind": "token", "value": "another-secret"}, sm_percent=1)
        daemon.audit.close()
    assert "another-secret" not in audit_text(tmp_path)


async def test_root_of_a_container_has_no_lease_that_an_operator_made_for_all(tmp_path: Path) -> None:
    """A device plugin makes those of all pods, whose roots have its uid."""
    async with open_daemon(tmp_path) as daemon:
        operator, pod = await daemon.call_as(OPERATOR), await daemon.call_as(Peer(7, OPERATOR.uid, False, bound=4026532001))
        secret = {"kind": "token", "value": "of-another-pod"}
        others = (await operator.ask("lease.create", name="x", selector=secret, sm_percent=1))["id"]
        own = (await pod.ask("lease.create", name="y", selector=secret, sm_percent=1))["id"]
        for method in ("lease.get", "lease.renew", "lease.release"):
            assert await pod.refusal(method, id=others) == "NO_SUCH_LEASE"
        assert [row["id"] for row in (await pod.ask("lease.list"))["items"]] == [own]
        assert (await operator.ask("lease.get", id=others))["selector"]["value"] == "of-another-pod"
        assert (await pod.ask("lease.release", id=own))["id"] == own


async def test_a_list_comes_in_pages_that_fit_and_miss_nothing(tmp_path: Path) -> None:
    """10,000 leases, some as large as may be; in the order of their ids, each once."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.leases.made.clear()
        for number in range(1, 10001):
            spec = LeaseSpec("x" * (64 if number % 50 else 120), selector_of(number % 3))
            daemon.fakes.leases.made[number] = Lease(number, number % 3, spec, LeaseState.ACTIVE, NOW, None)
        for peer, expected in ((OPERATOR, range(1, 10001)), (Peer(5, 1, False), range(1, 10001, 3))):
            caller = await daemon.call_as(peer)
            found, after = [], None
            while True:
                page = await caller.ask("lease.list", after=after, limit=1000)
                assert size(page) < MAX_BYTES
                found += [row["id"] for row in page["items"]]
                if (after := page["next"]) is None:
                    break
            assert found == list(expected)


async def test_a_page_has_no_more_than_its_limit(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        page = await caller.ask("lease.list", limit=1)
        assert ([row["id"] for row in page["items"]], page["next"]) == ([1], 1)
        page = await caller.ask("lease.list", limit=1, after=1)
        assert ([row["id"] for row in page["items"]], page["next"]) == ([2], None)
        assert (await caller.ask("lease.list", state="queued"))["items"] == []


async def test_clients_are_those_admitted_and_those_that_wait(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        operator, owner = await daemon.call_as(), await daemon.call_as(OWNER)
        rows = (await operator.ask("client.list"))["items"]
        assert [(row["pid"], row["uid"], row["state"], row["domain"], row["lease_id"]) for row in rows] == [
            (586, 1000, "running", "d1", 1), (587, 1000, "waiting", None, None),
            (700, 2000, "running", "d2", 2), (701, 2000, "waiting", None, None),
        ]  # fmt: skip
        assert [row["pid"] for row in (await owner.ask("client.list"))["items"]] == [586, 587]
        assert [row["position"] for row in (await owner.ask("queue.list"))["items"]] == [1]


async def test_why_names_the_rule(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        running = await caller.ask("client.why", pid=586, start_time=5860)
        assert running["grant"]["rule"] == "lease 1, by uid 1000"
        assert (running["container"], running["queue"]) == ("train.service", None)
        waiting = await caller.ask("client.why", pid=587)
        assert (waiting["grant"], waiting["queue"]) == (None, {"position": 1, "reason": "no share is free"})
        assert await caller.refusal("client.why", pid=586, start_time=1) == "NO_SUCH_CLIENT"


class Unread(dict[int, tuple[int, ...]]):
    def get(self, pid: int, *_: object) -> tuple[int, ...]:  # type: ignore[override]
        pytest.fail(f"pid {pid} was read")


@pytest.mark.parametrize("method", ["client.why", "client.terminate"])
async def test_another_users_client_is_not_read_before_the_refusal(tmp_path: Path, method: str) -> None:
    """A caller who held its directory of /proc, and asked, kept mpsd from reading all processes of that user."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.namespaces = Unread()
        caller = await daemon.call_as(STRANGER)
        assert await caller.refusal(method, pid=586) == "NO_SUCH_CLIENT"


async def test_a_client_is_terminated_where_it_runs(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        told = await caller.ask("client.terminate", pid=586)
        assert (told["server_pid"], told["domain"]) == (512, "d1")
        assert daemon.fakes.board.ended == [("client", 512, 586)]
        assert await caller.refusal("client.terminate", pid=587) == "NO_SUCH_CLIENT"


async def test_no_later_process_with_the_pid_of_a_client_is_terminated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Domains that do not answer are waited for between the check of the caller and the command."""
    async with open_daemon(tmp_path) as daemon:
        servers = daemon.fakes.board.servers
        caller = await daemon.call_as(OWNER)

        async def ask() -> object:
            daemon.fakes.processes[586] += 1
            return await servers()

        monkeypatch.setattr(daemon.fakes.board, "servers", ask)
        assert await caller.refusal("client.terminate", pid=586) == "NO_SUCH_CLIENT"
        assert daemon.fakes.board.ended == []


async def test_the_command_for_a_client_is_not_sent_once_its_pid_is_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command waits for its turn at the vendor daemon."""
    async with open_daemon(tmp_path) as daemon:
        board = daemon.fakes.board
        terminate = board.terminate_client

        async def wait_for_turn(server_pid: int, client_pid: int, *checks: Callable[[], None]) -> str:
            daemon.fakes.processes[586] += 1
            return await terminate(server_pid, client_pid, *checks)

        monkeypatch.setattr(board, "terminate_client", wait_for_turn)
        assert await (await daemon.call_as(OWNER)).refusal("client.terminate", pid=586) == "NO_SUCH_CLIENT"
        assert board.ended == []


async def test_a_client_that_the_vendor_does_not_end_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(server_pid: int, client_pid: int, check: Callable[[], None]) -> str:
        return "999\n"

    async with open_daemon(tmp_path) as daemon:
        monkeypatch.setattr(daemon.fakes.board, "terminate_client", answer)
        assert await (await daemon.call_as()).refusal("client.terminate", pid=586) == "VENDOR_FAILED"


@pytest.mark.parametrize(
    ("said", "target", "manner"),
    [
        ({"pid": 586}, Target(TargetKind.PID, "586"), Manner(drain_seconds=5.0)),
        ({"pid": 586, "start_time": 5860}, Target(TargetKind.PID, "586", 5860), Manner(drain_seconds=5.0)),
        ({"cgroup": "job_7", "grace_seconds": 2}, Target(TargetKind.CGROUP, "job_7"), Manner(Way.TERMINATE, 2.0, 5.0)),
        ({"container": "self", "way": "drain", "drain_seconds": 1, "force": True}, Target(TargetKind.CONTAINER, "self"),
         Manner(Way.DRAIN, 0.0, 1.0, force=True)),
    ],
)  # fmt: skip
async def test_a_stop_is_what_was_asked_for(said: dict[str, Any], target: Target, manner: Manner, tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        await (await daemon.call_as(OWNER)).ask("client.stop", **said)
        assert daemon.fakes.stopper.asked == [(target, manner)]


@pytest.mark.parametrize(
    "said",
    [{}, {"pid": 586, "cgroup": "/a"}, {"cgroup": "/a", "container": "b"}, {"pid": 0}, {"pid": 586, "way": "kill"},
     {"pid": 586, "force": 1}, {"pid": 586, "grace_seconds": 3601}, {"cgroup": "a\nb"}],
)  # fmt: skip
async def test_a_stop_that_means_nobody_or_two_is_refused(said: dict[str, Any], tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        assert await (await daemon.call_as()).refusal("client.stop", **said) == "BAD_REQUEST"
        assert daemon.fakes.stopper.asked == []


async def test_another_users_process_is_not_there_for_a_stop(tmp_path: Path) -> None:
    """By its pid; in a cgroup it is counted, and not named."""
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        assert await caller.refusal("client.stop", pid=700) == "NO_SUCH_CLIENT"
        told = await caller.ask("client.stop", cgroup="/system.slice/train.service")
        assert ([each["pid"] for each in told["processes"]], told["others"]) == ([586], 1)
        daemon.audit.close()
    assert '"outcome":"done: 586 ended; 1 of other users left"' in audit_text(tmp_path)


async def test_domains_are_created_drained_recycled_and_chosen(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        made = await caller.ask("domain.create", gpus=["1"])
        assert (made["name"], made["state"]) == ("d4", "starting")
        await caller.ask("domain.drain", name="d1")
        assert await caller.refusal("domain.recycle", name="d1") == "BAD_REQUEST"
        await caller.ask("domain.recycle", name="d3")
        await caller.ask("client.move", pid=586, domain="d3")
        for method in ("domain.drain", "domain.recycle"):
            assert await caller.refusal(method, name="d9") == "NO_SUCH_DOMAIN"
        assert await caller.refusal("client.move", pid=586, domain="d9") == "NO_SUCH_DOMAIN"
        assert daemon.fakes.domains.done == [
            ("create", (UUIDS[1],)), ("drain", "d1"), ("recycle", "d3"), ("move", 586, "d3"),
        ]  # fmt: skip


async def test_limits_are_those_of_the_command_language(tmp_path: Path) -> None:
    """An omitted limit stays, 0 removes it, and values between 0 and the vendor's unit are refused."""
    async with open_daemon(tmp_path) as daemon:
        caller, board = await daemon.call_as(), daemon.fakes.board
        await caller.ask("limits.set", default_active_thread_percentage=50, default_device_pinned_mem_limit={"0": 3 * MIB + 5})
        assert board.present == Defaults(50.0, {UUIDS[0]: 3 * MIB}, 0)
        await caller.ask("limits.set", default_client_priority=1, default_device_pinned_mem_limit={"1": GIB})
        told = await caller.ask("limits.set", default_device_pinned_mem_limit={UUIDS[0]: 0})
        assert board.present == Defaults(50.0, {UUIDS[1]: GIB}, 1)
        assert told == await caller.ask("limits.get")
        assert await caller.refusal("limits.set", default_device_pinned_mem_limit={"0": 5}) == "BAD_REQUEST"
        assert await caller.refusal("limits.set", default_device_pinned_mem_limit={"9": 0}) == "NO_SUCH_DEVICE"
        assert board.present == Defaults(50.0, {UUIDS[1]: GIB}, 1)


async def test_a_vendor_daemon_that_fails_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(defaults: Defaults) -> None:
        raise VendorFailed("d1 does not answer")

    async with open_daemon(tmp_path) as daemon:
        monkeypatch.setattr(daemon.fakes.board, "set_defaults", fail)
        caller = await daemon.call_as()
        assert await caller.refusal("limits.set", default_client_priority=1) == "VENDOR_FAILED"
        await caller.ask("health")


async def test_health_is_whether_the_next_client_would_be_served(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        assert (await caller.ask("health"))["ok"] is True
        daemon.fakes.domains.known.clear()
        daemon.fakes.domains.add("d1", DomainState.FAULT)
        told = await caller.ask("health")
        assert (told["ok"], told["problems"]) == (False, ["no fault domain takes clients: d1 is fault"])
        daemon.fakes.is_stopping = True
        assert (await caller.ask("health"))["state"] == "stopping"
        assert (await caller.ask("status"))["ends_at"] is None
        daemon.fakes.ends_at = 1_700_000_020.0
        assert (await caller.ask("status"))["ends_at"] == 1_700_000_020.0


async def test_status_counts(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        await caller.ask("events.subscribe", topics=["*"])
        told = await caller.ask("status")
        counts = {name: told[name] for name in ("devices", "clients", "leases_active", "queue", "connections", "subscribers")}
        assert counts == {"devices": 2, "clients": 2, "leases_active": 2, "queue": 2, "connections": 1, "subscribers": 1}
        assert told["domains"] == {"ready": 2, "fault": 1}
        assert told["facts"]["backend"] == "gpu"


async def test_whoever_is_told_of_a_change_may_rely_on_the_disk(tmp_path: Path) -> None:
    """Changes that a power cut would undo are written before each answer."""
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes.update({586: 5860})
        daemon.fakes.leases.made.clear()
        caller = await daemon.call_as(OWNER)
        made = await caller.call("lease.create", name="job", selector=SELF, sm_percent=10, ttl_seconds=60)
        assert daemon.fakes.leases.unsettled == []
        for method in ("lease.renew", "lease.release"):
            answer = await caller.call(method, id=made.result["id"])
            assert (answer.error, daemon.fakes.leases.unsettled) == (None, [])


async def test_a_page_of_the_queue_costs_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page built the rows of all before it: the whole queue of 8,663 waiting clients took 6.5 s."""
    async with open_daemon(tmp_path) as daemon:
        for pid in range(1000, 1200):
            why = Reason("its fault domain is starting")
            daemon.fakes.domains.late.append(PlacementWait(ProcessId(pid, pid), OWNER.uid, why))
        looked_at: list[ProcessId] = []
        monkeypatch.setattr(daemon.fakes.leases, "grant_of", looked_at.append)
        caller = await daemon.call_as(OPERATOR)
        first = len(daemon.fakes.leases.waiting)
        page = await caller.ask("queue.list", after=first + 100, limit=10)
        assert [(row["position"], row["pid"]) for row in page["items"]] == [(first + n, 999 + n) for n in range(101, 111)]
        assert page["next"] == first + 110
        assert len(looked_at) <= 11, "with the one that shows that there is a next page"
