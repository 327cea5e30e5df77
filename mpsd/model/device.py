"""A GPU as mpsd uses it."""

from enum import StrEnum

from msgspec import Struct


class ComputeMode(StrEnum):
    """How many processes may have a context on a device (NVML, nvmlComputeMode_t)."""

    DEFAULT = "default"
    EXCLUSIVE_PROCESS = "exclusive_process"  # one process, so one MPS server: no hot spare is possible
    PROHIBITED = "prohibited"


class Device(Struct, frozen=True):
    """A GPU as the daemon sees it: `ordinal` counts within the daemon's CUDA_VISIBLE_DEVICES."""

    ordinal: int
    uuid: str
    name: str
    total_bytes: int
    pci_bus_id: str
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    multiprocessors: int = 0  # SMs; 0 if not known
    capability: tuple[int, int] = (0, 0)  # compute capability, major and minor; zeros if not known
