"""Leases: what it costs to make one, to find a client's and to decide about it, as they grow in number.

    .venv/bin/python tests/bench/bench_leases.py [--trials 20] [--json FILE] [--store DIRECTORY]

Needs neither a GPU nor a daemon.  The store is on /dev/shm, as the state directory of a daemon is on /run; --store puts it
elsewhere.  The ratio is that to the smallest number of leases.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpsd.errors import NoRoom
from mpsd.host import cgroups, processes
from mpsd.leases.lease_book import LeaseBook
from mpsd.leases.rules.matching import LeaseIndex
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.leases.store import LeaseStore
from mpsd.model.device import Device
from mpsd.model.lease import Grant, Identity, Lease, LeaseSpec, Selector, SelectorKind
from mpsd.model.process import Credentials, ProcessId
from tests.bench import setting
from tests.gpu.comparison import figures
from tests.gpu.comparison.table import Table

SIZES = (100, 1000, 10_000)
TIMES = 2000  # each is done, with --trials 20
WAITING = 1024  # as many as the queue has places
GPUS = tuple(Device(number, f"GPU-{number}", "bench", 80 << 30, "") for number in range(4))
USERS = 50
POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{:08x}_89e4_4001_bdd4_8632d39ea02b.slice"
SCOPE = "/cri-containerd-{:064x}.scope"
SETTINGS = AdmissionSettings(max_leases=SIZES[-1] + TIMES + WAITING, max_clients=1 << 20, user_queue=WAITING)

Seconds = list[float]


def main() -> int:
    options = setting.parser("leases", __doc__)
    options.add_argument("--store", metavar="DIRECTORY", help="where the store is (/dev/shm, if there is one)")
    asked = options.parse_args()
    times = max(50, TIMES * asked.trials // 20)
    where = asked.store or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    with tempfile.TemporaryDirectory(prefix="mpsd-", dir=where) as directory:
        table = Table(facts={"store": str(Path(directory).parent), "each was done": f"{times} times; medians"})
        measure(Path(directory), 1, 20)  # the first calls of anything are slow
        found = {size: measure(Path(directory), size, times) for size in SIZES}
    for what in found[SIZES[0]]:
        for size in SIZES:
            _row(table, size, what, found[size][what], found[SIZES[0]][what])
    table.add("leases", "who a process is, from /proc", mpsd=_us(_timed(_identify, times)))
    return setting.finish(table, asked)


def measure(directory: Path, size: int, times: int) -> dict[str, Seconds]:
    """Seconds of each thing, with so many leases there."""
    book = open_book(directory / f"{size}.db")
    made = _timed(_maker(book), size)
    clients, strangers = (_admitter(book, lease_of) for lease_of in (lambda pid: pid % size, lambda pid: None))
    index = LeaseIndex()
    for lease in book.leases():
        index.put(lease)
    identities = (_identity(pid, pid % size) for pid in count())
    found = {
        "a lease is made": made,
        "... and released": _timed(_releaser(book, times), times),
        "a client's lease is found": _timed(lambda: index.match(next(identities)), times),
        "a client is let in, with a lease": _timed(clients, times),
        "... without one": _timed(strangers, times),
    }
    fill_queue(book)
    found[f"a lease is refused, {WAITING} wait"] = _timed(lambda: _refused(book), max(5, times // 20))
    found[f"a client is let in, {WAITING} wait"] = _timed(clients, times)
    begun = time.perf_counter()
    open_book(directory / f"{size}.db")
    found["a restarted mpsd has read them"] = [time.perf_counter() - begun]
    return found


def open_book(path: Path) -> LeaseBook:
    return LeaseBook(
        LeaseStore(path, "this boot"),
        lambda: GPUS,
        SETTINGS,
        lambda process, who: _identity(process.pid if process else 0, who.gid - 1 if who.gid else None),
        lambda topic, facts: None,
        find_process=lambda pid: ProcessId(pid, 1),
    )


def spec(number: int, sm: float = 0.004, **fields: float) -> LeaseSpec:
    """A third each by token, by container, and by pod."""
    container, pod = SCOPE.format(number)[1:], POD.format(number)
    selectors = (
        Selector(SelectorKind.TOKEN, _token(number)),
        Selector(SelectorKind.CGROUP, container.removeprefix("cri-containerd-").removesuffix(".scope")),
        Selector(SelectorKind.CGROUP, pod),
    )
    gpu = GPUS[number % len(GPUS)].uuid
    memory = {} if fields else {gpu: 1 << 21}
    return LeaseSpec(f"lease {number}", selectors[number % 3], (gpu,), sm, memory, processes=1 if fields else 2, **fields)


def _maker(book: LeaseBook) -> Callable[[], Lease]:
    numbers = count()
    return lambda: book.create(0, spec(next(numbers)))


def _releaser(book: LeaseBook, times: int) -> Callable[[], Lease]:
    """Release leases that were made in addition."""
    besides = iter([book.create(0, spec(2 * SIZES[-1] + number)) for number in range(times)])
    return lambda: book.release(next(besides).id)


def _admitter(book: LeaseBook, lease_of: Callable[[int], int | None]) -> Callable[[], Grant]:
    pids = count(1)

    def admit() -> Grant:
        pid = next(pids)
        number = lease_of(pid)
        process = ProcessId(pid, 2 if number is None else 1)
        credentials = Credentials(pid, 1000 + pid % USERS, 0 if number is None else number + 1)
        asking = book.admit(process, credentials, lambda reason: None)
        try:
            asking.send(None)
        except StopIteration as done:
            book.leave(process)
            return done.value
        raise AssertionError("it waits")

    return admit


def fill_queue(book: LeaseBook) -> None:
    for number in range(WAITING):
        book.create(0, spec(SIZES[-1] + number, 99.0, wait_seconds=1e6))


def _refused(book: LeaseBook) -> None:
    try:
        book.create(0, spec(0, 98.0, priority=1))
    except NoRoom:
        return
    raise AssertionError("it has room")


def _identify() -> Identity:
    return cgroups.identify(processes.process_id(os.getpid()), Credentials(os.getpid(), 0, 0))


def _identity(pid: int, number: int | None) -> Identity:
    """number: the lease's."""
    if number is None:
        return Identity(ProcessId(pid, 2), 1000, cgroups=("/user.slice/user-1000.slice/session-3.scope",))
    return Identity(ProcessId(pid, 1), 1000, cgroups=(POD.format(number) + SCOPE.format(number),), token=_token(number))


def _token(number: int) -> str:
    return f"a-token-of-a-scheduler-{number}"


def _timed(do: Callable[[], object], times: int) -> Seconds:
    return list(_each(do, times))


def _each(do: Callable[[], object], times: int) -> Iterator[float]:
    for _ in range(times):
        begun = time.perf_counter()
        do()
        yield time.perf_counter() - begun


def _row(table: Table, size: int, what: str, seconds: Seconds, smallest: Seconds) -> None:
    table.keep("leases", f"{size} leases: {what}, seconds", seconds)
    slowest = figures.quantile(seconds, 0.99)
    table.add(
        "leases",
        f"{size} leases: {what}",
        mpsd=_us(seconds),
        ratio=figures.times(figures.ratio(seconds, smallest)),
        remark=f"99 % within {_us([slowest or 0])}" if len(seconds) > 1 else "",
    )


def _us(seconds: Seconds) -> str:
    median = (figures.median(seconds) or 0) * 1e6
    return f"{median:.0f} us" if median < 10_000 else figures.ms(median / 1000)


if __name__ == "__main__":
    sys.exit(main())
