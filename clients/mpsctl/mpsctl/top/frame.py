"""One frame of `top`, in text: the table of a view, and the lines about mpsd and its GPUs above it.  Pure."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpsd_client import Lease, values

from mpsctl.output import NOTHING, Column, cell_text, visible
from mpsctl.quantities import show_duration, show_percent, show_size
from mpsctl.top.bars import bar, spark
from mpsctl.top.clients import Row
from mpsctl.top.usage import GpuUse, Use

MOMENTS = 60  # seconds that a sparkline can show
_BAR = 6


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.  leased: shares of active leases that the user may see, 0 to 1; moments: load and memory of the last seconds."""

    uuid: str
    ordinal: int
    name: str
    total_bytes: int
    leased: float
    leased_bytes: int
    use: GpuUse | None
    moments: tuple[tuple[float | None, float | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table.  key: identifies it in the next frame; row: the value that it shows."""

    key: object
    cells: tuple[str, ...]
    row: Any


@dataclass(frozen=True, slots=True)
class Frame:
    view: str
    at: float
    hello: values.Hello
    status: values.Status
    health: values.Health
    use: Use
    gpus: tuple[Gpu, ...]
    columns: tuple[Column[Any], ...]
    lines: tuple[Line, ...]
    empty: str


@dataclass(slots=True)
class History:
    """The load and the memory of each GPU in the last seconds, one value a second."""

    moments: dict[str, deque[tuple[float | None, float | None]]] = field(default_factory=dict)
    _last: float = 0.0

    def keep(self, at: float, use: Use) -> None:
        if at - self._last < 1:
            return
        self._last = at
        for uuid, each in use.gpus.items():
            found = self.moments.setdefault(uuid, deque(maxlen=MOMENTS))
            found.append((each.busy, each.used_bytes / each.total_bytes if each.total_bytes else None))


def gpus(devices: Iterable[values.Device], leases: Sequence[Lease], use: Use, history: History) -> tuple[Gpu, ...]:
    def of(device: values.Device) -> Gpu:
        own = [each for each in leases if each.state == "active" and (not each.gpus or device.uuid in each.gpus)]
        return Gpu(
            uuid=device.uuid, ordinal=device.ordinal, name=device.name, total_bytes=device.total_bytes,
            leased=sum(each.sm_reserved_percent for each in own) / 100,
            leased_bytes=sum((each.memory_bytes or {}).get(device.uuid, 0) for each in own),
            use=use.gpus.get(device.uuid), moments=tuple(history.moments.get(device.uuid, ())),
        )  # fmt: skip

    return tuple(map(of, devices))


def lines(columns: Sequence[Column[Any]], rows: Iterable[Any], key: Any) -> tuple[Line, ...]:
    return tuple(Line(key(row), tuple(cell_text(column.cell(row)) for column in columns), row) for row in rows)


# -- clients and GPUs, with bars -----------------------------------------------------------------------------------------


def client_columns(use: Use, total_bytes: int) -> tuple[Column[Row], ...]:
    """Return the columns of clients.  total_bytes: a full bar of memory."""
    return (
        Column("PID", lambda row: row.pid, is_number=True),
        Column("USER", lambda row: row.user, may_be_cut=True, least=5),
        Column("CONTAINER", lambda row: row.container, may_be_cut=True, least=6),
        Column("DOMAIN", lambda row: row.domain, may_be_cut=True, least=4),
        Column("SM", sm_cell),
        Column("MEMORY", lambda row: memory_cell(row, use.processes, total_bytes)),
        Column("STATE", lambda row: row.state),
        Column("FLT", lambda row: row.faults or NOTHING, is_number=True),
    )


def sm_cell(row: Row) -> str:
    """Return granted and asked shares.  NVML does not distinguish the load of clients of one server."""
    if row.sm_held_percent is None:
        return NOTHING
    asked = row.sm_asked_percent or row.sm_held_percent
    shown = show_percent(row.sm_held_percent)
    if asked != row.sm_held_percent:
        shown = f"{shown[:-1]}/{show_percent(asked)}"
    return f"{bar(_BAR, None, row.sm_held_percent / 100, asked / 100)} {shown}"


def memory_cell(row: Row, used: Mapping[int, int], total_bytes: int) -> str:
    """Return used and granted memory."""
    if row.state != "running" or not total_bytes:
        return NOTHING
    held, own = row.memory_held_bytes, used.get(row.pid)
    drawn = bar(_BAR, own and own / total_bytes, held and held / total_bytes)
    return f"{drawn} {NOTHING if own is None else show_size(own)}/{'all' if held is None else show_size(held)}"


def gpu_columns() -> tuple[Column[Gpu], ...]:
    return (
        Column("GPU", lambda gpu: gpu.ordinal, is_number=True),
        Column("NAME", lambda gpu: gpu.name, may_be_cut=True, least=6),
        Column("SM LEASED", lambda gpu: f"{bar(_BAR, None, gpu.leased)} {show_percent(gpu.leased * 100)}"),
        Column("BUSY", _busy),
        Column("MEMORY", _memory),
        Column("LEASED", lambda gpu: show_size(gpu.leased_bytes) if gpu.leased_bytes else None, is_number=True),
        Column("UUID", lambda gpu: gpu.uuid, may_be_cut=True, least=8),
    )


def _busy(gpu: Gpu) -> str:
    busy = gpu.use.busy if gpu.use else None
    return NOTHING if busy is None else f"{bar(_BAR, busy, None)} {show_percent(busy * 100)}"


def _memory(gpu: Gpu) -> str:
    used = gpu.use.used_bytes if gpu.use else None
    drawn = bar(_BAR, used and used / gpu.total_bytes, gpu.leased_bytes / gpu.total_bytes)
    return f"{drawn} {NOTHING if used is None else show_size(used)}/{show_size(gpu.total_bytes)}"


# -- above the table -----------------------------------------------------------------------------------------------------


def title(frame: Frame, width: int) -> str:
    """Return the line about mpsd: as much as fits, the most important facts first."""
    status = frame.status
    faulted = sum(status.domains.get(state, 0) for state in ("fault", "silent", "contained", "dead"))
    parts = [
        f"{time.strftime('%H:%M:%S', time.localtime(frame.at))} mpsd {status.version} {status.state}",
        f"NOT WELL: {visible(frame.health.problems[0])}" if not frame.health.ok else "",
        f"{faulted} of {sum(status.domains.values())} domains down" if faulted else f"{sum(status.domains.values())} domains",
        f"{status.clients} clients",
        f"{status.queue} wait" if status.queue else "",
        f"{status.services_unserved} of {status.services} services unserved" if status.services_unserved else "",
        f"up {show_duration(status.uptime_seconds)}",
    ]
    return " · ".join(filter(None, parts))[:width]


def gpu_line(gpu: Gpu, width: int) -> str:
    """Return the load and the memory of one GPU, at least 78 columns wide."""
    size = max(6, min(30, (width - 56) // 4))
    busy = gpu.use.busy if gpu.use else None
    used = gpu.use.used_bytes if gpu.use else None
    loads, sizes = [each[0] for each in gpu.moments], [each[1] for each in gpu.moments]
    shown = NOTHING if busy is None else show_percent(busy * 100)
    return (
        f"GPU {gpu.ordinal} SM {bar(size, busy, gpu.leased)} {show_percent(gpu.leased * 100):>4} leased {shown:>4} busy "
        f"{spark(loads, 1.0, size)} MEM {bar(size, used and used / gpu.total_bytes, gpu.leased_bytes / gpu.total_bytes)} "
        f"{NOTHING if used is None else show_size(used)}/{show_size(gpu.total_bytes)} {spark(sizes, 1.0, size)}"
    )[:width]
