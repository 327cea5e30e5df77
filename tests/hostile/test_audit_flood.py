"""Users who send many requests, refused or not: they rotate no other user's trail away, and fill no disk."""

import json
import socket
from pathlib import Path

from mpsd_client import Selector, calls

from tests.hostile.attacker import NOBODY, attack
from tests.hostile.frames import frames
from tests.integration.machine import Machine
from tests.integration.process import wait_for

OTHER = 1001
ASK = """
import socket, sys
path, times, hello, *asked = sys.argv[1:]
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.settimeout(20)
sock.connect(path)
for frame in (hello, *asked * int(times)):
    sock.send(bytes.fromhex(frame))
    assert sock.recv(65536)
"""
JUNK = """
import socket, sys
for _ in range(int(sys.argv[2])):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(20)
    sock.connect(sys.argv[1])
    sock.send(b"junk")
    while sock.recv(65536):
        pass
"""
COMMAND = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.settimeout(20)
sock.connect(sys.argv[1])
sock.send(b"mpsd-ui 1")
assert sock.recv(65536) == b"mpsd-ui 1"
for _ in range(int(sys.argv[2])):
    sock.send(b"x" * 4000)
    while not sock.recv(65536).startswith(b"X"):
        pass
"""
REFUSED = calls.limits_set(default_active_thread_percentage=1)


def lines(machine: Machine, *names: str) -> list[dict[str, object]]:
    """Of these files and of what they were renamed to."""
    paths = sorted(path for name in names for path in machine.log_directory.glob(f"{name}*"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def flood(machine: Machine, uid: int, times: int) -> None:
    """Refusals, changes that are carried out, and what changes nothing."""
    with machine.mpsd(uid) as mpsd:
        lease = mpsd.ask(calls.lease_create("job", Selector.of_uid(uid), sm_percent=1))
    asked = frames(REFUSED, calls.lease_renew(lease.id, 60), calls.lease_release(999_999))
    attack(ASK, machine.pipe / "mpsd.sock", times, *asked, uid=uid)


def test_no_user_rotates_an_operators_change_out(machine: Machine) -> None:
    """Forty thousand refused calls did, out of both files; with files so small, five hundred."""
    machine.configure("[log]\nmax_bytes = 65536\n")
    machine.start()
    with machine.mpsd() as operator:
        operator.ask(calls.limits_set(default_active_thread_percentage=77))
    for uid in (NOBODY, OTHER):
        flood(machine, uid, 700)
    machine.quit()
    [change] = lines(machine, "audit.log")
    assert (change["uid"], change["method"]) == (0, "limits.set")
    assert {line["uid"] for line in lines(machine, "audit-users.log")} == {NOBODY, OTHER}


def test_one_user_fills_no_trail_and_what_is_left_out_is_counted(machine: Machine) -> None:
    """So another user's line stays; and no refusal is forgotten altogether."""
    machine.start()
    attack(ASK, machine.pipe / "mpsd.sock", 4000, *frames(REFUSED))
    attack(ASK, machine.pipe / "mpsd.sock", 1, *frames(REFUSED), uid=OTHER)
    machine.signal_daemon("SIGHUP")

    def told() -> list[dict[str, object]]:
        return [line for line in lines(machine, "audit-refused.log") if line["event"] == "lines_suppressed"]

    [left_out] = wait_for("the number of lines that were left out", told)
    written = [line["uid"] for line in lines(machine, "audit-refused.log") if line["event"] == "refusal"]
    assert (machine.log_directory / "audit-refused.log").stat().st_size < 300_000
    assert (left_out["uid"], left_out["lines"]) == (NOBODY, 4000 - written.count(NOBODY))
    assert written.count(OTHER) == 1


def test_a_trail_at_the_syslog_outlives_the_files(machine: Machine) -> None:
    path = machine.place / "syslog"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.settimeout(20)
        daemon.bind(str(path))
        machine.configure(f'[log]\naudit_socket = "{path}"\n')
        machine.start()
        for trail in machine.log_directory.glob("audit*"):
            trail.unlink()
        machine.log_directory.rename(machine.place / "gone")
        with machine.mpsd() as operator:
            operator.ask(calls.limits_set(default_active_thread_percentage=77))
        head, _, text = daemon.recv(65536).partition(b": ")
        assert head.startswith(b"<85>")
        assert json.loads(text)["what"]["default_active_thread_percentage"] == 77


def test_one_user_writes_no_more_than_a_share_of_the_log(machine: Machine) -> None:
    """Three processes wrote 47,501 lines in one storm."""
    machine.start()
    attack(JUNK, machine.pipe / "mpsd.sock", 500)
    attack(JUNK, machine.pipe / "mpsd.sock", 1, uid=OTHER)
    wait_for("the other user's line", lambda: [e for e in machine.journal("api.dropped") if e["uid"] == OTHER])
    shown = [event for event in machine.journal("api.dropped") if event["uid"] == NOBODY]
    assert len(shown) < 150
    machine.quit()
    [left_out] = [event for event in machine.journal("log.suppressed") if event["of"] == "api.dropped"]
    assert (left_out["uid"], left_out["lines"]) == (NOBODY, 500 - len(shown))


def test_one_user_fills_no_disk_with_commands(machine: Machine) -> None:
    """control.log has each command and its answer, as the vendor's has."""
    machine.start()
    attack(COMMAND, machine.pipe / "mpsd-ui", 500)
    machine.signal_daemon("SIGHUP")
    wait_for("the number of entries left out", lambda: f"of user {NOBODY} are left out" in "\n".join(machine.log()))
    assert Path(machine.log_directory / "control.log").stat().st_size < 500_000
