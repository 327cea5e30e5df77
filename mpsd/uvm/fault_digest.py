"""Convert the events of one client to observations: the first fault at once, a flood as one line with a count.  Pure."""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from mpsd.model.fault import TEXT_CHARACTERS, FaultClass, Observation, Source
from mpsd.model.process import ProcessId
from mpsd.uvm.abi import POISON, EventKind, UvmEvent


def digest(
    events: Sequence[UvmEvent], lost: int, process: ProcessId, domain: str, gpus: tuple[str, ...], seen_ns: int
) -> Observation | None:
    """Return one observation for these events; None if no fatal fault is among them.

    GPU faults alone are normal for managed memory (but: digest_guarded).  An event of the client's own doing is preferred: it
    is the proof.
    """
    fatal = [event for event in events if event.kind is EventKind.FATAL]
    if not fatal:
        return None
    event = next((each for each in fatal if each.is_own_doing), fatal[0])
    return Observation(
        Source.UVM_EVENTS,
        seen_ns,
        FaultClass.DEVICE if event.fault_type == POISON else FaultClass.MMU,
        gpu=gpus[0] if len(gpus) == 1 else "",
        domain=domain,
        process=process,
        is_proof=event.is_own_doing,
        address=event.address,
        access=event.access,
        text=_text(event, len(fatal), lost),
    )


def guarded(events: Sequence[UvmEvent], guards: Collection[range]) -> tuple[UvmEvent, ...]:
    """Return the GPU faults in guards of the client.  A fatal fault begins with such events too."""
    faults = (event for event in events if event.kind is EventKind.GPU_FAULT)
    return tuple(event for event in faults if any(event.address in guard for guard in guards))


def digest_guarded(
    events: Sequence[UvmEvent], process: ProcessId, domain: str, gpus: tuple[str, ...], seen_ns: int
) -> Observation:
    """Return one observation for accesses to guards, none fatal: the driver mapped an empty page, and no data were lost."""
    event = events[0]
    words = f"{event.access or 'access'} at 0x{event.address:x}: in a guard that the client has laid between its allocations"
    if len(events) > 1:
        words += f"; the first of {len(events)}"
    return Observation(
        Source.UVM_EVENTS,
        seen_ns,
        FaultClass.MMU,
        gpu=gpus[0] if len(gpus) == 1 else "",
        domain=domain,
        process=process,
        is_proof=True,
        address=event.address,
        access=event.access,
        text=words,
        is_contained=True,
    )


def doubted(seen: Observation, why: str) -> Observation:
    """Return the observation without proof, and why.

    Nor is it contained: mpsd freezes and ends the process of a contained fault.
    """
    return replace(seen, is_proof=False, is_contained=False, text=f"{seen.text}; no proof: {why}"[:TEXT_CHARACTERS])


def _text(event: UvmEvent, count: int, lost: int) -> str:
    words = f"{event.access or 'access'} at 0x{event.address:x}: {event.fault_text} ({event.reason_text})"
    if count > 1:
        words += f"; the first of {count}"
    if lost:
        words += f"; {lost} more were lost"
    return words[:TEXT_CHARACTERS]
