"""The steps that end processes (rules.py has their order).

Signals go by pidfd: never to a later process with the same pid.  Each wait has an end.  Prose: docs/ending.md.
"""

import os
import signal
from collections.abc import Awaitable, Callable, Sequence

import structlog
import trio
from msgspec import Struct, field

from mpsd.domains.domain import Domain
from mpsd.domains.terminate_client import terminate_client
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.host.ownership import ANOTHERS, USER_UNREAD
from mpsd.host.polling import is_readable, until_ended
from mpsd.model.domain import DomainState
from mpsd.model.process import ProcessId
from mpsd.model.stop import Manner, Step, Stopped
from mpsd.stop.freezer import CgroupFreezer, FrozenNotes, SignalFreezer
from mpsd.stop.rules import plan, why_not_kill

log = structlog.get_logger()
Servers = list[tuple[Domain, int | None]]
_STOPPED = "T"  # as processes.state returns it
_TERMINATED = "0"  # the vendor's answer on success; any other is a CUDA error
_END_SECONDS = 10.0  # from SIGKILL to the end; 0.19 s were measured on a GPU, freeing host memory takes longer


class StopCase(Struct):
    """One process that is being ended.  servers: those with work of the process; None if the domain does not answer.

    may_end: whether the caller may still end it; None: not known.  Checked at each step, since a grace period can be long.
    is_unread: it was left, perhaps since it could not be read at that moment.
    """

    process: ProcessId
    pidfd: int
    servers: Servers
    may_end: Callable[[], Awaitable[bool | None]]
    steps: list[Step] = field(default_factory=list)
    why: str = ""
    is_unread: bool = False

    @property
    def domain(self) -> str | None:
        return self.servers[0][0].name if self.servers else None

    @property
    def result(self) -> Stopped:
        return Stopped(self.process, self.domain, tuple(self.steps), self.why)

    def did(self, step: Step) -> None:
        self.steps.append(step)
        log.info("client.stop", pid=self.process.pid, domain=self.domain, step=step.value)

    def leave(self, why: str, is_unread: bool = False) -> None:
        self.why, self.is_unread = why, is_unread
        log.warning("client.left", pid=self.process.pid, domain=self.domain, why=why)

    def has_ended(self) -> bool:
        return is_readable(self.pidfd)

    async def ends_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await until_ended(self.pidfd)
        return self.has_ended()

    async def check(self) -> bool:
        """Leave the process if it has become another user's since the request, or may have; return whether to continue."""
        if not self.why and not (may_end := await self.may_end()) and not self.has_ended():
            self.leave(ANOTHERS if may_end is False else USER_UNREAD, may_end is None)
        return not self.why

    async def send(self, step: Step, number: signal.Signals) -> None:
        if not await self.check():
            return
        try:
            signal.pidfd_send_signal(self.pidfd, number)
            self.did(step)
        except ProcessLookupError:
            pass  # it has just ended
        except OSError as exc:
            self.leave(f"mpsd may not send it {number.name}: {exc.strerror}")


