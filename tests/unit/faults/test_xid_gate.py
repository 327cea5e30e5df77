"""The gate of Xids with a real desk: what the kernel log says has no effect before something else says it."""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.fault import Observation, Source
from mpsd.faults import xid_gate
from mpsd.faults.xid_gate import XidGate
from mpsd.model import DomainState
from tests.unit.faults.desk_room import DeskRoom, running


class Gated:
    """Domain "default" of GPU-a."""

    def __init__(self, path: Path) -> None:
        self.room = DeskRoom(path)
        self.seen: list[Observation] = []
        self.asked: list[str] = []
        self.answer: Callable[[], bool] = lambda: False
        self.domain: Domain = self.room.domain()
        self.gate = XidGate(self.room.pool, self._take, self._cannot_reach, self.room.now_ns)

    def _take(self, seen: Observation) -> None:
        self.seen.append(seen)
        self.room.desk.see(seen)

    def _cannot_reach(self, gpu: str) -> bool:
        self.asked.append(gpu)
        return self.answer()

    def record(self, xid: int, domain: str = "default", gpu: str = "GPU-a") -> None:
        self.gate.see(Observation(Source.KERNEL_LOG, self.room.now_ns(), domain=domain, gpu=gpu, xid=xid))

    def event(self, xid: int, gpu: str = "GPU-a") -> None:
        self.gate.see(Observation(Source.NVML, self.room.now_ns(), gpu=gpu, xid=xid))

    @property
    def sources(self) -> list[Source]:
        return [each.source for each in self.seen]

    async def has_asked(self) -> None:
        with trio.fail_after(10):
            while not self.asked or self.gate.is_asking:  # noqa: ASYNC110 - what changes it is a thread
                await trio.sleep(0.01)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            running(self.room, nursery)
            nursery.start_soon(self.gate.run)
            await trio.testing.wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()


@pytest.fixture
def gated(tmp_path: Path) -> Gated:
    return Gated(tmp_path)


async def test_a_record_alone_does_nothing_but_keep_newcomers_out_for_a_moment(gated: Gated, autojump_clock) -> None:
    async with gated.begin():
        for _ in range(10):
            gated.record(43)
        assert gated.domain.is_ill
        assert gated.domain.news.is_set()  # its server is asked at once
        await trio.sleep(2.5)
        assert not gated.domain.is_ill
        gated.record(43)
        assert not gated.domain.is_ill  # once in 20 s
        await trio.sleep(3)
    assert gated.seen == []
    assert gated.domain.state is DomainState.READY
    assert gated.room.told == []


async def test_nvml_confirms_at_once_and_the_record_is_first(gated: Gated, autojump_clock) -> None:
    async with gated.begin():
        gated.record(43)
        gated.event(43)
    assert gated.sources == [Source.KERNEL_LOG, Source.NVML]
    assert gated.seen[0].domain == "default"


async def test_the_domains_server_confirms(gated: Gated, autojump_clock) -> None:
    async with gated.begin():
        gated.record(31)
        gated.record(79)
        await gated.room.turn(gated.domain, DomainState.FAULT)
        gated.record(13)  # afterwards too
    assert [each.xid for each in gated.seen] == [31, 13]


async def test_a_domain_that_has_no_such_gpu_is_not_named(gated: Gated, autojump_clock) -> None:
    async with gated.begin():
        gated.record(43, gpu="GPU-b")
        await gated.room.turn(gated.domain, DomainState.FAULT)
        assert gated.seen == []
        gated.event(43, gpu="GPU-b")
    assert gated.seen[0].domain == ""


def fails() -> bool:
    return True




@pytest.mark.parametrize(("answer", "counts"), [(fails, True), (lambda: False, False)])
async def test_without_nvmls_event_the_gpu_is_asked(gated: Gated, answer: Callable[[], bool], counts: bool) -> None:
    """By the real clock: the answer comes from a thread."""
    gated.answer = answer
    async with gated.begin():
        for _ in range(5):
            gated.record(79, domain="")
        await gated.has_asked()
        assert gated.sources == [Source.KERNEL_LOG] * (5 if counts else 0)
    assert gated.asked == ["GPU-a"]
    assert bool(gated.room.told) == counts


async def test_nvml_that_hangs_on_the_gpu_confirms(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    monkeypatch.setattr(xid_gate, "_ANSWER_SECONDS", 0.1)
    gated.answer = lambda: ends.wait(20)
    async with gated.begin():
        gated.record(79, domain="")
        await gated.has_asked()
        ends.set()
    assert gated.sources == [Source.KERNEL_LOG]


@pytest.mark.parametrize(("xid", "gpu"), [(63, "GPU-a"), (79, "")])
async def test_nvml_is_asked_about_nothing_else(gated: Gated, autojump_clock, xid: int, gpu: str) -> None:
    async with gated.begin():
        gated.record(xid, domain="", gpu=gpu)
        await trio.sleep(1)
    assert gated.asked == []
