"""The fault coordinator: observations become incidents, and incidents cause events, verdicts and actions.

Sources pass in observations; the fusion assigns each to an incident (faults/rules/fusion.py), blame decides which clients are
kept apart (faults/rules/blame.py), the response acts (reactions.py).  Only waiting is asynchronous.  Prose: docs/faults.md.
"""

import math
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import structlog
import trio
from msgspec.structs import replace

from mpsd.domains.domain import Domain
from mpsd.domains.listed import domain_named, is_meant, listed_process, may_be_used
from mpsd.domains.pool import Pool
from mpsd.domains.rules.log_lines import News
from mpsd.domains.servers import age_ns
from mpsd.errors import NoSuchFault
from mpsd.faults.blame_report import standings, status_of
from mpsd.faults.incident_events import Publish, publish_blame, publish_incident
from mpsd.faults.incident_history import IncidentHistory
from mpsd.faults.known_clients import KnownClients
from mpsd.faults.rules.blame import Blame
from mpsd.faults.rules.correlation import is_elsewhere
from mpsd.faults.rules.fusion import PRESENT_SECONDS, Fusion
from mpsd.faults.rules.incident_record import MOST_DEEDS
from mpsd.faults.rules.settings import FaultSettings
from mpsd.faults.rules.unconfirmed_lines import Unconfirmed, confirms_fault
from mpsd.faults.sources.vendor_log import observe
from mpsd.faults.store import FaultStore
from mpsd.host.process_exit import ProcessExit
from mpsd.model.blame import BlameStatus
from mpsd.model.describe import describe as in_words
from mpsd.model.domain import DomainState
from mpsd.model.fault import TEXT_CHARACTERS, Deed, FaultClass, FirstError, Incident, Observation, Party, Source
from mpsd.model.fault_signs import are_of_one, is_contained
from mpsd.model.process import ProcessId
from mpsd.notify import Changed, Outbox, Signal

log = structlog.get_logger()
SUSPECT_SECONDS = 2.0  # by then the vendor's server has reported FAULT, or it was a false alarm
# Signals by which a process ends itself, also after its own error (signal(7)); 0: it ended without one.
OWN_SIGNALS = frozenset({0, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP})
SM_ERRORS = frozenset({700, 710, *range(714, 720)})  # of CUDA, after an SM exception; a stack overflow gives 700
_OF_A_WATCH = (Source.UVM_EVENTS, Source.KMOD, Source.PROCESS)  # of one process, wherever it is
_MOST_PRESENT = 256  # a server has some sixty clients
_LOOK_SECONDS = 60.0  # the machine's clock may be set forward


