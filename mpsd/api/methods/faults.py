"""fault.list, get, report; blame.list, pardon."""

from functools import partial

from mpsd.api.authority import Peer
from mpsd.api.call import Call, Rows
from mpsd.api.methods.clients import ClientTable
from mpsd.errors import NoSuchClient, NotAllowed
from mpsd.model.accusation import accused, convicted_key
from mpsd.model.blame import BlameStatus
from mpsd.model.fault import FirstError, Incident
from mpsd.model.process import ProcessId
from mpsd.wire import fault_results
from mpsd.wire.fields import Map
from mpsd.wire.incidents import incident_facts, incident_report, is_party
from mpsd.wire.messages import BlameKey, GuardRange, IncidentNumber, ListIncidents, Page, ReportError
from mpsd.wire.plain import process_facts

MOST_LOOKED_AT = 100  # for one page: each incident is read from the disk
_AS_ONE = 128  # pieces of evidence and clients present: the longest incident has 30 times as many, and takes 7 ms (measured)


def list_incidents(call: Call[ListIncidents]) -> Rows[Incident]:
    """List the incidents.

    Every user sees that one happened; the processes and places in it are kept back (wire/incidents.py).
    """
    ask, peer = call.ask, call.peer
    if ask.culprit_uid not in (None, peer.uid) and not peer.is_operator:
        raise NotAllowed(f"the faults of user {ask.culprit_uid} are for operators; you are user {peer.uid}")
    faults = call.services.faults
    found = faults.incidents_before(ask.after) if ask.newest_first else faults.incidents(ask.after or 0)
    return Rows(
        ((each.number, None, each) for each in found),
        partial(incident_facts, reader=_reader(peer)),
        is_descending=ask.newest_first,
        is_wanted=partial(_is_wanted, ask, peer.uid),
        most_looked_at=MOST_LOOKED_AT,
        weight=_weight,
    )


def _weight(of: Incident) -> int:
    return 1 + sum(1 + len(each.present) for each in of.evidence) // _AS_ONE


def _is_wanted(ask: ListIncidents, uid: int, of: Incident) -> bool:
    return (
        ask.domain in (None, of.domain)
        and ask.fault_class in (None, of.fault_class)
        and (ask.since is None or of.began_at >= ask.since)
        and (ask.culprit_uid is None or ask.culprit_uid in _culprit_uids(of))
        and (not ask.mine or is_party(of, uid))
    )


def _culprit_uids(of: Incident) -> set[int | None]:
    """Return the uid of the culprit; or of all suspects, if they have one key and the fault counts against it."""
    is_known = of.culprit is not None or convicted_key(of) is not None
    parties = (of.party(process) for process in (accused(of) if is_known else ()))
    return {party.uid for party in parties if party is not None}


async def get(call: Call[IncidentNumber]) -> Map:
    return incident_report(call.services.faults.incident(call.ask.number), _reader(call.peer))


async def report(call: Call[ReportError]) -> Map:
    """Record the caller's first CUDA error.  The kernel identifies the caller, so that no process can report for another."""
    ask, reports = call.ask, call.state.reports
    process = _client(call)
    counts = reports.left(process) > 0
    if counts:
        reports.count(process)
        error = FirstError(ask.code, ask.name, ask.kernel, ask.pc, ask.address, ask.text)
        call.services.faults.report(process, error)
    return {**process_facts(process), "counts": counts, "left": reports.left(process)}


async def guards(call: Call[GuardRange]) -> Map:
    """From now on count a GPU fault of the caller in this range, which the driver served, as an access to a guard."""
    return {"is_watched": await call.services.faults.guard(_client(call), call.ask.base, call.ask.bytes)}


def _client(call: Call[ReportError] | Call[GuardRange]) -> ProcessId:
    """Return the calling client.  Raises NoSuchClient if the caller is not a client."""
    process, peer = call.process(), call.peer
    clients = ClientTable.of(call.services)
    if process not in clients.all() or clients.uid(process) != peer.uid:
        raise NoSuchClient(f"only a client may report that, and pid {peer.pid} of user {peer.uid} is no client")
    return process


def list_blame(call: Call[Page]) -> Rows[BlameStatus]:
    """List the standings, numbered by position: a standing has no number."""
    held = sorted(call.services.faults.standings(), key=lambda each: (each.kind, each.since_at, each.key))
    return Rows(((place, None, each) for place, each in enumerate(held, 1)), fault_results.standing)


async def pardon(call: Call[BlameKey]) -> Map:
    return fault_results.standing(call.services.faults.pardon(call.ask.key))


def _reader(peer: Peer) -> int | None:
    return None if peer.is_operator else peer.uid
