"""The common values: devices, processes, clients, fault domains.

Frozen, without behaviour beyond properties of their own.  No I/O, no clock.
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
    multiprocessors: int = 0  # SMs; 0 if not known
    capability: tuple[int, int] = (0, 0)  # compute capability, major and minor; zeros if not known


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process, distinguished from later ones that reuse its pid.

    start_time: clock ticks after boot, field 22 of /proc/PID/stat; 0 if it cannot be known (other pid namespace).
    """

    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class Credentials:
    """The contents of SCM_CREDENTIALS; pid 0 is a process outside mpsd's pid namespace."""

    pid: int
    uid: int
    gid: int


class DomainState(StrEnum):
    """The life of a fault domain.

    STARTING -> READY <-> FAULT -> (RECYCLING -> READY | STOPPING -> GONE); any state -> DEAD when its vendor daemon dies,
    DEAD -> STARTING after a backoff.  SILENT and DRAINING are shown for a READY one while its vendor daemon does not answer,
    and while it is being emptied.
    """

    STARTING = "starting"  # the vendor's control daemon is being started
    READY = "ready"  # takes clients
    FAULT = "fault"  # a fatal GPU error: takes no client until its clients have ended
    SILENT = "silent"  # its vendor daemon lives and does not answer: takes no client until it does
    RECYCLING = "recycling"  # its servers are being replaced; takes no client for a moment
    DRAINING = "draining"  # an operator wants it emptied: takes no client, and ends with its last one
    STOPPING = "stopping"  # mpsd has sent it quit
    DEAD = "dead"  # its vendor daemon died; restarted after a backoff
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class DomainView:
    """The facts about one fault domain that a policy needs.

    `uid` is the user whose server runs there, None if none runs.  `clients` counts the places taken of `capacity`:
    connected contexts, and clients that are still connecting.  `gpus` are the UUIDs its vendor daemon was started with.
    """

    name: str
    state: DomainState
    gpus: frozenset[str]
    uid: int | None
    clients: int
    capacity: int
    is_public: bool  # has had a client; a domain that is not public is a spare
    number: int  # order of creation
    key: str = ""  # whom it serves alone: a lease, a group, those in quarantine; empty: everybody
    is_answering: bool = True  # its vendor daemon has answered what it was asked, or was asked a moment ago
    is_exposed: bool = False  # every user can connect to its vendor daemon, past the relay
    trouble: str = ""  # why it is DEAD or SILENT, as far as that is known
    users: frozenset[int] = frozenset()  # of its clients, as far as mpsd knows them
    is_worn: bool = False  # it is DRAINING since newcomers got no context there
