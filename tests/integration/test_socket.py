"""mpsd.sock of a real daemon: strangers, junk and floods, vendor daemons that hang, `kill -9`, `quit`."""

import array
import json
import os
import random
import signal
import socket
import stat
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from mpsd_client import Disconnected, Refused, Selector, calls

from tests.integration.machine import UIDS, Machine
from tests.integration.process import wait_for
from tests.seeds import RUN_SEED

pytestmark = pytest.mark.root
HEALTH_SECONDS = 0.1  # promised, independent of the vendor daemons


def connected(machine: Machine) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(20)
    sock.connect(str(machine.pipe / "mpsd.sock"))
    return sock


def audit(machine: Machine) -> list[dict[str, object]]:
    return [json.loads(line) for line in machine.log("audit-users.log")]


def test_everybody_may_connect_and_the_audit_is_not_everybodys(machine: Machine) -> None:
    machine.start()
    with machine.mpsd(UIDS[0]) as mpsd:
        lease = mpsd.ask(calls.lease_create("job", Selector.of_uid(UIDS[0])))
        mpsd.ask(calls.lease_release(lease.id))
    assert stat.S_IMODE((machine.pipe / "mpsd.sock").stat().st_mode) == 0o666
    wait_for("two lines of audit-users.log", lambda: len(audit(machine)) == 2)
    assert stat.S_IMODE((machine.log_directory / "audit-users.log").stat().st_mode) == 0o640
    assert [(line["uid"], line["method"], line["outcome"]) for line in audit(machine)] == [
        (UIDS[0], "lease.create", "done"), (UIDS[0], "lease.release", "done"),
    ]  # fmt: skip


def test_users_neither_see_nor_touch_what_is_anothers(machine: Machine) -> None:
    machine.start()
    with machine.mpsd(UIDS[0]) as owner, machine.mpsd(UIDS[1]) as stranger, machine.mpsd() as operator:
        lease = owner.ask(calls.lease_create("job", Selector.of_uid(UIDS[0]), sm_percent=30))
        client = machine.counter(uid=UIDS[0]).ready()
        wait_for("the client to be listed", lambda: [c.pid for c in owner.pages(calls.client_list())] == [client.pid])
        assert list(stranger.pages(calls.client_list())) == list(stranger.pages(calls.lease_list())) == []
        forbidden = (
            calls.lease_get(lease.id), calls.lease_renew(lease.id, 5), calls.lease_release(lease.id),
            calls.client_why(client.pid), calls.client_terminate(client.pid), calls.client_move(client.pid, "default"),
            calls.domain_create(), calls.domain_drain("default"), calls.limits_set(default_active_thread_percentage=1),
        )  # fmt: skip
        for call in forbidden:
            with pytest.raises(Refused):
                stranger.ask(call)
        assert operator.ask(calls.lease_get(lease.id)) == owner.ask(calls.lease_get(lease.id))
        assert owner.ask(calls.client_why(client.pid)).grant is not None
        assert operator.ask(calls.limits_get()).default_active_thread_percentage == 100.0
        client.goes_on()
        assert owner.ask(calls.client_terminate(client.pid)).pid == client.pid


def test_health_does_not_wait_for_vendor_daemons(machine: Machine) -> None:
    """The command language asks them, and gives up after a second; health does not ask."""
    machine.start()
    client = machine.counter().ready()
    with machine.mpsd() as mpsd:
        vendor = machine.vendor_pid(machine.domain_of(client))
        os.kill(vendor, signal.SIGSTOP)
        seconds = []
        for _ in range(20):
            begun = time.monotonic()
            mpsd.ask(calls.health())
            mpsd.ask(calls.status())
            seconds.append((time.monotonic() - begun) / 2)
        os.kill(vendor, signal.SIGCONT)
    assert statistics.median(seconds) <= HEALTH_SECONDS


@pytest.mark.slow
def test_junk_and_descriptors_disturb_nobody_and_leave_nothing(machine: Machine) -> None:
    machine.start()
    client = machine.counter().ready()
    machine.with_spare()
    dice = random.Random(RUN_SEED)
    with machine.mpsd() as mpsd, Path(os.devnull).open("rb") as null:
        mpsd.ask(calls.health())
        folder = Path(f"/proc/{machine.daemon_pid()}/fd")
        before = len(list(folder.iterdir()))
        flood = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null.fileno()] * 253))]
        for number in range(200):
            with connected(machine) as sock:
                sock.sendmsg([dice.randbytes(dice.randrange(1, 70000))], flood if number % 2 else [])
                while sock.recv(65536):
                    pass
        mpsd.ask(calls.health())
        wait_for("as many descriptors as before", lambda: len(list(folder.iterdir())) <= before)
    client.goes_on()


def test_a_user_with_too_many_connections_is_told_so_and_others_come_in(machine: Machine) -> None:
    machine.configure("[api]\nmax_per_user = 5\n")
    machine.start()
    with ExitStack() as held:
        for _ in range(5):
            held.enter_context(machine.mpsd(UIDS[0]))
        with pytest.raises(Disconnected, match="TOO_MANY"), machine.mpsd(UIDS[0]):
            pass
        with machine.mpsd(UIDS[1]) as other, machine.mpsd() as operator:
            assert other.ask(calls.health()).ok
            assert operator.ask(calls.health()).ok
    assert machine.journal("api.refused")[0]["uid"] == UIDS[0]


def test_leases_outlive_a_kill_of_mpsd(machine: Machine) -> None:
    machine.start()
    with machine.mpsd(UIDS[0]) as mpsd:
        kept = mpsd.ask(calls.lease_create("kept", Selector.of_uid(UIDS[0]), ttl_seconds=600))
        gone = mpsd.ask(calls.lease_create("gone", Selector.of_uid(UIDS[0]), sm_percent=0.5, wait_seconds=60))
        mpsd.ask(calls.lease_release(gone.id))
        machine.kill_daemon()
        with pytest.raises(Disconnected):
            mpsd.ask(calls.health())
    machine.start()
    with machine.mpsd(UIDS[0]) as mpsd:
        assert [lease.id for lease in mpsd.pages(calls.lease_list())] == [kept.id]
        assert mpsd.ask(calls.lease_get(kept.id)).expires_at == kept.expires_at


def test_who_is_connected_when_mpsd_quits_is_told(machine: Machine) -> None:
    machine.start()
    with machine.mpsd() as mpsd:
        mpsd.subscribe("*")
        assert machine.quit() == 0
        with pytest.raises(Disconnected, match="STOPPING"):
            list(mpsd.events(timeout_seconds=20))
    assert not (machine.pipe / "mpsd.sock").exists()
