"""What the GPUs report about their use, from NVML: memory of each process, and memory and load of each GPU.

mpsd does not know it, so `top` asks NVML itself, in a thread: a driver that hangs delays nothing else.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_EACH_SECONDS = 1.0
_STALE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class GpuUse:
    """busy: the share of the last moments in which a kernel ran, 0 to 1; None: the GPU (or a MIG device) does not report it."""

    used_bytes: int
    total_bytes: int
    busy: float | None


@dataclass(frozen=True, slots=True)
class Use:
    """processes: bytes by pid, of all GPUs together.  why: the reason if nothing is known."""

    processes: Mapping[int, int] = field(default_factory=dict)
    gpus: Mapping[str, GpuUse] = field(default_factory=dict)
    why: str = "NVML has not answered yet"


class UsageReader:
    """Asks NVML each second in a separate thread.  uuids: the GPUs to ask about; None until they are known."""

    def __init__(self) -> None:
        self.uuids: tuple[str, ...] = ()
        self._found, self._at = Use(), time.monotonic()
        self._closed = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="nvml", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def latest(self) -> Use:
        if not self._found.why and time.monotonic() - self._at > _STALE_SECONDS:
            return Use(why=f"NVML has not answered for {time.monotonic() - self._at:.0f} s")
        return self._found

    def _run(self) -> None:
        try:
            import pynvml
        except ImportError:
            self._found = Use(why="the package nvidia-ml-py is not installed")
            return
        is_open = False
        while not self._closed.wait(_EACH_SECONDS if self.uuids else 0.05):
            try:
                if not is_open:
                    pynvml.nvmlInit()
                is_open, self._found = True, _read(pynvml, self.uuids)
            except pynvml.NVMLError as exc:
                is_open, self._found = False, Use(why=f"NVML: {exc}")  # initialised again: the driver may have been reloaded
            self._at = time.monotonic()


def _read(nvml: Any, uuids: tuple[str, ...]) -> Use:
    processes: dict[int, int] = {}
    gpus = {}
    for uuid in uuids:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        try:
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except nvml.NVMLError:
            busy = None
        gpus[uuid] = GpuUse(memory.used, memory.total, busy)
        for process in nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle):
            if process.usedGpuMemory is not None:
                processes[process.pid] = processes.get(process.pid, 0) + process.usedGpuMemory
    return Use(processes, gpus, "")
