"""The parameters of every method, each a frozen value once it has been checked.

arena_messages.py has those of arenas.  api/method_table.py assigns them to methods; docs/protocol.md, "Methods", explains them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Struct

from mpsd.model.fault import TEXT_CHARACTERS, FaultClass
from mpsd.model.lease import LEAST_PERCENT, DomainPolicy, LeaseState, SelectorKind
from mpsd.model.stop import Way
from mpsd.wire.params import array, boolean, choice, label, maybe, number, record, table, text, whole, word

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
_TEXT = text(0, TEXT_CHARACTERS)
_LIMIT_BY_GPU = table(GPU, whole(0, 2**62 - 1), MOST_GPUS)


class ElasticLevel(StrEnum):
    """The levels of the elastic policy."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Hello(Struct, frozen=True):
    version: Annotated[int, whole(0, 2**32 - 1)]
    program: Annotated[str, text(0, 64)] = ""


class Nothing(Struct, frozen=True):
    """The parameters of a method without parameters."""


class Page(Struct, frozen=True, kw_only=True):
    """A part of a list: the entries after `after`."""

    after: Annotated[int | None, maybe(ID)] = None
    limit: Annotated[int, whole(1, MOST_PAGE)] = PAGE


class SelectorParams(Struct, frozen=True):
    kind: Annotated[SelectorKind, choice(SelectorKind)]
    value: Annotated[str, text(1, 4096)]
    start_time: Annotated[int, _START_TIME] = 0


class CreateLease(Struct, frozen=True):
    """`sm_percent` and `sm_count` are two ways to give one share."""

    name: Annotated[str, _NAME]
    selector: Annotated[SelectorParams, record("selector", SelectorParams)]
    gpus: Annotated[tuple[str, ...], _GPUS] = ()
    sm_percent: Annotated[float | None, maybe(number(LEAST_PERCENT, 100))] = None
    sm_count: Annotated[int | None, maybe(whole(1, 65535))] = None
    memory_bytes: Annotated[Mapping[str, int] | None, maybe(table(GPU, _MEMORY, MOST_GPUS))] = None
    priority: Annotated[int, whole(0, 1)] = 0
    domain: Annotated[DomainPolicy, choice(DomainPolicy)] = DomainPolicy.SHARED
    group: Annotated[str, label(64)] = ""
    processes: Annotated[int, whole(1, 1024)] = 1
    ttl_seconds: Annotated[float | None, maybe(_SECONDS)] = None
    wait_seconds: Annotated[float, number(0, MOST_SECONDS)] = 0.0
    level: Annotated[ElasticLevel, choice(ElasticLevel)] = ElasticLevel.INTERACTIVE
    owner_uid: Annotated[int | None, maybe(_UID)] = None
    request_key: Annotated[str, word(0, 64)] = ""


class LeaseId(Struct, frozen=True):
    id: Annotated[int, ID]


class RenewLease(Struct, frozen=True):
    id: Annotated[int, ID]
    ttl_seconds: Annotated[float | None, maybe(_SECONDS)] = None


class ListLeases(Page, frozen=True, kw_only=True):
    state: Annotated[LeaseState | None, maybe(choice(LeaseState))] = None


class ClientId(Struct, frozen=True):
    """`start_time` distinguishes a process from later ones with its pid; 0: the present one."""

    pid: Annotated[int, PID]
    start_time: Annotated[int, _START_TIME] = 0


class StopClient(Struct, frozen=True):
    """One of `pid`, `cgroup` and `container` is given."""

    pid: Annotated[int | None, maybe(PID)] = None
    cgroup: Annotated[str | None, maybe(text(1, 4096))] = None
    container: Annotated[str | None, maybe(text(1, 256))] = None
    start_time: Annotated[int, _START_TIME] = 0
    way: Annotated[Way, choice(Way)] = Way.TERMINATE
    grace_seconds: Annotated[float, PATIENCE] = 0.0
    drain_seconds: Annotated[float, PATIENCE] = 5.0
    force: Annotated[bool, boolean()] = False


class MoveClient(Struct, frozen=True):
    pid: Annotated[int, PID]
    domain: Annotated[str, _NAME]
    start_time: Annotated[int, _START_TIME] = 0


class CreateDomain(Struct, frozen=True):
    gpus: Annotated[tuple[str, ...], _GPUS] = ()


class DomainName(Struct, frozen=True):
    name: Annotated[str, _NAME]


class SetLimits(Struct, frozen=True):
    """nil keeps a value; a memory limit of 0 removes it."""

    default_active_thread_percentage: Annotated[float | None, maybe(_PERCENT)] = None
    default_device_pinned_mem_limit: Annotated[Mapping[str, int] | None, maybe(_LIMIT_BY_GPU)] = None
    default_client_priority: Annotated[int | None, maybe(whole(0, 1))] = None


class Subscribe(Struct, frozen=True):
    topics: Annotated[tuple[str, ...], array(text(1, 64), 32)]


class ListIncidents(Page, frozen=True, kw_only=True):
    """`mine`: those that name a process of the caller."""

    domain: Annotated[str | None, maybe(_NAME)] = None
    fault_class: Annotated[FaultClass | None, maybe(choice(FaultClass))] = None
    since: Annotated[float | None, maybe(number(0, MOST_MOMENT))] = None
    culprit_uid: Annotated[int | None, maybe(_UID)] = None
    mine: Annotated[bool, boolean()] = False
    newest_first: Annotated[bool, boolean()] = False


class IncidentNumber(Struct, frozen=True):
    number: Annotated[int, ID]


class ReportError(Struct, frozen=True):
    """A client's own first CUDA error."""

    code: Annotated[int, whole(1, 2**31 - 1)]
    name: Annotated[str, text(0, 64)] = ""
    kernel: Annotated[str, _TEXT] = ""
    pc: Annotated[int | None, maybe(_ADDRESS)] = None
    address: Annotated[int | None, maybe(_ADDRESS)] = None
    text: Annotated[str, _TEXT] = ""


class GuardRange(Struct, frozen=True):
    """Addresses in which a client has guards of managed memory, and nothing else that could fault and be served."""

    base: Annotated[int, _ADDRESS]
    bytes: Annotated[int, whole(1, 2**62 - 1)]


class BlameKey(Struct, frozen=True):
    key: Annotated[str, _KEY]
