"""Faults and blame on the socket: which are listed to whom, and what a pardon does."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mpsd.api.authority import Peer
from mpsd.api.methods.faults import MOST_LOOKED_AT
from mpsd.model.client import ClientView
from mpsd.model.fault import FaultClass, Incident
from mpsd.model.process import ProcessId
from tests.unit.api.fake_daemon import OPERATOR, OWNER, STRANGER, FakeDaemon, open_daemon
from tests.unit.api.fake_incidents import ADDRESS, NOW, PARTIES, FaultsInMemory, of_the_gpu, proven

BOB = Peer(700, 2000, False)


async def numbers(daemon: FakeDaemon, peer: Peer = OPERATOR, **said: Any) -> list[int]:
    page = await (await daemon.call_as(peer)).ask("fault.list", **said)
    return [row["number"] for row in page["items"]]


@pytest.mark.parametrize(
    ("peer", "said", "expected"),
    [
        (OPERATOR, {}, [1, 2, 3]),
        (STRANGER, {}, [1, 2, 3]),
        (OPERATOR, {"newest_first": True}, [3, 2, 1]),
        (OPERATOR, {"domain": "d1"}, [1, 2]),
        (OPERATOR, {"domain": "d9"}, []),
        (OPERATOR, {"fault_class": "device"}, [3]),
        (OPERATOR, {"since": NOW - 30}, [2, 3]),
        (OPERATOR, {"since": NOW - 29.9}, [3]),
        (OPERATOR, {"culprit_uid": 1000}, [1]),
        (OPERATOR, {"culprit_uid": 2000}, []),
        (OWNER, {"culprit_uid": 1000}, [1]),
        (OWNER, {"mine": True}, [1, 2]),
        (BOB, {"mine": True}, [1]),
        (STRANGER, {"mine": True}, []),
        (OPERATOR, {"mine": True}, []),
        (OPERATOR, {"after": 1}, [2, 3]),
        (OPERATOR, {"after": 2, "newest_first": True}, [1]),
        (BOB, {"mine": True, "domain": "d1", "fault_class": "mmu", "since": 0, "newest_first": True, "after": 9}, [1]),
    ],
)
async def test_which_faults_are_listed(peer: Peer, said: dict[str, Any], expected: list[int], tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        assert await numbers(daemon, peer, **said) == expected


async def test_a_filter_does_not_tell_what_a_row_keeps_back(tmp_path: Path) -> None:
    """A caller that filters by another user would learn which faults belong to that user."""
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(BOB)
        assert await caller.refusal("fault.list", culprit_uid=1000) == "NOT_ALLOWED"


@pytest.mark.parametrize(
    "said",
    [{"fault_class": "bad"}, {"since": -1}, {"since": float("nan")}, {"culprit_uid": -1}, {"culprit_uid": True}, {"mine": 1},
     {"newest_first": "yes"}, {"domain": ""}, {"limit": 0}, {"after": -1}, {"class": "mmu"}],
)  # fmt: skip
async def test_a_filter_that_is_none_is_refused(said: dict[str, Any], tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        assert await (await daemon.call_as()).refusal("fault.list", **said) == "BAD_REQUEST"


@pytest.mark.parametrize("newest_first", [False, True])
async def test_pages_miss_nothing_in_either_order(newest_first: bool, tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        for number in range(4, 1504):
            daemon.fakes.faults.keep(replace(proven(), number=number))
        caller = await daemon.call_as()
        found, after = [], None
        while True:
            page = await caller.ask("fault.list", limit=400, after=after, newest_first=newest_first)
            found += [row["number"] for row in page["items"]]
            if (after := page["next"]) is None:
                break
        assert found == sorted(range(1, 1504), reverse=newest_first)


async def test_a_filter_that_fits_nothing_does_not_make_mpsd_look_at_everything(tmp_path: Path) -> None:
    """Anybody may ask, and each incident is read from the disk."""
    async with open_daemon(tmp_path) as daemon:
        faults = CountingFaults(dict.fromkeys(range(1, 1001), proven()))
        faults.kept = {number: replace(proven(), number=number) for number in faults.kept}
        daemon.fakes.faults = faults
        daemon.api._services = daemon.fakes.services()
        caller = await daemon.call_as(STRANGER)
        for newest_first in (False, True):
            pages, after = 0, None
            while True:
                faults.taken = 0
                page = await caller.ask("fault.list", domain="d9", after=after, newest_first=newest_first)
                assert page["items"] == []
                assert faults.taken <= MOST_LOOKED_AT + 1
                pages += 1
                if (after := page["next"]) is None:
                    break
            assert pages == 1000 // MOST_LOOKED_AT



class CountingFaults(FaultsInMemory):
    """Counts how often incidents were read."""

    taken: int = 0

    def incidents(self, after: int) -> Iterator[Incident]:
        return self._counted(FaultsInMemory.incidents(self, after))

    def incidents_before(self, before: int | None) -> Iterator[Incident]:
        return self._counted(FaultsInMemory.incidents_before(self, before))

    def _counted(self, of: Iterable[Incident]) -> Iterator[Incident]:
        for each in of:
            self.taken += 1
            yield each


async def test_what_a_user_is_told_of_a_fault(tmp_path: Path) -> None:
    """The culprit's user: what their program did. A victim's: that they are one. Others: that it was."""
    async with open_daemon(tmp_path) as daemon:
        callers = {peer.uid: await daemon.call_as(peer) for peer in (OPERATOR, OWNER, BOB, STRANGER)}
        told = {uid: await caller.ask("fault.get", number=1) for uid, caller in callers.items()}
    assert {uid: (each["culprit"]["pid"], each["address"]) for uid, each in told.items()} == {
        0: (586, ADDRESS), 1000: (586, ADDRESS), 2000: (None, None), 3000: (None, None),
    }  # fmt: skip
    assert {uid: each["victims"][0]["pid"] for uid, each in told.items()} == {0: 700, 1000: None, 2000: 700, 3000: None}
    assert [uid for uid, each in told.items() if each["deeds"][0]["text"]] == [0]


async def test_a_fault_that_there_is_not(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(STRANGER)
        assert await caller.refusal("fault.get", number=4) == "NO_SUCH_FAULT"
        assert await caller.refusal("fault.get", number=-1) == "BAD_REQUEST"
        assert await caller.refusal("fault.get") == "BAD_REQUEST"


# -- blame ---------------------------------------------------------------------------------------------------------------


async def test_what_is_held_is_listed_and_forgiven(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        held = (await caller.ask("blame.list"))["items"]
        assert [(each["standing"], each["key"]) for each in held] == [
            ("convicted", "lease:1:1000"), ("paused", "user:1000:crasher"), ("suspected", "container:train.service:1000"),
        ]  # fmt: skip
        assert held[0]["key"] == PARTIES[0].key
        assert (held[2]["case"], held[2]["group"], held[2]["until"]) == (2, 0, NOW + 570)
        assert await caller.ask("blame.pardon", key="lease:1:1000") == held[0]
        assert await caller.refusal("blame.pardon", key="lease:1:1000") == "NO_SUCH_FAULT"
        assert (await caller.ask("blame.list"))["items"] == held[1:]


async def test_blame_comes_in_pages(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as()
        page = await caller.ask("blame.list", limit=2)
        assert (len(page["items"]), page["next"]) == (2, 2)
        assert [each["key"] for each in (await caller.ask("blame.list", after=2))["items"]] == ["container:train.service:1000"]


# -- clients and events ----------------------------------------------------------------------------------------


async def test_a_client_is_marked_for_what_is_done_about_it(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller, members = await daemon.call_as(OWNER), daemon.fakes.domains.members
        assert isinstance(members[0], ClientView)
        members[0] = replace(members[0], watched=True, shield=True)
        rows = (await caller.ask("client.list"))["items"]
        assert [(row["pid"], row["watched"], row["shield"], row["held"]) for row in rows] == [
            (586, True, True, False), (587, False, False, False),
        ]  # fmt: skip


async def test_blame_is_told_to_operators_and_a_drained_gpu_to_all(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        told = {}
        for peer in (OPERATOR, STRANGER):
            caller = await daemon.call_as(peer)
            await caller.ask("events.subscribe", topics=["blame.*", "gpu.*", "fault.*"])
            daemon.bus.publish("blame.convicted", {"key": "lease:1:1000"})
            daemon.bus.publish("gpu.drained", {"gpu": of_the_gpu().gpu, "number": 3, "xids": [79]})
            await caller.ask("health")
            await caller.ask("events.unsubscribe")
            while not any(event.params["topic"] == "gpu.drained" for event in caller.events):
                caller.events.append(await caller.receive())  # type: ignore[arg-type]
            told[peer] = [event.params["topic"] for event in caller.events]
    assert told == {OPERATOR: ["blame.convicted", "gpu.drained"], STRANGER: ["gpu.drained"]}


def test_every_class_can_be_asked_for() -> None:
    assert {each.value for each in FaultClass} == {"mmu", "sm", "host", "device", "unknown"}


async def test_long_faults_do_not_make_mpsd_read_for_long(tmp_path: Path) -> None:
    """100 of the longest took 0.7 s of the event loop for each page, and any user can ask again and again."""
    present = tuple(ProcessId(1000 + number, 1) for number in range(60))
    long = replace(proven(), evidence=tuple(replace(proven().evidence[0], present=present) for _ in range(64)))
    async with open_daemon(tmp_path) as daemon:
        faults = CountingFaults({number: replace(long, number=number) for number in range(1, 31)})
        daemon.fakes.faults = faults
        daemon.api._services = daemon.fakes.services()
        caller = await daemon.call_as(STRANGER)
        found, after = [], None
        while True:
            faults.taken = 0
            page = await caller.ask("fault.list", after=after)
            assert 1 <= len(page["items"]) <= faults.taken <= 6
            found += [each["number"] for each in page["items"]]
            if (after := page["next"]) is None:
                break
    assert found == list(range(1, 31))
