"""The public logs: every line of every domain once, in its order, with its domain; also across a restart of mpsd."""

import os
import re
import socket
from pathlib import Path

import pytest
from mpsd_client import Selector, calls

from tests.integration.machine import UIDS, Machine
from tests.integration.process import EVENT_SECONDS, wait_for

pytestmark = pytest.mark.root
LINE = re.compile(r"\[[-0-9]{10} [0-9:.]{12} (Control|Server|Other|Client) +\d+\] ")
EVENTS = re.compile(r"NEW CLIENT|Starting new server|NEW SERVER|Server \d+ exited|Exit with status|User did not send")


def of_domain(machine: Machine, name: str, domain: str) -> list[str]:
    """What the public log has of a domain."""
    end = f" (domain {domain})"
    return [line.removesuffix(end) for line in machine.log(name) if line.endswith(end)]


def written(machine: Machine, name: str, domain: str) -> list[str]:
    """What the domain's vendor programs wrote, as callers see it: with the public pipe directory."""
    home = machine.state / "domains" / domain
    return (home / "log" / name).read_text().replace(str(home / "pipe"), str(machine.pipe)).splitlines()


def lines_lost(door: Path, file: str) -> float:
    """What the metrics have of lines that could not be written."""
    with socket.socket(socket.AF_UNIX) as reader:
        try:
            reader.connect(str(door))
        except OSError:
            return 0.0  # it listens in a moment
        reader.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: reader.recv(1 << 16), b"")).decode()
    return float(re.findall(rf'mpsd_log_lines_lost_total{{file="{file}"}} (\S+)', text)[0])


def left_of(machine: Machine, name: str, domain: str) -> list[str]:
    """The lines that a private log still has: mpsd gives back the room of what it has read (disk_room.py)."""
    return [line for line in written(machine, name, domain) if "\0" not in line]


def ends_in(lines: list[str], tail: list[str]) -> bool:
    return lines[len(lines) - len(tail) :] == tail


def assert_all_published(machine: Machine, domain: str) -> None:
    """mpsd's own questions and their answers are left out of control.log; nothing else is."""
    server = "server.log"
    wait_for("all of server.log", lambda: ends_in(of_domain(machine, server, domain), left_of(machine, server, domain)))
    events = [line for line in left_of(machine, "control.log", domain) if EVENTS.search(line)]

    def published() -> list[str]:
        return [line for line in of_domain(machine, "control.log", domain) if EVENTS.search(line)]

    wait_for("all of control.log", lambda: len(published()) >= len(events))
    assert ends_in(published(), events)
    assert len(set(published())) == len(published())
    assert not [line for line in of_domain(machine, "control.log", domain) if re.search(r"Cmd:|NEW UI|UI closed", line)]


@pytest.mark.slow
def test_every_line_of_every_domain_is_published_once_and_in_order(machine: Machine) -> None:
    machine.start()
    machine.counter().ready()
    machine.with_spare()
    machine.counter(uid=UIDS[0]).ready()
    machine.client("smcount").status()
    machine.client("faulter", "trap").status()
    assert len(machine.domains()) >= 2
    for domain in machine.domains():
        assert_all_published(machine, domain)


def test_every_line_has_the_vendors_form(shared: Machine) -> None:
    """Callers find the time, the writer and the words where the vendor has them."""
    shared.client("smcount").status()
    shared.tell("get_server_list")
    for name in ("control.log", "server.log"):
        lines = wait_for(f"lines in {name}", lambda name=name: shared.log(name))
        assert [line for line in lines if not LINE.match(line)] == []


def test_the_lines_that_callers_search_for_are_there(shared: Machine) -> None:
    client = shared.client("smcount")
    client.status()
    text = "\n".join(shared.log())
    assert f"Starting control daemon using socket {shared.pipe}/control" in text
    assert f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={shared.pipe}" in text
    wait_for("the client", lambda: any(f"NEW CLIENT {client.pid} from user 0" in line for line in shared.log()))
    server = shared.server()
    wait_for("the server", lambda: any(f"NEW SERVER {server}: Ready" in line for line in shared.log()))
    assert any(f"Starting new server {server} for user 0" in line for line in shared.log())
    shared.ask("get_server_list")
    wait_for("the end of the session", lambda: shared.log()[-1].endswith("UI closed"))
    assert shared.log()[-2].endswith(f"] {server}")
    assert shared.log()[-3].endswith("Cmd:get_server_list")


def test_a_server_started_by_command_is_in_the_log(machine: Machine) -> None:
    """Its line comes in the middle of a command of mpsd's own."""
    machine.start()
    machine.tell(f"start_server -uid {UIDS[0]}")
    [server] = wait_for("the server", machine.servers)
    wait_for("its line", lambda: any(f"Starting new server {server} for user {UIDS[0]}" in line for line in machine.log()))


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_by_a_restart_of_mpsd(machine: Machine) -> None:
    """mpsd also publishes lines that the domains wrote while it did not run. If it is killed in mid-line, it publishes that
    line again."""
    machine.start()
    machine.counter().ready()
    machine.with_spare()
    for _ in range(3):
        leaver = machine.counter().ready()
        machine.kill_daemon_idle()
        leaver.end()
        machine.start()
        machine.client("smcount").status()
    for domain in machine.domains():
        assert_all_published(machine, domain)


def test_a_log_that_was_rotated_goes_on_in_a_new_file_after_sighup(machine: Machine) -> None:
    machine.start()
    control = machine.log_directory / "control.log"
    old = control.rename(machine.log_directory / "control.log.1")
    size = old.stat().st_size
    machine.signal_daemon("SIGHUP")
    wait_for("the new file", control.exists)
    machine.client("smcount").status()
    wait_for("its lines", lambda: any("NEW CLIENT" in line for line in machine.log()))
    assert old.stat().st_size == size


def test_foreground_prints_the_log_as_the_vendors_daemon_does(machine: Machine) -> None:
    process = machine.begin("-f")
    wait_for("the daemon", lambda: (machine.pipe / "mpsd-ui").exists())
    machine.client("smcount").status()
    assert machine.quit() == 0
    out, _ = process.communicate(timeout=EVENT_SECONDS)
    assert b"Starting control daemon using socket" in out
    assert b"NEW CLIENT" in out


def test_a_log_directory_that_cannot_be_written_costs_lines_and_nothing_else(machine: Machine) -> None:
    """Root can write to a read-only directory, so a file takes the place of the directory."""
    machine.log_directory.rmdir()
    Path(machine.log_directory).write_text("not a directory")
    door = machine.place / "metrics"
    machine.configure(f'[metrics]\nlisten = "unix:{door}"\n')
    assert machine.run("-d", seconds=20).returncode == 0
    machine.counter().ready()
    assert os.path.isfile(machine.log_directory)
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("audited", Selector.of_uid(UIDS[0]), sm_percent=1.0))
    for file in ("log", "audit"):
        wait_for(f"the lost lines of {file}", lambda file=file: lines_lost(door, file) > 0)
