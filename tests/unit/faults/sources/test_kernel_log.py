"""Following the kernel log, on the simulator's version of it, and without one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.faults.sources import kernel_log
from mpsd.model.device import Device
from mpsd.model.fault import Observation

HEAD = "4,1,1,c;"  # of a record of /dev/kmsg that the driver made
DEVICES = [Device(0, "GPU-a", "H200", 1, "00000000:00:06.0")]
DOMAIN = Domain("default", 1, ("GPU-a",), None, 48)


class Following:
    """The outcome of lines that are added to a log. 4711 is a process of DOMAIN."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[tuple[str, dict]] = []
        self.asked: list[int] = []
        self._send, self.seen = trio.open_memory_channel[Observation](100)

    def domain_of(self, pid: int) -> Domain | None:
        self.asked.append(pid)
        return DOMAIN if pid == 4711 else None

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            publish = lambda *event: self.events.append(event)  # noqa: E731
            source = kernel_log.KernelLog(self.path, self.domain_of, publish, DEVICES)
            nursery.start_soon(source.run, self._send.send_nowait)
            await trio.testing.wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()

    def add(self, *lines: str) -> None:
        with self.path.open("a") as log:
            log.write("".join(f"{line}\n" for line in lines))

    async def next(self) -> Observation:
        with trio.fail_after(5):
            return await self.seen.receive()


@pytest.fixture
def following(tmp_path: Path) -> Following:
    return Following(tmp_path / "kmsg")


async def test_an_xid_is_an_event_and_an_observation(following: Following) -> None:
    """Also for unknown processes: the Xid names the GPU. Lines from before the start are not reported."""
    following.path.write_text(f"{HEAD}NVRM: Xid (PCI:0000:00:06): 43, pid=4711, an old one\n")
    async with following.begin():
        following.add("noise", f"{HEAD}NVRM: Xid (PCI:0000:00:06): 43, pid=4711, name=nvidia-cuda-mps")
        following.add(f"{HEAD}NVRM: Xid (PCI:0000:00:06): 79, pid=1", f"{HEAD}NVRM: Xid (PCI:0000:00:06): 45, pid='<unknown>'")
        first, second, third = await following.next(), await following.next(), await following.next()
        await trio.testing.wait_all_tasks_blocked()
    assert (first.xid, first.domain, first.gpu, first.process) == (43, "default", "GPU-a", None)
    assert (second.xid, second.domain, second.gpu) == (79, "", "GPU-a")
    assert (third.xid, third.domain, third.gpu) == (45, "", "GPU-a")
    assert following.asked == [4711, 1]
    facts = {"xid": 43, "device": "PCI:0000:00:06", "gpu": "GPU-a", "pid": 4711, "domain": "default"}
    assert following.events[0] == ("fault.xid", facts)
    assert [facts["domain"] for _, facts in following.events] == ["default", None, None]


async def test_an_xid_of_a_gpu_that_is_not_served_is_only_logged(following: Following) -> None:
    """Where mpsd serves some of a machine's GPUs, the loss of another one (79) took the blame for each fault of that time."""
    with structlog.testing.capture_logs() as logs:
        async with following.begin():
            following.add(f"{HEAD}NVRM: Xid (PCI:0000:00:07): 79, pid=4711", f"{HEAD}NVRM: Xid (PCI:0000:00:06): 43, pid=4711")
            first = await following.next()
            await trio.testing.wait_all_tasks_blocked()
    assert (first.xid, first.gpu) == (43, "GPU-a")
    assert [facts["xid"] for _, facts in following.events] == [43]
    elsewhere = [each for each in logs if each["event"] == "fault.xid_elsewhere"]
    assert [(each["xid"], each["device"]) for each in elsewhere] == [(79, "PCI:0000:00:07")]


async def test_whoever_an_xid_concerns_goes_on_before_it_is_told(following: Following) -> None:
    """A standby is promoted by it, and waits for its answer: logs and events take longer than that."""
    told_before: list[int] = []

    async def waits() -> None:
        await following.next()
        told_before.append(len(following.events))

    for _ in range(8):  # trio chooses the order of tasks
        before = len(following.events)
        async with following.begin(), trio.open_nursery() as nursery:
            nursery.start_soon(waits)
            await trio.testing.wait_all_tasks_blocked()
            following.add(f"{HEAD}NVRM: Xid (PCI:0000:00:06): 43, pid=4711")
        assert told_before.pop() == before


async def test_a_log_that_is_made_later_is_followed_from_its_beginning(following: Following) -> None:
    async with following.begin():
        following.add(f"{HEAD}NVRM: Xid (PCI:0000:00:06): 31, pid=4711")
        assert (await following.next()).xid == 31


async def test_a_log_that_cannot_be_read_is_said_once_and_that_is_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container without /dev/kmsg, or an mpsd that may not read it, serves all the same."""
    monkeypatch.setattr(kernel_log, "KERNEL_LOG", tmp_path / "absent")
    following = Following(tmp_path / "absent")
    with structlog.testing.capture_logs() as logs, trio.fail_after(5):
        async with following.begin():
            pass
    assert [entry["event"] for entry in logs] == ["faults.no_kernel_log"]
