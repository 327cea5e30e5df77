"""--json: one document for each command, with the fields of the protocol; a stream has an object a line."""

import dataclasses
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import trio
from mpsctl.table import COMMANDS
from mpsctl.top.clients import Row, TopView
from mpsd_client import values

from tests.unit.api.fake_services import NOW, UUIDS
from tests.unit.ctl.console import Console, at_the_moment, furnish, open_console

# The document of each command: a value, or a list of them.
DOCUMENTS: dict[str, tuple[tuple[str, ...], type, bool]] = {
    "leases": ((), values.Lease, True),
    "lease create": (("job", "--user", "1000", "--sm", "1%"), values.Lease, False),
    "lease renew": (("1",), values.Lease, False),
    "lease release": (("1",), values.Lease, False),
    "lease show": (("1",), values.Lease, False),
    "queue": ((), values.Waiting, True),
    "clients": ((), values.MpsClient, True),
    "why": (("586",), values.Why, False),
    "terminate": (("586",), values.Terminated, False),
    "stop": (("--pid", "586"), values.Stopped, False),
    "move": (("586", "d3"), values.Moved, False),
    "domains": ((), values.Domain, True),
    "domain create": ((), values.Domain, False),
    "domain drain": (("d1",), values.Drained, False),
    "domain recycle": (("d3",), values.Recycled, False),
    "devices": ((), values.Device, True),
    "limits": ((), values.Limits, False),
    "limits set": (("--priority", "1"), values.Limits, False),
    "faults": ((), values.Incident, True),
    "fault": (("1",), values.IncidentReport, False),
    "blame": ((), values.Standing, True),
    "pardon": (("lease:1:1000",), values.Standing, False),
    "arenas": ((), values.Arena, True),
    "arena show": (("weights",), values.Arena, False),
    "arena create": (("kv", "--capacity", "1G"), values.Arena, False),
    "arena change": (("cache", "--ttl", "1h"), values.Arena, False),
    "arena remove": (("cache",), values.Arena, False),
    "arena make-room": (("1M",), values.RoomMade, False),
    "services": ((), values.Service, True),
    "service show": (("weights",), values.Service, False),
    "service handover": (("weights",), values.HandedOver, False),
    "service move": (("weights", "--gpu", "1"), values.Move, False),
    "service change": (("weights", "--standbys", "2"), values.Service, False),
    "events": (("--count", "1"), values.Event, False),
    "status": ((), values.Status, False),
    "health": ((), values.Health, False),
    "top": (("--once",), TopView, False),
}


def test_every_command_has_its_document() -> None:
    others = {"completion", "env", "image restore", "image take", "service run"}
    assert {*DOCUMENTS, *others} == {command.words for command in COMMANDS}


@pytest.mark.parametrize("words", sorted(set(DOCUMENTS) - {"events"}))
async def test_a_document_has_the_fields_of_the_protocol(words: str, tmp_path: Path, short_dir: Path) -> None:
    more, kind, is_list = DOCUMENTS[words]
    async with open_console(tmp_path, short_dir) as console:
        furnish(console)
        found = json.loads(await console.answer(*words.split(), *more, "--json"))
    assert isinstance(found, list) is is_list
    assert not is_list or found
    for each in found if is_list else [found]:
        assert list(each) == [field.name for field in dataclasses.fields(kind)]


