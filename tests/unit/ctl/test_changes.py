"""The effect of each command: the user's words, and the lease, limit or domain that mpsd makes."""

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mpsd.errors import NotAllowed
from mpsd.model.lease import DomainPolicy, Lease, LeaseSpec, Selector, SelectorKind
from mpsd.model.process import ProcessId
from mpsd.model.stop import Asker, Manner, Report, Stopped, Target, TargetKind, Way
from tests.unit.api.fake_daemon import OPERATOR, OWNER
from tests.unit.api.fake_services import UUIDS
from tests.unit.ctl.console import open_console

GIB = 1 << 30
PLAIN = LeaseSpec("job", Selector(SelectorKind.UID, "1000"), sm_percent=10.0)
FULL = "--gpu 0 --gpu 1 --processes 4 --ttl 2h --wait 5m --domain own --priority 1 --level batch"


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        pytest.param("", {}, id="no more than it must"),
        pytest.param("--gpu 0,1", {"gpus": UUIDS}, id="GPUs in one word"),
        pytest.param("--memory 4G", {"memory_bytes": dict.fromkeys(UUIDS, 4 * GIB)}, id="memory of each GPU"),
        pytest.param("--gpu 1 --memory 4G", {"gpus": UUIDS[1:], "memory_bytes": {UUIDS[1]: 4 * GIB}}, id="of each of its GPUs"),
        pytest.param("--memory 4G --memory 1=1.5G", {"memory_bytes": {UUIDS[0]: 4 * GIB, UUIDS[1]: 3 * GIB // 2}},
                     id="and of one"),
        pytest.param("--group g", {"domain": DomainPolicy.GROUP, "group": "g"}, id="a group has a domain"),
        pytest.param("--group g --domain shared", {"group": "g"}, id="unless told otherwise"),
        pytest.param(FULL, {"gpus": UUIDS, "processes": 4, "ttl_seconds": 7200.0, "wait_seconds": 300.0, "priority": 1,
                            "domain": DomainPolicy.OWN, "level": "batch"}, id="everything"),
    ],
)  # fmt: skip
async def test_a_lease_is_what_was_asked_for(words: str, changed: dict[str, Any], tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        out = await console.answer("lease", "create", "job", "--user", "1000", "--sm", "10%", *words.split())
        assert console.daemon.fakes.leases.made[3].spec == replace(PLAIN, **changed)
    assert out.startswith(f"lease 3 is active: {'32' if '4' in words.split() else '12'} SMs (10%)")  # 8 for each of four


@pytest.mark.parametrize(
    ("words", "selector"),
    [
        ("--pid 586", Selector(SelectorKind.PID, "586", 5860)),
        ("--user 1000", Selector(SelectorKind.UID, "1000")),
        ("--user root", Selector(SelectorKind.UID, "0")),
        ("--cgroup /kubepods/pod1", Selector(SelectorKind.CGROUP, "/kubepods/pod1")),
        ("--token abcdefgh", Selector(SelectorKind.TOKEN, "abcdefgh")),
    ],
)
async def test_a_lease_is_for_whom_it_was_asked(words: str, selector: Selector, tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        await console.answer("lease", "create", "job", "--sm", "40", *words.split())
        made = console.daemon.fakes.leases.made[3]
    assert made.spec.selector == selector
    assert made.spec.sm_percent == pytest.approx(40 / 132 * 100, abs=0.001)


async def test_a_new_token_is_told_to_whom_it_belongs(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        words = ("lease", "create", "job", "--new-token", "--sm", "1%")
        first, second = await console.answer(*words, peer=OWNER), await console.answer(*words, peer=OWNER)
        tokens = [console.daemon.fakes.leases.made[number].spec.selector.value for number in (3, 4)]
    assert f"MPSD_LEASE={tokens[0]} " in first
    assert f"MPSD_LEASE={tokens[1]} " in second
    assert tokens[0] != tokens[1]
    assert min(map(len, tokens)) == 32


async def test_a_lease_that_waits_says_so(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        out = await console.answer("lease", "create", "job", "--user", "1000", "--wait", "1h")
    assert out == "lease 3 is queued: 132 SMs (100%)\n"


async def test_operators_make_leases_for_others(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        await console.answer("lease", "create", "job", "--user", "1000", "--sm", "1%", "--owner", "1000", peer=OPERATOR)
        assert console.daemon.fakes.leases.made[3].owner_uid == 1000


async def test_a_lease_is_renewed_and_given_back(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        assert await console.answer("lease", "renew", "1", "--ttl", "1h30m") == "lease 1 is active: 38 SMs (30%), for 1h29m\n"
        assert await console.answer("lease", "renew", "1") == "lease 1 is active: 38 SMs (30%), for 50s\n"
        assert "its client keeps what it has" in await console.answer("lease", "release", "1")
        assert 1 not in console.daemon.fakes.leases.made


async def test_leases_are_given_back_by_name(tmp_path: Path, short_dir: Path) -> None:
    """All of one owner; another user's lease with the same name stays."""
    async with open_console(tmp_path, short_dir) as console:
        for owner in ("1000", "1000", "2000"):
            await console.answer("lease", "create", "job", "--user", owner, "--sm", "1%", "--owner", owner, peer=OPERATOR)
        out = await console.answer("lease", "release", "job", "--owner", "1000", peer=OPERATOR)
        assert out == "lease 3 is released; no client had it\nlease 4 is released; no client had it\n"
        assert [lease.owner_uid for lease in console.daemon.fakes.leases.made.values() if lease.spec.name == "job"] == [2000]
        done = await console.run("lease", "release", "job", "--owner", "1000", peer=OPERATOR)
        assert (done.status, "has no lease with the name job (NO_SUCH_LEASE)" in done.err) == (1, True)


async def test_leases_of_a_name_are_given_back_though_one_has_ended_since(tmp_path: Path, short_dir: Path) -> None:
    """A container's root has root's uid, so its leases can have the name of a job's."""
    async with open_console(tmp_path, short_dir) as console:
        leases = console.daemon.fakes.leases
        for _ in range(3):
            await console.answer("lease", "create", "job", "--user", "1000", "--sm", "1%", peer=OPERATOR)
        listed = leases.leases()
        leases.leases = lambda: listed  # type: ignore[method-assign]
        leases.release(3)
        out = await console.answer("lease", "release", "job", peer=OPERATOR)
        assert out == "lease 4 is released; no client had it\nlease 5 is released; no client had it\n"
        assert "job" not in {lease.spec.name for lease in leases.made.values()}
        done = await console.run("lease", "release", "job", peer=OPERATOR)
        assert (done.status, done.out, "(NO_SUCH_LEASE)" in done.err) == (1, "", True)


async def test_a_refusal_keeps_no_other_lease_of_the_name(tmp_path: Path, short_dir: Path) -> None:
    """It is reported before a lease that has ended: Slurm's Epilog takes NO_SUCH_LEASE for all of the name."""
    async with open_console(tmp_path, short_dir) as console:
        leases = console.daemon.fakes.leases
        for _ in range(3):
            await console.answer("lease", "create", "job", "--user", "1000", "--sm", "1%", peer=OPERATOR)
        listed, release = leases.leases(), leases.release
        leases.leases = lambda: listed  # type: ignore[method-assign]

        def refuse(lease_id: int) -> Lease:
            if lease_id == 4:
                raise NotAllowed("not now")
            return release(lease_id)

        leases.release = refuse  # type: ignore[method-assign]
        release(3)
        for out in ("lease 5 is released; no client had it\n", ""):
            done = await console.run("lease", "release", "job", peer=OPERATOR)
            assert (done.status, done.out, "not now (NOT_ALLOWED)" in done.err) == (1, out, True)


async def test_leases_are_given_back_by_the_uid_that_mpsd_sees(tmp_path: Path, short_dir: Path) -> None:
    """In a user namespace the process has another one."""
    async with open_console(tmp_path, short_dir) as console:
        await console.answer("lease", "create", "job", "--user", "1000", "--sm", "1%", "--owner", "1000", peer=OPERATOR)
        assert await console.answer("lease", "release", "job", peer=OWNER) == "lease 3 is released; no client had it\n"


async def test_limits_are_set(tmp_path: Path, short_dir: Path) -> None:
    """An omitted limit stays; `none` removes it; a limit for one GPU overrides the limit for each."""
    async with open_console(tmp_path, short_dir) as console:
        board = console.daemon.fakes.board
        await console.answer("limits", "set", "--sm", "50%", "--memory", "4G", "--memory", "1=2G")
        assert (board.present.thread_percent, board.present.client_priority) == (50.0, 0)
        assert dict(board.present.pinned_limits) == {UUIDS[0]: 4 * GIB, UUIDS[1]: 2 * GIB}
        out = await console.answer("limits", "set", "--memory", "0=none", "--priority", "1")
        assert dict(board.present.pinned_limits) == {UUIDS[1]: 2 * GIB}
        assert board.present.thread_percent == 50.0
    assert out.splitlines() == ["SMs       50%", "memory    2G on GPU 1", "priority  below normal"]


@pytest.mark.parametrize(
    ("words", "done", "said"),
    [
        ("domain create --gpu 1", ("create", (UUIDS[1],)), "domain d4 is starting"),
        ("domain create", ("create", UUIDS), "domain d4 is starting"),
        ("domain drain d1", ("drain", "d1"), "domain d1 takes no new clients, and is removed when its 1 clients have ended"),
        ("domain drain d3", ("drain", "d3"), "domain d3 takes no new clients, and is removed now"),
        ("domain recycle d3", ("recycle", "d3"), "domain d3 gets fresh servers"),
        ("move 586 d3", ("move", 586, "d3"), "client 586 stays where it is; the next process like it goes to domain d3"),
    ],
)
async def test_domains_are_changed(words: str, done: tuple[Any, ...], said: str, tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        assert await console.answer(*words.split()) == f"{said}\n"
        assert console.daemon.fakes.domains.done == [done]


async def test_a_client_is_terminated(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        out = await console.answer("terminate", "586", peer=OWNER)
        assert [586 in ended for ended in console.daemon.fakes.board.ended] == [True]
    assert out == "client 586: its GPU work in domain d1 has ended; the process continues, and gets CUDA error 810\n"


@pytest.mark.parametrize(
    ("words", "target", "manner"),
    [
        ("--pid 586", Target(TargetKind.PID, "586"), Manner()),
        ("--pid 586 --grace 30s --force", Target(TargetKind.PID, "586"), Manner(grace_seconds=30.0, force=True)),
        ("--cgroup job_7 --drain 2s", Target(TargetKind.CGROUP, "job_7"), Manner(Way.DRAIN, drain_seconds=2.0)),
        ("--container self", Target(TargetKind.CONTAINER, "self"), Manner()),
    ],
)
async def test_a_client_is_stopped(words: str, target: Target, manner: Manner, tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        out = await console.answer("stop", *words.split())
        assert console.daemon.fakes.stopper.asked == [(target, manner)]
    assert ("586  d1" in out) == ("--pid" in words)
    assert ("no client found in " in out) == ("--pid" not in words)


async def test_a_client_that_was_left_is_status_1(tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(target: Target, manner: Manner, asker: Asker) -> Report:
        return Report([Stopped(ProcessId(586, 5860), "d1", (), "d1 does not answer")])

    async with open_console(tmp_path, short_dir) as console:
        monkeypatch.setattr(console.daemon.fakes.stopper, "stop", leave)
        done = await console.run("stop", "--pid", "586")
    assert (done.status, done.err) == (1, "")
    assert "d1 does not answer" in done.out


async def test_of_an_mpsd_that_quits_status_says_until_when_clients_work(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        console.daemon.fakes.ends_at = 1_700_000_020.0
        out = await console.answer("status")
    at = time.strftime("%H:%M:%S", time.localtime(1_700_000_020.0))
    assert f", ends what clients do at {at}" in out
