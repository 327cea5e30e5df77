"""Check a lease request: every length, count and range, once, before anything is kept.

Pure: the devices are given.  budgets.py checks whether the lease fits.  Prose: docs/leases.md, "What a lease says".
"""

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from mpsd.errors import BadRequest
from mpsd.model.device import Device
from mpsd.model.device_names import find_device
from mpsd.model.lease import FULL_PERCENT, LEAST_PERCENT, DomainPolicy, LeaseSpec, Selector, SelectorKind
from mpsd.model.process import MOST_PID

NAME_CHARACTERS = 128
GROUP_CHARACTERS = 64
TOKEN_CHARACTERS = range(16, 129)
CGROUP_CHARACTERS = 4096
MOST_PROCESSES = 1024
MOST_GPUS = 64
MOST_SECONDS = 1e9  # some thirty years
MOST_ID = 2**32 - 2  # the highest uid; the next number means "no user"
MOST_BYTES = 2**62
LEAST_BYTES = 1 << 20  # the vendor's limits are in MiB, where 0 means no limit
LEVELS = ("interactive", "batch")

_GROUP = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{GROUP_CHARACTERS - 1}}}")


def check_spec(spec: LeaseSpec, devices: Sequence[Device]) -> LeaseSpec:
    """Return the spec with devices as UUIDs, each once.  Raise BadRequest or NoSuchDevice."""
    _check_text(spec)
    _check_numbers(spec)  # before any look-up: a list may be long
    gpus = tuple(dict.fromkeys(find_device(devices, name).uuid for name in spec.gpus))
    memory = _by_uuid(spec.memory_bytes, devices)
    _check_memory(memory, gpus, spec.processes)
    return replace(spec, selector=_check_selector(spec.selector), gpus=gpus, memory_bytes=memory)


def _by_uuid(memory: Mapping[str, int], devices: Sequence[Device]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, size in memory.items():
        uuid = find_device(devices, name).uuid
        if uuid in found:
            raise BadRequest(f"a lease's memory_bytes names GPU {uuid} twice, as {name!r} too")
        found[uuid] = size
    return found


def _check_text(spec: LeaseSpec) -> None:
    if not (0 < len(spec.name) <= NAME_CHARACTERS and spec.name.isprintable()):
        raise BadRequest(f"a lease's name: found {len(spec.name)} characters; accepted: 1 to {NAME_CHARACTERS} printable ones")
    if spec.group and not _GROUP.fullmatch(spec.group):
        found = spec.group[:GROUP_CHARACTERS]
        raise BadRequest(f"a lease's group: found {found!r}; accepted: up to {GROUP_CHARACTERS} letters, digits, _ . -")
    if spec.domain is DomainPolicy.GROUP and not spec.group:
        raise BadRequest("a lease of domain policy group names no group")
    if spec.level not in LEVELS:
        raise BadRequest(f"a lease's level: found {spec.level[:20]!r}; accepted: {' or '.join(LEVELS)}")


def _check_numbers(spec: LeaseSpec) -> None:
    checks = (
        ("sm_percent", spec.sm_percent, _is_share(spec), "more than 0, at most 100; 0 with memory_bytes"),
        ("gpus", len(spec.gpus), len(spec.gpus) <= MOST_GPUS, f"at most {MOST_GPUS}"),
        ("memory_bytes", len(spec.memory_bytes), len(spec.memory_bytes) <= MOST_GPUS, f"at most {MOST_GPUS}"),
        ("processes", spec.processes, 1 <= spec.processes <= MOST_PROCESSES, f"1 to {MOST_PROCESSES}"),
        ("priority", spec.priority, spec.priority in (0, 1), "0 or 1"),
        ("wait_seconds", spec.wait_seconds, 0 <= spec.wait_seconds <= MOST_SECONDS, f"0 to {MOST_SECONDS:g}"),
    )
    for name, found, is_good, accepted in checks:
        if not is_good:
            raise BadRequest(f"a lease's {name}: found {found}; accepted: {accepted}")
    if 0 < spec.sm_percent / spec.processes < LEAST_PERCENT:
        raise BadRequest(f"{spec.sm_percent} % among {spec.processes} processes is less than {LEAST_PERCENT} % for each")
    check_ttl(spec.ttl_seconds)


def _is_share(spec: LeaseSpec) -> bool:
    return 0 < spec.sm_percent <= FULL_PERCENT or (spec.sm_percent == 0 and bool(spec.memory_bytes))


def check_ttl(seconds: float | None) -> None:
    if seconds is not None and not 0 < seconds <= MOST_SECONDS:
        raise BadRequest(f"a lease's ttl_seconds: found {seconds}; accepted: more than 0, at most {MOST_SECONDS:g}, or none")


def _check_memory(memory: Mapping[str, int], gpus: tuple[str, ...], processes: int) -> None:
    for uuid, size in memory.items():
        if gpus and uuid not in gpus:
            raise BadRequest(f"a memory limit is for {uuid}, which is not a GPU of the lease")
        if not LEAST_BYTES * processes <= size <= MOST_BYTES:
            raise BadRequest(f"{size} bytes of {uuid} among {processes} processes: each needs {LEAST_BYTES} at least")


def _check_selector(selector: Selector) -> Selector:
    return replace(selector, value=_CHECKS[selector.kind](selector.value))


def _number(most: int, what: str, value: str) -> str:
    if not (value.isascii() and value.isdecimal() and len(value) <= 10 and int(value) <= most):
        raise BadRequest(f"a lease's {what}: found {value[:20]!r}; accepted: a decimal number up to {most}")
    return str(int(value))


def _token(value: str) -> str:
    """Check a token.  The error does not repeat it."""
    if len(value) not in TOKEN_CHARACTERS or not value.isprintable():
        least, most = TOKEN_CHARACTERS[0], TOKEN_CHARACTERS[-1]
        raise BadRequest(f"a lease's token: found {len(value)} characters; accepted: {least} to {most} printable ones")
    return value


def _cgroup(value: str) -> str:
    """Return the path without a trailing slash, or the word."""
    trimmed = value.rstrip("/")
    if not trimmed or len(value) > CGROUP_CHARACTERS or not value.isprintable():
        raise BadRequest(f"a lease's cgroup: found {value[:80]!r}; accepted: a path below the root, or a name in one")
    return trimmed


_CHECKS = {
    SelectorKind.PID: lambda value: _number(MOST_PID, "pid", value),
    SelectorKind.UID: lambda value: _number(MOST_ID, "uid", value),
    SelectorKind.TOKEN: _token,
    SelectorKind.CGROUP: _cgroup,
}
