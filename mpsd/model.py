"""The values everything else speaks of: devices, processes, clients, fault domains.

Frozen, and without behaviour beyond reading themselves.  No I/O, no clock.
"""

from dataclasses import dataclass
from enum import StrEnum


class ComputeMode(StrEnum):
    """How many processes may have a context on a device (NVML, nvmlComputeMode_t)."""

    DEFAULT = "default"
    EXCLUSIVE_PROCESS = "exclusive_process"  # one process, so one MPS server: no hot spare is possible
    PROHIBITED = "prohibited"


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the daemon sees it: `ordinal` counts within the daemon's CUDA_VISIBLE_DEVICES."""

    ordinal: int
    uuid: str
    name: str
    total_bytes: int
    pci_bus_id: str
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    multiprocessors: int = 0  # SMs; 0 where they are not known
    capability: tuple[int, int] = (0, 0)  # compute capability, major and minor; zeros where it is not known


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process, told apart from later ones that reuse its pid.

    start_time: clock ticks after boot, field 22 of /proc/PID/stat; 0 where it cannot be known (other pid namespace).
    """

    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class Credentials:
    """What SCM_CREDENTIALS carries; pid 0 is a process outside mpsd's pid namespace."""

    pid: int
    uid: int
    gid: int


class DomainState(StrEnum):
    """The life of a fault domain.

    STARTING -> READY <-> FAULT -> (RECYCLING -> READY | STOPPING -> GONE); any state -> DEAD when its vendor daemon dies,
    DEAD -> STARTING after a backoff.  SILENT and DRAINING are how a READY one looks while its vendor daemon does not answer,
    and while it is emptied.
    """

    STARTING = "starting"  # the vendor's control daemon is being started
    READY = "ready"  # takes clients
    FAULT = "fault"  # a fatal GPU error: takes nobody until its clients have gone
    SILENT = "silent"  # its vendor daemon lives and does not answer: takes nobody until it does
    RECYCLING = "recycling"  # its servers are being replaced; takes nobody for a moment
    DRAINING = "draining"  # an operator wants it emptied: takes nobody, and goes when its last client has
    STOPPING = "stopping"  # told to quit
    DEAD = "dead"  # its vendor daemon died; restarted after a backoff
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class DomainView:
    """What a policy needs to know of one fault domain.

    `uid` is the user whose server runs there, None where no server runs.  `clients` counts the places taken of `capacity`:
    connected contexts and clients on their way.  `gpus` are the UUIDs its vendor daemon was started with.
    """

    name: str
    state: DomainState
    gpus: frozenset[str]
    uid: int | None
    clients: int
    capacity: int
    is_public: bool  # has served somebody; a domain that is not public is a spare
    number: int  # order of creation
    key: str = ""  # whom it serves alone: a lease, a group, those in quarantine; empty: everybody
    is_answering: bool = True  # its vendor daemon has answered what it was asked, or was asked a moment ago
    is_exposed: bool = False  # every user can connect to its vendor daemon, past the relay
    trouble: str = ""  # why it is DEAD or SILENT, as far as that is known
    is_worn: bool = False  # it is DRAINING since newcomers got no context there
