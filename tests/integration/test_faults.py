"""Faults of clients, end to end on the simulator: who is named, who suffers, what is done, what outlives a restart."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from mpsd_client import Client as Mpsd
from mpsd_client import Event, Refused, calls, values

from mpsd.faults.sources.core_dumps import environment
from tests.integration.client import Client
from tests.integration.machine import SIMULATOR, UIDS, Machine
from tests.integration.process import EVENT_SECONDS, is_running, wait_for
from tests.seeds import RUN_SEED

pytestmark = pytest.mark.root
FORGIVING = '[faults]\nquarantine = "off"\ncrash_pause_max = 0.0\nculprit = "leave"\n'


@contextmanager
def told(machine: Machine, *topics: str) -> Iterator[Mpsd]:
    """Subscribed; `until` reads."""
    with machine.mpsd() as mpsd:
        mpsd.subscribe(*(topics or ("fault.*", "blame.*", "gpu.*")))
        yield mpsd


def until(mpsd: Mpsd, topic: str) -> Event:
    for event in mpsd.events(timeout_seconds=EVENT_SECONDS):
        if isinstance(event, Event) and event.topic == topic:
            return event
    raise AssertionError(f"no {topic} came")


def settled(machine: Machine, number: int) -> values.IncidentReport:
    with machine.mpsd() as mpsd:
        return wait_for("the end of the incident", lambda: _if_settled(mpsd, number))


def _if_settled(mpsd: Mpsd, number: int) -> values.IncidentReport | None:
    found = mpsd.ask(calls.fault_get(number))
    return found if found.is_settled else None


def standing(machine: Machine, client: Client) -> values.MpsClient:
    with machine.mpsd() as mpsd:
        return next(row for row in mpsd.ask(calls.client_list()).items if row.pid == client.pid)


def pair(machine: Machine, mode: str, **variables: str) -> tuple[Client, Client]:
    """An innocent, and one that faults, in one domain."""
    innocent = machine.counter(**variables).ready()
    gate, opener = os.pipe()
    culprit = machine.client("faulter", mode, "--gate", "--after", "0.3", stdin=gate, **variables).ready()
    assert machine.domain_of(innocent) == machine.domain_of(culprit)
    for end in (gate, opener):
        os.close(end)
    return innocent, culprit


def slow(*modes: str) -> list[object]:
    return [pytest.param(mode, marks=pytest.mark.slow) for mode in modes]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["oob_write", *slow("null_write", "use_after_free", "ro_write", "copy")])
def test_the_culprit_of_a_memory_fault_is_named_before_anybody_hears_of_it(machine: Machine, mode: str) -> None:
    machine.configure(FORGIVING)
    machine.start()
    with told(machine) as mpsd:
        innocent, culprit = pair(machine, mode)
        facts = until(mpsd, "fault.culprit").facts
        assert (facts["culprit"]["pid"], facts["confidence"], facts["fault_class"]) == (culprit.pid, "proven", "mmu")
    assert innocent.error() == 700
    report = settled(machine, facts["number"])
    assert [party.pid for party in report.victims] == [innocent.pid]
    assert report.culprit is not None
    assert report.culprit.program == "faulter"
    assert {evidence.source for evidence in report.evidence} >= {"uvm_events", "kernel_log", "vendor_log"}


def test_a_near_null_access_harms_nobody(machine: Machine) -> None:
    machine.configure(FORGIVING)
    machine.start()
    innocent, culprit = pair(machine, "array_null_write")
    wait_for("the shield", lambda: standing(machine, culprit).shield)
    assert culprit.wait("result")["code"] == 0
    innocent.goes_on()
    with machine.mpsd() as mpsd:
        assert not mpsd.ask(calls.fault_list()).items


@pytest.mark.slow
def test_without_the_shield_it_ends_its_co_runners(machine: Machine) -> None:
    """So that the test above can fail."""
    machine.configure(FORGIVING + 'shield = "off"\n')
    machine.start()
    innocent, culprit = pair(machine, "array_null_write")
    assert not standing(machine, culprit).shield
    assert innocent.error() == 700


@pytest.mark.parametrize("hold", ["on", pytest.param("off", marks=pytest.mark.slow)])
def test_who_is_killed_in_a_kernel_takes_others_along_unless_held(machine: Machine, hold: str) -> None:
    machine.configure(FORGIVING + f'hold = "{hold}"\n')
    machine.start()
    innocent = machine.counter().ready()
    doomed = machine.client("faulter", "killed", "--kernel-ms", "300", "--after", "0.3").ready()
    assert machine.domain_of(innocent) == machine.domain_of(doomed)
    assert doomed.status() == -signal.SIGKILL
    if hold == "on":
        innocent.goes_on()
        innocent.goes_on()
        with machine.mpsd() as mpsd:
            assert not mpsd.ask(calls.fault_list()).items
    else:
        assert innocent.error() == 700


@pytest.mark.slow
def test_an_array_that_is_killed_is_nobodys_fault(machine: Machine) -> None:
    """Its kernels do not end, so they end the co-runners once mpsd no longer holds them; meanwhile another client ends well."""
    machine.configure('[faults]\nhold_seconds = 3.0\ncrash_pause_max = 0.0\n')
    machine.start()
    innocent = machine.counter().ready()
    gate, opener = os.pipe()
    array = [machine.client("faulter", "killed_hang", "--gate", stdin=gate).ready() for _ in range(5)]
    assert {machine.domain_of(each) for each in array} == {machine.domain_of(innocent)}
    for end in (gate, opener):
        os.close(end)
    assert [each.status() for each in array] == [-signal.SIGKILL] * len(array)
    assert machine.client("counter", "--seconds", "0.5").status() == 0
    assert innocent.error() == 700
    with machine.mpsd() as mpsd:
        (fault,) = wait_for("the fault", lambda: mpsd.ask(calls.fault_list()).items)
        assert (fault.fault_class, fault.culprit) == ("host", None)
        assert not mpsd.ask(calls.blame_list()).items


def dumping(machine: Machine) -> dict[str, str]:
    return environment(machine.pipe / "cores")


@pytest.mark.parametrize("mode", ["trap", *slow("misaligned", "illegal_instruction")])
def test_a_core_dump_names_the_culprit_of_an_sm_exception(machine: Machine, mode: str) -> None:
    machine.configure(FORGIVING)
    machine.start()
    with told(machine) as mpsd:
        innocent, culprit = pair(machine, mode, **dumping(machine))
        facts = until(mpsd, "fault.culprit").facts
        assert (facts["culprit"]["pid"], facts["confidence"], facts["fault_class"]) == (culprit.pid, "proven", "sm")
        assert facts["kernel"]
    assert innocent.error()


@pytest.mark.slow
def test_who_faults_without_proof_is_found_by_placing_suspects_apart(machine: Machine) -> None:
    """No client writes dumps: of the two suspects the one that faults alone is convicted, and gets a separate domain."""
    machine.configure('[faults]\ncrash_pause_max = 0.0\nculprit_seconds = 0.1\n')
    machine.start()
    with told(machine) as mpsd:
        innocent, culprit = pair(machine, "trap")
        groups = until(mpsd, "blame.suspected").facts["groups"]
        assert sorted(key for group in groups for key in group) == ["user:0:counter", "user:0:faulter"]
        assert innocent.error()
        assert culprit.status()
        again = machine.counter().ready()
        culprit = machine.client("faulter", "trap", "--after", "0.3").ready()
        assert machine.domain_of(again) != machine.domain_of(culprit)
        convicted = until(mpsd, "blame.convicted").facts
        assert convicted["key"] == "user:0:faulter"
        again.goes_on()
        row = next(row for row in mpsd.ask(calls.blame_list()).items if row.standing == "convicted")
        assert row.key == "user:0:faulter"
        mpsd.ask(calls.blame_pardon(row.key))
        assert not [row for row in mpsd.ask(calls.blame_list()).items if row.standing == "convicted"]


def test_a_proven_culprit_is_ended_and_starts_in_a_domain_of_its_own(machine: Machine) -> None:
    machine.configure("[faults]\nculprit_seconds = 0.2\n")
    machine.start()
    innocent = machine.counter().ready()
    culprit = machine.client("faulter", "oob_write", "--linger", "600").ready()
    assert innocent.error() == 700
    assert culprit.status() == -signal.SIGKILL
    innocent = machine.counter().ready()
    culprit = machine.client("faulter", "hang").ready()
    assert machine.domain_of(innocent) != machine.domain_of(culprit)


@pytest.mark.slow
def test_a_crash_loop_is_slowed_down(machine: Machine) -> None:
    machine.configure("[faults]\nculprit_seconds = 0.0\ncrash_faults = 2\n")
    machine.start()
    with told(machine) as mpsd:
        for _ in range(2):
            machine.client("faulter", "oob_write").ready()
            until(mpsd, "blame.convicted")
    began = time.monotonic()
    third = machine.client("faulter", "oob_write")
    wait_for(
        "the third to be made to wait",
        lambda: [each for each in machine.journal("client.waiting") if each["reason"].startswith("it has faulted too often")],
    )
    third.ready()
    assert time.monotonic() - began > 0.5


def test_incidents_and_convictions_outlive_mpsd(machine: Machine) -> None:
    machine.start()
    with told(machine) as mpsd:
        machine.client("faulter", "oob_write").ready()
        facts = until(mpsd, "blame.convicted").facts
    running = machine.counter(uid=UIDS[0]).ready()
    machine.kill_daemon()
    machine.start()
    with machine.mpsd() as mpsd:
        assert mpsd.ask(calls.fault_get(facts["number"])).culprit
        assert facts["key"] in [row.key for row in mpsd.ask(calls.blame_list()).items]
    wait_for("the running client to be watched again", lambda: standing(machine, running).watched)


@pytest.mark.parametrize(
    ("words", "reason", "seen"),
    [
        pytest.param(("xid", "0", "79"), "after Xid 79 (fault 1)", "fallen off the bus", id="it needs a reset"),
        pytest.param(("lose", "0"), "after fault 1;", "NVML says GPU is lost", id="NVML has lost it"),
        pytest.param(("drain", "0"), "after fault 1;", "an administrator drains the GPU", id="nvidia-smi drain"),
    ],
)
def test_a_gpu_to_be_used_no_more_takes_nobody(machine: Machine, words: tuple[str, ...], reason: str, seen: str) -> None:
    machine.start()
    [uuid] = machine.uuids()
    with told(machine) as mpsd:
        assert machine.run(*words, program=SIMULATOR / "bin/mpsd-sim").returncode == 0
        assert until(mpsd, "gpu.drained").facts["gpu"] == uuid
        waiting = machine.counter()
        assert reason in machine.wait_for_journal("client.waiting")["reason"]
        found = mpsd.ask(calls.fault_get(1))
        assert (found.fault_class, found.gpu) == ("device", uuid)
        wait_for("the evidence", lambda: any(seen in each.text for each in mpsd.ask(calls.fault_get(1)).evidence))
        assert waiting.is_silent()
        mpsd.ask(calls.blame_pardon(uuid))
    waiting.ready()


def test_a_client_says_so_itself(machine: Machine) -> None:
    """The report is evidence and no proof, and mpsd takes it only from clients."""
    machine.start()
    with machine.mpsd() as mpsd, pytest.raises(Refused):
        mpsd.ask(calls.fault_report(700))


@pytest.mark.slow
def test_domains_that_faulted_are_of_use_again_though_clients_linger(machine: Machine) -> None:
    machine.configure('[faults]\nculprit = "leave"\nquarantine = "off"\nrecycle_seconds = 0.5\n')
    machine.start()
    lingering = machine.client("faulter", "oob_write", "--linger", "600").ready()
    lingering.wait("result")
    wait_for("its domain to be restarted", lambda: machine.journal("domain.kill"), seconds=20.0)
    assert is_running(lingering.pid)


@pytest.mark.slow
def test_nothing_is_left_of_thirty_faults(machine: Machine) -> None:
    """Faults in a row make domains, which have descriptors of their own and are kept for a while."""
    machine.configure(FORGIVING)
    machine.start()
    other = machine.counter(uid=UIDS[0]).ready()
    wait_for("the other to be watched", lambda: standing(machine, other).watched)
    before = None
    for number in range(36):
        machine.client("faulter", ("oob_write", "trap", "killed")[number % 3]).ready(60.0).status(60.0)
        if number == 5:  # what the first faults open for good is open
            before = len(wait_for("what is left of the first faults", lambda: settled_links(machine)))
    other.goes_on()
    assert before is not None
    wait_for("no more descriptors than before", lambda: len(links(machine)) <= before, seconds=20.0)
    assert len(machine.domains()) <= MOST_DOMAINS
    assert not machine.bugs()


MOST_DOMAINS = 8  # the default of domains.max_domains


def links(machine: Machine) -> list[str]:
    """Return the targets of mpsd's descriptors, except those of its domains: two logs, a watch and a pidfd each."""
    found = []
    for name in os.listdir(place := f"/proc/{machine.daemon_pid()}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"{place}/{name}"))
    return [link for link in found if "/domains/" not in link and not link.startswith("anon_inode")]


def settled_links(machine: Machine) -> list[str]:
    """Once nothing of a client that has ended is held any more."""
    alive = {str(pid) for pid in machine.processes()}
    held = [link for link in links(machine) if "/uvm/" in link]
    return links(machine) if all(Path(link.split(" ")[0]).name.split(".")[0] in alive for link in held) else []


@pytest.mark.slow
@pytest.mark.deadline(600)
def test_many_faults_with_sources_that_lose_and_delay_convict_nobody_wrongly(machine: Machine) -> None:
    """All modes in random order, with an innocent co-runner and two clients of other users; a third of the Xids is lost, and so
    on."""
    machine.configure('[faults]\nquarantine = "on"\ncrash_pause_max = 0.0\nculprit_seconds = 0.0\n')
    losses = {"MPSD_SIM_XID_LOSS": "30", "MPSD_SIM_NVML_LOSS": "30", "MPSD_SIM_UVM_LOSS": "20", "MPSD_SIM_XID_DELAY_MS": "40"}
    machine.start(**losses)
    chance = random.Random(RUN_SEED)
    others = [machine.counter(uid=uid).ready() for uid in UIDS]
    innocent = machine.counter().ready()
    before: list[str] = []
    named: list[Event] = []
    refused = 0
    with told(machine, "fault.culprit", "blame.convicted") as mpsd:
        for _ in range(FAULTS):
            if innocent.has_ended():
                innocent, times = start_again(machine.counter)
                refused += times
            mode = chance.choice(SIMULATED_MODES)
            faulter, times = start_again(partial(machine.client, "faulter", mode, **losses))
            refused += times
            faulter.status(60.0)
            named += [event for event in mpsd.events(timeout_seconds=0.001) if isinstance(event, Event)]
            before = before or wait_for("what is left of the first fault", lambda: settled_links(machine))
    assert refused <= FAULTS // 20
    for other in others:
        other.goes_on()
    accused = {event.facts["culprit"]["program"] for event in named if event.topic == "fault.culprit"}
    convicted = {event.facts["key"] for event in named if event.topic == "blame.convicted"}
    assert (accused, convicted) == ({"faulter"}, {"user:0:faulter"})
    innocent.end()  # what is held of a client that runs is not left over
    try:
        wait_for("no more descriptors than before", lambda: len(links(machine)) <= len(before) + 4, seconds=20.0)
    except AssertionError:
        raise AssertionError(f"{Counter(links(machine)) - Counter(before)} more") from None
    assert len(machine.domains()) <= MOST_DOMAINS
    assert not machine.bugs()


def start_again(start: Callable[[], Client]) -> tuple[Client, int]:
    """Start a client until one runs, and return it and how many were refused with 807.

    Where every early source of a fault was lost, the domain takes newcomers until its vendor server has logged the fault.
    docs/errors.md tells such a client to start again.
    """
    for refused in range(3):
        client = start()
        try:
            return client.ready(60.0), refused
        except AssertionError:
            if [event["code"] for event in client.events("error")] != [807]:
                raise
    raise AssertionError("three clients in a row were refused with 807")


FAULTS = int(os.environ.get("MPSD_TEST_FAULTS", "150"))  # 1000 take two to three minutes
SIMULATED_MODES = ("oob_write", "oob_read", "use_after_free", "ro_write", "trap", "misaligned", "illegal_instruction", "killed")


@pytest.mark.slow
def test_what_blame_convicts_the_report_names(machine: Machine) -> None:
    """Two clients of one key, one of which trapped, without proof: the report named no culprit and no victim, though both
    died."""
    machine.start()
    with told(machine) as mpsd:
        pair = [machine.client("faulter", "trap", "--after", after).ready() for after in ("2.0", "7.0")]
        assert machine.domain_of(pair[0]) == machine.domain_of(pair[1])
        facts = until(mpsd, "fault.settled").facts
        report = mpsd.ask(calls.fault_get(facts["number"]))
        [held] = mpsd.ask(calls.blame_list()).items
    assert (held.standing, held.key) == ("convicted", report.culprit_key)
    assert (report.culprit, report.suspected, report.hurt, facts["hurt"]) == (None, 2, 1, 1)
