"""Actions in any order: every promise holds, and no amount is counted twice or forgotten."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from mpsd.errors import NoRoom, TooMany
from mpsd.leases.rules.budgets import AmountKind, Scope, ScopeLevel, to_millionths
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.model.lease import Grant, LeaseState, Selector, SelectorKind
from mpsd.model.process import Credentials
from tests.unit.leases.world import ALICE, DEVICES, GIB, ROOT, World, by_uid, process, spec

PIDS = st.integers(1, 8)
UIDS = st.sampled_from([ROOT, ALICE, 1001])
PERCENTS = st.sampled_from([10.0, 33.3, 50.0, 100 / 3, 100.0])
SETTINGS = st.builds(
    AdmissionSettings,
    redistribute=st.sampled_from(["off", "group", "elastic"]),
    sm_oversubscription=st.sampled_from([1.0, 1.5]),
    user_sm_percent=st.sampled_from([None, 60.0]),
    user_clients=st.sampled_from([None, 2]),
    max_clients=st.sampled_from([3, 100]),
    inherit_seconds=st.sampled_from([0.0, 30.0]),
)


class Leases(RuleBasedStateMachine):
    """Leases are made, renewed and released, clients come and go, time passes, and mpsd is killed and started again."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="mpsd-"))
        self.next_pid = 100

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.store.close()
        shutil.rmtree(self.path)

    @initialize(terms=SETTINGS)
    def begin(self, terms: AdmissionSettings) -> None:
        self.world = World(self.path, terms)

    @rule(
        owner=UIDS,
        sm=PERCENTS,
        gpus=st.sampled_from([(), ("0",), ("1",)]),
        gib=st.sampled_from([0, 20, 80]),
        group=st.sampled_from(["", "g"]),
        processes=st.integers(1, 3),
        seconds=st.sampled_from([None, 10.0, 100.0]),
        wait_seconds=st.sampled_from([0.0, 50.0]),
    )
    def create(self, owner, sm, gpus, gib, group, processes, seconds, wait_seconds) -> None:
        memory = dict.fromkeys(gpus, gib * GIB) if gib else {}
        selector = by_uid(owner)
        asked = spec(sm, selector, gpus=gpus, memory_bytes=memory, group=group, processes=processes)
        try:
            lease = self.world.book.create(owner, replace(asked, ttl_seconds=seconds, wait_seconds=wait_seconds))
        except (NoRoom, TooMany):
            return
        assert self.world.book.find(lease.id) == lease

    @rule(pid=PIDS)
    def create_by_pid(self, pid: int) -> None:
        if pid not in self.world.dead:
            try:
                self.world.book.create(ROOT, spec(10.0, Selector(SelectorKind.PID, str(pid))))
            except NoRoom:
                pass

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if leases := self.world.book.leases():
            self.world.book.release(data.draw(st.sampled_from(leases)).id)

    @rule(data=st.data(), seconds=st.sampled_from([None, 5.0, 500.0]))
    def renew(self, data: st.DataObject, seconds: float | None) -> None:
        if leases := self.world.book.leases():
            self.world.book.renew(data.draw(st.sampled_from(leases)).id, seconds)

    @rule(uid=UIDS)
    def admit(self, uid: int) -> None:
        """A new process; where it would have to wait, it gives up."""
        self.next_pid += 1
        self._ask(self.next_pid, uid)

    @rule(pid=PIDS, uid=UIDS)
    def admit_again(self, pid: int, uid: int) -> None:
        before = self.world.book.grant_of(process(pid))
        if pid not in self.world.dead:
            grant = self._ask(pid, uid)
            assert before is None or grant is before

    def _ask(self, pid: int, uid: int) -> Grant | None:
        asking = self.world.book.admit(process(pid), Credentials(pid, uid, uid), lambda reason: None)
        try:
            asking.send(None)
        except StopIteration as done:
            return done.value
        except RuntimeError:  # it waits, and the test has no trio to wait in
            return None
        raise AssertionError("nothing else is waited for")

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if grants := list(self.world.book.grants()):
            self.world.book.leave(data.draw(st.sampled_from(grants)))

    @rule(seconds=st.sampled_from([1.0, 20.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.book._end_what_is_over(self.world.now, 1000)
        self.world.book._admissions.advance()

    @rule()
    def restart(self) -> None:
        """Clients without a lease are found by the pool, which adopts them."""
        book, used = self.world.book, dict(self.world.book._account.ledger.used)
        leases, grants = book.leases(), dict(book.grants())
        who = {each: known.credentials for each, known in book._clients._known.items()}
        self.world.store.close()
        again = self.world.restarted()
        for each in grants:
            assert again.adopt(each, who[each]) == grants[each]
        assert again.leases() == leases
        assert again._account.ledger.used == used

    @invariant()
    def no_budget_is_exceeded(self) -> None:
        if not hasattr(self, "world"):
            return
        book = self.world.book
        limits, used = book._quotas.limits(book._account.places), book._account.ledger.used
        for scope, amount in used.items():
            limit = limits.of(scope)
            assert limit is None or amount <= limit, scope

    @invariant()
    def what_is_counted_covers_what_is_reserved_and_what_is_held(self) -> None:
        if not hasattr(self, "world"):
            return
        book = self.world.book
        for device in DEVICES:
            here = [each for each in book.leases() if device.uuid in gpus_of(each.spec.gpus)]
            reserved = sum(to_millionths(each.spec.sm_percent) for each in here if each.state is LeaseState.ACTIVE)
            granted = [each for each in book.grants().values() if each.lease_id and device.uuid in gpus_of(each.gpus)]
            held = sum(to_millionths(grant.sm_percent) for grant in granted)
            counted = book._account.ledger.used.get(Scope(ScopeLevel.MACHINE, AmountKind.SM, gpu=device.uuid), 0)
            assert counted >= max(reserved, held)
            memory = sum(grant.memory_bytes.get(device.uuid, 0) for grant in granted)
            assert book._account.ledger.used.get(Scope(ScopeLevel.MACHINE, AmountKind.MEMORY, gpu=device.uuid), 0) >= memory

    @invariant()
    def the_parts_of_a_lease_are_never_more_than_it(self) -> None:
        if not hasattr(self, "world"):
            return
        book = self.world.book
        for pool in book._account.pools.values():
            running = [each for each in pool.clients.values() if not each.is_kept]
            if not any(each.is_kept for each in pool.clients.values()) and len(pool.leases) == 1:
                lease_id, reserved = next(iter(pool.leases.items()))
                assert len(running) <= book.find(lease_id).spec.processes
                if book.settings.redistribute == "off":
                    assert sum(each.share for each in running) <= reserved

    @invariant()
    def nobody_waits_who_could_go_in(self) -> None:
        """The first of the queue at least would have to wait."""
        if hasattr(self, "world"):
            used = dict(self.world.book._account.ledger.used)
            self.world.book._admissions.advance()
            assert self.world.book._account.ledger.used == used


def gpus_of(named: tuple[str, ...]) -> tuple[str, ...]:
    return named or tuple(device.uuid for device in DEVICES)


TestLeases = Leases.TestCase
TestLeases.pytestmark = [pytest.mark.deadline(120)]
TestLeases.settings = settings(stateful_step_count=30)
