"""The results about leases, the queue and clients."""

from collections.abc import Callable, Sequence

from mpsd.model import sm_steps
from mpsd.model.device import Device
from mpsd.model.lease import Grant, Lease, LeaseState, Selector, SelectorKind
from mpsd.model.stop import Step
from mpsd.wire.fields import (
    BOOLEAN,
    BYTES_BY_GPU,
    NUMBER,
    PRIORITY,
    TEXT,
    TEXTS,
    TIME,
    UUIDS,
    WHOLE,
    Field,
    Kind,
    Map,
    Result,
    array,
    choice,
    maybe,
    record,
)  # fmt: skip

# The Python client has a class of its own for the selector.
SELECTOR = Kind("map: kind, value, start_time", {"type": "object"}, "Selector")

LEASE = Result(
    "Lease", "A lease.",
    Field("id", WHOLE, "never used twice"),
    Field("owner_uid", WHOLE, "the owner"),
    Field("for_all_users", BOOLEAN,
          "an operator made it for processes of any user; otherwise it serves those of its owner alone"),
    Field("state", choice(LeaseState), "queued: it does not fit yet"),
    Field("created_at", TIME),
    Field("expires_at", maybe(TIME), "nil: when it is released; or it is queued, and its time has not begun"),
    Field("clients", WHOLE, "processes that run under it"),
    Field("name", TEXT),
    Field("selector", SELECTOR, "`value` is nil where it is a token and not yours"),
    Field("gpus", UUIDS, "empty: every GPU"),
    Field("sm_percent", NUMBER, "as asked; 0: it reserves none, and its clients have what no lease has reserved"),
    Field("sm_reserved_percent", NUMBER, "the reserved share, as the hardware gives it"),
    Field("sm_count", maybe(WHOLE), "the same as SMs of each of its GPUs; nil: they differ in it, or it is not known"),
    Field("memory_bytes", BYTES_BY_GPU),
    Field("priority", PRIORITY),
    Field("domain", TEXT, "as asked"),
    Field("group", TEXT),
    Field("processes", WHOLE),
    Field("ttl_seconds", maybe(NUMBER)),
    Field("wait_seconds", NUMBER),
    Field("level", TEXT),
)  # fmt: skip

WAITING = Result(
    "Waiting", "An entry of the queue: a lease, or a client.",
    Field("position", WHOLE, "1 is the next"),
    Field("uid", WHOLE, "the owner"),
    Field("lease_id", maybe(WHOLE), "the lease that waits, or that the client's is"),
    Field("pid", maybe(WHOLE), "nil: it is the lease itself that waits"),
    Field("start_time", maybe(WHOLE)),
    Field("reason", TEXT, "the reason for waiting"),
    Field("waited_seconds", NUMBER),
    Field("deadline", maybe(TIME), "when it is refused; nil: never"),
)  # fmt: skip

CLIENT = Result(
    "MpsClient", "A process that uses CUDA through mpsd.",
    Field("pid", WHOLE, "in mpsd's pid namespace"),
    Field("start_time", WHOLE, "field 22 of /proc/PID/stat; with the pid it is one process for ever"),
    Field("uid", maybe(WHOLE), "nil: it has ended"),
    Field("state", choice(("waiting", "starting", "running")),
          "waiting: in the queue, for a fault domain too; starting: on its way to a server; running: it has a context"),
    Field("domain", maybe(TEXT), "where it was placed"),
    Field("server_pid", maybe(WHOLE), "the vendor's server that it runs in"),
    Field("lease_id", maybe(WHOLE), "nil: without a lease"),
    Field("sm_percent", maybe(NUMBER), "the granted share; 100: no limit; nil: it waits, or was not admitted by this mpsd"),
    Field("sm_count", maybe(WHOLE),
          "the same as SMs of each of its GPUs; nil: likewise, or they differ in it, or it is not known"),
    Field("memory_bytes", maybe(BYTES_BY_GPU), "no entry: no limit"),
    Field("watched", BOOLEAN,
          "its memory faults are seen exactly: who, where, within milliseconds ([faults.md](faults.md))"),
    Field("shield", BOOLEAN, "low addresses are shielded in it: a null access does nothing"),
    Field("held", BOOLEAN, "its end waits until its work on the GPU has been ended"),
)  # fmt: skip

