"""The schedulers' socket: calls per second compared with a bare echo of the same bytes, events per second to many subscribers.

    .venv/bin/python tests/bench/bench_api.py [--trials 20] [--json FILE]

It needs neither a GPU nor a daemon. Callers and readers are separate processes, and so is the server's side, which has a book
in memory, so that only the socket is measured.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgpack
import trio
from mpsd_client import Client, calls

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpsd.wire.rpc import Request, encode
from tests.bench import api_server, setting
from tests.gpu.comparison import figures
from tests.gpu.comparison.table import Table

CALLS = 10_000  # of all callers together
CALLERS = (1, 8, 32)
ROUNDS = 3
SUBSCRIBERS = 100
READERS = 2  # processes that read for them
EVENTS = 1_000
HEALTHS = 100
FLOOD = 64
NOBODY = 65534
SECTION = "api"

HEALTH = encode(Request(1, "health", {}))
LIST = encode(Request(1, "lease.list", {}))
HELLO = encode(Request(0, "hello", {"version": 1}))


def main() -> int:
    asked = setting.parser(SECTION, __doc__).parse_args()
    table = Table(facts={"callers": "processes of their own, one call at a time"})
    total = max(100, CALLS * asked.trials // 20)
    with TemporaryDirectory(prefix="mpsd-bench-", dir="/tmp") as place:
        Path(place).chmod(0o755)
        orders, mine = os.pipe()
        ready, theirs = os.pipe()
        server = _fork(lambda: trio.run(api_server.serve, Path(place), orders, theirs))
        try:
            os.read(ready, 1)
            for callers in CALLERS:
                _measure_calls(table, Path(place), callers, total // callers)
            _measure_health(table, Path(place) / "mpsd.sock")
            _measure_list(table, Path(place) / "mpsd.sock", max(1, asked.trials // 4))
            _measure_events(table, Path(place) / "mpsd.sock", max(50, EVENTS * asked.trials // 20), mine)
        finally:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
    return setting.finish(table, asked)


# -- measuring -----------------------------------------------------------------------------------------------------------


def _measure_calls(table: Table, place: Path, callers: int, each: int) -> None:
    seconds: dict[str, list[float]] = {"echo": [], "health": []}
    for _ in range(ROUNDS):
        seconds["echo"].append(_time(callers, lambda: _exchange(place / "echo", each)))
        seconds["health"].append(_time(callers, lambda: _exchange(place / "mpsd.sock", each, HELLO)))
    rates = {name: callers * each / (figures.median(found) or 1) for name, found in seconds.items()}
    table.keep(SECTION, f"{callers} callers, seconds for {each} calls each", seconds)
    table.add(
        SECTION,
        f"{callers} callers: calls per second",
        vendor=figures.number(rates["echo"]),
        mpsd=figures.number(rates["health"]),
        ratio=figures.times(rates["health"] / rates["echo"]),
        remark="health; in the vendor's place a bare echo of the same bytes",
    )


def _measure_health(table: Table, path: Path) -> None:
    """How long an operator's health takes while a user asks for the most costly thing, on as many connections as a user has."""
    ready, flooding = os.pipe()
    others = [_fork(lambda: _flood(path, flooding)) for _ in range(READERS)]
    for _ in others:
        os.read(ready, 1)
    found: list[float] = []
    with Client(path) as mpsd:
        for _ in range(HEALTHS):
            begun = time.monotonic()
            mpsd.ask(calls.health())
            found.append((time.monotonic() - begun) * 1e3)
    for pid in others:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    table.keep(SECTION, "health beside a flood, ms", found)
    table.add(
        SECTION,
        "health beside a flood: median, slowest",
        mpsd=f"{figures.ms(figures.median(found))}, {figures.ms(max(found))}",
        goal="100 ms",
        met=max(found) <= 100,
        remark=f"{FLOOD} connections of one user list {api_server.LEASES:,} leases of another without end",
    )


