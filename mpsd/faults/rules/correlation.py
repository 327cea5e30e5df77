"""Decide whether one observation may belong to one incident.  fusion.py has the tables, and chooses among several."""

from collections.abc import Sequence

from mpsd.faults.rules.incident_record import IncidentRecord
from mpsd.faults.rules.verdict import SECOND_NS, WINDOW_NS, is_proof
from mpsd.model.fault import FaultClass, Observation, Source
from mpsd.model.fault_signs import BESIDE, CONTAINED_NS
from mpsd.model.xid import ENDS_SERVER, meaning_of

RECENT_NS = 10 * SECOND_NS  # after its begin, an incident takes core dumps for this time
FRESH_NS = SECOND_NS // 5  # no client faults on fresh servers so soon: a server and a context take 0.19 s to start (measured)


def opens(seen: Observation) -> bool:
    """Return whether the observation alone shows a fault, and so opens an incident."""
    if is_proof(seen) or is_of_device(seen):
        return True
    if not seen.domain or seen.clears:
        return False
    return seen.source in (Source.VENDOR_LOG, Source.SENTINEL) or (seen.xid in ENDS_SERVER and not seen.is_contained)


def is_of_device(seen: Observation) -> bool:
    if seen.xid is None:
        return seen.gpu_state is not None
    return meaning_of(seen.xid).fault_class is FaultClass.DEVICE


def may_concern(dossier: IncidentRecord, seen: Observation) -> bool:
    """Return whether an observation of a present process is near enough in time."""
    if seen.source is Source.CORE_DUMP:
        return dossier.first_ns - WINDOW_NS <= seen.seen_ns <= dossier.first_ns + RECENT_NS
    if seen.is_failure and dossier.is_contained:
        return dossier.first_ns - WINDOW_NS <= seen.seen_ns <= dossier.last_ns + CONTAINED_NS
    return dossier.has_room_in_time(seen.seen_ns)


def may_be_of(dossier: IncidentRecord, seen: Observation) -> bool:
    """Return whether an observation of the incident's domain is near enough, and of the same servers."""
    if dossier.recovered_ns is not None and seen.seen_ns > dossier.recovered_ns + FRESH_NS:
        return False
    if dossier.renewed_ns is not None and seen.seen_ns <= dossier.renewed_ns:
        return False
    if seen.source is Source.SENTINEL and not seen.is_contained and dossier.is_contained:  # the end of its containment
        return dossier.first_ns <= seen.seen_ns <= dossier.last_ns + CONTAINED_NS
    is_broken = dossier.has_ended_server and dossier.recovered_ns is None and not dossier.is_settled
    if is_broken and not is_proof(seen) and seen.source not in BESIDE:
        return seen.seen_ns >= dossier.first_ns - WINDOW_NS
    return dossier.has_room_in_time(seen.seen_ns)


def fits(dossier: IncidentRecord, seen: Observation) -> bool:
    """Return whether the classes agree; an unknown class agrees with every class."""
    told = meaning_of(seen.xid).fault_class if seen.xid is not None else seen.fault_class
    known = dossier.incident.fault_class if dossier.incident is not None else FaultClass.UNKNOWN
    return FaultClass.UNKNOWN in (told, known) or told == known


def waited_for(dossier: IncidentRecord, opener: Observation, seen: Observation) -> bool:
    """Return whether an observation that came before the opening one belongs to the incident."""
    if not dossier.has_room_in_time(seen.seen_ns) or not may_be_of(dossier, seen):
        return False
    if seen.domain:
        return seen.domain == dossier.domain
    if seen.xid is None:
        return seen.process is not None and seen.process in (*opener.present, opener.process)
    return bool(seen.gpu) and dossier.gpu in ("", seen.gpu)


def is_elsewhere(seen: Observation, gpus: Sequence[str]) -> bool:
    """Return whether an Xid is of a GPU that its domain does not use: then the process that it names has moved.

    For MIG devices the kernel names the whole GPU, so these are not compared.
    """
    are_whole = all(gpu.startswith("GPU-") for gpu in (seen.gpu, *gpus))
    return seen.xid is not None and are_whole and seen.gpu not in gpus