async def test_json_may_stand_before_or_after_the_command(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        for words in (("--json", "health"), ("health", "--json"), ("lease", "--json", "show", "1")):
            assert isinstance(json.loads(await console.answer(*words)), dict)


async def test_numbers_are_numbers_and_nothing_is_null(tmp_path: Path, short_dir: Path) -> None:
    """Values that people read as 30 %, all or nothing are those of the protocol."""
    async with open_console(tmp_path, short_dir) as console:
        furnish(console)
        leases = json.loads(await console.answer("leases", "--json"))
        why = json.loads(await console.answer("why", "587", "--json"))
    assert [lease["sm_percent"] for lease in leases] == [30.0, 30.0, 12.5]
    assert leases[2]["memory_bytes"] == {UUIDS[0]: 20 << 30}
    assert leases[2]["expires_at"] == NOW + 7200
    assert leases[0]["selector"] == {"kind": "token", "value": None, "start_time": 0}
    assert (why["grant"], why["queue"]) == (None, {"position": 1, "reason": "no share is free"})


async def test_top_joins_client_and_lease(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        furnish(console)
        found = json.loads(await console.answer("top", "--once", "--json"))
    rows = {row["pid"]: row for row in found["clients"]}
    assert [field.name for field in dataclasses.fields(Row)] == list(rows[601])
    assert (rows[601]["sm_asked_percent"], rows[601]["sm_held_percent"]) == (12.5, 6.25)
    assert (rows[601]["memory_asked_bytes"], rows[601]["memory_held_bytes"]) == (20 << 30, 10 << 30)
    assert (rows[601]["container"], rows[601]["user"], rows[601]["faults"]) == ("train.service", "alice", 1)
    assert (rows[587]["state"], rows[587]["sm_asked_percent"]) == ("waiting", None)
    assert found["states"] == {"running": 3, "waiting": 2}
    assert found["time"] == NOW + 10


async def test_an_empty_list_is_a_list(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        assert await console.answer("faults", "--domain", "d9", "--json") == "[]\n"


class Lines(StringIO):
    """Wakes the waiting test after each write of the program's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.written = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def write(self, text: str) -> int:
        self._token.run_sync_soon(self.written.set)
        return super().write(text)


async def follow(console: Console, *words: str, out: StringIO | None = None) -> Any:
    """Return the stream's output for three events after the subscription."""
    found: list[Any] = []

    async def run() -> None:
        found.append(await console.run("events", *words, out=out))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.fail_after(20):
            while not console.daemon.bus.subscribers:  # noqa: ASYNC110
                await trio.sleep(0.005)
        console.daemon.bus.publish("lease.created", {"lease_id": 9, "owner_uid": 1000, "name": "a job", "expires_at": None})
        console.daemon.bus.publish("fault.xid", {"xid": 31, "domain": "d1", "note": 'say "x"\n'})
        console.daemon.bus.publish("client.queued", {"pid": 5, "uid": 1000, "reason": "no room"})
    return found[0]


async def test_events_are_an_object_a_line(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        done = await follow(console, "--count", "3", "--json")
    told = [json.loads(line) for line in done.out.splitlines()]
    assert [each["topic"] for each in told] == ["lease.created", "fault.xid", "client.queued"]
    assert told[0] == {
        "topic": "lease.created",
        "time": NOW,
        "facts": {"lease_id": 9, "owner_uid": 1000, "name": "a job", "expires_at": None},
    }


async def test_events_are_a_line_each_for_people(tmp_path: Path, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However wide the terminal is; a fact cannot be mistaken for two."""
    async with open_console(tmp_path, short_dir) as console:
        with at_the_moment(monkeypatch):
            done = await follow(console, "lease.*", "fault.*", "--count", "2")
    assert done.out.splitlines() == [
        '22:13:20.000 lease.created lease_id=9 owner_uid=1000 name="a job" expires_at=null',
        '22:13:20.000 fault.xid xid=31 domain=d1 note="say \\"x\\"\\n"',
    ]


async def test_a_line_is_told_when_it_happens(tmp_path: Path, short_dir: Path) -> None:
    """Not when a buffer is full: the reader is a person, or a program that acts."""
    async with open_console(tmp_path, short_dir) as console:
        out = Lines()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: console.run("events", "--count", "2", out=out))
            with trio.fail_after(20):
                while not console.daemon.bus.subscribers:  # noqa: ASYNC110
                    await trio.sleep(0.005)
                console.daemon.bus.publish("domain.ready", {"domain": "d1"})
                await out.written.wait()
            console.daemon.bus.publish("domain.ready", {"domain": "d1"})
