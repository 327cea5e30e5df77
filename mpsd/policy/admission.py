"""What a client is granted, and whether it may ask for it: the decisions of admission that are not about room.

Room is budgets.py, order is queue.py, the leases themselves are found by matching.py.  Prose: docs/leases.md.
"""

from collections.abc import Iterable

from mpsd.lease import DomainPolicy, Grant, Lease, LeaseState, Refusal
from mpsd.policy.budgets import MILLIONTHS, group_key, to_millionths, to_percent
from mpsd.policy.matching import why
from mpsd.policy.settings import AdmissionSettings

DEFAULT = Grant("no lease names it: the default")
UNSEEN = Grant("mpsd cannot see its process, which is in another pid namespace: the default")
NO_LEASE = "no lease names it, and clients without one may not run"
_SAME = MILLIONTHS // 1000  # a share that differs by less from the lease's own is that


def refusal_of(lease: Lease | None, settings: AdmissionSettings) -> str:
    """Why a client may not run whatever is free, in words; empty if it may."""
    return NO_LEASE if lease is None and settings.default == "refuse" else ""


def hindrance_of(lease: Lease | None, settings: AdmissionSettings) -> str:
    """Why it cannot go in yet, besides room."""
    if lease is not None and lease.state is LeaseState.QUEUED:
        return f"its lease {lease.id} waits for room itself"
    return refusal_of(lease, settings)


def may_be_told(settings: AdmissionSettings) -> bool:
    """Whether there is another way to refuse than to let it wait."""
    return settings.refuse_with is not Refusal.WAIT


def part_of(lease: Lease) -> int:
    """Millionths of a percent that each of its processes has; rounded down, so that they never have more than it together."""
    return to_millionths(lease.spec.sm_percent) // lease.spec.processes


def memory_part_of(lease: Lease, gpus: Iterable[str]) -> dict[str, int]:
    sizes = lease.spec.memory_bytes
    return {gpu: sizes[gpu] // lease.spec.processes for gpu in gpus if gpu in sizes}


def grant_of_lease(lease: Lease, gpus: Iterable[str], share: int) -> Grant:
    """share: millionths of a percent, what was dealt or its part."""
    spec, part = lease.spec, part_of(lease)
    words = why(lease)
    if spec.processes > 1:
        words += f"; one of its {spec.processes} processes"
    if abs(share - part) > _SAME:
        words += f"; {to_percent(share):.4g} % instead of {to_percent(part):.4g} %, as its group's shares were dealt"
    keys = {DomainPolicy.OWN: str(lease.id), DomainPolicy.GROUP: group_key(lease)}
    return Grant(
        words,
        lease.id,
        spec.gpus,
        to_percent(share),
        memory_part_of(lease, gpus),
        spec.priority,
        spec.domain,
        keys.get(spec.domain, ""),
    )
