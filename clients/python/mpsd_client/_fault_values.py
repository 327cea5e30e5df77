"""What mpsd answers about faults and blame."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Party:
    """Somebody who is named; whom we may not know has None and "" throughout.  key: by which blame knows them."""

    pid: int | None
    start_time: int | None
    uid: int | None
    program: str
    container: str
    lease_id: int | None
    key: str | None


@dataclass(frozen=True, slots=True)
class Xid:
    """A number of NVIDIA's driver, and what it means."""

    number: int
    name: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault.  confidence: proven, alone, left, suspected or unknown.  suspected and hurt: how many.

    culprit_key: the key that the fault is held against, also where it is not known which of its processes did it."""

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
    """What one source saw once.  after_seconds: after the first sign of the fault."""

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
    """What mpsd did, or could not do."""

    after_seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class IncidentReport(Incident):
    """With the lists behind its numbers.  left_out: entries for which there was no room."""

    suspects: tuple[Party, ...]
    victims: tuple[Party, ...]
    evidence: tuple[Evidence, ...]
    deeds: tuple[Deed, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Reported:
    """counts: mpsd takes it into account.  left: how many more reports of this process would count."""

    pid: int
    start_time: int
    counts: bool
    left: int


@dataclass(frozen=True, slots=True)
class Guarded:
    """is_watched: accesses there will be seen."""

    is_watched: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """What is held against whoever has this key.  standing: convicted, suspected or paused."""

    key: str
    standing: str
    since: float
    until: float | None
    faults: int
    case: int | None
    group: int | None
