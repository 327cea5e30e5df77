"""The policy of the patched nvidia-uvm: which processes are exempt, and what it does about the faults of all others.

| when | mpsd sends |
|---|---|
| the channel is open, and the running servers are known; a reload | EXEMPT: each of them; then POLICY: faults.kmod_policy |
| a server or a control daemon starts, by its log line or by the list | EXEMPT: it |
| a process could not be exempted and lives | POLICY: report, if more was asked; EXEMPT again at the next look |
| all that live are exempt | POLICY: faults.kmod_policy, if less is in force |
| mpsd has quit, with its domains | POLICY: report, if more is in force: no daemon would end clients with contained faults |

If a server's own fault were contained, the module would stop the server, and with it all its clients.  The module takes pids in
the first pid namespace: the device opens in no other.  It keeps its policy when mpsd ends and leaves its domains running.  None
of this has run on a real GPU.  Prose: docs/faults.md, "The patched module".
"""

from collections.abc import Callable, Iterator

import structlog

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.domains.rules.log_lines import News, ServerReady, ServerStarting
from mpsd.faults.sources.kmod_records import EXEMPT, SET_POLICY, Mode, policy, target
from mpsd.host import processes
from mpsd.model.domain import DomainState
from mpsd.model.fault import Observation
from mpsd.model.process import ProcessId

log = structlog.get_logger()
Ioctl = Callable[[int, bytes], object]
_MOST_PAST = 256  # exempt processes that are remembered, alive or not


class KmodPolicy:
    """Guards that the module contains no fault while a server that mpsd knows of is not exempt.

    absent: why faults.kmod_policy is not in force; "" while it is.  Before the first domains are known, nothing is sent.
    """

    def __init__(self, pool: Pool, wanted: Mode) -> None:
        self._pool = pool
        self._wanted = wanted
        self._ioctl: Ioctl | None = None
        self._in_force: Mode | None = None  # None: nothing was sent yet, or it was refused
        self._refusal = ""
        self._knows_servers = False  # including those from before this mpsd
        self._exempt: set[ProcessId] = set()
        self._not_exempt: dict[ProcessId, str] = {}  # and the reason

    @property
    def absent(self) -> str:
        if self._ioctl is None:
            return "the module is not loaded"
        if self._refusal:
            return f"the policy is not {self._wanted.word}: {self._refusal}"
        if self._in_force is None:
            return "the domains are not known yet"
        if self._in_force is self._wanted:
            return ""
        who = "; ".join(f"pid {process.pid}: {why}" for process, why in sorted(self._not_exempt.items()))
        return f"the policy is {self._in_force.word}, not {self._wanted.word}: MPS servers could not be exempted ({who})"

    # -- the channel -------------------------------------------------------------------------------------------------

    def open(self, ioctl: Ioctl) -> None:
        """Configure a module, which may have no policy yet."""
        self._forget()
        self._ioctl = ioctl
        self.look()

    def close(self) -> None:
        """End the use of the channel: the module has gone, or mpsd stops reading it."""
        if self._pool.is_stopping and self._in_force in (Mode.CONTAIN, Mode.CONTAIN_AND_KILL):
            self._tell(SET_POLICY, policy(Mode.REPORT))
            log.info("faults.kmod_policy", policy=Mode.REPORT.word, wanted=self._wanted.word, why="mpsd quits")
        self._forget()

    def _forget(self) -> None:
        self._ioctl, self._in_force, self._refusal = None, None, ""
        self._exempt.clear()
        self._not_exempt.clear()

    # -- events ------------------------------------------------------------------------------------------------------

    def configure(self, wanted: Mode) -> None:
        """Apply a new policy; send it in any case, since another process may have changed it."""
        self._wanted, self._in_force, self._refusal = wanted, None, ""
        self._exempt.clear()
        self.look()

    def hear(self, domain: Domain, news: News) -> None:
        """Take a line of a domain's log: it announces a server before any list has it."""
        if isinstance(news, ServerStarting | ServerReady) and self._ioctl is not None:
            self._meet(news.pid)
            self._settle()

    async def run(self, publish: Callable[[Observation], None]) -> None:
        """Run as long as mpsd; publishes nothing."""
        while True:
            self.look()
            await self._pool.changed()

    def look(self) -> None:
        """Exempt the servers that run now.  The policy waits until those from before this mpsd are known."""
        self._knows_servers = self._knows_servers or self._is_settled()
        if self._ioctl is None or not self._knows_servers:
            return
        if len(self._exempt) > _MOST_PAST:
            self._exempt = {process for process in self._exempt if processes.is_alive(process)}
        for process in [each for each in self._not_exempt if not processes.is_alive(each)]:
            del self._not_exempt[process]
        for pid in list(self._pids()):
            self._meet(pid)
        self._settle()

    def _is_settled(self) -> bool:
        domains = self._pool.domains.values()
        return bool(domains) and not any(each.state is DomainState.STARTING and not each.trouble for each in domains)

    def _pids(self) -> Iterator[int]:
        """Yield the pids to exempt, servers first: the module has 64 places."""
        yield from (process.pid for process in self._not_exempt)
        for domain in self._pool.domains.values():
            yield from domain.servers
        for domain in self._pool.domains.values():
            if domain.control is not None and domain.control.process is not None:
                yield domain.control.process.pid

    # -- sending -----------------------------------------------------------------------------------------------------

    def _meet(self, pid: int) -> None:
        process = processes.find(pid)
        if process is None or process in self._exempt:
            return
        why = self._tell(EXEMPT, target(pid))
        if why and processes.is_alive(process):
            if process not in self._not_exempt:
                log.error("faults.kmod_not_exempt", pid=pid, why=why, effect="faults are reported, and none is contained")
            self._not_exempt[process] = why
            return
        self._not_exempt.pop(process, None)
        self._exempt.add(process)

    def _settle(self) -> None:
        """Send the policy that may be in force, given the exempt processes."""
        if not self._knows_servers:
            return
        mode = min(self._wanted, Mode.REPORT) if self._not_exempt else self._wanted
        if self._in_force is mode:
            return
        before, self._in_force = self._in_force, None
        refusal = self._tell(SET_POLICY, policy(mode))
        if refusal and refusal != self._refusal:
            log.error("faults.kmod_no_policy", wanted=mode.word, why=refusal, before=before and before.word)
        self._refusal = refusal
        if not refusal:
            self._in_force = mode
            log.info("faults.kmod_policy", policy=mode.word, wanted=self._wanted.word, exempt=len(self._exempt))

    def _tell(self, number: int, argument: bytes) -> str:
        """Send one ioctl; return why it was refused, empty if it was not."""
        assert self._ioctl is not None, "asked by whoever looks"
        try:
            self._ioctl(number, argument)
        except OSError as exc:
            return exc.strerror or str(exc)
        return ""
