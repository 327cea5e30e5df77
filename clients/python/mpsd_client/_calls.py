"""The calls to mpsd: each function here makes one, and `Client.ask` or `AsyncClient.ask` sends it.

    lease = mpsd.ask(calls.lease_create("training", Selector.of_self(), sm_percent=30))

Permissions, units and errors: mpsd's docs/protocol.md, which has a chapter for each method.  mpsd uses its default for a
parameter that is None.  For a call that waits, set the client's `timeout_seconds` to more than the wait.  `make docs` makes
this module.
"""

from collections.abc import Mapping, Sequence

from mpsd_client import _values as values
from mpsd_client._call import Call as Call
from mpsd_client._call import after as after
from mpsd_client._call import make_call as _call
from mpsd_client._call import make_page as _page
from mpsd_client._call import make_report as _report
from mpsd_client._descriptor_calls import arena_commit as arena_commit
from mpsd_client._descriptor_calls import arena_keep_state as arena_keep_state
from mpsd_client._descriptor_calls import arena_layout as arena_layout
from mpsd_client._descriptor_calls import arena_open as arena_open
from mpsd_client._descriptor_calls import arena_put as arena_put
from mpsd_client._descriptor_calls import arena_state as arena_state
from mpsd_client._descriptor_calls import arena_take as arena_take
from mpsd_client._values import Page, Selector


def status() -> Call[values.Status]:
    """Version, uptime and totals of mpsd."""
    return _call("status", values.Status)


def health() -> Call[values.Health]:
    """Whether a client that comes would be served."""
    return _call("health", values.Health)


def device_list(limit: int | None = None) -> Call[Page[values.Device]]:
    """The GPUs of the daemon."""
    return _page("device.list", values.Device, limit=limit)


def lease_create(
    name: str, selector: Selector, gpus: Sequence[str] = (), *, sm_percent: float | None = None,
    sm_count: int | None = None, memory_bytes: Mapping[str, int] | None = None, priority: int = 0,
    domain: str = "shared", group: str = "", processes: int = 1, ttl_seconds: float | None = None,
    wait_seconds: float = 0.0, level: str = "interactive", owner_uid: int | None = None, request_key: str = "",
) -> Call[values.Lease]:
    """Make a lease. name: for people; need not be unique. selector: which processes the lease is for. gpus: ordinals or
    UUIDs; empty: every GPU of the daemon. sm_percent: share of the SMs of each of these GPUs, of all processes of the
    lease together, of which each needs at least 0.0001; None: 100, or none if `memory_bytes` is given. The hardware gives
    whole steps: `sm_count` of the result. sm_count: the same as a number of SMs; all GPUs of the lease must have equally
    many. memory_bytes: GPU memory by ordinal or UUID, of all processes together; no entry: no limit. priority: 0 normal,
    1 below normal: of the GPU work, and in the queue. domain: the fault domain: with all others, a separate one, one for
    its group, one for all leases in quarantine. group: members of a group share a domain (`"group"`) and inherit each
    other's shares. processes: how many processes; each gets an equal part, further ones wait. ttl_seconds: how long it
    lasts unless renewed; None: until it is released. wait_seconds: how long it may be queued where it does not fit; 0:
    refused at once. level: the priority in the elastic policy. owner_uid: for whom it is made; another user than
    yourself: operators only; None: yourself. request_key: your word for this request: asked again with the same one, the
    lease that it made is answered, as long as that is there; BAD_REQUEST where something else is asked. Other users' keys
    are others. Empty: each request makes a lease."""
    return _call(
        "lease.create", values.Lease, name=name, selector=selector, gpus=gpus, sm_percent=sm_percent, sm_count=sm_count,
        memory_bytes=memory_bytes, priority=priority, domain=domain, group=group, processes=processes,
        ttl_seconds=ttl_seconds, wait_seconds=wait_seconds, level=level, owner_uid=owner_uid, request_key=request_key,
    )


