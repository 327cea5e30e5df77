"""The requests and the output of the arena commands."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mpsd.model.process import ProcessId
from tests.unit.api.fake_daemon import OWNER, STRANGER
from tests.unit.api.fake_services import UUIDS
from tests.unit.ctl.console import open_console

GIB = 1 << 30


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param("", {"gpu": UUIDS[0], "window_bytes": 16 * GIB, "mode": 0o600, "ttl_seconds": None}, id="little"),
        pytest.param("--gpu 1 --window 32G --mode 0640 --ttl 1h30m",
                     {"gpu": UUIDS[1], "window_bytes": 32 * GIB, "mode": 0o640, "ttl_seconds": 5400.0}, id="everything"),
        pytest.param("--mode 0", {"mode": 0}, id="a mode of nothing is one"),
    ],
)  # fmt: skip
async def test_an_arena_is_what_was_asked_for(words: str, expected: dict[str, Any], tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        out = await console.answer("arena", "create", "kv", "--capacity", "8G", *words.split(), peer=OWNER)
        made = console.daemon.fakes.arenas.made[3]
    assert (made.name, made.owner_uid, made.capacity_bytes) == ("kv", 1000, 8 * GIB)
    assert {name: getattr(made, name) for name in expected} == expected
    assert out.startswith("arena kv may hold 8G of GPU ")


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("--capacity 16G", {"capacity_bytes": 16 * GIB}),
        ("--mode 666", {"mode": 0o666}),
        ("--ttl 10m", {"ttl_seconds": 600.0}),
        ("--ttl none", {"ttl_seconds": None}),
    ],
)
async def test_what_is_not_named_stays(words: str, changed: dict[str, Any], tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        arenas = console.daemon.fakes.arenas
        before = arenas.made[2] = replace(arenas.made[2], ttl_seconds=60.0)
        await console.answer("arena", "change", "cache", *words.split(), peer=OWNER)
        assert arenas.made[2] == replace(before, **changed)


async def test_what_is_removed_is_said(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        assert await console.answer("arena", "remove", "cache", peer=OWNER) == "arena cache is gone, and 2M with it\n"
        assert "cache" not in await console.answer("arenas")


async def test_less_room_than_was_wanted_is_status_1(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        assert await console.answer("arena", "make-room", "1M") == "2M freed, of cache\n"
        done = await console.run("arena", "make-room", "1M")
        assert (done.status, done.out) == (1, "0 freed; mpsd evicts no arena: vault.eviction is off\n")


async def test_a_user_sees_what_they_may(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        assert await console.answer("arenas", peer=STRANGER) == "no arenas\n"
        assert "weights" in await console.answer("arenas", peer=OWNER)


async def test_many_readers_are_counted(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        arenas = console.daemon.fakes.arenas
        arenas.made[1] = replace(arenas.made[1], readers=tuple(ProcessId(pid, 1) for pid in range(100, 150)))
        out = await console.answer("arena", "show", "weights", COLUMNS="")
        assert "pid 119 and 30 more" in out


async def test_status_tells_of_the_keeper(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        lines = (await console.answer("status")).splitlines()
    assert [line.split(None, 1)[1] for line in lines if line.startswith("keeper")] == ["works, pid 4711, holds 2 descriptors"]
