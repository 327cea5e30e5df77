"""mpsd is killed at every write: acknowledged leases exist, released ones do not return, and nothing counts twice.

A child process performs the same steps each time with the real store and the real book, and acknowledges each through a pipe,
as mpsd does by its reply. The test kills it before its n-th SQL statement, for every n; and another test kills it at random
times, so in the middle of statements too. The next book must find the state after the acknowledged steps, or after these and
the step in progress.
"""

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mpsd.errors import NoRoom
from mpsd.leases.lease_book import LeaseBook
from mpsd.leases.rules.budgets import Scope
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.leases.store import LeaseStore
from mpsd.model.device import Device
from mpsd.model.lease import Grant, Identity, Lease, LeaseSpec, LeaseState, Selector, SelectorKind
from mpsd.model.process import Credentials, ProcessId

DEVICES = (Device(0, "GPU-a", "A", 1 << 36, "0"),)
ROOT, ALICE, BOB, CAROL = 0, 1000, 1001, 1002
UID_OF = {1: ALICE, 2: ALICE, 3: BOB, 4: CAROL}  # by pid
MOMENTS = 40
LEAST_STATEMENTS_A_STEP = 3  # begin, write, commit

Seen = Callable[[str], object]


def create(sm: float, selector: Selector, **fields: float) -> Callable[[LeaseBook], object]:
    return lambda book: book.create(ROOT, LeaseSpec("a lease", selector, sm_percent=sm, **fields))


def uid(number: int) -> Selector:
    return Selector(SelectorKind.UID, str(number))


def admit(pid: int) -> Callable[[LeaseBook], object]:
    def run(book: LeaseBook) -> None:
        asking = book.admit(ProcessId(pid, 1), Credentials(pid, UID_OF[pid], 0), lambda reason: None)
        with pytest.raises(StopIteration):  # it has its answer without waiting
            asking.send(None)

    return run


def leave(pid: int) -> Callable[[LeaseBook], object]:
    return lambda book: book.leave(ProcessId(pid, 1))


STEPS = [
    create(40, uid(ALICE), processes=2),  # lease 1
    admit(1),
    admit(2),
    create(30, Selector(SelectorKind.TOKEN, "t" * 16), ttl_seconds=1e6),  # lease 2
    create(50, uid(BOB), wait_seconds=1e6),  # lease 3 waits
    lambda book: book.renew(2, 2e6),
    lambda book: book.release(2),  # and lease 3 has room
    admit(3),
    create(5, Selector(SelectorKind.PID, "4")),  # lease 4
    admit(4),
    lambda book: book.release(1),  # while two run under it
    leave(1),
    leave(4),  # and lease 4 ends with it
    create(20, uid(CAROL)),  # lease 5
    lambda book: book.release(3),
    leave(3),
]


class Found(NamedTuple):
    """Everything that a book promises."""

    leases: list[Lease]
    grants: dict[ProcessId, Grant]
    counted: dict[Scope, int]


def open_book(path: Path, seen: Seen | None = None) -> LeaseBook:
    """seen: called with each statement before it is executed."""
    path.mkdir(exist_ok=True)
    store = LeaseStore(path / "leases.db", "this boot")
    if seen:
        store._db.set_trace_callback(seen)
    return LeaseBook(
        store,
        lambda: DEVICES,
        AdmissionSettings(),
        lambda process, who: Identity(process, who.uid, who.gid),
        lambda topic, facts: None,
        lambda: 1e6,
        find_process=lambda pid: ProcessId(pid, 1),
    )


def look(book: LeaseBook) -> Found:
    return Found(list(book.leases()), dict(book.grants()), dict(book._account.ledger.used))


def undisturbed(path: Path) -> tuple[list[Found], int, float]:
    """Return the state after each number of steps, the number of statements, and the seconds that this took."""
    statements: list[str] = []
    begun = time.monotonic()
    book = open_book(path, statements.append)
    states = [look(book)]
    for step in STEPS:
        step(book)
        states.append(look(book))
    assert len(statements) >= LEAST_STATEMENTS_A_STEP * len(STEPS)
    return states, len(statements), time.monotonic() - begun


def in_child(work: Callable[[Callable[[], None]], None]) -> tuple[int, bool]:
    """How often a child acknowledged something before it was killed or done, and whether it was killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            work(lambda: os.write(writer, b"."))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as acknowledged:
        done = len(acknowledged.read())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL, -signal.SIGALRM)
    return done, status != 0


def do_the_steps(path: Path, seen: Seen | None = None) -> int:
    def work(acknowledge: Callable[[], None]) -> None:
        book = open_book(path, seen)
        for step in STEPS:
            step(book)
            acknowledge()

    done, was_killed = in_child(work)
    assert was_killed or done == len(STEPS)
    return done


def check(path: Path, done: int, states: list[Found]) -> None:
    book = open_book(path)
    found = look(book)
    assert found in states[done : done + 2], f"after {done} steps"
    active = {lease.id: lease.spec.sm_percent for lease in found.leases if lease.state is LeaseState.ACTIVE}
    kept = [grant.sm_percent for grant in found.grants.values() if grant.lease_id not in active]
    free = 100.0 - sum(active.values()) - sum(kept)
    if free and not book.queue():
        book.create(ROOT, LeaseSpec("all that is free", uid(ALICE), sm_percent=free))
        free = 0.0
    with pytest.raises(NoRoom):
        book.create(ROOT, LeaseSpec("more than is free", uid(ALICE), sm_percent=free + 0.1))


def kill_before(number: int) -> Seen:
    """Kills the process that executes it, before its statement of this number."""
    left = number

    def count(statement: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


@pytest.mark.slow
@pytest.mark.deadline(120)
def test_killed_at_every_statement(tmp_path: Path) -> None:
    """And once not at all: the last number is beyond the last statement."""
    states, statements, _ = undisturbed(tmp_path / "whole")
    reached = set()
    for number in range(1, statements + 2):
        path = tmp_path / str(number)
        done = do_the_steps(path, kill_before(number))
        check(path, done, states)
        reached.add(done)
    assert reached == set(range(len(STEPS) + 1))


@pytest.mark.deadline(120)
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """SIGALRM with its default action ends a process at any moment, as SIGKILL does."""
    states, _, seconds = undisturbed(tmp_path / "whole")
    for moment in range(1, MOMENTS + 1):
        path = tmp_path / str(moment)

        def work(acknowledge: Callable[[], None], path: Path = path, at: float = seconds * moment / MOMENTS) -> None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, at)
            book = open_book(path)
            for step in STEPS:
                step(book)
                acknowledge()

        done, _ = in_child(work)
        check(path, done, states)


def test_killed_while_the_file_is_made(tmp_path: Path) -> None:
    """What was begun is finished by the next."""
    real, was_killed, number = sqlite3.connect, True, 0
    while was_killed:
        number += 1
        path = tmp_path / str(number)

        def work(acknowledge: Callable[[], None], path: Path = path, number: int = number) -> None:
            def connect(*args: Any, **more: Any) -> sqlite3.Connection:
                made = real(*args, **more)
                made.set_trace_callback(kill_before(number))
                return made

            sqlite3.connect = connect
            open_book(path)

        _, was_killed = in_child(work)
        assert look(open_book(path)) == Found([], {}, {})
    assert number > LEAST_STATEMENTS_A_STEP * 2
