"""The kernel log as a source of faults, and the first: it has a fault 12 to 130 ms after the launch.

The vendor's server reports it after up to 660 ms, and until then admits new clients, which then fail with 807 (measured on an
H200).

A record can be read at once, but a reader that waits is woken only when the console has been written (printk's vprintk_emit):
2.6 to 4.4 ms after the record's stamp if the console is a serial line; NVML's event came 3 ms before the log could be read so
(H200 machine, 22 November 2026).  So while a standby waits to take over, a thread polls the log.

The log is optional: if it cannot be read (a container without /dev/kmsg, no privilege), that is logged once.
"""

import os
import select
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from pathlib import Path
from typing import Any

import structlog
import trio

from mpsd.domains.domain import Domain
from mpsd.faults.sources.kernel_log_lines import Xid, gpu_at, observe, parse_xid
from mpsd.host.growing_file import GrowingFile
from mpsd.host.inotify import DirectoryWatch
from mpsd.model.device import Device
from mpsd.model.fault import Observation
from mpsd.native import lib
from mpsd.notify import Changed

log = structlog.get_logger()
KERNEL_LOG = Path("/dev/kmsg")
_RECORD_BYTES = 8192  # the kernel's bound on one record


class KernelLog:
    """Publishes each Xid as an event, and as an observation.  absent: why the log is not read; "" while it is.

    domain_of: the domain of a server's or client's pid.  devices: those that mpsd serves; Xids of others are only logged.
    Without any, all Xids are of a GPU that is not known.  interval: seconds between two looks of the thread that polls while
    latency counts (`hurry`); 0: it never does.
    """

    def __init__(
        self,
        path: Path,
        domain_of: Callable[[int], Domain | None],
        tell: Callable[[str, Mapping[str, Any]], None],
        devices: Sequence[Device] = (),
        interval: float = 0.0,
    ) -> None:
        self.absent = "not started"
        self._path, self._domain_of, self._tell, self._devices = path, domain_of, tell, devices
        self._interval_ns, self._is_hurried, self._changed = round(interval * 1e9), False, Changed()

    def hurry(self, is_hurried: bool) -> None:
        """Poll the device from now on, or no more: whether a standby waits to take over."""
        if is_hurried != self._is_hurried:
            self._is_hurried = is_hurried
            self._changed.notify()

    async def run(self, publish: Callable[[Observation], None]) -> None:
        """Run until cancelled; return if the log cannot be read."""
        self.absent = ""
        if not _is_device(self._path):
            await self._take(_follow_file(self._path), publish)
            return
        try:
            device = _Device(_open_at_end(self._path))
        except OSError as exc:
            self._cannot_be_read(exc)
            return
        with closing(device):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._poll, device)
                await self._take(device.records(), publish)
                nursery.cancel_scope.cancel()

    async def _poll(self, device: "_Device") -> None:
        while True:
            if self._is_hurried and self._interval_ns:
                await device.poll_until(self._changed.wait, self._interval_ns)
            else:
                await self._changed.wait()

    async def _take(self, lines: AsyncGenerator[str, None], publish: Callable[[Observation], None]) -> None:
        try:
            async with aclosing(lines):
                async for line in lines:
                    if (xid := parse_xid(line)) is None:
                        continue
                    if self._is_elsewhere(xid):
                        log.info("fault.xid_elsewhere", xid=xid.code, device=xid.device, pid=xid.pid)
                    else:
                        domain = self._domain_of(xid.pid) if xid.pid is not None else None
                        publish(observe(xid, domain.name if domain else "", self._devices, time.monotonic_ns()))
                        await _after_others()
                        self._say(xid, domain)
        except OSError as exc:
            self._cannot_be_read(exc)

    def _is_elsewhere(self, xid: Xid) -> bool:
        """Return whether it is of a GPU that mpsd does not serve: such an Xid must excuse no client here."""
        return bool(self._devices) and not gpu_at(xid.device, self._devices)

    def _cannot_be_read(self, exc: OSError) -> None:
        self.absent = f"{self._path}: {exc.strerror}"
        log.warning("faults.no_kernel_log", path=str(self._path), why=exc.strerror, effect="a fault is noticed later")

    def _say(self, xid: Xid, domain: Domain | None) -> None:
        gpu = gpu_at(xid.device, self._devices)
        facts = {"xid": xid.code, "device": xid.device, "gpu": gpu, "pid": xid.pid, "domain": domain and domain.name}
        log.warning("fault.xid", **facts)
        self._tell("fault.xid", facts)


async def _after_others() -> None:
    """Let all tasks that can run, such as a promoted standby's, run first: twice, as the order within one turn is arbitrary."""
    for _ in range(2):
        await trio.lowlevel.checkpoint()


def _is_device(path: Path) -> bool:
    """Return whether the path is the kernel's device; any other is the simulator's file, which need not exist yet."""
    return path == KERNEL_LOG


def _size_of(path: Path) -> int:
    """Return the file's size; 0 if it does not exist yet."""
    return path.stat().st_size if path.exists() else 0


def _open_at_end(path: Path) -> int:
    device = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.lseek(device, 0, os.SEEK_END)
    except OSError:
        os.close(device)
        raise
    return device


class _Device:
    """Guards that only one task reads, whether the kernel or the polling thread found a record.

    Takes ownership of `device`.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._seen = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # written by the thread
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._either = select.epoll()
        self._either.register(device, select.EPOLLIN)
        self._either.register(self._seen, select.EPOLLIN)

    def close(self) -> None:
        self._either.close()
        for each in (self._stop, self._seen, self._device):
            os.close(each)

    async def records(self) -> AsyncGenerator[str, None]:
        while True:
            try:
                record = os.read(self._device, _RECORD_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._either.fileno())
                with suppress(BlockingIOError):
                    os.eventfd_read(self._seen)
            except BrokenPipeError:
                continue  # records were overwritten before they were read; continue after the gap
            else:
                yield record.decode(errors="replace")
                await trio.lowlevel.checkpoint()

    async def poll_until(self, end: Callable[[], Awaitable[None]], interval_ns: int) -> None:
        """Poll in a thread until `end` returns.

        The thread is stopped at once, and joined, since it uses the descriptors.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look, interval_ns)
            try:
                await end()
            finally:
                os.eventfd_write(self._stop, 1)
        os.eventfd_read(self._stop)

    async def _look(self, interval_ns: int) -> None:
        """Poll in a thread, without the interpreter's lock, until it is stopped."""
        descriptors = self._device, self._seen, self._stop
        try:
            done = await trio.to_thread.run_sync(lib.mpsd_poll, *descriptors, interval_ns, limiter=trio.CapacityLimiter(1))
            why = os.strerror(-done) if done else ""
        except RuntimeError as exc:  # no thread can be started
            why = str(exc)
        if why:
            log.warning("faults.not_looked", why=why, effect="a standby takes over some milliseconds later")


async def _follow_file(path: Path) -> AsyncGenerator[str, None]:
    """Yield the lines of the file that replaces the device in the simulator."""
    watch = DirectoryWatch(path.parent)
    try:
        file = GrowingFile(path, _size_of(path))
        while True:
            while lines := file.read_lines():
                for line in lines:
                    yield line
            await watch.changed()
    finally:
        watch.close()
