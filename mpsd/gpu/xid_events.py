"""Wait for Xid events of NVML (pynvml), in a thread, one at a time."""

import ctypes
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pynvml

from mpsd.errors import VendorFailed


@dataclass(frozen=True, slots=True)
class XidEvent:
    gpu: str  # UUID
    xid: int


class XidEvents:
    """Guards an event set of NVML: it is freed once, and not while a thread waits on it.

    `library`: as of read_devices.  Raises VendorFailed if NVML does not work, or no GPU has such events.
    """

    def __init__(self, gpus: Iterable[str], library: Path | None = None) -> None:
        self._lock = threading.Lock()  # protects the two flags; no function of NVML is called with it
        self._is_waiting = False
        self._is_closed = False
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
        found = [self._register(gpu) for gpu in gpus]
        if "" not in found:
            self.close()
            raise VendorFailed(f"no GPU has Xid events: {', '.join(found) or 'none was named'}")

    def wait(self, milliseconds: int) -> XidEvent | None:
        """Wait for an event for at most this time; None: none came.  Raise VendorFailed when NVML fails, or after close()."""
        with self._lock:
            if self._is_closed:
                raise VendorFailed("the Xid events are closed")
            self._is_waiting = True
        try:
            data = pynvml.nvmlEventSetWait_v2(self._set, milliseconds)
            return XidEvent(_text(pynvml.nvmlDeviceGetUUID(data.device)), int(data.eventData))
        except pynvml.NVMLError_Timeout:
            return None
        except pynvml.NVMLError as exc:
            raise VendorFailed(f"NVML says {exc}") from None
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

    def _register(self, gpu: str) -> str:
        """Register the GPU; return why that failed, or ""."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.encode())
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except pynvml.NVMLError as exc:
            return f"{gpu}: {exc}"
        return ""

    def _free(self) -> None:
        try:
            pynvml.nvmlEventSetFree(self._set)
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            pass  # nothing is left to free


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
