"""NVML's events as a source: the GPU and the number of an Xid, but neither the process nor the domain.

Newer drivers also report that a GPU has to be reset, or is unavailable.  It serves where the kernel log cannot be read,
which has the same and more a millisecond sooner.  mpsd follows each GPU alone: when
NVML loses one, the events of the others go on.  A GPU that NVML has lost, or that an administrator
drains, is an observation too: the kernel log may lack both.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import structlog
import trio

from mpsd.errors import VendorFailed
from mpsd.model.fault import FaultClass, GpuState, Observation, Source
from mpsd.model.xid import RECOVERY_ACTION, meaning_of, recovery_text
from mpsd.threads import run_in_thread

log = structlog.get_logger()
_WAIT_MS = 2000  # a wait that was abandoned ends within this time
_AGAIN_SECONDS, _AGAIN_MOST_SECONDS = 1.0, 60.0  # until a GPU without events is registered again; doubled each time
_NOT_STARTED, _STOPPED = "not started", "stopped"


class NvmlEvents:
    """Guards one waiting thread for each GPU.  gpus: UUIDs.  library: as of gpu.nvml.read_devices.

    absent: why events of some or all GPUs do not come; "" while all do.  lost: the GPUs that NVML does not reach, and those
    whose events ended, with the reason.
    """

    def __init__(self, gpus: Sequence[str], library: Path | None = None) -> None:
        self.lost: dict[str, str] = {}
        self._why = dict.fromkeys(gpus, _NOT_STARTED)
        self._library = library
        self._threads = trio.CapacityLimiter(2 * max(1, len(gpus)))  # two: an abandoned one may still wait

    @property
    def absent(self) -> str:
        missing = {gpu: why for gpu, why in self._why.items() if why}
        if len(missing) == len(self._why) and len(set(missing.values())) <= 1:
            return next(iter(missing.values()), "no GPU was named")
        return "; ".join(f"no events of {gpu}: {why}" for gpu, why in missing.items())

    async def run(self, publish: Callable[[Observation], None]) -> None:
        """Run until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                for gpu in self._why:
                    nursery.start_soon(self._follow, gpu, publish)
        finally:
            self._why = dict.fromkeys(self._why, _STOPPED)

    async def _follow(self, gpu: str, publish: Callable[[Observation], None]) -> None:
        """Publish the events of one GPU, and register it again when they end."""
        from mpsd.gpu.xid_events import GpuLost, XidEvents  # pynvml is large: loaded only here

        pause, had_events = _AGAIN_SECONDS, False
        while True:
            try:
                events = await run_in_thread(
                    XidEvents, gpu, self._library, abandon_on_cancel=True, limiter=self._threads
                )
                try:
                    self._begin(gpu)
                    pause, had_events = _AGAIN_SECONDS, True
                    while True:
                        seen = await run_in_thread(
                            events.wait, _WAIT_MS, abandon_on_cancel=True, limiter=self._threads
                        )
                        if seen is not None:
                            publish(observe(gpu, seen.kind.name, seen.number, time.monotonic_ns()))
                finally:
                    _run_soon(events.close)
            except VendorFailed as exc:
                if isinstance(exc, GpuLost) and self._why[gpu] != str(exc):  # once for each loss
                    publish(observe(gpu, "LOST", 0, time.monotonic_ns(), str(exc)))
                self._end(gpu, str(exc), is_lost=had_events or isinstance(exc, GpuLost))
            await trio.sleep(pause)
            pause = min(2 * pause, _AGAIN_MOST_SECONDS)

    def _begin(self, gpu: str) -> None:
        if self.lost.pop(gpu, ""):
            log.info("faults.nvml_events_again", gpu=gpu)
        self._why[gpu] = ""

    def _end(self, gpu: str, why: str, *, is_lost: bool) -> None:
        if is_lost:
            self.lost[gpu] = why
        if self._why[gpu] != why:
            self._why[gpu] = why
            effect = "errors of this GPU are known from the kernel log alone"
            log.warning("faults.no_nvml_events", gpu=gpu, why=why, effect=effect)


def _run_soon(close: Callable[[], None]) -> None:
    """Run it in a thread: NVML may not answer about a GPU that is lost.  Without a free thread, its memory stays taken."""
    with suppress(RuntimeError):
        trio.lowlevel.start_thread_soon(close, lambda outcome: None)


def observe(gpu: str, kind: str, number: int, seen_ns: int, text: str = "") -> Observation:
    """Return the observation of an event: of an Xid, of a changed recovery action, or that the GPU should be used no more.

    text: the words of NVML about a lost GPU."""
    if kind == "XID":
        known = meaning_of(number)
        text = f"Xid {number}, {known.name}"
        return Observation(Source.NVML, seen_ns, known.fault_class, gpu=gpu, xid=number, text=text)
    if kind == "RECOVERY_ACTION":
        text = recovery_text(number)
        return Observation(Source.NVML, seen_ns, FaultClass.DEVICE, gpu=gpu, xid=RECOVERY_ACTION, text=text)
    state = GpuState.LOST
    if kind == "DRAINED":
        state, text = GpuState.DRAINED, "an administrator drains the GPU (nvidia-smi drain): it takes no new process"
    elif kind == "UNAVAILABLE":
        text = "NVML reports that the GPU is unavailable"
    return Observation(Source.NVML, seen_ns, FaultClass.DEVICE, gpu=gpu, text=text, gpu_state=state)
