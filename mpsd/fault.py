"""Faults and what is known of them: what a source saw, what came of it, who did it and how that is known.

Frozen values, no I/O, no clock.  `_ns` are nanoseconds of CLOCK_MONOTONIC, on which everything of one incident is compared;
`_at` are seconds since the epoch, because they outlive mpsd.  Prose: docs/faults.md.
"""

from dataclasses import dataclass
from enum import StrEnum

from mpsd.model import ProcessId


class FaultClass(StrEnum):
    """What went wrong, as far as it decides who suffers and what can be done."""

    MMU = "mmu"  # an access that no mapping allows (Xid 31)
    SM = "sm"  # an exception of an SM: trap, assert, misaligned access, illegal instruction, stack overflow (Xid 13, 43)
    HOST = "host"  # a client's process ended while its work ran
    DEVICE = "device"  # the GPU itself: ECC, fallen off the bus
    UNKNOWN = "unknown"


class Source(StrEnum):
    """Who saw something.  docs/faults.md says of each what it can and cannot know."""

    KMOD = "kmod"  # /dev/mpsd-fault, the patched nvidia-uvm
    UVM_EVENTS = "uvm_events"  # /dev/nvidia-uvm-tools, attached to each client
    KERNEL_LOG = "kernel_log"  # Xids
    NVML = "nvml"  # Xid events
    VENDOR_LOG = "vendor_log"  # a domain's server.log
    CORE_DUMP = "core_dump"  # CUDA core dumps
    REPORT = "report"  # a client's first CUDA error, said by itself (fault.report)
    PROCESS = "process"  # the end of a client's process


@dataclass(frozen=True, slots=True)
class Party:
    """A client as people know it, noted while it lived.

    uid: None where it was never known.  program: base name of argv[0].  container: a container id, a Slurm job, a systemd unit,
    as its cgroup says.  lease_id: None without a lease.
    """

    process: ProcessId
    uid: int | None = None
    program: str = ""
    container: str = ""
    lease_id: int | None = None

    @property
    def key(self) -> str:
        """What stays the same when it is started again: its lease, else its container and user, else its user and program.

        Of one whose user was never known it is the process alone: nothing that others of whom nothing is known share."""
        if self.lease_id is not None:
            return f"lease:{self.lease_id}"
        if self.uid is None:
            return f"process:{self.process.pid}:{self.process.start_time}"
        if self.container:
            return f"container:{self.container}:{self.uid}"
        return f"user:{self.uid}:{self.program}"


@dataclass(frozen=True, slots=True)
class Observation:
    """What one source saw once.  Empty, or None: it does not tell.

    gpu: UUID.  domain: the name of the fault domain.  process: whom it names.
    is_proof: it names the process whose work faulted, and cannot be wrong about it (uvm_events, kmod, a core dump that holds an
    exception); else the process is no more than one that is there (Xid 31 names an innocent: FACTS.md).
    clears: it proves of `process` that it did not do it (a core dump without an exception).
    is_contained: the patched module absorbed it, or a guard of its own: nobody but `process` lost anything by it.
    access: read, write, atomic or prefetch.  kernel: the name of the function that ran.  xid: the number of an Xid.
    present: the clients of the domain at that moment, as far as mpsd knew; the collector fills it in.
    text: what was seen, in one line for people, at most TEXT_CHARACTERS.
    """

    source: Source
    seen_ns: int
    fault_class: FaultClass = FaultClass.UNKNOWN
    gpu: str = ""
    domain: str = ""
    process: ProcessId | None = None
    is_proof: bool = False
    clears: bool = False
    address: int | None = None
    access: str = ""
    kernel: str = ""
    pc: int | None = None
    xid: int | None = None
    present: tuple[ProcessId, ...] = ()
    text: str = ""
    is_contained: bool = False


TEXT_CHARACTERS = 400


class Confidence(StrEnum):
    """How it is known who did it."""

    PROVEN = "proven"  # a source that cannot be wrong named it
    ALONE = "alone"  # nobody else was in the domain
    LEFT = "left"  # everybody else in the domain was cleared
    SUSPECTED = "suspected"  # several could have; they are placed apart until one faults alone
    UNKNOWN = "unknown"  # nobody is accused: a device fault, or nobody known was there


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that mpsd did about a fault, or found that it could not: one line for people."""

    done_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault event: everything that is known of one fault, however many sources saw it.

    number: never used twice, kept across restarts.  revision: grows with each change.  began_ns: the earliest observation's.
    is_settled: nothing more is expected.  culprit: None unless the confidence is PROVEN, ALONE or LEFT.
    suspects: those who could have done it, where the confidence is SUSPECTED.  victims: clients of the domain who lost their
    contexts without having done it.  parties: whoever is named above, as people know them.
    """

    number: int
    revision: int
    began_ns: int
    began_at: float
    is_settled: bool
    fault_class: FaultClass
    gpu: str
    domain: str
    culprit: ProcessId | None
    confidence: Confidence
    suspects: tuple[ProcessId, ...]
    victims: tuple[ProcessId, ...]
    address: int | None
    access: str
    kernel: str
    pc: int | None
    xids: tuple[int, ...]
    evidence: tuple[Observation, ...]
    deeds: tuple[Deed, ...] = ()
    parties: tuple[Party, ...] = ()

    def party(self, process: ProcessId | None) -> Party | None:
        return next((party for party in self.parties if party.process == process), None)
