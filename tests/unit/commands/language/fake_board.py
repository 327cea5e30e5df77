"""A board in memory, with domains that answer forwarded lines as the vendor's daemon does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from mpsd.errors import MpsdError, NoSuchServer
from mpsd.model.device import Device
from mpsd.model.domain import Defaults, ServerView

GIB = 1024**3
MIB = 1024**2


def device(ordinal: int, uuid: str) -> Device:
    return Device(ordinal, uuid, "NVIDIA H200", 140 * GIB, f"00000000:0{ordinal}:00.0")


DEVICES = (
    device(0, "GPU-196ea3e9-3f87-78c8-1f14-a2bf3280f061"),
    device(1, "GPU-196f0000-3f87-78c8-1f14-a2bf3280f061"),
)


@dataclass
class FakeBoard:
    devices: tuple[Device, ...] = DEVICES
    running: list[ServerView] = field(default_factory=list)
    present: Defaults = field(default_factory=Defaults)
    forwarded: list[tuple[int | None, str]] = field(default_factory=list)
    ended: list[tuple[object, ...]] = field(default_factory=list)
    broken: dict[int | None, MpsdError] = field(default_factory=dict)  # by server, instead of an answer
    percents: dict[int, float] = field(default_factory=dict)
    limits: dict[tuple[int, int], int] = field(default_factory=dict)

    def defaults(self) -> Defaults:
        return self.present

    async def set_defaults(self, defaults: Defaults) -> None:
        self.present = defaults

    async def servers(self) -> list[ServerView]:
        return self.running

    async def start_server(self, uid: int) -> str:
        if uid not in [server.uid for server in self.running]:
            self.add_server(uid=uid)
        return ""

    def add_server(self, uid: int = 0, clients: tuple[int, ...] = (), **others: object) -> int:
        pid = 512 + len(self.running)
        view = ServerView(pid, uid, "ACTIVE", clients, f"gpu0-{len(self.running)}")
        self.running.append(replace(view, **others))
        self.percents[pid] = self.present.thread_percent
        for each in self.devices:
            self.limits[pid, each.ordinal] = self.present.pinned_limits.get(each.uuid, 0)
        return pid

    async def shutdown_server(self, pid: int, force: bool) -> str:
        self.ended.append(("server", pid, force))
        return ""

    async def terminate_client(self, server_pid: int, client_pid: int, check: Callable[[], None] = lambda: None) -> str:
        check()
        self.ended.append(("client", server_pid, client_pid))
        server = next(each for each in self.running if each.pid == server_pid)
        return "0\n" if client_pid in server.client_pids else f"Invalid process {client_pid}!\n1\n"

    async def quit(self, timeout_seconds: float | None) -> int:
        self.ended.append(("daemon", timeout_seconds))
        return 0

    async def forward(self, server_pid: int | None, line: str) -> str:
        self.forwarded.append((server_pid, line))
        if server_pid in self.broken:
            raise self.broken[server_pid]
        name, *words = line.split()
        return VENDOR.get(name, unknown)(self, name, words)

    async def forward_each(self, lines: Sequence[tuple[int, str]]) -> Sequence[str | MpsdError]:
        found: list[str | MpsdError] = []
        for pid, line in lines:
            try:
                found.append(await self.forward(pid, line))
            except MpsdError as exc:
                found.append(exc)
        return found

    def server(self, pid: str) -> ServerView:
        for each in self.running:
            if each.pid == int(pid):
                return each
        raise NoSuchServer(f"Server {pid} not found")


def unknown(board: FakeBoard, name: str, words: list[str]) -> str:
    return f'Unknown command "{name}"\n'


def get_percent(board: FakeBoard, name: str, words: list[str]) -> str:
    return f"{board.percents[int(words[0])]:.1f}\n"


def set_percent(board: FakeBoard, name: str, words: list[str]) -> str:
    board.percents[int(words[0])] = float(words[1])
    return get_percent(board, name, words)


def get_limit(board: FakeBoard, name: str, words: list[str]) -> str:
    size = board.limits.get((int(words[0]), int(words[1])), 0)
    return "" if not size else f"{size // GIB}G\n" if size >= GIB else f"{size // MIB}M\n"


def set_limit(board: FakeBoard, name: str, words: list[str]) -> str:
    board.limits[int(words[0]), int(words[1])] = int(words[2].removesuffix("M")) * MIB
    return ""


def ps(board: FakeBoard, name: str, words: list[str]) -> str:
    """Rows as driver 580 prints them, in its widths."""
    server = board.server(words[1])
    rows = [("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")]
    rows += [
        (str(pid), str(at), str(server.pid), board.devices[0].uuid[:22], "4026531836", "/tmp/lab")
        for at, pid in enumerate(server.client_pids, 1)
    ]
    return "".join("{:<10}{:<10}{:<15}{:<26}{:<15}{:<15}\n".format(*row) for row in rows) if rows[1:] else ""


def get_device_client_list(board: FakeBoard, name: str, words: list[str]) -> str:
    clients = board.server(words[0]).client_pids
    return "".join([f"[0] 00:00.0, {board.devices[0].name}\n", *(f"{pid}.1\n" for pid in clients)]) if clients else ""


def device_query(board: FakeBoard, name: str, words: list[str]) -> str:
    pids = [word for word in words if word != "--csv"]
    uuids = board.server(pids[0]).device_uuids if pids else ()
    shown = [each for each in board.devices if each.uuid in uuids] or board.devices
    rows = [("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")]
    rows += [(str(at), f"0000:00.0{at}.00", each.uuid, each.name, "N/A") for at, each in enumerate(shown)]
    layout = "{},{},{},{},{}\n" if "--csv" in words else "{:<16}{:<15}{:<42}{:<34}{}\n"
    text = "".join(layout.format(*row) for row in rows)
    return f"Default\n{text}" + (f"\nServer {pids[0]}\n{text}" if pids else "")


VENDOR = {
    "get_active_thread_percentage": get_percent,
    "set_active_thread_percentage": set_percent,
    "get_device_pinned_mem_limit": get_limit,
    "set_device_pinned_mem_limit": set_limit,
    "ps": ps,
    "get_device_client_list": get_device_client_list,
    "device_query": device_query,
}
