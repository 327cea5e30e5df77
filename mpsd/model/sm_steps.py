"""Compute how many SMs a share of a GPU gives: the hardware's least number, then whole steps, rounded down.

A lease reserves what its clients are given, not what was asked: 4 % of 132 SMs are 8 SMs, that is 6.06 %.  Shares are percents
of a GPU here, and millionths of a percent where budgets count.  If the number of SMs is not known, a share is taken as it was
asked.  Values only.  Prose: docs/leases.md, "SMs come in steps".
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from mpsd.model.device import Device
from mpsd.model.lease import FULL_PERCENT, LeaseSpec

_SLACK = 1e-3  # of an SM: shares are rounded to millionths of a percent
_UNKNOWN_LEAST_PERCENT = 1.0


class SmSteps(NamedTuple):
    """least: the fewest SMs of a client.  step: above that, a client has whole multiples of this."""

    least: int
    step: int


MEASURED = SmSteps(8, 2)  # H100 and H200: 0.1, 4, 7, 13, 29, 47 % of 132 give 8, 8, 8, 16, 38, 62
BY_MAJOR: Mapping[int, SmSteps] = {9: MEASURED}  # by the major number of the compute capability
DEFAULT = MEASURED  # not measured elsewhere; if a GPU gives less, budgets count too much, and never too little


def steps_of(device: Device) -> SmSteps:
    return BY_MAJOR.get(device.capability[0], DEFAULT)


def given(percent: float, device: Device) -> int:
    """Return the SMs of a client that is limited to this share; 0 where the GPU's number of SMs is not known."""
    total, steps = device.multiprocessors, steps_of(device)
    if percent >= FULL_PERCENT:
        return total
    return min(total, max(steps.least, _whole_steps(total * percent / FULL_PERCENT, steps)))


def reserved(percent: float, processes: int, device: Device) -> int:
    """Return the SMs that a lease of this share reserves for all its processes together."""
    return min(device.multiprocessors, given(percent / processes, device) * processes) if percent else 0


def as_given(spec: LeaseSpec, devices: Iterable[Device]) -> LeaseSpec:
    """Return the lease with the share that its processes are given, on that of its GPUs where it is largest."""
    if not spec.sm_percent:
        return spec
    part = spec.sm_percent / spec.processes
    shares = [_percent(given(part, each), each) for each in devices if each.multiprocessors]
    share = min(FULL_PERCENT, max(shares, default=part) * spec.processes)
    return replace(spec, sm_percent=share, sm_asked_percent=spec.sm_percent)


def of_count(count: int, processes: int, device: Device) -> float:
    """Return the share that gives a lease's processes at least so many SMs together."""
    steps = steps_of(device)
    part = max(steps.least, math.ceil(count / processes / steps.step) * steps.step)
    return min(FULL_PERCENT, _percent(part, device) * processes)


def whole(percent: float, devices: Iterable[Device]) -> float:
    """Return the share, rounded down to a step of each GPU; 0 if it is less than a client can be given."""
    shares = [percent]
    for each in devices:
        if each.multiprocessors and percent < FULL_PERCENT:
            steps = steps_of(each)
            count = _whole_steps(each.multiprocessors * percent / FULL_PERCENT, steps)
            shares.append(_percent(count, each) if count >= steps.least else 0.0)
    return min(shares)


def remainder(reserved_percent: float, devices: Sequence[Device]) -> float:
    """Return the share that no lease has reserved, for a client of a lease without a share; at least the smallest share."""
    fewest = (_percent(given(0.0, each), each) for each in devices if each.multiprocessors)
    return whole(max(0.0, FULL_PERCENT - reserved_percent), devices) or max(fewest, default=_UNKNOWN_LEAST_PERCENT)


def alike(counts: Iterable[int]) -> int | None:
    """Return the common number of all GPUs; None if they differ, or if it is not known."""
    found = set(counts)
    return (found.pop() or None) if len(found) == 1 else None


def _whole_steps(count: float, steps: SmSteps) -> int:
    return int(count + _SLACK) // steps.step * steps.step


def _percent(count: int, device: Device) -> float:
    return count * FULL_PERCENT / device.multiprocessors