def _measure_list(table: Table, path: Path, rounds: int) -> None:
    seconds = []
    with Client(path) as mpsd:
        for _ in range(rounds):
            begun = time.monotonic()
            if sum(1 for _ in mpsd.pages(calls.lease_list(limit=1000))) != api_server.LEASES:
                raise ValueError("the list is not whole")
            seconds.append(time.monotonic() - begun)
    table.add(SECTION, f"{api_server.LEASES:,} leases, all pages", mpsd=figures.ms((figures.median(seconds) or 0) * 1e3))


def _measure_events(table: Table, path: Path, count: int, orders: int) -> None:
    """From the first one published until every subscriber has the last one."""
    ready, subscribed = os.pipe()
    counted, counts = os.pipe()
    readers = [_fork(lambda: _read_events(path, SUBSCRIBERS // READERS, count, subscribed, counts)) for _ in range(READERS)]
    for _ in readers:
        os.read(ready, 1)
    begun = time.monotonic()
    os.write(orders, count.to_bytes(4))
    _wait_for(readers)
    seconds = time.monotonic() - begun
    lost = sum(int.from_bytes(os.read(counted, 4)) for _ in readers)
    told = count * SUBSCRIBERS - lost
    table.keep(SECTION, "events", {"seconds": seconds, "events": count, "subscribers": SUBSCRIBERS, "lost": lost})
    table.add(
        SECTION,
        f"{SUBSCRIBERS} subscribers: events per second",
        mpsd=figures.number(count / seconds),
        remark=f"{figures.number(told / seconds)} datagrams per second; {lost} of {count * SUBSCRIBERS} lost, and told so",
    )


# -- callers and readers -------------------------------------------------------------------------------------------------


def _exchange(path: Path, each: int, first: bytes = b"") -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(path))
        for datagram in [first] * bool(first) + [HEALTH] * each:
            sock.send(datagram)
            if not sock.recv(65536):
                raise ConnectionError("the peer hung up")


def _flood(path: Path, flooding: int) -> None:
    """Until killed; as another user, where this one may become one."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    poll = select.poll()
    socks = {}
    for _ in range(FLOOD // READERS):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(path))
        sock.send(HELLO)
        socks[sock.fileno()] = sock
        poll.register(sock, select.POLLIN)
    os.write(flooding, b"!")
    while True:
        for number, _ in poll.poll():
            socks[number].recv(65536)
            socks[number].send(LIST)


def _read_events(path: Path, subscribers: int, count: int, subscribed: int, counts: int) -> None:
    """Many connections in one process; reports when all have subscribed, and at the end the number of lost events."""
    clients = {client._sock.fileno(): client for client in (Client(path) for _ in range(subscribers))}
    poll = select.poll()
    for number, client in clients.items():
        poll.register(number, select.POLLIN)
        client.subscribe("domain.*")
    os.write(subscribed, b"!")
    seen = dict.fromkeys(clients, 0)
    lost = 0
    while min(seen.values()) < count:
        for number, _ in poll.poll():
            more, less = _waiting(clients[number])
            seen[number], lost = seen[number] + more, lost + less
    os.write(counts, lost.to_bytes(4))


def _waiting(client: Client) -> tuple[int, int]:
    """Return how many events have come, and how many of them were only counted as lost. They are not decoded, since readers
    share the processors with the measured part."""
    seen = lost = 0
    try:
        while True:
            data = client._sock.recv(65536)
            count = msgpack.unpackb(data)[2][0]["count"] if b"events.lost" in data[:20] else 0
            seen, lost = seen + (count or 1), lost + count
    except BlockingIOError:
        return seen, lost


def _time(callers: int, work: Callable[[], None]) -> float:
    """Return the seconds until all have done it, each in a separate process."""
    begun = time.monotonic()
    _wait_for([_fork(work) for _ in range(callers)])
    return time.monotonic() - begun


def _wait_for(pids: list[int]) -> None:
    for pid in pids:
        if os.waitpid(pid, 0)[1]:
            raise ChildProcessError("a caller failed")


def _fork(work: Callable[[], None]) -> int:
    """This process has no threads, and forks no other one."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