def lease_renew(lease_id: int, ttl_seconds: float | None = None) -> Call[values.Lease]:
    """Let a lease last longer. ttl_seconds: from now on; None: as long as it was last made or renewed for. One that was made
    to last until it is released goes on so."""
    return _call("lease.renew", values.Lease, id=lease_id, ttl_seconds=ttl_seconds)


def lease_release(lease_id: int) -> Call[values.Lease]:
    """Give a lease back."""
    return _call("lease.release", values.Lease, id=lease_id)


def lease_get(lease_id: int) -> Call[values.Lease]:
    """One lease."""
    return _call("lease.get", values.Lease, id=lease_id)


def lease_list(state: str | None = None, limit: int | None = None) -> Call[Page[values.Lease]]:
    """Leases, by id. state: only those; None: all."""
    return _page("lease.list", values.Lease, state=state, limit=limit)


def queue_list(limit: int | None = None) -> Call[Page[values.Waiting]]:
    """Leases and clients that wait, by their position."""
    return _page("queue.list", values.Waiting, limit=limit)


def client_list(limit: int | None = None) -> Call[Page[values.MpsClient]]:
    """Clients, by pid."""
    return _page("client.list", values.MpsClient, limit=limit)


def client_why(pid: int, start_time: int = 0) -> Call[values.Why]:
    """The rule behind a client's grant, and why it waits. pid: of the client, in mpsd's pid namespace. start_time: field 22
    of /proc/PID/stat, to be sure that it is this process and no later one; 0: whichever has the pid."""
    return _call("client.why", values.Why, pid=pid, start_time=start_time)


def client_terminate(pid: int, start_time: int = 0) -> Call[values.Terminated]:
    """End the outstanding GPU work of a client. pid: of the client, in mpsd's pid namespace. start_time: field 22 of
    /proc/PID/stat, to be sure that it is this process and no later one; 0: whichever has the pid."""
    return _call("client.terminate", values.Terminated, pid=pid, start_time=start_time)


def client_stop(
    pid: int | None = None, *, cgroup: str | None = None, container: str | None = None, start_time: int = 0,
    way: str = "terminate", grace_seconds: float = 0.0, drain_seconds: float = 5.0, force: bool = False,
) -> Call[values.Stopped]:
    """End client processes, their GPU work first. pid: a process, in mpsd's pid namespace. cgroup: a path, with all below
    it; a name in one; `"self"`: that of the process that made this connection. container: an id, or its first 12
    characters; `"self"`: that of the process that made this connection. start_time: of a pid: field 22 of /proc/PID/stat;
    0: whichever has the pid. way: how its GPU work is ended. grace_seconds: from SIGTERM to SIGKILL; 0: no SIGTERM.
    drain_seconds: how long a frozen client's queued work may take. force: kill also a client whose GPU work was not
    ended: its co-runners may die."""
    return _call(
        "client.stop", values.Stopped, pid=pid, cgroup=cgroup, container=container, start_time=start_time, way=way,
        grace_seconds=grace_seconds, drain_seconds=drain_seconds, force=force,
    )


def client_move(pid: int, domain: str, start_time: int = 0) -> Call[values.Moved]:
    """Choose the domain of a client's next start. pid: of the client, in mpsd's pid namespace. domain: name of the domain.
    start_time: field 22 of /proc/PID/stat, to be sure that it is this process and no later one; 0: whichever has the pid."""
    return _call("client.move", values.Moved, pid=pid, domain=domain, start_time=start_time)


def domain_list(limit: int | None = None) -> Call[Page[values.Domain]]:
    """Fault domains, by number."""
    return _page("domain.list", values.Domain, limit=limit)


def domain_create(gpus: Sequence[str] = ()) -> Call[values.Domain]:
    """Begin a fault domain. gpus: ordinals or UUIDs; empty: every GPU of the daemon."""
    return _call("domain.create", values.Domain, gpus=gpus)


def domain_drain(name: str) -> Call[values.Drained]:
    """Close a domain to clients, and end it when empty. name: of the domain."""
    return _call("domain.drain", values.Drained, name=name)


def domain_recycle(name: str) -> Call[values.Recycled]:
    """Replace the servers of an empty domain. name: of the domain."""
    return _call("domain.recycle", values.Recycled, name=name)


