"""Values of mpsd in words for people: whom a lease is for, how much of what, until when."""

from collections.abc import Mapping, Sequence

from mpsd_client import Lease, Selector, values

from mpsctl.quantities import show_percent, show_size

FULL_PERCENT = 100.0


def ordinals(devices: Sequence[values.Device]) -> Mapping[str, str]:
    """By UUID: people count."""
    return {device.uuid: str(device.ordinal) for device in devices}


def gpus(uuids: Sequence[str], names: Mapping[str, str]) -> str:
    """By ordinal; a GPU that has gone keeps its UUID.  None is all."""
    return ",".join(names.get(uuid, uuid) for uuid in uuids) if uuids else "all"


def gpus_in_full(uuids: Sequence[str], devices: Sequence[values.Device]) -> str:
    """With what MPS calls each for the clients of a lease, where that is another number (docs/leases.md)."""
    own = [device for device in devices if device.uuid in uuids]
    changed = [f"GPU {device.ordinal} is {number}" for number, device in enumerate(own) if device.ordinal != number]
    shown = gpus(uuids, ordinals(devices))
    return f"{shown} (in CUDA_VISIBLE_DEVICES of its processes {', '.join(changed)})" if changed else shown


def memory(sizes: Mapping[str, int] | None) -> str | None:
    """The same on each GPU, usually; else from the least to the most."""
    if not sizes:
        return None
    shown = [show_size(min(sizes.values())), show_size(max(sizes.values()))]
    return shown[0] if shown[0] == shown[1] else "..".join(shown)


def memory_by_gpu(sizes: Mapping[str, int], names: Mapping[str, str]) -> str | None:
    """To the byte where it is not a whole unit."""
    return ", ".join(f"{exact_size(size)} on GPU {names.get(uuid, uuid)}" for uuid, size in sizes.items()) or None


def spread(asked: Sequence[tuple[str, int]], devices: Sequence[values.Device], among: Sequence[str]) -> Mapping[str, int]:
    """Sizes by UUID: one that names no GPU is for each among these (none: all) that has none of its own."""
    uuids = {str(device.ordinal): device.uuid for device in devices}
    own = {uuids.get(gpu, gpu): size for gpu, size in asked if gpu}
    for_each = [size for gpu, size in asked if not gpu][-1:]
    return {uuids.get(gpu, gpu): size for size in for_each for gpu in among or uuids} | own


def exact_size(size: int) -> str:
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        if size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return f"{size} bytes"


def marks(of: values.MpsClient | values.Why) -> str:
    """What is done about its faults (docs/faults.md)."""
    known = {"watched": of.watched, "shield": of.shield, "held": of.held}
    return ",".join(name for name, is_so in known.items() if is_so)


def share(percent: float | None) -> str | None:
    """Nothing where there is no limit."""
    return None if percent is None or percent >= FULL_PERCENT else show_percent(percent)


def sms(count: int | None, percent: float | None) -> str | None:
    """A number of SMs where mpsd knows it, else a share; nothing where there is no limit of its own, or none is reserved."""
    if not percent or percent >= FULL_PERCENT:
        return share(percent) if percent else None
    return show_percent(percent) if count is None else str(count)


def reserved_sms(lease: Lease) -> str:
    """What a lease reserves of the SMs, in a sentence; what was asked beside it where the hardware gives something else."""
    if not lease.sm_percent:
        return "no SMs"
    asked = show_percent(lease.sm_percent)
    if lease.sm_count is None or lease.sm_reserved_percent is None:
        return f"{asked} of the SMs"
    reserved = show_percent(lease.sm_reserved_percent)
    return f"{lease.sm_count} SMs ({asked})" if asked == reserved else f"{lease.sm_count} SMs ({reserved}; {asked} was asked)"


def selector(of: Selector) -> str:
    """A token is the right to its lease: it is shown by `lease show`, not in a list that others may look at."""
    return "token" if of.kind == "token" else f"{of.kind} {of.value}"


def selector_in_full(of: Selector) -> str:
    if of.kind == "token":
        return f"MPSD_LEASE={of.value}" if of.value else "a token, which its owner may see"
    return f"{of.kind} {of.value}" + (f", started at {of.start_time}" if of.start_time else "")


def domain(lease: Lease) -> str:
    return f"group {lease.group}" if lease.domain == "group" else lease.domain
