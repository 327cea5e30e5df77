"""/dev/mpsd-fault as a source: the patched nvidia-uvm reports fatal MMU faults, each with the process that caused it.

It has never run on a real GPU: only the real module in virtual machines without one, and stand-ins.  It names processes by
their pids in the first pid namespace: mpsd has to run there too.  Prose: docs/faults.md, "The patched module".
"""

import fcntl
import os
import stat
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog
import trio

from mpsd.errors import ProtocolError
from mpsd.faults.sources.kmod_policy import KmodPolicy
from mpsd.faults.sources.kmod_records import GET_INFO, INFO, parse_info, parse_records
from mpsd.faults.sources.kmod_records import observe as observe_record
from mpsd.model.fault import Observation

log = structlog.get_logger()
DEVICE = Path("/dev/mpsd-fault")
_RECORDS_AT_ONCE = 64


class Kmod:
    """Guards one descriptor of the fault channel.  absent: why the channel is not read; "" while it is.

    lost: how many records were overwritten before they were read.  policy: configures the module; None: nothing does.
    """

    def __init__(
        self, path: Path = DEVICE, policy: KmodPolicy | None = None, ioctl: Callable[[int, int, bytes], bytes] = fcntl.ioctl
    ) -> None:
        self.absent = "not started"
        self.lost = 0
        self._path, self._policy, self._ioctl = path, policy, ioctl

    async def run(self, publish: Callable[[Observation], None]) -> None:
        """Run until cancelled; return if the device does not exist, has another version, or ends."""
        try:
            descriptor = _open(self._path)
        except FileNotFoundError:
            self.absent = f"{self._path} does not exist: nvidia-uvm is not patched"  # as on most machines: not worth a warning
            log.debug("faults.no_kmod", path=str(self._path), why=self.absent)
            return
        except OSError as exc:
            self._give_up(f"{exc.strerror}")
            return
        try:
            await self._follow(descriptor, publish)
        except (OSError, ProtocolError) as exc:
            self._give_up(str(exc))
        finally:
            self.absent = self.absent or "stopped"
            if self._policy is not None:
                self._policy.close()
            os.close(descriptor)

    async def _follow(self, descriptor: int, publish: Callable[[Observation], None]) -> None:
        size = self._greet(descriptor) * _RECORDS_AT_ONCE
        self.absent = ""
        if self._policy is not None:
            self._policy.open(partial(self._ioctl, descriptor))
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            try:
                data = os.read(descriptor, size)
            except BlockingIOError:
                continue
            if not data:
                raise ProtocolError("the module has gone")
            self._tell(data, publish)

    def _tell(self, data: bytes, publish: Callable[[Observation], None]) -> None:
        for record in parse_records(data):
            if record.lost:
                self.lost += record.lost
                log.warning("faults.kmod_lost", records=record.lost, altogether=self.lost)
            if record.kind is not None:
                publish(observe_record(record, time.monotonic_ns()))

    def _give_up(self, why: str) -> None:
        self.absent = why
        log.warning("faults.no_kmod", path=str(self._path), why=why, effect="MMU faults are known from other sources alone")

    def _greet(self, descriptor: int) -> int:
        """Check the version and return the bytes of a record.  Raises ProtocolError, OSError."""
        info = parse_info(self._ioctl(descriptor, GET_INFO, bytes(INFO.size)))
        log.info("faults.kmod", driver=info.driver, record_bytes=info.record_bytes, ring_records=info.ring_records)
        return info.record_bytes


def _open(path: Path) -> int:
    """Open the channel for reading and writing.  Raises OSError.

    Only for reading if a cgroup's device rules forbid more; or if it is no device: mpsd would never see the end of a stand-in
    that it could write.
    """
    flags = os.O_NONBLOCK | os.O_CLOEXEC
    if stat.S_ISCHR(os.stat(path).st_mode):
        try:
            return os.open(path, os.O_RDWR | flags)
        except PermissionError:
            pass
    return os.open(path, os.O_RDONLY | flags)