def limits_get() -> Call[values.Limits]:
    """The limits of clients without a lease."""
    return _call("limits.get", values.Limits)


def limits_set(
    default_active_thread_percentage: float | None = None,
    default_device_pinned_mem_limit: Mapping[str, int] | None = None, default_client_priority: int | None = None,
) -> Call[values.Limits]:
    """Set the limits of clients without a lease. default_active_thread_percentage: share of the SMs; None: as it is.
    default_device_pinned_mem_limit: GPU memory of each client by ordinal or UUID, whole MiB, rounded down; 0: no limit;
    GPUs that are not named stay as they are. default_client_priority: 0 normal, 1 below normal; None: as it is."""
    return _call(
        "limits.set", values.Limits, default_active_thread_percentage=default_active_thread_percentage,
        default_device_pinned_mem_limit=default_device_pinned_mem_limit, default_client_priority=default_client_priority,
    )


def fault_list(
    after_number: int | None = None, *, domain: str | None = None, fault_class: str | None = None,
    since: float | None = None, culprit_uid: int | None = None, mine: bool = False, newest_first: bool = False,
    limit: int | None = None,
) -> Call[Page[values.Incident]]:
    """Faults, each put together from its events. after_number: the `next` of the page before; None: from the beginning.
    domain: only faults of this domain. fault_class: only faults of this class. since: a time: only faults that began then
    or later. culprit_uid: only faults that this user's processes did; another user's: for operators. mine: only faults in
    which a process of yours is a party. newest_first: by number, the largest first; `after` then means those before it."""
    return _page(
        "fault.list", values.Incident, after=after_number, domain=domain, fault_class=fault_class, since=since,
        culprit_uid=culprit_uid, mine=mine, newest_first=newest_first, limit=limit,
    )


def fault_get(number: int) -> Call[values.IncidentReport]:
    """Everything that is known of one fault. number: of the fault."""
    return _call("fault.get", values.IncidentReport, number=number)


def fault_report(
    code: int, name: str = "", *, kernel: str = "", pc: int | None = None, address: int | None = None, text: str = "",
) -> Call[values.Reported]:
    """Report the caller's first CUDA error. code: CUresult, as 700. name: CUDA_ERROR_.... kernel: the kernel that ran, if
    known. pc: where in its code. address: of the access. text: for people."""
    return _call("fault.report", values.Reported, code=code, name=name, kernel=kernel, pc=pc, address=address, text=text)


def fault_guards(base: int, length: int) -> Call[values.Guarded]:
    """Report the addresses of the caller's guards. base: the first address. length: how many."""
    return _call("fault.guards", values.Guarded, base=base, bytes=length)


def blame_list(limit: int | None = None) -> Call[Page[values.Standing]]:
    """List quarantined, suspected and paused clients."""
    return _page("blame.list", values.Standing, limit=limit)


def blame_pardon(key: str) -> Call[values.Standing]:
    """End quarantine and suspicion of a key. key: as in `blame.list`."""
    return _call("blame.pardon", values.Standing, key=key)


def arena_create(
    name: str, gpu: str, capacity_bytes: int, window_bytes: int | None = None, *, mode: int = 0o600,
    ttl_seconds: float | None = None,
) -> Call[values.Arena]:
    """Make an empty arena. name: never two at once; programs know it by this. gpu: ordinal or UUID. capacity_bytes: how much
    it may hold, rounded up to 2 MiB; no more than its GPU has. window_bytes: how many addresses, rounded up to 1 GiB, and
    no fewer than the capacity; None: twice the capacity, to leave room between allocations. mode: as of a file, 0o600:
    read is adopting, write (with read) is writing; for your user, your group, others. ttl_seconds: how long it stays
    while no process holds it; None: until it is removed."""
    return _call(
        "arena.create", values.Arena, name=name, gpu=gpu, capacity_bytes=capacity_bytes, window_bytes=window_bytes,
        mode=mode, ttl_seconds=ttl_seconds,
    )


