"""The results about mpsd itself: its status, GPUs, domains, limits, events."""

from mpsd.model import sm_steps
from mpsd.model.device import ComputeMode, Device
from mpsd.model.domain import Defaults, DomainView, ServerView
from mpsd.wire.fields import (
    BOOLEAN,
    BYTES_BY_GPU,
    FACTS,
    NUMBER,
    PRIORITY,
    TEXT,
    TEXTS,
    TIME,
    UUIDS,
    WHOLE,
    WHOLES,
    Field,
    Kind,
    Map,
    Result,
    array,
    choice,
    maybe,
    record,
)  # fmt: skip

HELLO = Result(
    "Hello", "mpsd's greeting: its view of this process, and its protocol version, limits and methods.",
    Field("version", WHOLE, "1"),
    Field("minor", WHOLE, "0; counts the releases that have added to it"),
    Field("program", TEXT, "mpsd and its version"),
    Field("uid", WHOLE, "your uid as mpsd sees it"),
    Field("pid", WHOLE, "your pid as mpsd sees it; 0: mpsd's pid namespace does not have you"),
    Field("is_operator", BOOLEAN),
    Field("idle_seconds", NUMBER, "how long you may be silent, unless you wait for events"),
    Field("datagram_bytes", WHOLE, "the largest datagram, either way"),
    Field("page", WHOLE, "the largest `limit` of a list"),
    Field("methods", TEXTS, "the methods of this mpsd"),
)  # fmt: skip

_STATE = choice(("running", "stopping"))
_NUMBER_BY_STATE = Kind("map from state to number", {"type": "object"}, "Mapping[str, int]")
KEEPER = Result(
    "Keeper", "The processes that hold the arenas' memory.",
    Field("state", TEXT, '"works", or why not all do'),
    Field("pid", maybe(WHOLE), "of the first one"),
    Field("pids", WHOLES),
    Field("descriptors", WHOLE, "how many they hold"),
)  # fmt: skip
STATUS = Result(
    "Status", "mpsd's status.",
    Field("version", TEXT, "of mpsd"),
    Field("pid", WHOLE, "of mpsd"),
    Field("uid", WHOLE, "that mpsd runs as"),
    Field("state", _STATE),
    Field("started_at", TIME),
    Field("uptime_seconds", NUMBER),
    Field("ends_at", maybe(TIME), "mpsd is stopping, and ends the work of clients that are still there then; nil: it waits for "
          "them, or is not stopping"),
    Field("devices", WHOLE),
    Field("domains", _NUMBER_BY_STATE, "how many domains are in each state"),
    Field("clients", WHOLE, "places taken in all domains"),
    Field("leases_active", WHOLE),
    Field("leases_queued", WHOLE),
    Field("queue", WHOLE, "leases and clients that wait"),
    Field("arenas", WHOLE),
    Field("keeper", maybe(record(KEEPER)), "of the processes that hold the arenas' memory"),
    Field("services", WHOLE),
    Field("services_unserved", WHOLE, "those with members and without an active one"),
    Field("connections", WHOLE, "to this socket"),
    Field("subscribers", WHOLE, "connections that wait for events"),
    Field("events_lost", WHOLE, "events that slow subscribers did not get, since the start"),
    Field("audit_lines_lost", WHOLE, "audit lines that could not be written, since the start"),
    Field("facts", FACTS, "other facts, such as `backend`, or `exposed_domains`, to which every user can connect past mpsd; "
          "for people, not for programs"),
)  # fmt: skip

HEALTH = Result(
    "Health", "Whether mpsd would serve a client that comes now.",
    Field("ok", BOOLEAN, "a client that comes now would be served"),
    Field("state", _STATE),
    Field("uptime_seconds", NUMBER),
    Field("problems", TEXTS, "why not; and what ails present clients and arenas, which leaves `ok` true"),
)  # fmt: skip

DEVICE = Result(
    "Device", "A GPU of the daemon.",
    Field("ordinal", WHOLE, "in the daemon's order"),
    Field("uuid", TEXT),
    Field("name", TEXT),
    Field("total_bytes", WHOLE),
    Field("pci_bus_id", TEXT),
    Field("compute_mode", choice(ComputeMode)),
    Field("sm_count", maybe(WHOLE), "nil: not known"),
    Field("sm_least", WHOLE, 'no client has fewer SMs than these ([leases.md](leases.md), "SMs come in steps")'),
    Field("sm_step", WHOLE, "of more, it has whole multiples of this"),
)  # fmt: skip

SERVER = Result(
    "Server", "A server of the vendor's.",
    Field("pid", WHOLE),
    Field("uid", WHOLE),
    Field("status", TEXT, "`INITIALIZING`, `ACTIVE` or `FAULT`"),
    Field("clients", WHOLE, "how many"),
)  # fmt: skip
DOMAIN = Result(
    "Domain", "A fault domain.",
    Field("name", TEXT),
    Field("number", WHOLE, "order of creation"),
    Field("state", TEXT, '"starting", "ready", "fault", "silent", "contained", "recycling", "draining", "stopping", "dead": '
          "[domains.md](domains.md)"),
    Field("gpus", UUIDS, "those it was started with"),
    Field("uid", maybe(WHOLE), "the user it serves; nil: no user now"),
    Field("clients", WHOLE, "places taken: contexts, and clients on their way"),
    Field("capacity", WHOLE, "places"),
    Field("is_spare", BOOLEAN, "it has not served a client yet"),
    Field("servers", array(SERVER), "the vendor's servers in it"),
    Field("ends_at", maybe(TIME), "when mpsd ends the clients that are left in a contained domain; nil: never"),
    Field("trouble", TEXT, "why it takes no client, as far as that is known; may be empty"),
)  # fmt: skip
DRAINED = Result("Drained", "A domain that is being emptied.",
                 Field("name", TEXT), Field("clients", WHOLE, "places still taken"))  # fmt: skip
RECYCLED = Result("Recycled", "A domain whose servers are being replaced.", Field("name", TEXT))

LIMITS = Result(
    "Limits", "The limits of clients without a lease.",
    Field("default_active_thread_percentage", NUMBER, "share of the SMs"),
    Field("default_device_pinned_mem_limit", BYTES_BY_GPU, "no entry: no limit"),
    Field("default_client_priority", PRIORITY, "0 normal, 1 below normal"),
)  # fmt: skip

SUBSCRIBED = Result(
    "", "A subscription.",
    Field("topics", TEXTS, "the subscribed topics"),
    Field("queue", WHOLE, "how many events may wait for you before some are lost"),
)  # fmt: skip
UNSUBSCRIBED = Result("", "An ended subscription.",
                      Field("lost", WHOLE, "how many events the subscription has lost"))  # fmt: skip


def device(of: Device) -> Map:
    steps = sm_steps.steps_of(of)
    return DEVICE.of(of, sm_count=of.multiprocessors or None, sm_least=steps.least, sm_step=steps.step)


def domain(of: DomainView, servers: list[ServerView]) -> Map:
    return DOMAIN.of(of, gpus=sorted(of.gpus), is_spare=not of.is_public, servers=[server(each) for each in servers])


def server(of: ServerView) -> Map:
    return SERVER.of(of, clients=len(of.client_pids))


def limits(of: Defaults) -> Map:
    return {
        "default_active_thread_percentage": of.thread_percent,
        "default_device_pinned_mem_limit": dict(of.pinned_limits),
        "default_client_priority": of.client_priority,
    }
