"""The results about faults and blame.  `make docs` makes this module."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Party:
    """A process that an incident names. All fields are None or empty if this user may not see the process."""

    pid: int | None
    start_time: int | None
    uid: int | None
    program: str  # base name of argv[0]
    container: str  # a container, a job, a unit
    lease_id: int | None
    key: str | None  # by which `blame.list` knows it


@dataclass(frozen=True, slots=True)
class Xid:
    """An error number of NVIDIA's driver, and its meaning."""

    number: int
    name: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault."""

    number: int
    revision: int  # grows with each change
    began_at: float  # time of the first sign
    is_settled: bool  # nothing more is expected
    # an access without a mapping; an exception of an SM; the end of a process while its work ran; the GPU itself
    fault_class: str
    gpu: str | None  # None: not known
    domain: str | None  # None: not known, or of the GPU as a whole
    confidence: str  # how it is known who did it
    culprit: Party | None  # None: no single process is found guilty
    # the key that the fault is held against, as in `blame.list`: that of the culprit, or the one key that all suspects have,
    # though it is not known which of them did it; None: none, not yet, or not yours to know
    culprit_key: str | None
    suspected: int  # how many could have done it
    hurt: int  # how many others lost their work by it: those who are known not to have done it, and all suspects but one
    xids: tuple[Xid, ...]  # of NVIDIA's driver
    access: str  # "read", "write", "atomic", "prefetch", or empty: not known
    address: int | None  # where; None: not known, or not yours to know
    kernel: str  # name of the function on the GPU; may be empty
    pc: int | None  # where in its code


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation of one source."""

    source: str
    after_seconds: float  # after the first sign; negative for an earlier observation that came later
    fault_class: str
    gpu: str | None
    domain: str | None
    process: Party | None  # the party that it names
    is_proof: bool  # its process did it
    clears: bool  # its process did not do it
    xid: int | None
    present: int  # how many clients the domain had
    text: str
    access: str  # "read", "write", "atomic", "prefetch", or empty: not known
    address: int | None  # where; None: not known, or not yours to know
    kernel: str  # name of the function on the GPU; may be empty
    pc: int | None  # where in its code


@dataclass(frozen=True, slots=True)
class Deed:
    """An action that mpsd took, or failed to take, because of a fault."""

    after_seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class IncidentReport(Incident):
    """An incident with its lists of processes, observations and actions."""

    suspects: tuple[Party, ...]  # those who could have done it
    victims: tuple[Party, ...]  # those who lost their work, and did not do it
    evidence: tuple[Evidence, ...]  # the observations, in the order of time
    deeds: tuple[Deed, ...]  # actions of mpsd, also failed ones
    left_out: int  # entries of these lists for which the datagram had no room


@dataclass(frozen=True, slots=True)
class Reported:
    """mpsd's answer to a report of this process."""

    pid: int  # your pid as mpsd sees it
    start_time: int
    counts: bool  # false: this process has reported enough
    left: int  # how many more reports of this process count


@dataclass(frozen=True, slots=True)
class Guarded:
    """mpsd's answer about a guarded range."""

    is_watched: bool  # false: mpsd does not watch this process, for instance without root; lay guards that only absorb


@dataclass(frozen=True, slots=True)
class Standing:
    """A key with faults against it."""

    key: str  # whom
    # in quarantine; placed apart until one faults alone; not admitted for a while; a GPU that takes no new clients
    standing: str
    since: float
    until: float | None  # None: no end is known
    faults: int  # the number of faults that count
    # the number of a fault: of the last one of who is convicted, of the one for which suspects are placed apart
    case: int | None
    group: int | None  # of suspects: those with the same number of a case are placed together