class Incidents:
    """Guards that every observation is judged by mpsd's knowledge at that moment, and that the result is stored and published.

    observed: each observation, with its domain if known, before it is judged.  revised: each new revision of an incident.
    client_arrived: each connection of a client, whether the client was unknown, and whether the connection is linked again.
    client_hung_up: the end of each.
    guard: watches a client's guards in a range, and returns whether accesses to them will be seen.
    watches_since: when mpsd began to see clients come and go, on a machine that had clients before.
    """

    def __init__(
        self,
        pool: Pool,
        store: FaultStore,
        settings: FaultSettings,
        describe: Callable[[ProcessId], Party],
        publish: Publish,
        guard: Callable[[ProcessId, int, int], Awaitable[bool]],
        outbox: Outbox,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        watches_since: int | None = None,
    ) -> None:
        self._pool, self._store, self._publish, self._clock = pool, store, publish, clock
        self._describe, self.parties = describe, KnownClients(describe, clock)
        self._fusion = Fusion(store.next_number(), self._at, self.parties.find, watches_since, self.parties.have_one_owner)
        self.settings = settings
        self._blame = Blame(settings, store.blame())
        self._history = IncidentHistory(store)
        self._states: dict[str, DomainState] = {}
        for left in store.unsettled():
            if left.culprit is None and is_contained(left.evidence):
                self._fusion.reopen(left, clock())  # its sentinel repeats what it has reported
            else:  # no mpsd ran to observe how it ended
                store.save(replace(left, revision=left.revision + 1, is_settled=True))
        self._unconfirmed = Unconfirmed()  # lines of the domains' logs
        self._acquit_at = math.inf  # trio time: then clients that wait for a suspected domain try again
        self.guard = guard
        self._outbox = outbox  # observations to be judged
        self._changed = Changed()
        self.observed = Signal[[Observation]]()
        self.revised = Signal[[Incident]]()
        self.client_arrived = Signal[[ProcessId, Domain, bool, bool]]()
        self.client_hung_up = Signal[[ProcessId]]()

    def configure(self, settings: FaultSettings) -> None:
        """Apply other settings from now on; convictions stay as they are."""
        self.settings = settings
        self._blame.configure(settings)

    # -- observations ------------------------------------------------------------------------------------------------

    def see(self, seen: Observation) -> None:
        """Take an observation from any source; call it in the trio thread."""
        domain = self._domain_of(seen)
        has_left = domain is None and seen.domain in self._pool.domains
        if has_left or (domain is not None and is_elsewhere(seen, domain.gpus)):
            domain, seen = None, replace(seen, domain="")
        if domain is not None:
            gpu = seen.gpu or (domain.gpus[0] if len(domain.gpus) == 1 else "")
            seen = replace(seen, domain=domain.name, gpu=gpu)
            if seen.source is Source.SENTINEL and seen.is_proof:  # by mappings, which a client can change
                are_alone = are_of_one(map(self.parties.find, present := self._present(domain)))  # also in the inner containers
                seen = replace(seen, is_proof=are_alone and self.parties.have_one_owner(domain.name, present))
        self.observed.emit(seen)
        if domain is not None:
            seen = replace(seen, present=self._present(domain))
            if confirms_fault(seen):  # a core dump, which its author can forge, closes no domain
                self._suspect(domain)
        self._outbox.put(partial(self._judge, seen, self._clock()))
        if domain is not None and confirms_fault(seen):
            self.confirm(domain)

    def _judge(self, seen: Observation, now_ns: int) -> None:
        log.info("fault.seen", source=seen.source.value, domain=seen.domain, gpu=seen.gpu, xid=seen.xid, text=seen.text,
                 pid=seen.process and seen.process.pid, is_proof=seen.is_proof, seen_ns=seen.seen_ns)  # fmt: skip
        self._took(self._fusion.take(seen, now_ns))

    def hear(self, domain: Domain, news: News) -> None:
        """Take a line of a domain's log: it counts once a source that clients cannot forge confirms it
        (faults/rules/unconfirmed_lines.py)."""
        seen = observe(domain.name, news, self.parties, self._clock())
        if seen is None:
            return
        if domain.state is DomainState.FAULT or self._unconfirmed.hear(seen):
            self._believe(domain, (seen,))
        else:
            self._changed.notify()

    def confirm(self, domain: Domain) -> None:
        """Accept the earlier lines of the domain's log: its server, or the kernel, has confirmed the fault."""
        if lines := self._unconfirmed.confirm(domain.name, self._clock()):
            self._believe(domain, lines)

    def _believe(self, domain: Domain, lines: Iterable[Observation]) -> None:
        """Mark the domain as in FAULT, even if its server works again when asked: its clients have lost their contexts."""
        domain.fail()
        self._pool.notify()
        for line in lines:
            self.see(line)

    def report(self, process: ProcessId, error: FirstError) -> None:
        """Take a client's report that it met an error: evidence, and not proof."""
        words = " ".join(filter(None, (error.name or f"CUDA error {error.code}", error.text)))
        self.see(
            Observation(
                Source.REPORT, self._clock(), process=process, address=error.address, kernel=error.kernel, pc=error.pc,
                text=words[:TEXT_CHARACTERS], is_failure=error.code in SM_ERRORS,
            )
        )  # fmt: skip

    def _domain_of(self, seen: Observation) -> Domain | None:
        if seen.source in _OF_A_WATCH and seen.process is not None and self.parties.find(seen.process) is not None:
            return self._pool.domains.get(self.parties.domain_of(seen.process))  # it may have left that of its watch
        if seen.domain:
            return self._pool.domains.get(seen.domain)
        if seen.process is None:
            return None
        if (home := self._pool.home_of(seen.process)) is not None:
            return home
        if self.parties.find(seen.process) is not None:  # its pid may belong to another process by now
            return self._pool.domains.get(self.parties.domain_of(seen.process))
        return self._pool.domain_of(seen.process)

    def domain_of_pid(self, pid: int) -> Domain | None:
        """Return the domain of a server or client now or a moment ago: an Xid may name one that left because of the fault."""
        if name := self.parties.former_domain(pid):
            former = self._pool.domains.get(name)
            if former is None or (former.is_ill and former.state is not DomainState.CONTAINED):
                return former
        return domain_named(self._pool.domains.values(), pid, self.parties.was_there)

    def _present(self, domain: Domain) -> tuple[ProcessId, ...]:
        """Return the domain's clients: members, and those that only the vendor's server lists, as without root.

        Not all that may have a channel: a user can have thousands, and each would be stored with each fault.  Those with a
        context come first; who is left out is not convicted without proof.
        """
        self._meet_listed(domain)
        at_work = domain.pids_at_work
        listed = (domain.admitted.get(pid) or self.parties.by_pid(pid) for pid in domain.client_pids)
        there = domain.members.keys() | {each for each in listed if each is not None}
        few = sorted(there, key=lambda each: (each.pid not in at_work, each))[:_MOST_PRESENT]
        return self.parties.present(domain.name, few, PRESENT_SECONDS)

    def _meet_listed(self, domain: Domain) -> None:
        """Note clients that bypassed mpsd.  A known one keeps its domain: its former domain may still list it."""
        facts = domain.name, domain.servers.keys(), domain.served
        if (started_ns := self.parties.note_servers(*facts, lambda: self._clock() - age_ns(domain))) is not None:
            self._fusion.servers_started(domain.name, started_ns)
        for process in [each for each in domain.members if self.parties.find(each) is None]:
            self.parties.meet(process, domain.name)
        self.parties.note_unseen(domain.name, domain.client_pids)
        for pid in domain.client_pids:
            known = self.parties.by_pid(pid)
            self.parties.keep(domain.admitted.get(pid))
            found = listed_process(domain.admitted, pid) if known is None or self.parties.is_gone(known) else None
            if known is not None and is_meant(domain.admitted, known) and not self._is_placed(known, domain):
                self.parties.meet(known, domain.name)  # it was forgotten, or has left, and uses a channel that it had
            if found is not None and found != known:
                self.parties.meet(found, domain.name)
                self._pool.watch(domain, found)
            if (client := domain.admitted.get(pid) or found or known) is not None:
                self.parties.serve(client, domain.name)

    def _is_placed(self, process: ProcessId, listing: Domain) -> bool:
        """Return whether the process is where it was placed, and not in this domain, which lists it."""
        where = self._pool.domains.get(self.parties.domain_of(process))
        has_left = process in listing.channels and process not in listing.members
        is_there = not has_left or (where is not None and process.pid in where.pids_at_work)
        return self.parties.is_placed(process) and is_there

    def _suspect(self, domain: Domain) -> None:
        """Close the domain until its state is known: the vendor's server reports FAULT late, and admits clients until then."""
        if domain.state is DomainState.READY:
            domain.suspect(SUSPECT_SECONDS)
            self._acquit_at = min(self._acquit_at, domain.suspect_until)
            self._changed.notify()
            self._pool.notify()

    # -- clients -----------------------------------------------------------------------------------------------------

    def arrived(self, process: ProcessId, domain: Domain, is_again: bool = False) -> None:
        """Record a connection of a client that is placed in the domain; called for each one, and each time it is linked."""
        is_new = self.parties.meet(process, domain.name)
        self.client_arrived.emit(process, domain, is_new, is_again)

    def served(self, process: ProcessId, domain: Domain) -> None:
        """Record that a descriptor was passed on a connection of the process: it may have a channel to the domain's server."""
        self.parties.serve(process, domain.name, self._clock())

    def forgotten(self, process: ProcessId, domain: Domain) -> None:
        """Record that the process is in a domain that it has left with a channel, or else in none, wherever it arrived last."""
        there = next((each for each in self._pool.domains.values() if may_be_used(each, process)), None)
        self.parties.part(process) if there is None else self.parties.meet(process, there.name)

    def hung_up(self, process: ProcessId) -> None:
        """Record that a connection of the client has ended."""
        self.client_hung_up.emit(process)

    def left(self, process: ProcessId, ending: ProcessExit | None) -> None:
        """Record the end of a client.  ending: None if unknown; then a signal may have ended it in the middle of a kernel."""
        domain = self.parties.leave(process)
        if not domain:  # not known, or only connected once, or past MPS since
            return
        is_own = ending is not None and ending.signal in OWN_SIGNALS
        fault_class = FaultClass.UNKNOWN if is_own else FaultClass.HOST
        is_failure = ending is not None and is_own and (ending.signal, ending.status) != (0, 0)
        text = f"pid {process.pid} ended, {ending or 'how is not known'}"
        seen = Observation(Source.PROCESS, self._clock(), fault_class, domain=domain, process=process, text=text)
        self.see(replace(seen, is_failure=is_failure))

    def key_of(self, process: ProcessId, is_grouped: bool = False) -> str:
        """Return the key of the domain in which faults require the client to be placed; empty: any domain."""
        party = self._party(process)
        return self._blame.placement(party.key, time.time(), () if is_grouped else party.wider_keys)

    def pause_of(self, process: ProcessId) -> float:
        """Return the seconds until the client may start."""
        return self._blame.pause(self._party(process).key, time.time())

    def _party(self, process: ProcessId) -> Party:
        return self.parties.find(process) or self._describe(process)

    # -- incidents ---------------------------------------------------------------------------------------------------

    def note(self, incident: Incident, text: str) -> None:
        log.info("fault.deed", number=incident.number, text=text)
        self._took(self._fusion.note(incident.number, Deed(self._clock(), text)))

    def note_of_gpu(self, gpu: str, text: str) -> None:
        """Add what followed from the failure of a GPU to its last own incident, unless that was before this mpsd."""
        last = self._history.last_of_gpu(gpu)
        if last is None or len(last.deeds) >= MOST_DEEDS:
            return
        log.info("fault.deed", number=last.number, text=text)
        deed = Deed(self._clock(), text)
        changed = self._fusion.note(last.number, deed)  # empty: it was settled long ago
        self._took(changed or [replace(last, revision=last.revision + 1, deeds=(*last.deeds, deed))])

    def _took(self, changed: Sequence[Incident]) -> None:
        for incident in changed:
            publish_incident(self._publish, self._history.put(incident), incident)
            changes = self._blame.take(incident, time.time())
            self._history.save(incident, self._blame.state if changes else None)
            publish_blame(self._publish, changes)
            self.revised.emit(incident)
        if changed:
            self._changed.notify()

    # -- queries -----------------------------------------------------------------------------------------------------

    def incidents(self, after: int) -> Iterable[Incident]:
        return self._history.after(after)

    def knows(self, domain: str, at_ns: int) -> bool:
        """Return whether one of the last faults was in this domain at that time, and takes no more evidence."""
        return self._history.has_settled(domain, at_ns)

    def incidents_before(self, before: int | None) -> Iterable[Incident]:
        return self._history.before(before)

    def incident(self, number: int) -> Incident:
        return self._history.find(number)

    def standings(self) -> Iterable[BlameStatus]:
        return standings(self._blame, self._pool.drained, time.time())

    def pardon(self, key: str) -> BlameStatus:
        """End what is held against the key and return it.  A drained GPU, GPU-..., takes clients again.  Raises NoSuchFault."""
        found = status_of(key, self.standings())
        if found is None:
            raise NoSuchFault(f"{in_words(key)} is neither in quarantine nor suspected; `mpsctl blame` lists the keys that are")
        changes = self._blame.pardon(key)
        if self._pool.restore_gpu(key):
            self._publish("gpu.restored", {"gpu": key})
            log.warning("gpu.restored", gpu=key)
        else:
            self._store.save_blame(self._blame.state)
        publish_blame(self._publish, changes)
        self._pool.notify()
        return found

    # -- tasks -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Settle incidents and let suspicions decay; run as long as mpsd."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_domains)
            while True:
                self._took(self._fusion.settle(self._clock()))
                for name, lines in self._unconfirmed.drop_late(self._clock()).items():
                    log.warning("fault.unconfirmed", domain=name, lines=lines)
                if changes := self._blame.decay(time.time()):
                    self._store.save_blame(self._blame.state)
                    publish_blame(self._publish, changes)
                self._acquit()
                with trio.move_on_after(self._pause()):
                    await self._changed.wait()

    def _acquit(self) -> None:
        """Wake the clients that wait for a domain whose suspicion has ended."""
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
        return max(0.01, min([*waits, _LOOK_SECONDS]))

    async def _watch_domains(self) -> None:
        """Watch the domains: one whose servers were replaced has recovered."""
        is_cut_off = (None, DomainState.CONTAINED)  # its servers end now, without a fault of any client
        was_ill = (DomainState.FAULT, DomainState.DEAD, DomainState.RECYCLING, DomainState.STARTING)
        adopted: set[str] = set()  # not ready yet
        while True:
            for name, domain in list(self._pool.domains.items()):
                self._meet_listed(domain)
                adopted |= {name} if domain.is_adopted else set()
                before, self._states[name] = self._states.get(name), domain.state
                if domain.state is DomainState.FAULT:
                    self.confirm(domain)
                if before in is_cut_off and domain.state is DomainState.FAULT:
                    self._took(self._fusion.domain_failed(name, self._clock()))
                if domain.state is DomainState.READY and before in was_ill:
                    self.parties.renew(name, domain.served, domain.members)
                    if name in adopted and domain.servers:
                        self.parties.adopt(name)
                    adopted.discard(name)
                    self._took(self._fusion.domain_recovered(name, self._clock()))
                    self._changed.notify()
            for gone in self._states.keys() - self._pool.domains.keys():
                del self._states[gone]
                self._unconfirmed.forget_but(self._pool.domains.keys())
                self.parties.forget_domains_but(self._pool.domains.keys())
                self._took(self._fusion.domain_recovered(gone, self._clock()))
                self._changed.notify()
            await self._pool.changed()

    def _at(self, moment_ns: int) -> float:
        return time.time() - (self._clock() - moment_ns) / 1e9
