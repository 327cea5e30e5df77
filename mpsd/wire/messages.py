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
MINOR = 0  # counts the releases that have added to it

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
    version: Annotated[int, whole(0, 2**32 - 1), "of the protocol: 1"]
    program: Annotated[str, text(0, 64), "your name in mpsd's log"] = ""


class Nothing(Struct, frozen=True):
    """The parameters of a method without parameters."""


class Page(Struct, frozen=True, kw_only=True):
    """A part of a list: the entries after `after`."""

    after: Annotated[int | None, maybe(ID), "the `next` of the page before; nil: from the beginning"] = None
    limit: Annotated[int, whole(1, MOST_PAGE), "most entries of this page"] = PAGE


class SelectorParams(Struct, frozen=True):
    kind: Annotated[SelectorKind, choice(SelectorKind), "what identifies the processes"]
    value: Annotated[str, text(1, 4096), "as the kind has it"]
    start_time: Annotated[int, _START_TIME, "of a pid: field 22 of /proc/PID/stat; 0: the process that has the pid now"] = 0


class CreateLease(Struct, frozen=True):
    """`sm_percent` and `sm_count` are two ways to give one share."""

    name: Annotated[str, _NAME, "for people; need not be unique"]
    selector: Annotated[SelectorParams, record("selector", SelectorParams), "which processes the lease is for"]
    gpus: Annotated[tuple[str, ...], _GPUS, "ordinals or UUIDs; empty: every GPU of the daemon"] = ()
    sm_percent: Annotated[
        float | None, maybe(number(LEAST_PERCENT, 100)),
        "share of the SMs of each of these GPUs, of all processes of the lease together, of which each needs at least "
        "0.0001; nil: 100, or none if `memory_bytes` is given. The hardware gives whole steps: `sm_count` of the result",
    ] = None
    sm_count: Annotated[
        int | None, maybe(whole(1, 65535)),
        "the same as a number of SMs; all GPUs of the lease must have equally many",
    ] = None
    memory_bytes: Annotated[
        Mapping[str, int] | None, maybe(table(GPU, _MEMORY, MOST_GPUS)),
        "GPU memory by ordinal or UUID, of all processes together; no entry: no limit",
    ] = None
    priority: Annotated[int, whole(0, 1), "0 normal, 1 below normal: of the GPU work, and in the queue"] = 0
    domain: Annotated[
        DomainPolicy, choice(DomainPolicy),
        "the fault domain: with all others, a separate one, one for its group, one for all leases in quarantine",
    ] = DomainPolicy.SHARED
    group: Annotated[str, label(64), "members of a group share a domain (`\"group\"`) and inherit each other's shares"] = ""
    processes: Annotated[int, whole(1, 1024), "how many processes; each gets an equal part, further ones wait"] = 1
    ttl_seconds: Annotated[float | None, maybe(_SECONDS), "how long it lasts unless renewed; nil: until it is released"] = None
    wait_seconds: Annotated[
        float, number(0, MOST_SECONDS),
        "how long it may be queued where it does not fit; 0: refused at once",
    ] = 0.0
    level: Annotated[ElasticLevel, choice(ElasticLevel), "the priority in the elastic policy"] = ElasticLevel.INTERACTIVE
    owner_uid: Annotated[
        int | None, maybe(_UID),
        "for whom it is made; another user than yourself: operators only; nil: yourself",
    ] = None
    request_key: Annotated[
        str, word(0, 64),
        "your word for this request: asked again with the same one, the lease that it made is answered, as long as that "
        "is there; BAD_REQUEST where something else is asked. Other users' keys are others. Empty: each request makes a "
        "lease",
    ] = ""


class LeaseId(Struct, frozen=True):
    id: Annotated[int, ID, "of the lease"]


class RenewLease(Struct, frozen=True):
    id: Annotated[int, ID, "of the lease"]
    ttl_seconds: Annotated[
        float | None, maybe(_SECONDS),
        "from now on; nil: as long as it was last made or renewed for. One that was made to last until it is released "
        "goes on so",
    ] = None


class ListLeases(Page, frozen=True, kw_only=True):
    state: Annotated[LeaseState | None, maybe(choice(LeaseState)), "only those; nil: all"] = None


class ClientId(Struct, frozen=True):
    """`start_time` distinguishes a process from later ones with its pid; 0: the present one."""

    pid: Annotated[int, PID, "of the client, in mpsd's pid namespace"]
    start_time: Annotated[
        int, _START_TIME,
        "field 22 of /proc/PID/stat, to be sure that it is this process and no later one; 0: whichever has the pid",
    ] = 0


