"""How the one that serves is fenced: by what a fault has done, by its end, by being ended; and never early."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mpsd.model.fault import FaultClass, Observation, Source
from mpsd.model.service import Cause, MemberState, Phase
from mpsd.services.fault_evidence import Evidence
from mpsd.services.rules.fault_fence import Settle, fences_at_ns, is_fault_of_domain

SM, MMU, HOST, DEVICE, UNKNOWN = FaultClass.SM, FaultClass.MMU, FaultClass.HOST, FaultClass.DEVICE, FaultClass.UNKNOWN
PROOF = {"is_proof": True, "process": "somebody"}
NEVER, NOT_THIS = None, "no fault of the domain"
SETTLE = Settle(sm=0.25, mmu=0.5)
SEEN_NS = 10**12
# Each source's delay: when all writes of the domain have stopped, in seconds after that sign.
TOLD = {
    "an SM exception, by the kernel log": (Source.KERNEL_LOG, {"xid": 13}, 0.25),
    "a stopped channel, by the kernel log": (Source.KERNEL_LOG, {"xid": 43}, 0.25),
    "an SM exception, by NVML": (Source.NVML, {"xid": 13}, 0.25),
    "an SM exception, by a core dump": (Source.CORE_DUMP, {"fault_class": SM, **PROOF}, NOT_THIS),
    "a memory fault, by the kernel log": (Source.KERNEL_LOG, {"xid": 31}, 0.5),
    "a memory fault, by NVML": (Source.NVML, {"xid": 31}, 0.5),
    "a memory fault, by an UVM event": (Source.UVM_EVENTS, {"fault_class": MMU, **PROOF}, NEVER),
    "a memory fault, by the module": (Source.KMOD, {"fault_class": MMU, **PROOF}, NEVER),
    "something, by the vendor's log": (Source.VENDOR_LOG, {}, 0.5),
    "lost memory, by the kernel log": (Source.KERNEL_LOG, {"xid": 48}, NEVER),
    "contained, by the module": (Source.KMOD, {"fault_class": MMU, "is_contained": True, **PROOF}, NOT_THIS),
    "an access to a guard": (Source.UVM_EVENTS, {"fault_class": MMU, "is_contained": True, **PROOF}, NOT_THIS),
    "a dump without an exception": (Source.CORE_DUMP, {"clears": True, "process": "somebody"}, NOT_THIS),
    "what a client says": (Source.REPORT, {"fault_class": SM, "process": "somebody"}, NOT_THIS),
    "the end of a process": (Source.PROCESS, {"fault_class": HOST, "process": "somebody"}, NOT_THIS),
    "a cleanup, by the kernel log": (Source.KERNEL_LOG, {"xid": 45}, NOT_THIS),
    "an Xid that tells no domain": (Source.KERNEL_LOG, {"xid": 13, "domain": ""}, NOT_THIS),
}  # fmt: skip


@pytest.mark.parametrize("what", TOLD)
def test_what_proves_that_nothing_writes_any_more(what):
    source, facts, seconds = TOLD[what]
    seen = Observation(source, SEEN_NS, **{"domain": "d1"} | facts)
    assert is_fault_of_domain(seen) == (seconds is not NOT_THIS)
    found = fences_at_ns(seen, SETTLE)
    assert found == (SEEN_NS + round(seconds * 1e9) if isinstance(seconds, float) else None)


async def test_an_sm_exception_promotes_before_anything_else_is_done(machine, autojump_clock: MockClock):
    """Within the call: the old active was killed, and the standby has its answer."""
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        machine.tear_down("a")
        machine.xid(43, "a")
        assert (machine.processes[first].was_killed, machine.order(standby), machine.view().writer) == (True, "serve", standby)
        await trio.sleep(0.1)
        machine.serving(standby)
        assert (machine.view().last.cause, machine.view().last.fence_ms) == (Cause.FAULT, 0)
        assert machine.ended == []


async def test_a_memory_fault_is_waited_for_until_its_xid(machine, autojump_clock: MockClock):
    """The UVM event comes while kernels still write."""
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        machine.uvm_event(first)
        assert (machine.phase, machine.order(first), machine.order(standby)) == (Phase.FENCING, "leave", "standby")
        await trio.sleep(0.125)
        assert (machine.processes[first].was_killed, machine.order(standby)) == (False, "standby")
        machine.tear_down("a")
        machine.xid(31, "a")
        assert machine.order(standby) == "standby"
        await trio.sleep(0.0099)
        assert machine.order(standby) == "standby"
        await trio.sleep(0.0002)
        assert (machine.order(standby), machine.processes[first].was_killed) == ("serve", True)


async def test_a_kernels_clock_that_lags_behind_shortens_no_settling(machine, autojump_clock: MockClock):
    """The kernel log's stamps come from a clock that is never adjusted: after days its error exceeds the settle time of a
    fault."""
    async with machine.mpsd():
        await machine.serves("a")
        standby = await machine.member("b")
        await trio.sleep(2)
        machine.tear_down("a")
        machine.coordinator.see(Observation(Source.KERNEL_LOG, machine.now_ns() - 10**9, domain="a", xid=31))
        await trio.sleep(0.0099)
        assert machine.order(standby) == "standby"
        await trio.sleep(0.0002)
        assert machine.order(standby) == "serve"


async def test_a_fault_that_nothing_more_is_heard_of_ends_the_process_in_the_end(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        machine.uvm_event(first)
        await trio.sleep(2.1)
        assert machine.ended == [first]
        assert machine.order(standby) == "standby"
        machine.vault.fenced(first)
        assert machine.order(standby) == "serve"


async def test_a_domain_that_is_in_fault_was_torn_down(machine, autojump_clock: MockClock):
    """Its vendor's server reports FAULT when it informs its clients."""
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        machine.uvm_event(first)
        machine.tear_down("a")
        machine.faulted["a"] = trio.current_time()
        machine.see(Source.VENDOR_LOG, "a")
        await trio.sleep(0.011)
        assert machine.order(standby) == "serve"