GRANT = Result(
    "Grant", "The resources that a client may use.",
    Field("rule", TEXT, "which rule gave it, in words"),
    Field("lease_id", maybe(WHOLE)),
    Field("gpus", UUIDS, "empty: every GPU"),
    Field("sm_percent", NUMBER),
    Field("sm_count", maybe(WHOLE)),
    Field("memory_bytes", BYTES_BY_GPU),
    Field("priority", PRIORITY),
    Field("domain_policy", TEXT),
)  # fmt: skip

PLACE = Result("Place", "A place in the queue.", Field("position", WHOLE), Field("reason", TEXT))

WHY = Result(
    "Why", "A client, its grant and the rule behind it, and its place in the queue.",
    Field("container", TEXT, "from its cgroup: a container, a job, a unit; may be empty"),
    Field("cgroups", TEXTS, "its paths, one for each hierarchy"),
    Field("grant", maybe(record(GRANT)), "nil: it was not admitted"),
    Field("queue", maybe(record(PLACE)), "nil: it does not wait"),
    extends=CLIENT,
)  # fmt: skip

TERMINATED = Result(
    "Terminated", "A client whose work on the GPU was ended.",
    Field("pid", WHOLE),
    Field("start_time", WHOLE),
    Field("server_pid", WHOLE, "where it ran"),
    Field("domain", TEXT),
)  # fmt: skip

STOPPED_PROCESS = Result(
    "StoppedProcess", "The result of stopping one process.",
    Field("pid", WHOLE),
    Field("start_time", WHOLE),
    Field("domain", maybe(TEXT), "nil: it was not a client"),
    Field("steps", TEXTS, "those done, of " + ", ".join(f"`{each}`" for each in Step)),
    Field("has_ended", BOOLEAN),
    Field("why", maybe(TEXT), "nil, or why it has not ended"),
)  # fmt: skip

STOPPED = Result(
    "Stopped", "The result of a stop.",
    Field("count", WHOLE, "processes that mpsd handled; 0: no process was found"),
    Field("others", WHOLE, "clients in it that are other users', and were not touched"),
    Field("processes", array(STOPPED_PROCESS), "at most 150, those that were left first"),
)  # fmt: skip

MOVED = Result(
    "Moved", "A client whose next start has another domain.",
    Field("pid", WHOLE),
    Field("start_time", WHOLE),
    Field("domain", TEXT),
)  # fmt: skip


def lease(of: Lease, clients: int, is_owner: bool, devices: Sequence[Device]) -> Map:
    """`is_owner`: the asker may see the token, which is the right to the lease.  devices: of the daemon."""
    spec = of.spec
    own = [device for device in devices if not spec.gpus or device.uuid in spec.gpus]
    return LEASE.of(
        of,
        spec,
        clients=clients,
        selector=selector(spec.selector, is_owner),
        sm_percent=spec.sm_percent if spec.sm_asked_percent is None else spec.sm_asked_percent,
        sm_reserved_percent=spec.sm_percent,
        sm_count=_sm_count(own, lambda each: sm_steps.reserved(spec.sm_percent, spec.processes, each)),
    )


def selector(of: Selector, is_owner: bool) -> Map:
    is_secret = of.kind is SelectorKind.TOKEN and not is_owner
    return {"kind": of.kind.value, "value": None if is_secret else of.value, "start_time": of.start_time}


def sm_count(of: Grant, devices: Sequence[Device]) -> int | None:
    """Return how many SMs a client has of each of its GPUs; None if they differ, or it is not known."""
    own = [device for device in devices if not of.gpus or device.uuid in of.gpus]
    return _sm_count(own, lambda each: sm_steps.given(of.sm_percent, each))


def _sm_count(devices: Sequence[Device], count: Callable[[Device], int]) -> int | None:
    found = {count(each) for each in devices}
    is_known = len(found) == 1 and all(each.multiprocessors for each in devices)
    return found.pop() if is_known else None


def grant(of: Grant, devices: Sequence[Device]) -> Map:
    return GRANT.of(of, sm_count=sm_count(of, devices), domain_policy=of.domain.value)