class StopClient(Struct, frozen=True):
    """One of `pid`, `cgroup` and `container` is given."""

    pid: Annotated[int | None, maybe(PID), "a process, in mpsd's pid namespace"] = None
    cgroup: Annotated[
        str | None, maybe(text(1, 4096)),
        'a path, with all below it; a name in one; `"self"`: that of the process that made this connection',
    ] = None
    container: Annotated[
        str | None, maybe(text(1, 256)),
        'an id, or its first 12 characters; `"self"`: that of the process that made this connection',
    ] = None
    start_time: Annotated[int, _START_TIME, "of a pid: field 22 of /proc/PID/stat; 0: whichever has the pid"] = 0
    way: Annotated[Way, choice(Way), "how its GPU work is ended"] = Way.TERMINATE
    grace_seconds: Annotated[float, PATIENCE, "from SIGTERM to SIGKILL; 0: no SIGTERM"] = 0.0
    drain_seconds: Annotated[float, PATIENCE, "how long a frozen client's queued work may take"] = 5.0
    force: Annotated[bool, boolean(), "kill also a client whose GPU work was not ended: its co-runners may die"] = False


class MoveClient(Struct, frozen=True):
    pid: Annotated[int, PID, "of the client, in mpsd's pid namespace"]
    domain: Annotated[str, _NAME, "name of the domain"]
    start_time: Annotated[
        int, _START_TIME,
        "field 22 of /proc/PID/stat, to be sure that it is this process and no later one; 0: whichever has the pid",
    ] = 0


class CreateDomain(Struct, frozen=True):
    gpus: Annotated[tuple[str, ...], _GPUS, "ordinals or UUIDs; empty: every GPU of the daemon"] = ()


class DomainName(Struct, frozen=True):
    name: Annotated[str, _NAME, "of the domain"]


class SetLimits(Struct, frozen=True):
    """nil keeps a value; a memory limit of 0 removes it."""

    default_active_thread_percentage: Annotated[float | None, maybe(_PERCENT), "share of the SMs; nil: as it is"] = None
    default_device_pinned_mem_limit: Annotated[
        Mapping[str, int] | None, maybe(_LIMIT_BY_GPU),
        "GPU memory of each client by ordinal or UUID, whole MiB, rounded down; 0: no limit; GPUs that are not named stay"
        " as they are",
    ] = None
    default_client_priority: Annotated[int | None, maybe(whole(0, 1)), "0 normal, 1 below normal; nil: as it is"] = None


class Subscribe(Struct, frozen=True):
    topics: Annotated[tuple[str, ...], array(text(1, 64), 32), "topics, families (`lease.*`), or everything (`*`)"]


class ListIncidents(Page, frozen=True, kw_only=True):
    """`mine`: those that name a process of the caller."""

    domain: Annotated[str | None, maybe(_NAME), "only faults of this domain"] = None
    fault_class: Annotated[FaultClass | None, maybe(choice(FaultClass)), "only faults of this class"] = None
    since: Annotated[float | None, maybe(number(0, MOST_MOMENT)), "a time: only faults that began then or later"] = None
    culprit_uid: Annotated[
        int | None, maybe(_UID),
        "only faults that this user's processes did; another user's: for operators",
    ] = None
    mine: Annotated[bool, boolean(), "only faults in which a process of yours is a party"] = False
    newest_first: Annotated[bool, boolean(), "by number, the largest first; `after` then means those before it"] = False


class IncidentNumber(Struct, frozen=True):
    number: Annotated[int, ID, "of the fault"]


class ReportError(Struct, frozen=True):
    """A client's own first CUDA error."""

    code: Annotated[int, whole(1, 2**31 - 1), "CUresult, as 700"]
    name: Annotated[str, text(0, 64), "CUDA_ERROR_..."] = ""
    kernel: Annotated[str, _TEXT, "the kernel that ran, if known"] = ""
    pc: Annotated[int | None, maybe(_ADDRESS), "where in its code"] = None
    address: Annotated[int | None, maybe(_ADDRESS), "of the access"] = None
    text: Annotated[str, _TEXT, "for people"] = ""


class GuardRange(Struct, frozen=True):
    """Addresses in which a client has guards of managed memory, and nothing else that could fault and be served."""

    base: Annotated[int, _ADDRESS, "the first address"]
    bytes: Annotated[int, whole(1, 2**62 - 1), "how many"]


class BlameKey(Struct, frozen=True):
    key: Annotated[str, _KEY, "as in `blame.list`"]
