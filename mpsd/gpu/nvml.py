"""Read devices from NVML (pynvml), reduced to those that CUDA_VISIBLE_DEVICES names.

CUDA's ordinals follow CUDA_DEVICE_ORDER; NVML counts by PCI bus.  On machines with unlike GPUs the two can differ, so use UUIDs
there in place of ordinals (CUDA programming guide, environment variables).
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pynvml

from mpsd.errors import NoSuchDevice, VendorFailed
from mpsd.model.device import ComputeMode, Device

_MODES = {
    pynvml.NVML_COMPUTEMODE_DEFAULT: ComputeMode.DEFAULT,
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: ComputeMode.EXCLUSIVE_PROCESS,
    pynvml.NVML_COMPUTEMODE_PROHIBITED: ComputeMode.PROHIBITED,
}
# FP32 cores of an SM by compute capability (CUDA C++ programming guide, arithmetic instructions)
_CORES = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128}
_CORES_SINCE_HOPPER = 128


def read_devices(visible: str | None, library: Path | None = None) -> tuple[Device, ...]:
    """Return the devices to serve, in order.  Blocks for milliseconds to a second.

    `visible`: CUDA_VISIBLE_DEVICES, None for all.  `library`: the simulator's NVML; it is loaded first, under the name that
    pynvml looks for.  Raise VendorFailed if NVML does not work here, NoSuchDevice if no device is left.
    """
    try:
        if library is not None:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as exc:
        raise VendorFailed(f"no GPU can be used: NVML reports {exc}") from None
    try:
        devices = [_read(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as exc:
        raise VendorFailed(f"the GPUs cannot be listed: NVML reports {exc}") from None
    finally:
        pynvml.nvmlShutdown()
    chosen = choose_visible(devices, visible)
    if not chosen:
        found = ", ".join(f"{device.ordinal}={device.uuid}" for device in devices) or "none"
        raise NoSuchDevice(f"no visible device: CUDA_VISIBLE_DEVICES={visible!r}, GPUs here: {found}")
    return chosen


def read_driver(library: Path | None = None) -> str:
    """Return the driver's version.  Raise VendorFailed."""
    try:
        if library is not None:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, OSError) as exc:
        raise VendorFailed(f"the driver's version cannot be read: NVML reports {exc}") from None


def choose_visible(devices: Sequence[Device], visible: str | None) -> tuple[Device, ...]:
    """Choose as CUDA does: the words up to the first that names no device; a device twice makes none visible."""
    if visible is None:
        return tuple(devices)
    chosen: list[Device] = []
    for word in visible.split(","):
        matching = [device for device in devices if _is_named(device, word.strip())]
        if len(matching) != 1:
            break
        if any(device.uuid == matching[0].uuid for device in chosen):
            return ()
        chosen.append(matching[0])
    return tuple(_renumber(device, ordinal) for ordinal, device in enumerate(chosen))


def _is_named(device: Device, word: str) -> bool:
    if word.isdecimal() and len(word) < 10:
        return device.ordinal == int(word)
    return len(word) > len("GPU-") and device.uuid.startswith(word)


def _renumber(device: Device, ordinal: int) -> Device:
    return msgspec.structs.replace(device, ordinal=ordinal)


def _read(index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Device(
        index,
        _text(pynvml.nvmlDeviceGetUUID(handle)),
        _text(pynvml.nvmlDeviceGetName(handle)),
        int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        _text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        _MODES.get(pynvml.nvmlDeviceGetComputeMode(handle), ComputeMode.DEFAULT),
        _multiprocessors(handle),
        _capability(handle),
    )


def _multiprocessors(handle: pynvml.c_nvmlDevice_t) -> int:
    """Return the number of SMs, from NVML's number of cores; 0 if NVML or the cores of an SM are not known."""
    try:
        cores = int(pynvml.nvmlDeviceGetNumGpuCores(handle))
    except pynvml.NVMLError:
        return 0
    major, minor = _capability(handle)
    per_multiprocessor = _CORES.get((major, minor), _CORES_SINCE_HOPPER if major >= 9 else 0)
    return cores // per_multiprocessor if per_multiprocessor else 0


def _capability(handle: pynvml.c_nvmlDevice_t) -> tuple[int, int]:
    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    except pynvml.NVMLError:
        return 0, 0
    return int(major), int(minor)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
