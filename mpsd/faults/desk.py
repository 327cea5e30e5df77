"""FaultDesk: where observations become incidents, and incidents events, verdicts and deeds.

Sources hand in what they see; the fusion says what it is of (policy/fusion.py), blame who is kept apart (policy/blame.py), the
response what is done (reactions.py).  Everything but waiting is done at once.  Prose: docs/faults.md.
"""

import math
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from typing import Any

import structlog
import trio

from mpsd import processes
from mpsd.api.services import FirstError, Standing
from mpsd.domains.domain import Domain
from mpsd.domains.log_lines import News
from mpsd.domains.pool import Pool
from mpsd.errors import NoSuchFault
from mpsd.fault import TEXT_CHARACTERS, Deed, FaultClass, Incident, Observation, Party, Source
from mpsd.faults.parties import Parties
from mpsd.faults.standings import standings
from mpsd.faults.store import FaultStore
from mpsd.faults.vendor_log import observe
from mpsd.model import DomainState, ProcessId
from mpsd.policy.belonging import is_elsewhere
from mpsd.policy.blame import Blame
from mpsd.policy.blame_state import Change, event_of
from mpsd.policy.fault_settings import FaultSettings
from mpsd.policy.fusion import PRESENT_SECONDS, Fusion
from mpsd.policy.hearsay import Unconfirmed, confirms_fault
from mpsd.policy.verdict import is_proof
from mpsd.policy.xids import ENDS_SERVER
from mpsd.process_ending import Ending
from mpsd.wire.incidents import incident_facts

log = structlog.get_logger()
Publish = Callable[[str, Mapping[str, Any]], None]
SUSPECT_SECONDS = 2.0  # by then the vendor's server has said FAULT, or it was a false alarm
# By which a process ends itself, after an error of its own as well (signal(7)); 0: it ended without one.
OWN_SIGNALS = frozenset({0, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP})
_MOST_RECENT = 256
_BREATH_SECONDS = 0.001


