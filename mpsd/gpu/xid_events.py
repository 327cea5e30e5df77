"""Wait for NVML's events of one GPU's errors (pynvml), in a thread, one at a time: Xids, and the events that newer drivers add.

NVML lacks an event for `nvidia-smi drain`, so this state is read between two waits.

Each GPU has a separate event set: while NVML does not reach a GPU, every wait for a set that contains it fails.
"""

import ctypes
import threading
from enum import Enum
from pathlib import Path

import pynvml
from msgspec import Struct

from mpsd.errors import VendorFailed

UNKNOWN_ACTION = -1


class GpuEventKind(Enum):
    XID = "nvmlEventTypeXidCriticalError"
    RECOVERY_ACTION = "nvmlEventTypeGpuRecoveryAction"
    UNAVAILABLE = "nvmlEventTypeGpuUnavailableError"
    DRAINED = ""  # by the drain state: an administrator has begun to drain the GPU


class GpuEvent(Struct, frozen=True):
    """number: of the Xid, or of the recovery action (NVML_GPU_RECOVERY_ACTION_..., or UNKNOWN_ACTION)."""

    kind: GpuEventKind
    number: int = 0


class GpuLost(VendorFailed):
    """NVML does not reach the GPU, or it has to be reset before it can be used."""


class XidEvents:
    """Guards the event set of a GPU: it is freed once, and not while a thread waits on it.

    `library`: as for read_devices. Raises VendorFailed if NVML does not work or the GPU has no such events, GpuLost.
    """

    def __init__(self, gpu: str, library: Path | None = None) -> None:
        self._lock = threading.Lock()  # protects the two flags; no function of NVML is called with it
        self._is_waiting = False
        self._is_closed = False
        self._kinds: dict[int, GpuEventKind] = {}
        self._is_drained = False
        try:
            if library is not None:
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            pynvml.nvmlInit()
        except (pynvml.NVMLError, OSError) as exc:
            raise VendorFailed(f"NVML says {exc}") from None
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as exc:
            pynvml.nvmlShutdown()
            raise VendorFailed(f"NVML makes no event set: {exc}") from None
        try:
            self._register(gpu)
        except pynvml.NVMLError as exc:
            self.close()
            raise _failed(exc) from None

    def wait(self, milliseconds: int) -> GpuEvent | None:
        """Wait for an event for at most this time; None: none came.  Raise GpuLost, or VendorFailed, also after close()."""
        with self._lock:
            if self._is_closed:
                raise VendorFailed("the Xid events are closed")
            self._is_waiting = True
        try:
            return self._read(pynvml.nvmlEventSetWait_v2(self._set, milliseconds))
        except pynvml.NVMLError_Timeout:
            return self._look_at_drain()
        except pynvml.NVMLError as exc:
            raise _failed(exc) from None
        finally:
            if self._end_wait():
                self._free()

    def close(self) -> None:
        """Close at any time, from any thread; if a thread waits, it frees the set afterwards."""
        with self._lock:
            is_ours = not self._is_closed and not self._is_waiting
            self._is_closed = True
        if is_ours:
            self._free()

    def _end_wait(self) -> bool:
        """Return whether it was closed in the meantime."""
        with self._lock:
            self._is_waiting = False
            return self._is_closed

    def _register(self, gpu: str) -> None:
        """Register for those of the events that this driver has for the GPU.  Raise NVMLError."""
        self._gpu = pynvml.nvmlDeviceGetHandleByUUID(gpu.encode())
        self._pci = pynvml.nvmlDeviceGetPciInfo(self._gpu)
        supported = int(pynvml.nvmlDeviceGetSupportedEventTypes(self._gpu))
        self._kinds = {bit: kind for kind in GpuEventKind if (bit := getattr(pynvml, kind.value, 0)) & supported}
        wanted = sum(self._kinds) or pynvml.nvmlEventTypeXidCriticalError  # NVML reports the reason
        pynvml.nvmlDeviceRegisterEvents(self._gpu, wanted, self._set)

    def _look_at_drain(self) -> GpuEvent | None:
        """Return an event when a drain has begun; None: the state is as before, or the GPU lacks it."""
        try:
            is_drained = pynvml.nvmlDeviceQueryDrainState(self._pci) == pynvml.NVML_FEATURE_ENABLED
        except pynvml.NVMLError:
            return None
        was_drained, self._is_drained = self._is_drained, is_drained
        return GpuEvent(GpuEventKind.DRAINED) if is_drained and not was_drained else None

    def _read(self, data: pynvml.c_nvmlEventData_t) -> GpuEvent | None:
        kind = self._kinds.get(int(data.eventType))
        if kind is GpuEventKind.XID:
            return GpuEvent(kind, int(data.eventData))
        if kind is GpuEventKind.RECOVERY_ACTION:
            return GpuEvent(kind, self._recovery_action())
        return GpuEvent(kind) if kind else None

    def _recovery_action(self) -> int:
        """Return the action that NVML now requests, which its event does not contain; UNKNOWN_ACTION if NVML gives none."""
        try:
            [field] = pynvml.nvmlDeviceGetFieldValues(self._gpu, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        except pynvml.NVMLError:
            return UNKNOWN_ACTION
        return UNKNOWN_ACTION if field.nvmlReturn else int(field.value.uiVal)

    def _free(self) -> None:
        try:
            pynvml.nvmlEventSetFree(self._set)
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            pass  # nothing is left to free


def _failed(error: pynvml.NVMLError) -> VendorFailed:
    is_lost = isinstance(error, pynvml.NVMLError_GpuIsLost | pynvml.NVMLError_ResetRequired)
    return GpuLost(f"NVML says {error}") if is_lost else VendorFailed(f"NVML says {error}")