def arena_get(name: str) -> Call[values.Arena]:
    """One arena. name: of the arena."""
    return _call("arena.get", values.Arena, name=name)


def arena_list(limit: int | None = None) -> Call[Page[values.Arena]]:
    """Arenas, by id."""
    return _page("arena.list", values.Arena, limit=limit)


def arena_drop(arena_id: int, generation: int, offsets: Sequence[int]) -> Call[values.ArenaUse]:
    """Take memory out of an arena. generation: yours. offsets: of allocations."""
    return _call("arena.drop", values.ArenaUse, id=arena_id, generation=generation, offsets=offsets)


def arena_close(arena_id: int, openings: int | None = None) -> Call[values.Arena]:
    """Hold an arena no longer. openings: nothing is done unless you have opened it so often: for who opened it, could not
    map it, and is not to take it from another part of the process."""
    return _call("arena.close", values.Arena, id=arena_id, openings=openings)


def arena_seal(arena_id: int, generation: int) -> Call[values.Arena]:
    """Make an arena unchangeable. generation: yours."""
    return _call("arena.seal", values.Arena, id=arena_id, generation=generation)


def arena_change(
    arena_id: int, capacity_bytes: int | None = None, *, mode: int | None = None, ttl_seconds: float | None = None,
) -> Call[values.Arena]:
    """Change what an arena may hold, who may open it, how long it stays. capacity_bytes: rounded up to 2 MiB; not less than
    it holds, and no more than its GPU has. mode: processes that have it open keep it. ttl_seconds: 0: until it is
    removed."""
    return _call("arena.change", values.Arena, id=arena_id, capacity_bytes=capacity_bytes, mode=mode, ttl_seconds=ttl_seconds)


def arena_remove(name: str) -> Call[values.Arena]:
    """Remove an arena with its memory. name: of the arena."""
    return _call("arena.remove", values.Arena, name=name)


def arena_make_room(gpu: str, wanted_bytes: int) -> Call[values.RoomMade]:
    """Free memory of arenas that no process holds. gpu: ordinal or UUID. wanted_bytes: how much is wanted."""
    return _call("arena.make_room", values.RoomMade, gpu=gpu, bytes=wanted_bytes)


def service_enlist(name: str) -> Call[values.Enlisted]:
    """Enlist this process as a member of a service. name: the name of the service and of its arena."""
    return _call("service.enlist", values.Enlisted, name=name)


def service_join(arena_id: int, rank: int = 0, heartbeat_seconds: float = 0.0) -> Call[values.Instruction]:
    """Become a member of a service. rank: mpsd prefers the lowest. heartbeat_seconds: while you serve: you are taken for
    silent when the forward state that is kept for you stands still for so long; 0: the owner's setting."""
    return _call("service.join", values.Instruction, id=arena_id, rank=rank, heartbeat_seconds=heartbeat_seconds)


def service_ready(arena_id: int) -> Call[values.Instruction]:
    """Report that the caller is ready to take over."""
    return _call("service.ready", values.Instruction, id=arena_id)


def service_follow(arena_id: int, after: int | None = None, wait_seconds: float = 0.0) -> Call[values.Instruction]:
    """Wait for the caller's task. after: answer once `serial` is larger than that; None: at once. wait_seconds: or when so
    much time has passed."""
    return _call("service.follow", values.Instruction, id=arena_id, after=after, wait_seconds=wait_seconds)


def service_serving(arena_id: int, generation: int) -> Call[None]:
    """Report that one serves. generation: of the term that the call is about."""
    return _report("service.serving", id=arena_id, generation=generation)


def service_yielded(
    arena_id: int, generation: int, state_generation: int | None = None, *, sequence: int = 0, why_no_image: str = "",
) -> Call[values.Instruction]:
    """Report that the caller has stopped writing. generation: of the term that the call is about. state_generation: of the
    record at your last barrier, if `is_moving` was told; None: no move. sequence: likewise. why_no_image: of that
    barrier, which cancels the move; empty: there is one, or will be."""
    return _call(
        "service.yielded", values.Instruction, id=arena_id, generation=generation, state_generation=state_generation,
        sequence=sequence, why_no_image=why_no_image,
    )


