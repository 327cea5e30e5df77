"""The calls to mpsd: each function here makes one, and `Client.ask` or `AsyncClient.ask` sends it.

    lease = mpsd.ask(calls.lease_create("training", Selector.of_self(), sm_percent=30))

Permissions, units and errors: mpsd's docs/protocol.md, which has a chapter for each method.
"""

from collections.abc import Mapping, Sequence

from mpsd_client import _values as values
from mpsd_client._call import Call as Call
from mpsd_client._call import after as after
from mpsd_client._call import make_call as _call
from mpsd_client._call import make_page as _page
from mpsd_client._service_calls import arena_keep_state as arena_keep_state
from mpsd_client._service_calls import arena_state as arena_state
from mpsd_client._service_calls import service_change as service_change
from mpsd_client._service_calls import service_enlist as service_enlist
from mpsd_client._service_calls import service_failed as service_failed
from mpsd_client._service_calls import service_follow as service_follow
from mpsd_client._service_calls import service_get as service_get
from mpsd_client._service_calls import service_handover as service_handover
from mpsd_client._service_calls import service_join as service_join
from mpsd_client._service_calls import service_leave as service_leave
from mpsd_client._service_calls import service_list as service_list
from mpsd_client._service_calls import service_ready as service_ready
from mpsd_client._service_calls import service_serving as service_serving
from mpsd_client._service_calls import service_yielded as service_yielded
from mpsd_client._values import Page, Selector
from mpsd_client._vault_calls import arena_change as arena_change
from mpsd_client._vault_calls import arena_close as arena_close
from mpsd_client._vault_calls import arena_commit as arena_commit
from mpsd_client._vault_calls import arena_create as arena_create
from mpsd_client._vault_calls import arena_drop as arena_drop
from mpsd_client._vault_calls import arena_get as arena_get
from mpsd_client._vault_calls import arena_layout as arena_layout
from mpsd_client._vault_calls import arena_list as arena_list
from mpsd_client._vault_calls import arena_make_room as arena_make_room
from mpsd_client._vault_calls import arena_open as arena_open
from mpsd_client._vault_calls import arena_put as arena_put
from mpsd_client._vault_calls import arena_remove as arena_remove
from mpsd_client._vault_calls import arena_seal as arena_seal
from mpsd_client._vault_calls import arena_take as arena_take

# -- the daemon ----------------------------------------------------------------------------------------------------------


def status() -> Call[values.Status]:
    return _call("status", values.Status)


def health() -> Call[values.Health]:
    return _call("health", values.Health)


def device_list(limit: int | None = None) -> Call[Page[values.Device]]:
    return _page("device.list", values.Device, limit=limit)


# -- leases --------------------------------------------------------------------------------------------------------------


def lease_create(
    name: str,
    selector: Selector,
    *,
    gpus: Sequence[str] = (),
    sm_percent: float | None = None,
    sm_count: int | None = None,
    memory_bytes: Mapping[str, int] | None = None,
    priority: int = 0,
    domain: str = "shared",
    group: str = "",
    processes: int = 1,
    ttl_seconds: float | None = None,
    wait_seconds: float = 0.0,
    level: str = "interactive",
    owner_uid: int | None = None,
    request_key: str = "",
) -> Call[values.Lease]:
    """Create a lease.  gpus and the keys of memory_bytes: ordinals or UUIDs.  ttl_seconds: None: until it is released.
    wait_seconds: how long mpsd may queue the lease if it does not fit.  request_key: a repeated call with the same key creates
    no second lease (minor 4)."""
    who = {"kind": selector.kind, "value": selector.value, "start_time": selector.start_time}
    return _call(
        "lease.create", values.Lease, name=name, selector=who, gpus=list(gpus), sm_percent=sm_percent, sm_count=sm_count,
        memory_bytes=None if memory_bytes is None else dict(memory_bytes), priority=priority, domain=domain, group=group,
        processes=processes, ttl_seconds=ttl_seconds, wait_seconds=wait_seconds, level=level, owner_uid=owner_uid,
        **({"request_key": request_key} if request_key else {}),
    )  # fmt: skip


def lease_renew(lease_id: int, ttl_seconds: float | None = None) -> Call[values.Lease]:
    """Renew a lease.  ttl_seconds: None: the duration of its creation or last renewal again."""
    return _call("lease.renew", values.Lease, id=lease_id, ttl_seconds=ttl_seconds)


def lease_release(lease_id: int) -> Call[values.Lease]:
    return _call("lease.release", values.Lease, id=lease_id)


def lease_get(lease_id: int) -> Call[values.Lease]:
    return _call("lease.get", values.Lease, id=lease_id)


def lease_list(state: str | None = None, limit: int | None = None) -> Call[Page[values.Lease]]:
    return _page("lease.list", values.Lease, state=state, limit=limit)


