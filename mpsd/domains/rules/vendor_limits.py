"""Express a client's limits in the vendor's terms: the commands that set them at a server, and the answers that prove it.

A vendor server gives each newcomer the limits that hold at that moment.  Between newcomers the limits are CLOSED: no context
fits into them (OUT_OF_MEMORY, measured), so a client that is late or early gets an error and never more than it may use.
"""

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mpsd.model.domain import Defaults
from mpsd.model.lease import FULL_PERCENT, Grant
from mpsd.model.quantities import render_percent

MIB = 1 << 20
GIB = 1 << 30
LEAST_PERCENT = 0.1  # gives 8 SMs of 132 (measured)
_CLOSED_BYTES = MIB  # no context fits (measured)
_MOST_ENTRIES = 256  # of a client's own limits; an environment has room for 30,000
_PARTS = 10**4  # of a percent: enough to distinguish the SMs of any GPU
OF_ONE_SERVER = frozenset(
    f"{verb}_{noun}" for verb in ("get", "set") for noun in ("active_thread_percentage", "device_pinned_mem_limit")
)


class ClientLimits(Struct, frozen=True):
    """thread_percent: in (0, 100].  memory_bytes: by the ordinal of the domain's GPUs, 0 for no limit.  priority: the vendor's
    client priority."""

    thread_percent: float
    memory_bytes: tuple[int, ...]
    priority: int = 0


def unlimited(gpus: Sequence[str]) -> ClientLimits:
    return ClientLimits(FULL_PERCENT, (0,) * len(gpus))


def closed(gpus: Sequence[str], priority: int = 0) -> ClientLimits:
    return ClientLimits(LEAST_PERCENT, (_CLOSED_BYTES,) * len(gpus), priority)


def of_defaults(defaults: Defaults, gpus: Sequence[str]) -> ClientLimits:
    """Return the limits that a server of a domain with these GPUs is started with."""
    memory = tuple(defaults.pinned_limits.get(uuid, 0) for uuid in gpus)
    return ClientLimits(defaults.thread_percent, memory, defaults.client_priority)


def of_grant(grant: Grant, gpus: Sequence[str]) -> ClientLimits:
    """Convert a grant for a domain with these GPUs.  Memory is rounded down to MiB, but never to 0, which is no limit."""
    memory = tuple(_whole_mib(grant.memory_bytes[uuid]) if uuid in grant.memory_bytes else 0 for uuid in gpus)
    return ClientLimits(_rounded_up(grant.sm_percent), memory, grant.priority)


def tighter(one: ClientLimits, other: ClientLimits) -> ClientLimits:
    """Return the lower of each limit."""
    memory = tuple(min(filter(None, pair), default=0) for pair in zip(one.memory_bytes, other.memory_bytes, strict=True))
    percent = min(one.thread_percent, other.thread_percent)
    return ClientLimits(percent, memory, max(one.priority, other.priority))


def commands(server_pid: int, limits: ClientLimits, priority_now: int | None) -> tuple[str, ...]:
    """Return the vendor's documented commands that set the limits.

    The priority is a default of the whole daemon, since no command sets that of one server; it is set only if it differs.
    """
    lines = [f"set_active_thread_percentage {server_pid} {_sent(limits.thread_percent)}"]
    for ordinal, size in enumerate(limits.memory_bytes):
        lines.append(f"set_device_pinned_mem_limit {server_pid} {ordinal} {size // MIB}M")
        lines.append(f"get_device_pinned_mem_limit {server_pid} {ordinal}")
    if limits.priority != priority_now:
        lines.append(f"set_default_client_priority {limits.priority}")
    return tuple(lines)


def default_commands(limits: ClientLimits) -> tuple[str, ...]:
    """Return the commands that set the limits of servers that start from now on.  0M removes a limit."""
    sizes = enumerate(limits.memory_bytes)
    memory = (f"set_default_device_pinned_mem_limit {ordinal} {size // MIB}M" for ordinal, size in sizes)
    percent = f"set_default_active_thread_percentage {limits.thread_percent:g}"
    return percent, *memory, f"set_default_client_priority {limits.priority}"


def proof(limits: ClientLimits) -> str:
    """Return the exact answer of the vendor's daemon after all these commands; another answer means that they failed."""
    return "".join([f"{render_percent(float(_sent(limits.thread_percent)))}\n", *map(shown, filter(None, limits.memory_bytes))])


def shown(size: int) -> str:
    """Return a memory limit as the vendor's daemon prints it: in whole GiB from 1 GiB on, so 1025M is 1G."""
    return f"{size // GIB}G\n" if size >= GIB else f"{size // MIB}M\n"


def carry_out(line: str, limits: ClientLimits) -> tuple[ClientLimits, str]:
    """Return the limits after a command of OF_ONE_SERVER, as mpsd writes it, and what the vendor's daemon answers to it."""
    name, _, *words = line.split()
    is_set = name.startswith("set_")
    if name.endswith("_percentage"):
        percent = float(words[0]) if is_set else limits.thread_percent
        return replace(limits, thread_percent=percent), f"{render_percent(percent)}\n"
    sizes, ordinal = list(limits.memory_bytes), int(words[0])
    if not is_set:
        return limits, shown(sizes[ordinal]) if sizes[ordinal] else ""
    sizes[ordinal] = int(words[1].removesuffix("M")) * MIB
    return replace(limits, memory_bytes=tuple(sizes)), ""


def read_percent(answer: str) -> float | None:
    """Parse the answer to `get_active_thread_percentage`; None if it is not a percentage."""
    try:
        value = float(answer)
    except ValueError:
        return None
    return value if 0 < value <= FULL_PERCENT else None


def read_memory(answer: str) -> int | None:
    """Parse the bytes of `get_device_pinned_mem_limit`; 0 if it prints no limit, None if it prints something else."""
    word = answer.strip()
    if not word:
        return 0
    if word[:-1].isdecimal() and len(word) < 12 and word[-1] in "GM":
        return int(word[:-1]) * (GIB if word[-1] == "G" else MIB)
    return None


def overrides(variable: str | None, visible: Mapping[str, int]) -> str:
    """Return what is wrong with a client's own CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, in words; empty if nothing is.

    `visible`: ordinals by UUID.  A value that names a GPU which the client cannot see lifts every limit (driver 615, reported),
    so mpsd does not accept it.
    """
    entries = (variable or "").split(",", _MOST_ENTRIES)
    if len(entries) > _MOST_ENTRIES:
        return f"its CUDA_MPS_PINNED_DEVICE_MEM_LIMIT has more than {_MOST_ENTRIES} entries"
    known = {*visible, *map(str, visible.values())}  # no other way to write a number: the driver may read it differently
    for entry in filter(None, entries):
        device = entry.partition("=")[0].strip()
        if device not in known:
            return f"its CUDA_MPS_PINNED_DEVICE_MEM_LIMIT names {device[:64]!r}, no GPU of its domain, and would lift its limit"
    return ""


def _sent(percent: float) -> str:
    return f"{percent:.9g}"


def _rounded_up(percent: float) -> float:
    """Round up: a share stands for a whole number of SMs, and one slightly below it would give a whole step fewer."""
    return min(FULL_PERCENT, math.ceil(percent * _PARTS - 1e-6) / _PARTS)


def _whole_mib(size: int) -> int:
    return max(MIB, size // MIB * MIB)
