"""Faults: what a source observed, the incident it belongs to, the culprit, and how that is known.

Frozen values, no I/O, no clock.  `_ns` are nanoseconds of CLOCK_MONOTONIC, by which the parts of one incident are compared;
`_at` are seconds since the epoch, because they outlive mpsd.  Prose: docs/faults.md.
"""

from enum import StrEnum

from msgspec import Struct

from mpsd.model.process import ProcessId

_OF_A_CONTAINER = ("container:", "pod:")  # lasting names that begin with a name which was chosen outside
_OF_A_LEASE = "lease:"


class FaultClass(StrEnum):
    """The kind of a fault, as far as it decides which clients suffer and what can be done."""

    MMU = "mmu"  # an access that no mapping allows (Xid 31)
    SM = "sm"  # an exception of an SM: trap, assert, misaligned access, illegal instruction, stack overflow (Xid 13, 43)
    HOST = "host"  # a client's process ended while its work ran
    DEVICE = "device"  # the GPU itself: ECC, fallen off the bus
    UNKNOWN = "unknown"


class GpuState(StrEnum):
    """What NVML reports of a GPU that mpsd should use no more."""

    LOST = "lost"  # it cannot be reached, or has to be reset before it can be used
    DRAINED = "drained"  # an administrator keeps new processes from it (nvidia-smi drain)


class Source(StrEnum):
    """The source of an observation.  docs/faults.md describes what each can and cannot know."""

    KMOD = "kmod"  # /dev/mpsd-fault, the patched nvidia-uvm
    UVM_EVENTS = "uvm_events"  # /dev/nvidia-uvm-tools, attached to each client
    KERNEL_LOG = "kernel_log"  # Xids
    NVML = "nvml"  # Xid events
    VENDOR_LOG = "vendor_log"  # a domain's server.log
    CORE_DUMP = "core_dump"  # CUDA core dumps
    SENTINEL = "sentinel"  # mpsd-sentinel, of SM exceptions in a domain that has one
    REPORT = "report"  # a client's report of its own first CUDA error (fault.report)
    PROCESS = "process"  # the end of a client's process


class Party(Struct, frozen=True):
    """A client as people know it, noted while it lived.

    uid: None if it was never known.  program: base name of argv[0].  container: a container id, a Slurm job or a systemd unit,
    from its cgroup.  lease_id: None without a lease.  lasting: a name of it that its next start has too, with its kind
    (model/cgroup_path.py, lasting_name); empty if mpsd knows none.
    """

    process: ProcessId
    uid: int | None = None
    program: str = ""
    container: str = ""
    lease_id: int | None = None
    lasting: str = ""

    @property
    def key(self) -> str:
        """The identity that a restart keeps: the user, and the lease, else the lasting name, else the program.

        No two users share a key: a client can forge its core dump, and so have its key convicted.  If the user was never
        known, the key is the process alone.
        """
        if self.uid is None:
            return f"process:{self.process.pid}:{self.process.start_time}"
        if self.lease_id is not None:
            return f"{_OF_A_LEASE}{self.lease_id}:{self.uid}"
        if self.lasting:
            return f"{self.lasting}:{self.uid}"
        return f"user:{self.uid}:{self.program}"

    @property
    def owner(self) -> tuple[int | None, str, str]:
        """Its user, its container, and the outermost container or pod: a process within can give an inner one any name."""
        outer = self.lasting if self.lasting.startswith(_OF_A_CONTAINER) else ""
        return self.uid, self.container, outer

    @property
    def wider_keys(self) -> tuple[str, ...]:
        """The keys that contain this one, the narrowest first and the user last; empty if the user was never known.

        A client can come under a new key: in a new container, under a new lease, or as a copy of its program with another name.
        Its wider keys stay the same.
        """
        if self.uid is None:
            return ()
        names = [f"{self.lasting}:{self.uid}"] if self.lasting else []
        return (*(each for each in [*names, f"user:{self.uid}:{self.program}"] if each != self.key), f"user:{self.uid}")


def is_under_lease(key: str, lease: str) -> bool:
    """Return whether the key is of a user of the lease; `lease:7` names the lease."""
    return lease.startswith(_OF_A_LEASE) and key.startswith(f"{lease}:")


class Observation(Struct, frozen=True):
    """One observation by one source.  Empty, or None: not known.

    gpu: UUID.  domain: the name of the fault domain.  process: the one that the source names.
    is_proof: it names the process that faulted, and cannot be wrong about it (uvm_events, kmod, a core dump that holds an
    exception); otherwise the process was only present (Xid 31 names an innocent: docs/faults.md).
    clears: it proves that `process` is innocent (a core dump without an exception).
    is_contained: the patched module absorbed it, or a guard of its own, or a sentinel contained it: only one process lost
    anything by it.
    access: read, write, atomic or prefetch.  kernel: the name of the function that ran.  xid: the number of an Xid.
    is_failure: the process got an error of an SM exception, as it reports, or ended by itself with an error.
    present: the clients of the domain at that moment, as far as mpsd knew; the collector fills it in.
    text: the observation, in one line for people, at most TEXT_CHARACTERS.
    gpu_state: the GPU should be used no more, and this is not known by an Xid.
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
    is_failure: bool = False
    gpu_state: GpuState | None = None


TEXT_CHARACTERS = 400


class Confidence(StrEnum):
    """How mpsd knows the culprit."""

    PROVEN = "proven"  # a source that cannot be wrong named it
    ALONE = "alone"  # the domain had no other client
    LEFT = "left"  # all other clients of the domain were cleared
    LIKELY = "likely"  # a contained exception, and it alone failed at that time; this convicts no client
    SUSPECTED = "suspected"  # several clients could be; they are placed apart until one faults alone
    UNKNOWN = "unknown"  # no client is accused: a device fault, or no known client was present


class Deed(Struct, frozen=True):
    """An action of mpsd on a fault, or an attempt that failed: one line for people."""

    done_ns: int
    text: str


class Incident(Struct, frozen=True):
    """One fault, and all that is known about it, however many sources observed it.

    number: never reused, also across restarts.  revision: grows with each change.  began_ns: of the earliest observation.
    is_settled: no further evidence is expected.  culprit: None if the confidence is SUSPECTED or UNKNOWN.
    suspects: the possible culprits, if the confidence is SUSPECTED.  victims: innocent clients of the domain that lost their
    contexts.  parties: all clients named above, as people know them.
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


class FirstError(Struct, frozen=True):
    """A client's report of its own first CUDA error.  Its size is bounded; without other evidence nothing relies on it.

    code, name: of CUresult.  kernel, pc, address, text: if the client knows them.
    """

    code: int
    name: str = ""
    kernel: str = ""
    pc: int | None = None
    address: int | None = None
    text: str = ""