def service_failed(arena_id: int, why: str) -> Call[None]:
    """Report that the caller cannot take over, or continue. why: for people."""
    return _report("service.failed", id=arena_id, why=why)


def service_leave(arena_id: int) -> Call[None]:
    """Be a member no longer."""
    return _report("service.leave", id=arena_id)


def service_get(name: str, after: int | None = None, wait_seconds: float = 0.0) -> Call[values.Service]:
    """One service. name: of the service. after: answer once `revision` is larger than that; None: at once. wait_seconds: or
    when so much time has passed."""
    return _call("service.get", values.Service, name=name, after=after, wait_seconds=wait_seconds)


def service_list(limit: int | None = None) -> Call[Page[values.Service]]:
    """Services, by the id of their arena."""
    return _page("service.list", values.Service, limit=limit)


def service_handover(
    name: str, to_pid: int | None = None, *, wait_seconds: float = 30.0, from_pid: int | None = None,
) -> Call[values.HandedOver]:
    """Let another member serve. name: of the service. to_pid: the member that is to serve; None: the next. wait_seconds: how
    long you wait until it serves. from_pid: the active, if it is to leave, whether or not a standby is ready; None: it
    stays as a standby."""
    return _call("service.handover", values.HandedOver, name=name, to_pid=to_pid, wait_seconds=wait_seconds, from_pid=from_pid)


def service_move(name: str, gpu: str, wait_seconds: float = 600.0) -> Call[values.Service]:
    """Begin to move a service to another GPU. name: of the service. gpu: ordinal or UUID: where a member keeps a replica.
    wait_seconds: how long the replica may take to copy what the active changes."""
    return _call("service.move", values.Service, name=name, gpu=gpu, wait_seconds=wait_seconds)


def service_change(
    name: str, standbys: int | None = None, *, sm_percent: float | None = None, memory_bytes: int | None = None,
    heartbeat_seconds: float | None = None, until_done: bool | None = None, elastic: str | None = None,
) -> Call[values.Service]:
    """Change how many standbys a service is to have, and what each member gets. name: of the service; its arena has to be
    there. standbys: how many members in addition to the active. sm_percent: the share reserved for each; 0: none.
    memory_bytes: likewise; no more than the arena's GPU has. heartbeat_seconds: one that serves is silent when its
    forward state stands still for so long; 0: never. until_done: one that serves and stops unasked (`service.yielded`,
    `service.leave`) has done the work: mpsd promotes no member then, until one joins, or this is changed. It ends with
    this mpsd. elastic: the share moves by need, among the owner's elastic services on the GPU; `sm_percent` is what it
    may claim then."""
    return _call(
        "service.change", values.Service, name=name, standbys=standbys, sm_percent=sm_percent, memory_bytes=memory_bytes,
        heartbeat_seconds=heartbeat_seconds, until_done=until_done, elastic=elastic,
    )


def service_replicate(
    arena_id: int, generation: int, of: str, at: float | None = None, *, state_generation: int = 0, sequence: int = 0,
    behind_bytes: int = 0, bound_seconds: float = 60.0, has_gpu_failed: bool = False, wait_seconds: float = 0.0,
) -> Call[values.ReplicaOrder]:
    """Report how far a replica of a service is, and wait for its turn. generation: yours. of: the name of the service. at:
    the moment of the image that the replica has; None: none yet. state_generation: of the record in that image; 0: it has
    none. sequence: likewise. behind_bytes: what is still to be copied of a newer image. bound_seconds: mpsd publishes
    `service.behind` when the replica is older, and lacks publishes. has_gpu_failed: as mpsd, perhaps an earlier one,
    answered last. wait_seconds: answer when the order changes, or when so much time has passed."""
    return _call(
        "service.replicate", values.ReplicaOrder, id=arena_id, generation=generation, of=of, at=at,
        state_generation=state_generation, sequence=sequence, behind_bytes=behind_bytes, bound_seconds=bound_seconds,
        has_gpu_failed=has_gpu_failed, wait_seconds=wait_seconds,
    )