class Steps:
    """Guards that frozen processes are thawed, and that a process that was left gets no further step.

    whole: freezes all of them at once; None: one by one.  servers_now: asks again which servers have work of these processes.
    release: called for each process once its work has ended.
    """

    def __init__(
        self,
        manner: Manner,
        whole: CgroupFreezer | None,
        servers_now: Callable[[Sequence[ProcessId]], Awaitable[list[Servers]]],
        release: Callable[[ProcessId], None],
        notes: FrozenNotes,
    ) -> None:
        self._manner = manner
        self._whole = whole
        self._one_by_one = SignalFreezer(notes)
        self._servers_now = servers_now
        self._release = release

    async def run(self, cases: Sequence[StopCase]) -> None:
        do: dict[Step, Callable[[Sequence[StopCase]], Awaitable[None]]] = {
            Step.FREEZE: self._freeze,
            Step.DRAIN: self._drain,
            Step.THAW: self._thaw,
            Step.TERMINATE: self._terminate,
            Step.SIGTERM: self._ask,
            Step.SIGKILL: self._kill,
        }
        try:
            for step in Step:
                concerned = [each for each in cases if step in plan(self._manner, bool(each.servers))]
                if concerned := [each for each in concerned if not each.has_ended() and await each.check()]:
                    await do[step](concerned)
            for case in cases:
                case.why = "" if case.has_ended() else case.why  # a process that has just ended cannot be terminated
        finally:
            try:
                await self._thaw_all(cases)
            finally:
                for case in cases:
                    os.close(case.pidfd)

    async def _freeze(self, cases: Sequence[StopCase]) -> None:
        is_whole = self._whole is not None and await self._whole.freeze()
        for case in cases:
            if not is_whole and not await case.check():
                continue
            if why := "" if is_whole else self._one_by_one.freeze(case.process, case.pidfd):
                case.leave(why)
            else:
                case.did(Step.FREEZE)

    async def _drain(self, cases: Sequence[StopCase]) -> None:
        """Wait drain_seconds: no documented interface shows from outside that a client's queue is empty."""
        await _each(cases, lambda case: case.ends_within(self._manner.drain_seconds))
        for case in cases:
            case.did(Step.DRAIN)

    async def _terminate(self, cases: Sequence[StopCase]) -> None:
        await _each(cases, lambda case: _terminate(case, self._manner))
        for case in cases:
            if Step.TERMINATE in case.steps:
                self._release(case.process)

    async def _thaw(self, cases: Sequence[StopCase]) -> None:
        is_thawed = await self._thaw_all(cases)
        for case in cases:
            if is_thawed:
                case.did(Step.THAW)
            else:
                case.leave("the kernel has not thawed its cgroup yet")

    async def _thaw_all(self, cases: Sequence[StopCase]) -> bool:
        self._one_by_one.thaw(case.process for case in cases)
        return self._whole is None or await self._whole.thaw()

    async def _ask(self, cases: Sequence[StopCase]) -> None:
        for case in cases:
            await case.send(Step.SIGTERM, signal.SIGTERM)
        await _each(cases, lambda case: case.ends_within(self._manner.grace_seconds))

    async def _kill(self, cases: Sequence[StopCase]) -> None:
        """Kill the processes.

        A process without GPU work when it got SIGTERM may have started some since: that is ended first.
        """
        late = [case for case in cases if self._manner.grace_seconds and not case.servers and not case.has_ended()]
        if late:
            for case, servers in zip(late, await self._servers_now([case.process for case in late]), strict=True):
                case.servers = servers
            await self._terminate(late)
        await _each([case for case in cases if not case.why], _kill)


async def _terminate(case: StopCase, manner: Manner) -> None:
    if not await case.check():
        return
    refusals, is_unread = [], _is_unread(case.process)
    if case.servers and processes.state(case.process.pid) == _STOPPED:  # stopped by another process
        await case.send(Step.THAW, signal.SIGCONT)  # one that a debugger stopped stays so: then it is not terminated
    for domain, server_pid in case.servers:
        if refusal := await _why_not_terminated(case, domain, server_pid):
            refusals.append(refusal)
            is_unread = is_unread or _is_unread(case.process)
    if case.servers and not refusals:
        case.did(Step.TERMINATE)
    elif case.has_ended():  # before the command for it: mpsd holds its GPU work as after any other end
        return
    if refusals:
        log.error("client.not_terminated", pid=case.process.pid, domain=case.domain, why=refusals)
    if why := why_not_kill(refusals, manner):
        case.leave(why, is_unread)


def _is_unread(process: ProcessId) -> bool:
    """Return whether mpsd cannot read the process now; False if it can, even if that does not show whether it is stopped."""
    return processes.read_stat(process.pid) is None


async def _why_not_terminated(case: StopCase, domain: Domain, server_pid: int | None) -> str:
    """End the client's work on a server; return why that failed.

    Empty on success, or if no work of the client is in the domain: a signal then harms no other client.
    """

    def check() -> None:
        if case.has_ended():
            raise VendorFailed("it has ended")

    if _may_signal(domain):
        return ""
    if server_pid is None:
        return f"domain {domain.name} does not answer"
    try:
        with trio.fail_after(domain.control.silence_seconds):
            answer = (await terminate_client(domain, server_pid, case.process.pid, check)).strip()
    except (VendorFailed, trio.TooSlowError) as exc:
        return "" if _may_signal(domain) else f"domain {domain.name}: {exc or 'no answer'}"
    return "" if answer == _TERMINATED else f"server {server_pid} answered {answer!r}"


def _may_signal(domain: Domain) -> bool:
    """Return whether a signal to a client harms no other: none has work left, or the sentinel holds what it runs on."""
    return domain.state in (DomainState.FAULT, DomainState.CONTAINED)


async def _kill(case: StopCase) -> None:
    await case.send(Step.SIGKILL, signal.SIGKILL)
    if not case.why and not await case.ends_within(_END_SECONDS):
        case.leave(f"it was sent SIGKILL and has not ended within {_END_SECONDS:g} s")


async def _each(cases: Sequence[StopCase], work: Callable[[StopCase], Awaitable[object]]) -> None:
    """Run `work` for all cases at once; return when all are done."""

    async def one(case: StopCase) -> None:
        await work(case)

    async with trio.open_nursery() as nursery:
        for case in cases:
            nursery.start_soon(one, case)
