"""stop(): ends processes so that their co-runners continue.

A signal that ends a client during a long kernel kills its co-runners, so its GPU work is ended first.  rules.py decides the
steps and their order, steps.py carries them out, and targets.py finds the processes.  Prose: docs/ending.md.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import structlog
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.listed import is_meant
from mpsd.domains.pool import Pool
from mpsd.errors import TooMany, VendorFailed
from mpsd.host import process_reader, processes
from mpsd.model.process import ProcessId
from mpsd.model.stop import Asker, Manner, Report, Stopped, Target, TargetKind, Way
from mpsd.stop.steps import Servers, Steps, StopCase
from mpsd.stop.targets import Targets

log = structlog.get_logger()
_OTHERS_SECONDS = 1.0  # as commands that only read have for a domain that hangs
_MOST_AT_ONCE = 2  # stops of one process by its user, such as one with a grace and one without: each holds a descriptor
_UNREAD = "its cgroups or its user could not be read: whether it was meant is not known. Stop it by its pid"
_ROUNDS = 3  # if a cgroup's launcher starts clients as fast as they end, its owner has to end it


class Stopper:
    """Guards that a client whose GPU work was not ended gets no signal, unless forced.

    release: called for a process whose GPU work has ended; mpsd need not hold anything for it beyond its end.
    """

    def __init__(self, pool: Pool, targets: Targets, release: Callable[[ProcessId], None] = lambda process: None) -> None:
        self._pool = pool
        self._targets = targets
        self.release = release
        self._running: Counter[ProcessId] = Counter()  # stops of each process

    async def stop(self, target: Target, manner: Manner, asker: Asker) -> Report:
        """End the processes of the target that the caller may end, and new ones in its cgroup.

        Raises NoSuchClient, BadRequest, TooMany; the latter also for one process that was left since it could not be read.
        """
        target = await self._targets.resolve(target, asker)
        found = await self._targets.find(target, asker)  # a refusal comes before vendor daemons are asked
        done: dict[ProcessId, Stopped] = {}
        left: dict[ProcessId, str] = {}
        for number in range(1 if target.kind is TargetKind.PID else _ROUNDS):
            if number and (left or found.unread):  # others of the same users, too, were not read for so long
                await trio.sleep(process_reader.UNREAD_SECONDS)
            silent = await self._look(found.mine)
            if target.kind is TargetKind.PID:
                self._targets.check_not_needed(found.mine)  # again: a server may have been listed since
            else:
                found = await self._targets.find(target, asker)
            wanted = [each for each in found.mine if each not in done]
            whole = await self._targets.freezer(target, asker, wanted) if manner.way is Way.DRAIN else None
            cases, left = self._open_all(wanted, silent, asker)
            if not (cases or (not number and (left or found.unread))):  # who holds them may go on for as long as mpsd waits
                break
            with self._counted(cases):
                await Steps(manner, whole, self._servers_now, self.release, self._pool.store).run(cases)
            done |= {case.process: case.result for case in cases}
            unread = [*left.values(), *(case.why for case in cases if case.why and case.is_unread)]
            if target.kind is TargetKind.PID and unread:
                raise TooMany(f"pid {target.value}: {unread[0]}")
        left |= {each: _UNREAD for each in found.unread if each not in done}
        return Report([*done.values(), *(_left(process, why) for process, why in left.items())], found.others)

    async def _look(self, wanted: Collection[ProcessId]) -> set[str]:
        """Ask every domain for its clients; return the names of the domains that do not answer."""
        silent: set[str] = set()

        async def look(domain: Domain) -> None:
            domain.mark_stale()
            silent.add(domain.name)
            with trio.move_on_after(_patience(domain, wanted)):
                try:
                    await domain.refresh()
                    silent.discard(domain.name)
                except VendorFailed as exc:
                    log.warning("domain.silent", domain=domain.name, why=str(exc))

        async with trio.open_nursery() as nursery:
            for domain in list(self._pool.domains.values()):
                nursery.start_soon(look, domain)
        return silent

    async def _servers_now(self, wanted: Sequence[ProcessId]) -> list[Servers]:
        silent = await self._look(wanted)
        return [self._servers(process, silent) for process in wanted]

    def _open_all(
        self, wanted: Sequence[ProcessId], silent: set[str], asker: Asker
    ) -> tuple[list[StopCase], dict[ProcessId, str]]:
        """Open the processes that have not ended; the caller closes their pidfds.  Return too why others cannot be opened.

        Any user can hold the /proc of a process; then mpsd does not read its user's other processes for some seconds.

        Raises TooMany; then none is open.
        """
        cases: list[StopCase] = []
        left: dict[ProcessId, str] = {}
        try:
            for process in wanted:
                try:
                    case = self._open(process, silent, asker)
                except OSError as exc:
                    left[process] = f"it cannot be stopped now: {exc.strerror}"
                    continue
                if case is not None:
                    cases.append(case)
        except TooMany:
            for case in cases:
                os.close(case.pidfd)
            raise
        return cases, left

    @contextmanager
    def _counted(self, cases: Sequence[StopCase]) -> Iterator[None]:
        self._running.update(case.process for case in cases)
        try:
            yield
        finally:
            self._running.subtract(case.process for case in cases)
            self._running = +self._running

    def _open(self, process: ProcessId, silent: set[str], asker: Asker) -> StopCase | None:
        """Return None if the process has ended.  Raises TooMany, OSError."""
        if asker.uid is not None and not asker.is_mpsd and self._running[process] >= _MOST_AT_ONCE:
            raise TooMany(f"pid {process.pid} is being ended by {_MOST_AT_ONCE} requests already: cancel one of them")
        pidfd = processes.open_pidfd(process)
        may_end = partial(self._targets.may_still_end, process, asker)
        return None if pidfd is None else StopCase(process, pidfd, self._servers(process, silent), may_end)

    def _servers(self, process: ProcessId, silent: set[str]) -> Servers:
        """Return the servers with work of the process.

        In a domain that does not answer, a process that is placed there counts as a client.
        """
        found: Servers = []
        for domain in self._pool.domains.values():
            servers = domain.servers.items() if is_meant(domain.admitted, process) else ()
            listed = [(domain, pid) for pid, server in servers if process.pid in server.client_pids]
            is_unknown = not listed and domain.name in silent and process in domain.members
            found += [(domain, None)] if is_unknown else listed
        return found


def _left(process: ProcessId, why: str) -> Stopped:
    log.warning("client.left", pid=process.pid, domain=None, why=why)
    return Stopped(process, None, (), why)


def _patience(domain: Domain, wanted: Collection[ProcessId]) -> float:
    """Return for how many seconds to wait for a domain's answer: not long for one where none of the processes was placed.

    A user may let own domains answer nothing, and must not delay the ends of others' clients.
    """
    is_known = domain.asked_at >= 0 or not domain.is_draining  # else mpsd has lost which ones an earlier one placed there
    pids = {*domain.client_pids, *domain.admitted, *(each.pid for each in domain.members)}
    are_there = any(each.pid in pids for each in wanted)
    return _OTHERS_SECONDS if is_known and not are_there else domain.control.silence_seconds
