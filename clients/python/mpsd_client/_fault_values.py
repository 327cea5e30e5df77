"""The values in mpsd's answers about faults and blame."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Party:
    """A process that an incident names.  All fields are None or "" if this user may not see the process.  key: identifies it
    in the list of blame."""

    pid: int | None
    start_time: int | None
    uid: int | None
    program: str
    container: str
    lease_id: int | None
    key: str | None


@dataclass(frozen=True, slots=True)
class Xid:
    """An error number of NVIDIA's driver, and its meaning."""

    number: int
    name: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault.  confidence: proven, alone, left, suspected or unknown.  suspected, hurt: numbers of clients.

    culprit_key: the key that the fault counts against, even if it is unknown which process of that key caused it."""

    number: int
    revision: int
    began_at: float
    is_settled: bool
    fault_class: str
    gpu: str | None
    domain: str | None
    confidence: str
    culprit: Party | None
    suspected: int
    hurt: int
    xids: tuple[Xid, ...]
    access: str
    address: int | None
    kernel: str
    pc: int | None
    culprit_key: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation of one source.  after_seconds: since the first sign of the fault."""

    source: str
    after_seconds: float
    fault_class: str
    gpu: str | None
    domain: str | None
    process: Party | None
    is_proof: bool
    clears: bool
    xid: int | None
    present: int
    text: str
    access: str
    address: int | None
    kernel: str
    pc: int | None


@dataclass(frozen=True, slots=True)
class Deed:
    """An action that mpsd took, or failed to take, because of a fault."""

    after_seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class IncidentReport(Incident):
    """An incident with its lists of processes, observations and actions.  left_out: the number of entries that did not fit."""

    suspects: tuple[Party, ...]
    victims: tuple[Party, ...]
    evidence: tuple[Evidence, ...]
    deeds: tuple[Deed, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Reported:
    """mpsd's answer to a report of this process.  counts: mpsd uses the report.  left: further reports that would count."""

    pid: int
    start_time: int
    counts: bool
    left: int


@dataclass(frozen=True, slots=True)
class Guarded:
    """mpsd's answer about a guarded range.  is_watched: mpsd will see accesses to it."""

    is_watched: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """A key with faults against it.  standing: convicted, suspected or paused."""

    key: str
    standing: str
    since: float
    until: float | None
    faults: int
    case: int | None
    group: int | None
