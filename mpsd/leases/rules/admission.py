"""Decide what a client is granted, and whether it may ask for it: the decisions of admission that do not concern room.

budgets.py decides about room, queue.py about order, and matching.py finds the lease.  Prose: docs/leases.md.
"""

from collections.abc import Iterable, Sequence

from mpsd.leases.rules.budgets import MILLIONTHS, group_key, to_millionths, to_percent
from mpsd.leases.rules.matching import why
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.model.device import Device
from mpsd.model.lease import DomainPolicy, Grant, Lease, LeaseState, Refusal
from mpsd.model.sm_steps import alike, given, steps_of

DEFAULT = Grant("no lease names it: the default")
UNSEEN = Grant("mpsd cannot see its process, which is in another pid namespace: the default")
NO_LEASE = "no lease names it, and clients without one may not run"
_SAME = MILLIONTHS // 1000  # a share that differs by less counts as the lease's own


def refusal_of(lease: Lease | None, settings: AdmissionSettings) -> str:
    """Return in words why a client may not run, however much is free; empty if it may."""
    return NO_LEASE if lease is None and settings.default == "refuse" else ""


def hindrance_of(lease: Lease | None, settings: AdmissionSettings) -> str:
    """Return why it cannot go in yet, apart from room."""
    if lease is not None and lease.state is LeaseState.QUEUED:
        return f"its lease {lease.id} waits for room itself"
    return refusal_of(lease, settings)


def may_be_told(settings: AdmissionSettings) -> bool:
    """Return whether the settings refuse in another way than by waiting."""
    return settings.refuse_with is not Refusal.WAIT


def part_of(lease: Lease) -> int:
    """Return each process's share in millionths of a percent; rounded down, so that together they never exceed the lease's."""
    return to_millionths(lease.spec.sm_percent) // lease.spec.processes


def memory_part_of(lease: Lease, gpus: Iterable[str]) -> dict[str, int]:
    sizes = lease.spec.memory_bytes
    return {gpu: sizes[gpu] // lease.spec.processes for gpu in gpus if gpu in sizes}


def grant_of_lease(lease: Lease, gpus: Iterable[str], share: int, devices: Sequence[Device] = ()) -> Grant:
    """Return the grant.  share: millionths of a percent, as dealt, or its part.  devices: all of the daemon."""
    spec, own = lease.spec, [device for device in devices if not lease.spec.gpus or device.uuid in lease.spec.gpus]
    words = "; ".join(filter(None, (why(lease), *_about_share(lease, share, own), renumbering(spec.gpus, devices))))
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


def _about_share(lease: Lease, share: int, devices: Sequence[Device]) -> Iterable[str]:
    """Explain a client's share if it differs from what its lease asked for."""
    spec, part = lease.spec, part_of(lease)
    if spec.processes > 1:
        yield f"one of its {spec.processes} processes"
    if not spec.sm_percent:
        yield f"it names no share: {share_in_words(share, devices)}, what no lease had reserved when it started"
    elif abs(share - part) > _SAME:
        shown = share_in_words(share, devices)
        yield f"{shown} instead of {share_in_words(part, devices)}, as its group's shares were dealt"
    elif spec.sm_asked_percent is not None and abs(spec.sm_asked_percent - spec.sm_percent) * MILLIONTHS > _SAME:
        asked = spec.sm_asked_percent / spec.processes
        yield f"{asked:.4g} % was asked, and the GPU gives {share_in_words(share, devices)}{_steps_in_words(devices)}"


def share_in_words(share: int, devices: Iterable[Device]) -> str:
    """Return the share in SMs if all these GPUs have equally many, else in percent."""
    percent, found = to_percent(share), list(devices)
    count, total = alike(given(percent, each) for each in found), alike(each.multiprocessors for each in found)
    return f"{count} of {total} SMs" if count and total else f"{percent:.4g} %"


def _steps_in_words(devices: Iterable[Device]) -> str:
    known = {steps_of(device) for device in devices if device.multiprocessors}
    if len(known) != 1:
        return ""
    steps = known.pop()
    return f": {steps.least} at least, and of more whole multiples of {steps.step}"


def renumbering(gpus: Sequence[str], devices: Sequence[Device]) -> str:
    """Return how MPS renumbers the GPUs of a lease that does not have all of them; empty if each keeps its number.

    The vendor's daemon of its domain sees only these GPUs, and numbers them from 0 for its clients.
    """
    own = [device for device in devices if device.uuid in gpus]
    changed = [(device.ordinal, number) for number, device in enumerate(own) if device.ordinal != number]
    if not changed:
        return ""
    pairs = ", ".join(f"GPU {ordinal} is {number}" for ordinal, number in changed)
    return f"for its processes CUDA_VISIBLE_DEVICES counts only its own GPUs: {pairs}, and a UUID stays what it is"