class FaultDesk:
    """Guards that every observation is judged by what mpsd knew at that moment, and that what comes of it is kept and told.

    on_seen: told of each observation, with its domain where that is known, before anything else is done about it; says whether
    somebody is being told something now who must not wait for the rest, which follows a moment later.
    on_incident: told of each new revision of an incident; what holds or releases memory, and what acts, hang here.
    on_arrival: of each connection of a client, and whether it is its first.  on_hang_up: of the end of each.
    watches_since: when mpsd began to see who comes and goes, in a machine where clients were there before it.
    """

    def __init__(
        self,
        pool: Pool,
        store: FaultStore,
        settings: FaultSettings,
        describe: Callable[[ProcessId], Party],
        publish: Publish,
        clock: Callable[[], int] = time.monotonic_ns,
        watches_since: int | None = None,
    ) -> None:
        self._pool, self._store, self._publish, self._clock = pool, store, publish, clock
        self._describe = describe
        self.parties = Parties(describe, clock)
        self._fusion = Fusion(store.next_number(), self._at, self.parties.find, watches_since)
        self.settings = settings
        self._blame = Blame(settings, store.blame())
        self._recent: dict[int, Incident] = {}  # the last ones, as they were told
        self._unsaved: set[int] = set()  # of those, what could not be written down
        self._states: dict[str, DomainState] = {}
        for left in store.unsettled():  # nobody looked on while no mpsd was there
            store.save(replace(left, revision=left.revision + 1, is_settled=True))
        self._unconfirmed = Unconfirmed()  # lines of the domains' logs
        self._acquit_at = math.inf  # trio time: then whoever waits for a suspected domain looks again
        self._news = trio.Event()
        self.on_seen: list[Callable[[Observation], bool]] = []
        self._later: deque[tuple[Observation, int]] = deque()  # observations to be judged, and when they were seen
        self.on_incident: list[Callable[[Incident], None]] = []
        self.on_arrival: list[Callable[[ProcessId, Domain, bool], None]] = []
        self.on_hang_up: list[Callable[[ProcessId], None]] = []
        self.on_guard: Callable[[ProcessId, int, int], Awaitable[bool]] | None = None

    def configure(self, settings: FaultSettings) -> None:
        """Other settings from now on; convictions stay as they are."""
        self.settings = settings
        self._blame.configure(settings)

    # -- what is seen ------------------------------------------------------------------------------------------------

    def see(self, seen: Observation) -> None:
        """From any source, in the trio thread."""
        domain = self._domain_of(seen)
        if domain is not None and is_elsewhere(seen, domain.gpus):
            domain, seen = None, replace(seen, domain="")
        if domain is not None:
            gpu = seen.gpu or (domain.gpus[0] if len(domain.gpus) == 1 else "")
            seen = replace(seen, domain=domain.name, gpu=gpu)
        is_urgent = False
        for tell in self.on_seen:
            is_urgent |= tell(seen)
        if domain is not None:
            seen = replace(seen, present=self._present(domain))
            if (is_proof(seen) and not seen.is_contained) or seen.xid in ENDS_SERVER:
                self._suspect(domain)
        if self._later or (is_urgent and self._has_begun):
            self._later.append((seen, self._clock()))
            self._news.set()
        else:
            self._judge(seen, self._clock())
        if domain is not None and confirms_fault(seen):
            self.confirm(domain)

    def _judge(self, seen: Observation, now_ns: int) -> None:
        log.info("fault.seen", source=seen.source.value, domain=seen.domain, gpu=seen.gpu, xid=seen.xid, text=seen.text,
                 pid=seen.process and seen.process.pid, is_proof=seen.is_proof, seen_ns=seen.seen_ns)  # fmt: skip
        self._took(self._fusion.take(seen, now_ns))

    def hear(self, domain: Domain, news: News) -> None:
        """A line of a domain's log: evidence once something says the same that others cannot write (policy/hearsay.py)."""
        seen = observe(domain.name, news, self.parties, self._clock())
        if seen is None:
            return
        if domain.state is DomainState.FAULT or self._unconfirmed.hear(seen):
            self._believe(domain, (seen,))
        else:
            self._news.set()

    def confirm(self, domain: Domain) -> None:
        """Its server has said that it faults, or the kernel has: then the lines that said it before are true."""
        if lines := self._unconfirmed.confirm(domain.name, self._clock()):
            self._believe(domain, lines)

    def _believe(self, domain: Domain, lines: Iterable[Observation]) -> None:
        """The domain is in FAULT, even if its server is well again when it is asked: its clients have lost everything."""
        domain.fail()
        self._pool.notify()
        for line in lines:
            self.see(line)

    def report(self, process: ProcessId, error: FirstError) -> None:
        """A client says so of itself: evidence, and no more."""
        words = " ".join(filter(None, (error.name or f"CUDA error {error.code}", error.text)))
        self.see(
            Observation(
                Source.REPORT,
                self._clock(),
                process=process,
                address=error.address,
                kernel=error.kernel,
                pc=error.pc,
                text=words[:TEXT_CHARACTERS],
            )
        )

    async def guard(self, process: ProcessId, base: int, length: int) -> bool:
        """A client has guards there that tell of accesses; whether somebody looks."""
        return self.on_guard is not None and await self.on_guard(process, base, length)

    def _domain_of(self, seen: Observation) -> Domain | None:
        if seen.domain:
            return self._pool.domains.get(seen.domain)
        if seen.process is None:
            return None
        if (home := self._pool.home_of(seen.process)) is not None:
            return home
        if self.parties.find(seen.process) is not None:  # by its pid it could be another, that is there by now
            return self._pool.domains.get(self.parties.domain_of(seen.process))
        return self._pool.domain_of_process(seen.process.pid)

    def domain_of_pid(self, pid: int) -> Domain | None:
        """Where a server or a client was a moment ago: an Xid may name one that has left its domain because of the fault."""
        former = self.parties.former_domain(pid)
        return self._pool.domains.get(former) if former else self._pool.domain_of_process(pid)

    def _present(self, domain: Domain) -> tuple[ProcessId, ...]:
        """Members, and those that only the vendor's server knows, as without root."""
        self._meet_listed(domain)
        listed = (self.parties.by_pid(pid) for pid in domain.client_pids)
        there = {*domain.members, *(process for process in listed if process is not None)}
        return self.parties.present(domain.name, there, PRESENT_SECONDS)

    def _meet_listed(self, domain: Domain) -> None:
        """Clients that did not come through mpsd, as without root.  One that is known stays where it is: it may have moved, and
        be listed where it was."""
        for process in domain.members:
            if self.parties.find(process) is None:
                self.parties.meet(process, domain.name)
        for pid in domain.client_pids:
            known = self.parties.by_pid(pid)
            found = processes.process_id(pid) if known is None or self.parties.is_gone(known) else None
            if found is not None and found != known:
                self.parties.meet(found, domain.name)
                self._pool.watch(domain, found)

    def _suspect(self, domain: Domain) -> None:
        """It takes nobody until it is known how it is: the vendor's server says it late, and lets newcomers in meanwhile."""
        if domain.state is DomainState.READY:
            domain.suspect(SUSPECT_SECONDS)
            self._acquit_at = min(self._acquit_at, domain.suspect_until)
            self._news.set()
            self._pool.notify()

    # -- clients -----------------------------------------------------------------------------------------------------

    def arrived(self, process: ProcessId, domain: Domain) -> None:
        """It is placed there; told for each of its connections."""
        is_new = self.parties.meet(process, domain.name)
        for tell in self.on_arrival:
            tell(process, domain, is_new)

    def hung_up(self, process: ProcessId) -> None:
        """One of its connections has ended."""
        for tell in self.on_hang_up:
            tell(process)

    def left(self, process: ProcessId, ending: Ending | None) -> None:
        """It has ended; None: how is not known, so a signal may have ended it in the middle of a kernel."""
        domain = self.parties.leave(process)
        if domain is None:
            return
        is_own = ending is not None and ending.signal in OWN_SIGNALS
        fault_class = FaultClass.UNKNOWN if is_own else FaultClass.HOST
        text = f"pid {process.pid} ended, {ending or 'how is not known'}"
        self.see(Observation(Source.PROCESS, self._clock(), fault_class, domain=domain, process=process, text=text))

    def key_of(self, process: ProcessId) -> str:
        """Of the domain it is placed in because of faults; empty: anywhere."""
        return self._blame.placement(self._party(process).key, time.time())

    def pause_of(self, process: ProcessId) -> float:
        """Seconds until it may start."""
        return self._blame.pause(self._party(process).key, time.time())

    def _party(self, process: ProcessId) -> Party:
        return self.parties.find(process) or self._describe(process)

    # -- what comes of it --------------------------------------------------------------------------------------------

    def note(self, incident: Incident, text: str) -> None:
        """What was done about it."""
        log.info("fault.deed", number=incident.number, text=text)
        self._took(self._fusion.note(incident.number, Deed(self._clock(), text)))

    def _took(self, changed: Sequence[Incident]) -> None:
        for incident in changed:
            before = self._recent.pop(incident.number, None)
            self._recent[incident.number] = incident
            self._tell(before, incident)
            changes = self._blame.take(incident, time.time())
            if changes:
                is_saved = self._store.save_with_blame(incident, self._blame.state)
                self._tell_of_blame(changes)
            else:
                is_saved = self._store.save(incident)
            (self._unsaved.discard if is_saved else self._unsaved.add)(incident.number)
            for told in self.on_incident:
                told(incident)
        while len(self._recent) > _MOST_RECENT:
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            self._unsaved.discard(oldest)
        if changed:
            self._news.set()

    def _tell(self, before: Incident | None, incident: Incident) -> None:
        """First the event, which somebody may be waiting for; then what takes longer."""
        facts = incident_facts(incident)
        culprit = facts["culprit"]
        if before is None:
            self._publish("fault.opened", facts)
            log.warning("fault.opened", number=incident.number, domain=incident.domain, gpu=incident.gpu,
                        fault_class=incident.fault_class.value)  # fmt: skip
        if incident.culprit is not None and (before is None or before.culprit != incident.culprit):
            self._publish("fault.culprit", facts)
            log.warning("fault.culprit", number=incident.number, domain=incident.domain, culprit=culprit,
                        confidence=incident.confidence.value)  # fmt: skip
        if incident.is_settled and not (before is not None and before.is_settled):
            self._publish("fault.settled", facts)
            log.info("fault.settled", number=incident.number, domain=incident.domain, culprit=culprit,
                     confidence=incident.confidence.value, key=facts["culprit_key"], hurt=facts["hurt"])  # fmt: skip

    def _tell_of_blame(self, changes: Iterable[Change]) -> None:
        for change in changes:
            topic, facts = event_of(change)
            log.warning("blame.changed", what=topic, **facts)
            self._publish(topic, facts)

    # -- what is asked -----------------------------------------------------------------------------------------------

    def incidents(self, after: int) -> Iterable[Incident]:
        return self._listed(self._store.incidents(after), [each for each in self._unsaved if each > after], 1)

    def incidents_before(self, before: int | None) -> Iterable[Incident]:
        unsaved = [each for each in self._unsaved if before is None or each < before]
        return self._listed(self._store.incidents_before(before), unsaved, -1)

    def _listed(self, stored: Iterable[Incident], unsaved: Collection[int], step: int) -> Iterable[Incident]:
        """With what a full disk kept from being written; step: 1 or -1, in which order."""
        written = (each for each in stored if each.number not in unsaved)
        others = [self._recent[number] for number in sorted(unsaved, reverse=step < 0)]
        return merge(written, others, key=lambda each: step * each.number)

    def incident(self, number: int) -> Incident:
        found = self._recent.get(number) or self._store.incident(number)
        if found is None:
            raise NoSuchFault(f"no fault has number {number}")
        return found

    def standings(self) -> Iterable[Standing]:
        return standings(self._blame, self._pool.drained, time.time())

    def pardon(self, key: str) -> Standing:
        """Nothing is held against it any more.  A GPU that was drained, GPU-..., takes clients again."""
        found = next((each for each in self.standings() if each.key == key), None)
        if found is None:
            raise NoSuchFault(f"nothing is held against {key!r}")
        changes = self._blame.pardon(key)
        if self._pool.restore_gpu(key):
            self._publish("gpu.restored", {"gpu": key})
            log.warning("gpu.restored", gpu=key)
        else:
            self._store.save_blame(self._blame.state)
        self._tell_of_blame(changes)
        self._pool.notify()
        return found

    # -- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Settles incidents and lets suspicions decay; lives as long as mpsd."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_domains)
            self._has_begun = True
            while True:
                if self._later:
                    await trio.sleep(_BREATH_SECONDS)
                while self._later:
                    self._judge(*self._later.popleft())
                self._took(self._fusion.settle(self._clock()))
                for name, lines in self._unconfirmed.drop_late(self._clock()).items():
                    log.warning("fault.unconfirmed", domain=name, lines=lines)
                if changes := self._blame.decay(time.time()):
                    self._store.save_blame(self._blame.state)
                    self._tell_of_blame(changes)
                self._acquit()
                self._news = trio.Event()
                with trio.move_on_after(self._pause()):
                    await self._news.wait()

    def _acquit(self) -> None:
        """Whoever waits for a domain whose suspicion is over has to look again."""
        now = trio.current_time()
        if self._acquit_at <= now:
            ends = (domain.suspect_until for domain in self._pool.domains.values())
            self._acquit_at = min((each for each in ends if each > now), default=math.inf)
            self._pool.notify()

    def _pause(self) -> float:
        dues_ns, decay_at = (self._fusion.next_settle_ns(), self._unconfirmed.next_drop_ns()), self._blame.next_decay_at()
        waits = [self._acquit_at - trio.current_time()]
        waits += [(due_ns - self._clock()) / 1e9 for due_ns in dues_ns if due_ns is not None]
        waits += [] if decay_at is None else [decay_at - time.time()]
        return max(0.01, min([*waits, 3600.0]))

    async def _watch_domains(self) -> None:
        """A domain whose servers are fresh has recovered."""
        was_ill = (DomainState.FAULT, DomainState.DEAD, DomainState.RECYCLING, DomainState.STARTING)
        while True:
            for name, domain in list(self._pool.domains.items()):
                self._meet_listed(domain)
                before, self._states[name] = self._states.get(name), domain.state
                if domain.state is DomainState.FAULT:
                    self.confirm(domain)
                if before is None and domain.state is DomainState.FAULT:
                    self._took(self._fusion.domain_failed(name, self._clock()))
                if domain.state is DomainState.READY and before in was_ill:
                    self.parties.renew(name)
                    self._took(self._fusion.domain_recovered(name, self._clock()))
                    self._news.set()
            for gone in self._states.keys() - self._pool.domains.keys():
                del self._states[gone]
                self._unconfirmed.forget_but(self._pool.domains.keys())
                self._took(self._fusion.domain_recovered(gone, self._clock()))
                self._news.set()
            await self._pool.changed()

    def _at(self, moment_ns: int) -> float:
        """Seconds since the epoch."""
        return time.time() - (self._clock() - moment_ns) / 1e9
