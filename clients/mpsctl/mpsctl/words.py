"""Text for people from mpsd's values: GPUs, sizes, shares of SMs, selectors and domains of leases."""

from collections.abc import Mapping, Sequence

from mpsd_client import Lease, Selector, values

from mpsctl.quantities import show_percent, show_size

FULL_PERCENT = 100.0


def ordinals(devices: Sequence[values.Device]) -> Mapping[str, str]:
    """Return the ordinals of the GPUs by UUID, since people use ordinals."""
    return {device.uuid: str(device.ordinal) for device in devices}


def gpus(uuids: Sequence[str], names: Mapping[str, str]) -> str:
    """Return the GPUs by ordinal; a GPU that is gone by UUID; "all" for an empty list."""
    return ",".join(names.get(uuid, uuid) for uuid in uuids) if uuids else "all"


def gpus_in_full(uuids: Sequence[str], devices: Sequence[values.Device]) -> str:
    """Return the GPUs by ordinal, and the numbers that MPS shows the lease's clients where they differ (docs/leases.md)."""
    own = [device for device in devices if device.uuid in uuids]
    changed = [f"GPU {device.ordinal} is {number}" for number, device in enumerate(own) if device.ordinal != number]
    shown = gpus(uuids, ordinals(devices))
    return f"{shown} (in CUDA_VISIBLE_DEVICES of its processes {', '.join(changed)})" if changed else shown


def memory(sizes: Mapping[str, int] | None) -> str | None:
    """Return the size per GPU; the least and the most if the sizes differ."""
    if not sizes:
        return None
    shown = [show_size(min(sizes.values())), show_size(max(sizes.values()))]
    return shown[0] if shown[0] == shown[1] else "..".join(shown)


def memory_by_gpu(sizes: Mapping[str, int], names: Mapping[str, str]) -> str | None:
    """Return each GPU's size exactly, in bytes if it is not a whole number of a larger unit."""
    return ", ".join(f"{exact_size(size)} on GPU {names.get(uuid, uuid)}" for uuid, size in sizes.items()) or None


def spread(asked: Sequence[tuple[str, int]], devices: Sequence[values.Device], among: Sequence[str]) -> Mapping[str, int]:
    """Return sizes by UUID.  A size without a GPU applies to each GPU in `among` (empty: all) without a separate size."""
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
    """Return the measures in force against the client's faults, comma-separated (docs/faults.md)."""
    known = {"watched": of.watched, "shield": of.shield, "held": of.held}
    return ",".join(name for name, is_so in known.items() if is_so)


def share(percent: float | None) -> str | None:
    """Return the share as text; None without a limit."""
    return None if percent is None or percent >= FULL_PERCENT else show_percent(percent)


def sms(count: int | None, percent: float | None) -> str | None:
    """Return the number of SMs if mpsd knows it, else the share; None without a limit or a reservation."""
    if not percent or percent >= FULL_PERCENT:
        return share(percent) if percent else None
    return show_percent(percent) if count is None else str(count)


def reserved_sms(lease: Lease) -> str:
    """Return the SMs that a lease reserves, as text; with the requested share if the hardware grants another one."""
    if not lease.sm_percent:
        return "no SMs"
    asked = show_percent(lease.sm_percent)
    if lease.sm_count is None:
        return f"{asked} of the SMs"
    reserved = show_percent(lease.sm_reserved_percent)
    return f"{lease.sm_count} SMs ({asked})" if asked == reserved else f"{lease.sm_count} SMs ({reserved}; {asked} was asked)"


def selector(of: Selector) -> str:
    """Return the selector as text, without a token's value: a token grants its lease, so that only `lease show` prints it."""
    return "token" if of.kind == "token" else f"{of.kind} {of.value}"


def selector_in_full(of: Selector) -> str:
    if of.kind == "token":
        return f"MPSD_LEASE={of.value}" if of.value else "a token, which its owner may see"
    return f"{of.kind} {of.value}" + (f", started at {of.start_time}" if of.start_time else "")


def domain(lease: Lease) -> str:
    return f"group {lease.group}" if lease.domain == "group" else lease.domain
