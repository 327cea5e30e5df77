"""The requests and the output of the service commands."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mpsd.model.service import MoveState, MoveView, ServiceSettings, ServiceView
from tests.unit.api.fake_daemon import OWNER, STRANGER
from tests.unit.api.fake_services import NOW, UUIDS
from tests.unit.ctl.console import furnish, open_console

SETTINGS = ServiceSettings(2, 30.0, 20 << 30, 2.5)  # of the furnished one


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("--standbys 0", {"standbys": 0}),
        ("--sm 12.5% --memory 8G", {"sm_percent": 12.5, "memory_bytes": 8 << 30}),
        ("--sm none --memory none", {"sm_percent": None, "memory_bytes": None}),
        ("--heartbeat 500ms", {"heartbeat_seconds": 0.5}),
        ("--heartbeat none", {"heartbeat_seconds": 0.0}),
    ],
)
async def test_what_is_not_named_stays(words: str, changed: dict[str, Any], tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        furnish(console)
        await console.answer("service", "change", "weights", *words.split(), peer=OWNER)
        assert console.daemon.fakes.failover.views[1].settings == replace(SETTINGS, **changed)


async def test_what_is_wanted_now_is_said(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        words = ("--standbys", "3", "--sm", "30%", "--memory", "20G")
        out = await console.answer("service", "change", "weights", *words, peer=OWNER)
    said = "service weights: 3 standbys in addition to the active, each with 30% of the SMs, 20G; heartbeat none\n"
    assert out == said


@pytest.mark.parametrize(("words", "to_pid"), [((), None), (("--to", "601"), 601)])
async def test_a_handover_goes_to_whom_was_named(
    words: tuple[str, ...], to_pid: int | None, tmp_path: Path, short_dir: Path
) -> None:
    async with open_console(tmp_path, short_dir) as console:
        out = await console.answer("service", "handover", "weights", *words, peer=OWNER)
        assert console.daemon.fakes.failover.said == [("handover", 1, to_pid)]
    assert out == f"pid {to_pid or 586} serves in place of pid 586, after 250 ms\n"


@pytest.mark.parametrize("words", ["show weights", "change weights --sm 1%", "handover weights", "move weights --gpu 1"])
async def test_what_is_another_users_is_not_there(words: str, tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        done = await console.run("service", *words.split(), peer=STRANGER)
        assert await console.answer("services", peer=STRANGER) == "no services\n"
    assert done.status == 1
    assert "NO_SUCH_ARENA" in done.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        pytest.param(("there-is-no-such-program",), "program there-is-no-such-program does not exist", id="no program"),
        pytest.param(("--remove-arena", "true"), "--remove-arena is for --until-done", id="there is no end"),
        pytest.param(("--log-dir", "/dev/null/logs", "true"), "/dev/null/logs cannot be made: Not a directory", id="no place"),
        pytest.param(
            ("--sm", "30%", "true"),
            "this machine has several GPUs, and the service does not exist yet: name the GPU by --gpu",
            id="which GPU",
        ),
        pytest.param(
            ("--gpu", f"00,1,{UUIDS[0][:9].lower()},7", "true"),
            f"--gpu 7: mpsd has no such GPU; it has 0 ({UUIDS[0]}), 1 ({UUIDS[1]})",
            id="no such GPU",
        ),
        pytest.param(
            ("--gpu", "0", "--replica-gpu", "7", "true"),
            f"--replica-gpu 7: mpsd has no such GPU; it has 0 ({UUIDS[0]}), 1 ({UUIDS[1]})",
            id="no such GPU for a replica",
        ),
        pytest.param(
            ("--replica-gpu", "1", "true"),
            "--replica-gpu needs --gpu too, and one GPU in each: where the service begins, and where its replica is",
            id="a replica of a service that could be anywhere",
        ),
        pytest.param(
            ("--gpu", "0,1", "--replica-gpu", "1", "true"),
            "--replica-gpu needs --gpu too, and one GPU in each: where the service begins, and where its replica is",
            id="a replica of a service on two",
        ),
        pytest.param(
            ("--gpu", "1", "--replica-gpu", UUIDS[1], "true"),
            f"--replica-gpu {UUIDS[1]} is the GPU of the service: a replica has to be on another one",
            id="a replica on the same GPU",
        ),
    ],
)
async def test_what_cannot_be_run_is_said_at_once(words: tuple[str, ...], why: str, tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        done = await console.run("service", "run", "llm", *words)
    assert (done.status, done.err) == (2, f"mpsctl service run: {why}\n")


async def test_a_move_says_where_it_went_and_for_how_long_nothing_was_served(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        out = await console.answer("service", "move", "weights", "--gpu", "1", "--wait", "5s", peer=OWNER)
        assert console.daemon.fakes.failover.said == [("move", 1, UUIDS[1], 5.0)]
        assert out == "pid 587 on GPU 1 serves weights in place of pid 586, after 1.2 s; pause 42 ms\n"


async def test_a_move_that_is_cancelled_fails_with_the_reason(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        failover = console.daemon.fakes.failover
        copying = MoveView(MoveState.COPYING, UUIDS[0], UUIDS[1], 586, 587, NOW)
        states = [
            replace(copying, rounds=1), None, replace(copying, rounds=2, state=MoveState.YIELDING),
            replace(copying, state=MoveState.CANCELLED, why="pid 587, which kept the replica, has ended"),
        ]  # fmt: skip

        def begin(arena_id: int, gpu: str, wait_seconds: float) -> ServiceView:
            failover.views[1] = replace(failover.views[1], move=copying)
            return failover.views[1]

        async def get(arena_id: int, after: int | None, wait_seconds: float) -> ServiceView:
            return replace(failover.views[1], move=states.pop(0))

        failover.move, failover.get = begin, get
        done = await console.run("--json", "service", "move", "weights", "--gpu", "1", peer=OWNER)
    *shown, why = done.err.splitlines()
    assert (done.status, done.out) == (1, "")
    assert why == "mpsctl service move: weights was not moved: pid 587, which kept the replica, has ended"
    told = [(each["state"], each["rounds"]) for each in map(json.loads, shown)]
    assert told == [("copying", 0), ("copying", 1), ("yielding", 2)]
