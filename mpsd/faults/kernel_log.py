"""The kernel log as the first to tell of a fault: 12 to 130 ms after the launch, where the vendor's server says so after up to
660 ms, and lets newcomers in meanwhile that then fail with 807 (measured on an H200).

Not required: where it cannot be read (a container without /dev/kmsg, no privilege), that is logged once.
"""

import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import structlog
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.inotify import DirectoryWatch
from mpsd.domains.log_files import LogFile
from mpsd.fault import Observation
from mpsd.faults.xid_lines import Xid, observe, parse_xid
from mpsd.model import Device

log = structlog.get_logger()
KERNEL_LOG = Path("/dev/kmsg")
_RECORD_BYTES = 8192  # the kernel's bound on one record


class KernelLog:
    """Publishes each Xid as it is, and hands it on as an observation.  absent: why nothing is read; "" while it is.

    domain_of: that a server, or a client, belongs to.  devices: those whose UUIDs it can name.
    """

    def __init__(
        self,
        path: Path,
        domain_of: Callable[[int], Domain | None],
        tell: Callable[[str, Mapping[str, Any]], None],
        devices: Sequence[Device] = (),
    ) -> None:
        self.absent = "not started"
        self._path, self._domain_of, self._tell, self._devices = path, domain_of, tell, devices

    async def run(self, publish: Callable[[Observation], None]) -> None:
        """Until cancelled; returns where the log cannot be read."""
        self.absent = ""
        follow = _follow_device if _is_device(self._path) else _follow_file
        try:
            async with aclosing(follow(self._path)) as lines:
                async for line in lines:
                    if (xid := parse_xid(line)) is not None:
                        domain = self._domain_of(xid.pid) if xid.pid is not None else None
                        publish(observe(xid, domain.name if domain else "", self._devices, time.monotonic_ns()))
                        await _after_others()
                        self._say(xid, domain)
        except OSError as exc:
            self.absent = f"{self._path}: {exc.strerror}"
            log.warning("faults.no_kernel_log", path=str(self._path), why=exc.strerror, effect="a fault is noticed later")

    def _say(self, xid: Xid, domain: Domain | None) -> None:
        facts = {"xid": xid.code, "device": xid.device, "pid": xid.pid, "domain": domain and domain.name}
        log.warning("fault.xid", **facts)
        self._tell("fault.xid", facts)


async def _after_others() -> None:
    """When all who can go on now, as a standby that is promoted, have done so: within one turn their order is nobody's."""
    for _ in range(2):
        await trio.lowlevel.checkpoint()


def _is_device(path: Path) -> bool:
    """Whether it is the kernel's; what is not, is the simulator's file, which need not be there yet."""
    return path == KERNEL_LOG


def _size_of(path: Path) -> int:
    """0 where there is no such file yet."""
    return path.stat().st_size if path.exists() else 0


async def _follow_device(path: Path) -> AsyncGenerator[str, None]:
    device = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.lseek(device, 0, os.SEEK_END)
        while True:
            await trio.lowlevel.wait_readable(device)
            try:
                yield os.read(device, _RECORD_BYTES).decode(errors="replace")
            except BlockingIOError:
                continue
            except BrokenPipeError:
                continue  # records were overwritten before they were read; reading goes on after the gap
    finally:
        os.close(device)


async def _follow_file(path: Path) -> AsyncGenerator[str, None]:
    """The file that stands for the device in the simulator."""
    watch = DirectoryWatch(path.parent)
    try:
        file = LogFile(path, _size_of(path))
        while True:
            for line in file.read_lines():
                yield line
            await watch.changed()
    finally:
        watch.close()