@pytest.mark.parametrize("where", [{"domain": "a"}, {"gpu": "GPU-a"}, {"gpu": "GPU-a", "domain": "c"}, {}])
@pytest.mark.parametrize("xid", [48, 79, 95])
async def test_a_fault_of_the_gpu_itself_proves_nothing(machine, autojump_clock: MockClock, xid, where):
    """Nor do the vendor's log and the domain's state then: they do not name the kind of fault."""
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        machine.see(Source.KERNEL_LOG, **{"domain": ""} | where, fault_class=DEVICE, xid=xid)
        machine.faulted["a"] = trio.current_time()
        machine.see(Source.VENDOR_LOG, "a")
        await trio.sleep(1)
        assert (machine.phase, machine.processes[first].was_killed, machine.order(standby)) == (Phase.FENCING, False, "standby")
        await trio.sleep(1.1)
        assert (machine.ended, machine.order(standby)) == ([first], "standby")
        machine.vault.fenced(first)
        assert machine.order(standby) == "serve"


async def test_a_fault_of_another_gpu_or_before_it_came_takes_no_proof_away(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        machine.see(Source.NVML, "", DEVICE, gpu="GPU-a", xid=48)
        await trio.sleep(1)
        await machine.serves("a")
        standby = await machine.member("b")
        machine.see(Source.NVML, "", DEVICE, gpu="GPU-b", xid=48)
        machine.tear_down("a")
        machine.see(Source.VENDOR_LOG, "a")
        await trio.sleep(0.011)
        assert machine.order(standby) == "serve"


def test_of_mig_devices_the_kernel_names_the_whole_gpu():
    evidence = Evidence()
    evidence.take(Observation(Source.KERNEL_LOG, SEEN_NS, gpu="GPU-b", xid=48), SETTLE, SEEN_NS)
    found = [evidence.has_gpu_failed("a", gpus, SEEN_NS) for gpus in (("MIG-1",), (), ("GPU-a",), ("GPU-a", "GPU-b"))]
    assert found == [True, True, False, True]


async def test_what_was_seen_before_it_came_proves_nothing(machine, autojump_clock: MockClock):
    """The domain has recovered since; now it is silent, and its kernels may run."""
    async with machine.mpsd():
        machine.xid(43, "a")
        await trio.sleep(1)
        first = await machine.serves("a", heartbeat=0.5)
        await machine.member("b")
        machine.failover.failed(1, first, "an assertion")
        assert not machine.processes[first].was_killed
        await trio.sleep(1.1)
        assert machine.ended == [first]


async def test_a_fault_elsewhere_is_nobodys(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        machine.xid(43, "c")
        machine.see(Source.KMOD, "a", FaultClass.MMU, process=first, is_proof=True, is_contained=True)
        assert (machine.order(first), machine.order(standby)) == ("serve", "standby")


async def test_a_standby_whose_domain_faults_has_to_leave(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        await machine.serves("a")
        standby, other = await machine.member("b"), await machine.member("c", 1)
        machine.xid(43, "b")
        assert (machine.order(standby), machine.order(other)) == ("leave", "standby")
        assert machine.failover.ready(1, standby).order == "leave"
        assert machine.view().members[1].standing is MemberState.FAULTED
        assert not machine.processes[standby].was_killed


async def test_who_joins_from_a_domain_in_fault_has_to_leave(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        await machine.serves("a")
        machine.faulted["b"] = trio.current_time()
        assert machine.order(await machine.member("b", is_ready=False)) == "leave"


async def test_ending_one_is_tried_again_and_again(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        machine.failover.failed(1, first, "an assertion")
        machine.is_stubborn = True
        await trio.sleep(6.5)
        assert len(machine.ended) == 3
        assert machine.view().writer == first


async def test_one_that_cannot_be_ended_is_followed_by_nobody(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        machine.is_stubborn = True
        slow = await machine.member("a")
        standby = await machine.member("b")
        for _ in range(20):
            await trio.sleep(5)
            await machine.failover.follow(1, standby, None, 0)
            assert (machine.order(standby), machine.view().writer) == ("standby", slow)
        machine.is_stubborn = False
        await trio.sleep(4)
        machine.vault.fenced(slow)
        assert machine.order(standby) == "serve"


async def test_one_that_lets_go_while_it_is_ended_is_fenced(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        slow = await machine.member("a")
        standby = await machine.member("b")
        await trio.sleep(4.1)
        assert machine.order(slow) == "leave"
        machine.failover.yielded(1, 1, slow)
        assert (machine.order(standby), machine.order(slow)) == ("serve", "leave")


async def test_a_fault_in_a_handover_is_a_fault(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        with trio.move_on_after(0):
            await machine.failover.handover(1, None, 0)
        assert machine.order(first) == "yield"
        machine.tear_down("a")
        machine.xid(13, "a")
        assert machine.order(standby) == "serve"
        machine.serving(standby)
        assert machine.view().last.cause is Cause.FAULT


async def test_a_fault_while_one_takes_over_promotes_the_next(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        second, third = await machine.member("b", 0), await machine.member("c", 1)
        machine.tear_down("a")
        machine.xid(43, "a")
        assert machine.order(second) == "serve"
        machine.tear_down("b")
        machine.xid(43, "b")
        assert (machine.order(third), machine.view().writer) == ("serve", third)
        assert machine.processes[first].was_killed
        assert machine.processes[second].was_killed


async def test_a_fault_in_which_all_are_lost_waits_for_a_new_one(machine, autojump_clock: MockClock):
    """The fault fenced the writer; the vault takes longer to notice its end."""
    async with machine.mpsd():
        first = await machine.serves("a")
        await machine.member("a")
        machine.tear_down("a")
        machine.xid(43, "a")
        assert (machine.phase, machine.vault.made[1].writer) == (Phase.IDLE, first)
        fresh = await machine.member("b")
        assert (machine.order(fresh), machine.vault.made[1].writer) == ("serve", fresh)


async def test_a_service_whose_last_ones_a_fault_has_ended_goes_some_time(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        machine.tear_down("a")
        machine.xid(43, "a")
        await trio.sleep(1)
        machine.vault.fenced(first)
        await trio.sleep(61)
        assert machine.failover.services() == []


async def test_who_has_ended_and_is_not_fenced_yet_is_by_a_fault(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        await machine.die(first)
        assert machine.order(standby) == "standby"
        machine.tear_down("a")
        machine.xid(43, "a")
        assert machine.order(standby) == "serve"


async def test_whose_server_has_ended_is_killed_and_waited_for(machine, autojump_clock: MockClock):
    async with machine.mpsd():
        first = await machine.serves("a")
        standby = await machine.member("b")
        machine.coordinator.records[1].instances[first].is_orphan = True
        machine.coordinator.fault("a", machine.now_ns(), first)
        assert (machine.processes[first].was_killed, machine.order(standby)) == (True, "standby")
        await trio.sleep(0.2)
        machine.vault.fenced(first)
        assert (machine.order(standby), machine.ended) == ("serve", [])


async def test_a_bug_in_here_keeps_nobody_from_knowing_of_the_fault(machine, autojump_clock: MockClock, monkeypatch):
    async with machine.mpsd():
        await machine.serves("a")
        monkeypatch.setattr(machine.coordinator, "fault", None)
        machine.xid(43, "a")
