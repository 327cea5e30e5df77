"""client.list, why, terminate, move."""

from collections.abc import Collection, Mapping

from msgspec import Struct

from mpsd.api.authority import Peer
from mpsd.api.call import Call, Rows
from mpsd.api.methods.queue import all_waiting
from mpsd.api.ports import Ports
from mpsd.errors import MpsdError, NoSuchClient, NoSuchDomain, VendorFailed
from mpsd.leases.rules.queue import QueueEntry
from mpsd.model.client import ClientView
from mpsd.model.lease import Grant
from mpsd.model.process import ProcessId
from mpsd.wire import lease_results
from mpsd.wire.fields import Map
from mpsd.wire.messages import ClientId, MoveClient, Page
from mpsd.wire.plain import process_facts

_TERMINATED = "0"  # the vendor's answer on success; any other is a CUDA error
_NOBODY = -1  # the uid of no user


class ClientTable(Struct, frozen=True):
    """Every client that is known: to admission, to a domain, or to the queue; or those of them that have one pid."""

    services: Ports
    views: Mapping[ProcessId, ClientView]
    grants: Mapping[ProcessId, Grant]
    waiting: Mapping[ProcessId, QueueEntry]

    @classmethod
    def of(cls, services: Ports, pid: int | None = None) -> "ClientTable":
        views = {view.process: view for view in services.domains.clients(pid)}
        waiting = {one.process: one for one in all_waiting(services, pid=pid) if one.process}
        grants = services.leases.grants()
        if pid is not None:
            grants = {process: grant for process, grant in grants.items() if process.pid == pid}
        return cls(services, views, grants, waiting)

    def all(self) -> Collection[ProcessId]:
        return {**self.grants, **self.views, **self.waiting}

    def find(self, ask: ClientId | MoveClient) -> ProcessId:
        """Return the client with this pid.  Raises NoSuchClient."""
        for process in self.all():
            if process.pid == ask.pid and ask.start_time in (0, process.start_time):
                return process
        raise NoSuchClient(f"no client has pid {ask.pid}")

    def uid(self, process: ProcessId) -> int | None:
        """Return its uid by admission, or else by the process as it is now."""
        if (uid := self.services.leases.uid_of(process)) is not None:
            return uid
        if view := self.views.get(process):
            return view.uid
        entry = self.waiting.get(process)
        return entry.uid if entry else None

    def owner(self, process: ProcessId) -> int:
        """Return the owner's uid; for a process that has ended, the uid of no user, so that only operators see it."""
        uid = self.uid(process)
        return _NOBODY if uid is None else uid

    def show(self, process: ProcessId) -> Map:
        """Return the entry of a client, without the name and the token of its lease, which only lease.get returns."""
        view, grant = self.views.get(process), self.grants.get(process)
        return {
            **process_facts(process),
            "uid": self.uid(process),
            "state": self._state(process, view),
            "domain": view.domain if view else None,
            "server_pid": view.server_pid if view else None,
            "lease_id": grant.lease_id if grant else None,
            "sm_percent": grant.sm_percent if grant else None,
            "sm_count": lease_results.sm_count(grant, self.services.board.devices) if grant else None,
            "memory_bytes": dict(grant.memory_bytes) if grant else None,
            "watched": view is not None and view.watched,
            "shield": view is not None and view.shield,
            "held": view is not None and view.held,
        }

    def _state(self, process: ProcessId, view: ClientView | None) -> str:
        if process in self.waiting:
            return "waiting"
        return "running" if view is not None and view.server_pid is not None else "starting"


def refusal(services: Ports, peer: Peer, ask: ClientId | MoveClient) -> MpsdError | None:
    """Why this user may not have to do with it: to others it does not exist."""
    clients = ClientTable.of(services, ask.pid)
    try:
        found = clients.find(ask)
        may = peer.may_name(clients.uid(found), found.pid, services.namespaces_of)
    except NoSuchClient:
        may = False
    return None if may else NoSuchClient(f"no client has pid {ask.pid}")


def list_clients(call: Call[Page]) -> Rows[ProcessId]:
    clients = ClientTable.of(call.services)
    return Rows(((process.pid, clients.owner(process), process) for process in sorted(clients.all())), clients.show)


async def why(call: Call[ClientId]) -> Map:
    """What it was granted and by which rule; while it waits, for what."""
    clients = ClientTable.of(call.services, call.ask.pid)
    process = clients.find(call.ask)
    identity = call.services.leases.identity_of(process)
    grant, entry = clients.grants.get(process), clients.waiting.get(process)
    return {
        **clients.show(process),
        "container": identity.container if identity else "",
        "cgroups": list(identity.cgroups) if identity else [],
        "grant": lease_results.grant(grant, call.services.board.devices) if grant else None,
        "queue": {"position": entry.position, "reason": entry.reason} if entry else None,
    }


async def terminate(call: Call[ClientId]) -> Map:
    """End the outstanding GPU work of a client, by the vendor's command of this name; the process sees error 810."""
    process, board = ClientTable.of(call.services, call.ask.pid).find(call.ask), call.services.board

    def check() -> None:
        if _has_ended(call.services, process):
            raise NoSuchClient(f"client {process.pid} has ended")

    for server in await board.servers():
        if process.pid in server.client_pids and not _has_ended(call.services, process):
            answer = (await board.terminate_client(server.pid, process.pid, check)).strip()
            if answer != _TERMINATED:
                raise VendorFailed(f"client {process.pid} was not terminated; server {server.pid} answered: {answer!r}")
            return {**process_facts(process), "server_pid": server.pid, "domain": server.domain}
    raise NoSuchClient(f"client {process.pid} has no context in any server")


def _has_ended(services: Ports, process: ProcessId) -> bool:
    """Return whether its pid may be another client's: vendor daemons know no more than the pid.  False if not known."""
    try:
        return services.find_process(process.pid) != process
    except OSError:
        return False


async def move(call: Call[MoveClient]) -> Map:
    process, domains = ClientTable.of(call.services, call.ask.pid).find(call.ask), call.services.domains
    if call.ask.domain not in {view.name for view in domains.views()}:
        raise NoSuchDomain(f"no fault domain is called {call.ask.domain}")
    await domains.move(process, call.ask.domain)
    return {**process_facts(process), "domain": call.ask.domain}
