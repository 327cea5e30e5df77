"""NVML's Xid events as a source: the GPU and the number of an Xid, but neither the process nor the domain.

For where the kernel log cannot be read: it says the same, and more, a millisecond sooner.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
import trio

from mpsd.errors import VendorFailed
from mpsd.fault import Observation, Source
from mpsd.policy.xids import meaning_of

log = structlog.get_logger()
_WAIT_MS = 2000  # a wait that was abandoned ends within this time


class NvmlEvents:
    """Guards one waiting thread.  gpus: UUIDs.  library: as of gpu.nvml.read_devices.

    absent: why no events come; "" while they do.
    """

    def __init__(self, gpus: Sequence[str], library: Path | None = None) -> None:
        self.absent = "not started"
        self._gpus = gpus
        self._library = library

    async def run(self, publish: Callable[[Observation], None]) -> None:
        """Run until cancelled; return if NVML does not work, or stops working."""
        from mpsd.gpu.xid_events import XidEvents  # pynvml is large: loaded only here

        try:
            events = await trio.to_thread.run_sync(XidEvents, self._gpus, self._library)
            self.absent = ""
            try:
                while True:
                    seen = await trio.to_thread.run_sync(events.wait, _WAIT_MS, abandon_on_cancel=True)
                    if seen is not None:
                        publish(observe(seen.gpu, seen.xid, time.monotonic_ns()))
            finally:
                self.absent = "stopped"
                events.close()
        except VendorFailed as exc:
            self.absent = str(exc)
            log.warning("faults.no_nvml_events", why=str(exc), effect="Xids are known from the kernel log alone")


def observe(gpu: str, xid: int, seen_ns: int) -> Observation:
    known = meaning_of(xid)
    return Observation(Source.NVML, seen_ns, known.fault_class, gpu=gpu, xid=xid, text=f"Xid {xid}, {known.name}")
