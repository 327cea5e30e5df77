"""Following the kernel log, on the simulator's kind of it, and where there is none."""

from pathlib import Path

import pytest
import structlog
import trio
import trio.testing

from mpsd.fault import Observation
from mpsd.faults import kernel_log
from mpsd.model import Device


class OneDomain:
    """A pool with one domain that notes how long it was suspected."""

    name = "default"

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.suspected: list[float] = []
        self.told = trio.Event()

    def domain_of_process(self, pid: int) -> "OneDomain | None":
        return self if pid == self.pid else None

    def suspect(self, seconds: float) -> None:
        self.suspected.append(seconds)
        self.told.set()

    def notify(self) -> None:
        """Nobody waits."""


async def test_an_xid_keeps_newcomers_out_of_the_domain_it_points_to(tmp_path: Path) -> None:
    path, pool = tmp_path / "kmsg", OneDomain(4711)
    events: list[object] = []
    path.write_text("NVRM: Xid (PCI:0000:00:06): 43, pid=4711, an old one\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kernel_log.watch_kernel_log, path, pool, lambda *event: events.append(event))
        await trio.testing.wait_all_tasks_blocked()
        with path.open("a") as log:
            log.write("noise\nNVRM: Xid (PCI:0000:00:06): 43, pid=12, of another\n")
            log.write("NVRM: Xid (PCI:0000:00:06): 43, pid=4711, name=nvidia-cuda-mps\n")
        with trio.fail_after(5):
            await pool.told.wait()
        nursery.cancel_scope.cancel()
    assert len(pool.suspected) == 1
    facts = {"xid": 43, "device": "PCI:0000:00:06", "pid": 4711, "domain": "default"}
    assert events[-1] == ("fault.xid", facts)
    assert len(events) == 2


async def test_every_xid_is_handed_on_as_an_observation(tmp_path: Path) -> None:
    """Those of processes that nobody knows too: they tell the GPU."""
    path, pool = tmp_path / "kmsg", OneDomain(4711)
    path.touch()
    send, receive = trio.open_memory_channel[Observation](10)
    devices = [Device(0, "GPU-a", "H200", 1, "00000000:00:06.0")]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kernel_log.watch_kernel_log, path, pool, lambda *event: None, send.send_nowait, devices)
        await trio.testing.wait_all_tasks_blocked()
        with path.open("a") as log:
            log.write("NVRM: Xid (PCI:0000:00:06): 43, pid=4711, name=x\nNVRM: Xid (PCI:0000:00:06): 79, pid=1\n")
        with trio.fail_after(5):
            first, second = await receive.receive(), await receive.receive()
        nursery.cancel_scope.cancel()
    assert (first.xid, first.domain, first.gpu) == (43, "default", "GPU-a")
    assert (second.xid, second.domain, second.gpu) == (79, "", "GPU-a")


async def test_a_log_that_cannot_be_read_is_said_once_and_that_is_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container without /dev/kmsg, or an mpsd that may not read it, serves all the same."""
    monkeypatch.setattr(kernel_log, "KERNEL_LOG", tmp_path / "absent")
    with structlog.testing.capture_logs() as logs, trio.fail_after(5):
        await kernel_log.watch_kernel_log(tmp_path / "absent", OneDomain(1), lambda *event: None)
    assert [entry["event"] for entry in logs] == ["faults.no_kernel_log"]
