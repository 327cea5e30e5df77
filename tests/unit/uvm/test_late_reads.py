"""A client that could not be read in time, as on a busy machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio
import trio.testing

from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.inspector_messages import Pair, Same
from mpsd.uvm.simulator import SimulatedDevices
from mpsd.uvm.status import UvmSettings
from tests.inspecting import INSPECTOR
from tests.unit.uvm.fake_clients import WATCHED, FakeClient, Told, attached, directly, watching


class LateInspector(Inspector):
    """Does not answer in time, so many times for the descriptors and then so many for the memory map."""

    def __init__(self, fails: int) -> None:
        super().__init__()
        self.takes = self.maps = fails
        self.asked = 0

    def take_now(self, *args: Any) -> list[tuple[int, int]]:
        self.asked += 1
        if self.takes:
            self.takes -= 1
            raise Unreadable("it could not be read in time")
        return INSPECTOR.take_now(*args)

    def maps_now(self, pid: int) -> bytes:
        self.asked += 1
        if self.maps:
            self.maps -= 1
            raise Unreadable("it could not be read in time")
        return INSPECTOR.maps_now(pid)

    def same_now(self, pairs: Sequence[Pair]) -> list[Same]:
        return INSPECTOR.same_now(pairs)


async def test_it_is_read_again_until_it_is_attached(
    tmp_path: Path, client: FakeClient, told: Told, autojump_clock
) -> None:
    """Its descriptors cannot be read in time, twice, and then its memory map: nothing of the client wakes the watch."""
    late = LateInspector(fails=2)
    made = watching(UvmSettings(), SimulatedDevices(tmp_path, late).open_spaces, late, told, in_thread=directly)
    client.begin()
    async with attached(made, client):
        await trio.testing.wait_all_tasks_blocked()
        assert not made.standing(client.process).watched
        await trio.sleep(60)
        assert made.standing(client.process) == WATCHED
    assert (late.takes, late.maps) == (0, 0)


async def test_a_client_that_makes_all_reads_wait_is_read_a_few_times(
    tmp_path: Path, client: FakeClient, told: Told, autojump_clock
) -> None:
    late = LateInspector(fails=1000)
    made = watching(UvmSettings(), SimulatedDevices(tmp_path, late).open_spaces, late, told, in_thread=directly)
    client.begin()
    async with attached(made, client):
        await trio.sleep(3600)
        assert late.asked < 10
        assert "in time" in made.standing(client.process).why
