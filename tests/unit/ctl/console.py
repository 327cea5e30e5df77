"""mpsctl with the API's fakes: the real server at a real socket, the program in a thread, all output kept."""

import functools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from mpsctl.program import main
from mpsctl.surroundings import Surroundings
from msgspec.structs import replace

from mpsd.api.authority import Peer
from mpsd.api.methods import daemon
from mpsd.api.server import MODE
from mpsd.host.listeners import listen
from mpsd.model.lease import Grant, LeaseSpec, Selector, SelectorKind
from mpsd.model.process import ProcessId
from mpsd.model.service import Cause, MemberState, MemberView, Promotion, ServiceSettings, ServiceView
from tests.unit.api.fake_daemon import OPERATOR, FakeDaemon, open_daemon
from tests.unit.api.fake_incidents import suspected
from tests.unit.api.fake_services import NOW, UUIDS

USERS = {0: "root", 1000: "alice", 2000: "bob", 3000: "carol"}
PATIENCE_SECONDS = 20.0


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@dataclass
class Console:
    """`sockets`: one for each kind of peer, since the kernel would report the same credentials for all of them."""

    daemon: FakeDaemon
    directory: Path
    _sockets: dict[Peer, Path]

    def socket(self, peer: Peer) -> Path:
        if peer not in self._sockets:
            path = self.directory / f"{len(self._sockets)}.sock"
            listener = listen(path, MODE)
            self.daemon.stack.enter_context(listener)
            start_time = self.daemon.fakes.processes.setdefault(peer.pid, 10 * peer.pid)  # the program runs
            as_it_runs = replace(peer, process=ProcessId(peer.pid, start_time))
            self.daemon.nursery.start_soon(self._serve, listener, as_it_runs)
            self._sockets[peer] = path
        return self._sockets[peer]

    async def _serve(self, listener: Any, peer: Peer) -> None:
        while True:
            await trio.lowlevel.wait_readable(listener)
            connection, _ = listener.accept()
            connection.setblocking(False)
            self.daemon.api.begin_with(peer, connection, self.daemon.nursery)

    async def run(self, *words: str, peer: Peer = OPERATOR, out: StringIO | None = None, **environ: str) -> Done:
        """Run the program once, as this peer."""
        argv = ["--socket", str(self.socket(peer)), *words]
        around = surroundings(out or StringIO(), **environ)
        with trio.fail_after(PATIENCE_SECONDS):
            status = await trio.to_thread.run_sync(functools.partial(main, argv, around), abandon_on_cancel=True)
        return Done(status, around.stdout.getvalue(), around.stderr.getvalue())  # type: ignore[attr-defined]

    async def answer(self, *words: str, **options: Any) -> str:
        """Return the output of a run that must succeed."""
        done = await self.run(*words, **options)
        assert (done.status, done.err) == (0, ""), done
        return done.out


def surroundings(out: StringIO, **environ: str) -> Surroundings:
    """80 columns wide, ten seconds after the fakes' moment."""
    given = {"COLUMNS": "80", "TERM": "xterm-256color"} | environ
    return Surroundings(out, StringIO(), given, lambda: NOW + 10, lambda uid: USERS.get(uid, str(uid)))


@asynccontextmanager
async def open_console(directory: Path, short_dir: Path) -> AsyncIterator[Console]:
    async with open_daemon(directory) as daemon:
        yield Console(daemon, short_dir, {})


def furnish(console: Console) -> None:
    """Add to the standard contents: a container with memory of its own, a long name, a GPU of its own, faults."""
    fakes = console.daemon.fakes
    spec = LeaseSpec(
        "nightly-evaluation-of-the-large-model",
        Selector(SelectorKind.CGROUP, "3f2a9c0d1e2f"),
        gpus=(UUIDS[0],),
        sm_percent=12.5,
        memory_bytes={UUIDS[0]: 20 << 30},
        processes=2,
        group="evaluation",
        ttl_seconds=7200.0,
    )
    lease = fakes.leases.create(1000, spec, True)
    grant = Grant(f"lease {lease.id}, by cgroup 3f2a9c0d1e2f", lease.id, lease.spec.gpus, 6.25, {UUIDS[0]: 10 << 30})
    process = fakes.leases.admit(601, 1000, grant)
    server = fakes.board.add_server(uid=1000, clients=(601,), domain="d1")
    fakes.domains.members.append(type(fakes.domains.members[0])(process, 1000, "d1", server))
    fakes.processes[601] = process.start_time
    fakes.faults.keep(replace(suspected(), number=4, began_at=NOW + 1))  # since mpsd was started
    fakes.domains.members[0] = replace(fakes.domains.members[0], watched=True, shield=True, held=True)
    fakes.domains.members[1] = replace(fakes.domains.members[1], watched=True)
    console.daemon.fakes.failover.views[1] = served(console)
    console.daemon.bus.publish("domain.fault", {"domain": "d2", "was": "ready", "gpus": list(UUIDS), "clients": 1})


def served(console: Console) -> ServiceView:
    """That of arena 1, which has been through a fault."""
    before = console.daemon.fakes.failover.views[1]
    standby = MemberView(ProcessId(601, 6010), "d2", 1, MemberState.READY, False, True, NOW - 3600)
    late = MemberView(ProcessId(602, 6020), "d3", 1, MemberState.WARMING, False, True, NOW)
    return replace(
        before,
        settings=ServiceSettings(2, 30.0, 20 << 30, 2.5),
        members=(*before.members, standby, late),
        promotions=2,
        last=Promotion(NOW - 125, Cause.FAULT, 599, 586, 7, 0.42, 12.5, 0.7),
        protection="",
    )


@contextmanager
def at_the_moment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fix the time zone of clocks, and mpsd's uptime to ten seconds."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        patch.setattr(daemon, "time", SimpleNamespace(time=lambda: NOW + 10))
        time.tzset()
        yield
    time.tzset()
