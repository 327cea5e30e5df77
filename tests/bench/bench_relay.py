"""The relay alone: messages to and fro through it, compared with the same two ends joined directly.

    .venv/bin/python tests/bench/bench_relay.py [--trials 20] [--json FILE]

It needs neither a GPU nor a daemon: clients and a peer that echoes are separate processes, the relay's links run here.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpsd.host.peers import may_impersonate
from mpsd.relay.forwarding import Forwarding
from tests.bench import setting
from tests.gpu.comparison import figures
from tests.gpu.comparison.table import Table

BYTES = 256  # of a message: those of a handshake are about that long
ROUND_TRIPS = 10_000  # of all connections together
CONNECTIONS = (1, 8, 64)
ROUNDS = 5
PATIENCE_SECONDS = 60.0

Pairs = list[tuple[socket.socket, socket.socket]]


def main() -> int:
    asked = setting.parser("relay", __doc__).parse_args()
    trips = max(100, ROUND_TRIPS * asked.trials // 20)
    table = Table(facts={"message": f"{BYTES} bytes", "credentials are sent": str(may_impersonate())})
    for connections in CONNECTIONS:
        each = max(1, trips // connections)
        direct, relayed = [], []
        for _ in range(ROUNDS):
            direct.append(_seconds(connections, each, _join_directly))
            relayed.append(_seconds(connections, each, _join_by_links))
        _rows(table, connections, each, direct, relayed)
    return setting.finish(table, asked)


def _seconds(connections: int, each: int, join: Callable[[Pairs, Pairs], None]) -> float:
    """For all round trips; each connection's client and its peer are two processes."""
    clients = [_pair() for _ in range(connections)]
    domains = clients if join is _join_directly else [_pair() for _ in range(connections)]
    begun = time.monotonic()
    children = [_fork(_echo, domain[1], clients + domains) for domain in domains]
    callers = [_fork(lambda end: _call(end, each), client[0], clients + domains) for client in clients]
    join(clients, domains)
    for pid in callers + children:
        if os.waitpid(pid, 0)[1]:
            raise ChildProcessError("a client or its peer failed")
    return time.monotonic() - begun


def _join_directly(clients: Pairs, domains: Pairs) -> None:
    """The peer has the client's other end: nothing is to do but to let go of both."""
    _close(clients + domains)


def _join_by_links(clients: Pairs, domains: Pairs) -> None:
    for outer, inner in (*clients, *((theirs, mine) for mine, theirs in domains)):
        outer.close()
        inner.setblocking(False)
        inner.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    trio.run(_run_links, [inner for _, inner in clients], [mine for mine, _ in domains])
    _close(clients + domains)


async def _run_links(clients: list[socket.socket], domains: list[socket.socket]) -> None:
    async with trio.open_nursery() as nursery:
        for client, domain in zip(clients, domains, strict=True):
            nursery.start_soon(Forwarding(client, may_impersonate()).run, domain, PATIENCE_SECONDS, _is_well)


async def _is_well() -> bool:
    return True


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _close(pairs: Pairs) -> None:
    for pair in pairs:
        for end in pair:
            end.close()


def _fork(work: Callable[[socket.socket], None], end: socket.socket, others: Pairs) -> int:
    """A process that has only its own end."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for pair in others:
            for other in pair:
                if other is not end:
                    other.close()
        work(end)
        status = 0
    finally:
        os._exit(status)


def _call(end: socket.socket, each: int) -> None:
    message = bytes(BYTES)
    for _ in range(each):
        end.send(message)
        if len(end.recv(BYTES)) != BYTES:
            raise ConnectionError("the peer hung up")


def _echo(end: socket.socket) -> None:
    while data := end.recv(BYTES):
        end.send(data)


def _rows(table: Table, connections: int, each: int, direct: list[float], relayed: list[float]) -> None:
    total = each * connections
    own, through = (figures.median(seconds) or 1.0 for seconds in (direct, relayed))
    table.keep("relay", f"{connections} connections, seconds for {total} round trips", {"direct": direct, "relayed": relayed})
    table.add(
        "relay",
        f"{connections} connections: messages per second",
        vendor=figures.number(2 * total / own),
        mpsd=figures.number(2 * total / through),
        ratio=figures.times(own / through),
        remark="vendor: joined directly",
    )
    added_us = (through - own) / total / 2 * 1e6
    table.add("relay", f"{connections} connections: time added to a message", mpsd=f"{added_us:.0f} us")


if __name__ == "__main__":
    sys.exit(main())