def queue_list(limit: int | None = None) -> Call[Page[values.Waiting]]:
    return _page("queue.list", values.Waiting, limit=limit)


# -- clients -------------------------------------------------------------------------------------------------------------


def client_list(limit: int | None = None) -> Call[Page[values.MpsClient]]:
    return _page("client.list", values.MpsClient, limit=limit)


def client_why(pid: int, start_time: int = 0) -> Call[values.Why]:
    return _call("client.why", values.Why, pid=pid, start_time=start_time)


def client_terminate(pid: int, start_time: int = 0) -> Call[values.Terminated]:
    return _call("client.terminate", values.Terminated, pid=pid, start_time=start_time)


def client_stop(
    pid: int | None = None,
    *,
    cgroup: str | None = None,
    container: str | None = None,
    start_time: int = 0,
    way: str = "terminate",
    grace_seconds: float = 0.0,
    drain_seconds: float = 5.0,
    force: bool = False,
) -> Call[values.Stopped]:
    """Stop client processes.  Give one of pid, cgroup and container; the latter two may be "self".  The call takes up to grace
    plus drain plus some seconds: set the client's `timeout_seconds` to more than that."""
    return _call(
        "client.stop", values.Stopped, pid=pid, cgroup=cgroup, container=container, start_time=start_time, way=way,
        grace_seconds=grace_seconds, drain_seconds=drain_seconds, force=force,
    )  # fmt: skip


def client_move(pid: int, domain: str, start_time: int = 0) -> Call[values.Moved]:
    return _call("client.move", values.Moved, pid=pid, domain=domain, start_time=start_time)


# -- domains -------------------------------------------------------------------------------------------------------------


def domain_list(limit: int | None = None) -> Call[Page[values.Domain]]:
    return _page("domain.list", values.Domain, limit=limit)


def domain_create(gpus: Sequence[str] = ()) -> Call[values.Domain]:
    return _call("domain.create", values.Domain, gpus=list(gpus))


def domain_drain(name: str) -> Call[values.Drained]:
    return _call("domain.drain", values.Drained, name=name)


def domain_recycle(name: str) -> Call[values.Recycled]:
    return _call("domain.recycle", values.Recycled, name=name)


# -- limits, faults, blame ---------------------------------------------------------------------------------------------------


def limits_get() -> Call[values.Limits]:
    return _call("limits.get", values.Limits)


def limits_set(
    *,
    default_active_thread_percentage: float | None = None,
    default_device_pinned_mem_limit: Mapping[str, int] | None = None,
    default_client_priority: int | None = None,
) -> Call[values.Limits]:
    """Change the limits that are not None; a memory limit of 0 removes the limit."""
    limits = default_device_pinned_mem_limit
    return _call(
        "limits.set",
        values.Limits,
        default_active_thread_percentage=default_active_thread_percentage,
        default_device_pinned_mem_limit=None if limits is None else dict(limits),
        default_client_priority=default_client_priority,
    )


def faults_list(after_id: int | None = None, limit: int | None = None) -> Call[Page[values.Fault]]:
    """List events about faults; `fault_list` lists the faults.  after_id: only later events, for polling."""
    return _page("faults.list", values.Fault, after=after_id, limit=limit)


def fault_list(
    after_number: int | None = None,
    *,
    domain: str | None = None,
    fault_class: str | None = None,
    since: float | None = None,
    culprit_uid: int | None = None,
    mine: bool = False,
    newest_first: bool = False,
    limit: int | None = None,
) -> Call[Page[values.Incident]]:
    """List faults.  since: seconds since the epoch.  mine: only faults with a process of this user as a party."""
    return _page(
        "fault.list", values.Incident, after=after_number, domain=domain, fault_class=fault_class, since=since,
        culprit_uid=culprit_uid, mine=mine or None, newest_first=newest_first or None, limit=limit,
    )  # fmt: skip


def fault_get(number: int) -> Call[values.IncidentReport]:
    return _call("fault.get", values.IncidentReport, number=number)


def fault_report(
    code: int, name: str = "", *, kernel: str = "", pc: int | None = None, address: int | None = None, text: str = ""
) -> Call[values.Reported]:
    """Report the first CUDA error of this process.  mpsd refuses texts that are too long."""
    return _call("fault.report", values.Reported, code=code, name=name, kernel=kernel, pc=pc, address=address, text=text)


def fault_guards(base: int, length: int) -> Call[values.Guarded]:
    """Register a guarded address range of this process: mpsd treats accesses to it that the driver serves as accesses to
    guards."""
    return _call("fault.guards", values.Guarded, base=base, bytes=length)


def blame_list(limit: int | None = None) -> Call[Page[values.Standing]]:
    return _page("blame.list", values.Standing, limit=limit)


def blame_pardon(key: str) -> Call[values.Standing]:
    return _call("blame.pardon", values.Standing, key=key)
