"""The parameters of every method, each a frozen value once it has been checked.

arena_messages.py has those of arenas.  api/method_table.py assigns them to methods; docs/protocol.md, "Methods", explains them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from mpsd.model.fault import TEXT_CHARACTERS, FaultClass
from mpsd.model.lease import LEAST_PERCENT, DomainPolicy, LeaseState, SelectorKind
from mpsd.model.stop import Way
from mpsd.wire.params import array, boolean, choice, label, maybe, number, param, record, table, text, whole, word

VERSION = 1  # of the protocol; another number is another protocol
MINOR = 4  # additions to it since

MOST_SECONDS = 1e9  # some thirty years
MOST_MOMENT = 9e9  # since the epoch: some time after 2250
MIB = 1 << 20
MOST_GPUS = 64
PAGE = 100
MOST_PAGE = 1000

ID = whole(0, 2**63 - 1)
PID = whole(1, 2**31 - 1)
_START_TIME = whole(0, 2**63 - 1)
GPU = text(1, 80)
_GPUS = array(GPU, MOST_GPUS)
_NAME = text(1, 128)
_SECONDS = number(0, MOST_SECONDS, may_be_least=False)
PATIENCE = number(0, 3600)
_MEMORY = whole(MIB, 2**62 - 1)
_ADDRESS = whole(0, 2**64 - 1)
_KEY = text(1, 512)
_UID = whole(0, 2**32 - 2)
_PERCENT = number(0, 100, may_be_least=False)


class ElasticLevel(StrEnum):
    """The levels of the elastic policy."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Hello:
    version: int = param(whole(0, 2**32 - 1))
    program: str = param(text(0, 64), "")


@dataclass(frozen=True, slots=True)
class Nothing:
    """The parameters of a method without parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a list: the entries after `after`."""

    after: int | None = param(maybe(ID), None)
    limit: int = param(whole(1, MOST_PAGE), PAGE)


@dataclass(frozen=True, slots=True)
class SelectorParams:
    kind: SelectorKind = param(choice(SelectorKind))
    value: str = param(text(1, 4096))
    start_time: int = param(_START_TIME, 0)


@dataclass(frozen=True, slots=True)
class CreateLease:
    """`sm_percent` and `sm_count` are two ways to give one share."""

    name: str = param(_NAME)
    selector: SelectorParams = param(record("selector", SelectorParams))
    gpus: tuple[str, ...] = param(_GPUS, ())
    sm_percent: float | None = param(maybe(number(LEAST_PERCENT, 100)), None)
    sm_count: int | None = param(maybe(whole(1, 65535)), None)
    memory_bytes: Mapping[str, int] | None = param(maybe(table(GPU, _MEMORY, MOST_GPUS)), None)
    priority: int = param(whole(0, 1), 0)
    domain: DomainPolicy = param(choice(DomainPolicy), DomainPolicy.SHARED)
    group: str = param(label(64), "")
    processes: int = param(whole(1, 1024), 1)
    ttl_seconds: float | None = param(maybe(_SECONDS), None)
    wait_seconds: float = param(number(0, MOST_SECONDS), 0.0)
    level: ElasticLevel = param(choice(ElasticLevel), ElasticLevel.INTERACTIVE)
    owner_uid: int | None = param(maybe(_UID), None)
    request_key: str = param(word(0, 64), "")


@dataclass(frozen=True, slots=True)
class LeaseId:
    id: int = param(ID)


@dataclass(frozen=True, slots=True)
class RenewLease:
    id: int = param(ID)
    ttl_seconds: float | None = param(maybe(_SECONDS), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLeases(Page):
    state: LeaseState | None = param(maybe(choice(LeaseState)), None)


@dataclass(frozen=True, slots=True)
class ClientId:
    """`start_time` distinguishes a process from later ones with its pid; 0: the present one."""

    pid: int = param(PID)
    start_time: int = param(_START_TIME, 0)


@dataclass(frozen=True, slots=True)
class StopClient:
    """One of `pid`, `cgroup` and `container` is given."""

    pid: int | None = param(maybe(PID), None)
    cgroup: str | None = param(maybe(text(1, 4096)), None)
    container: str | None = param(maybe(text(1, 256)), None)
    start_time: int = param(_START_TIME, 0)
    way: Way = param(choice(Way), Way.TERMINATE)
    grace_seconds: float = param(PATIENCE, 0.0)
    drain_seconds: float = param(PATIENCE, 5.0)
    force: bool = param(boolean(), False)


@dataclass(frozen=True, slots=True)
class MoveClient:
    pid: int = param(PID)
    domain: str = param(_NAME)
    start_time: int = param(_START_TIME, 0)


@dataclass(frozen=True, slots=True)
class CreateDomain:
    gpus: tuple[str, ...] = param(_GPUS, ())


@dataclass(frozen=True, slots=True)
class DomainName:
    name: str = param(_NAME)


@dataclass(frozen=True, slots=True)
class SetLimits:
    """nil keeps a value; a memory limit of 0 removes it."""

    default_active_thread_percentage: float | None = param(maybe(_PERCENT), None)
    default_device_pinned_mem_limit: Mapping[str, int] | None = param(maybe(table(GPU, whole(0, 2**62 - 1), MOST_GPUS)), None)
    default_client_priority: int | None = param(maybe(whole(0, 1)), None)


@dataclass(frozen=True, slots=True)
class Subscribe:
    topics: tuple[str, ...] = param(array(text(1, 64), 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListIncidents(Page):
    """`mine`: those that name a process of the caller."""

    domain: str | None = param(maybe(_NAME), None)
    fault_class: FaultClass | None = param(maybe(choice(FaultClass)), None)
    since: float | None = param(maybe(number(0, MOST_MOMENT)), None)
    culprit_uid: int | None = param(maybe(_UID), None)
    mine: bool = param(boolean(), False)
    newest_first: bool = param(boolean(), False)


@dataclass(frozen=True, slots=True)
class IncidentNumber:
    number: int = param(ID)


@dataclass(frozen=True, slots=True)
class ReportError:
    """A client's own first CUDA error."""

    code: int = param(whole(1, 2**31 - 1))
    name: str = param(text(0, 64), "")
    kernel: str = param(text(0, TEXT_CHARACTERS), "")
    pc: int | None = param(maybe(_ADDRESS), None)
    address: int | None = param(maybe(_ADDRESS), None)
    text: str = param(text(0, TEXT_CHARACTERS), "")


@dataclass(frozen=True, slots=True)
class GuardRange:
    """Addresses in which a client has guards of managed memory, and nothing else that could fault and be served."""

    base: int = param(_ADDRESS)
    bytes: int = param(whole(1, 2**62 - 1))


@dataclass(frozen=True, slots=True)
class BlameKey:
    key: str = param(_KEY)
