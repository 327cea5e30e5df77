"""How a session of the front end goes: what is typed, and when a command that waits comes back."""

import os
import subprocess
import time
from typing import Any

import pytest

from tests.contract.programs import START_SECONDS, Daemon, waiting
from tests.contract.transcript import Reply


def slow(*values: str | float) -> Any:
    """A variant whose answers the everyday tests compare without waiting (tests/unit/commands/language)."""
    return pytest.param(*values, marks=pytest.mark.slow)


def test_the_last_line_needs_no_newline(standing: Daemon) -> None:
    assert standing.run([], "get_default_active_thread_percentage") == Reply("100.0\n")


def test_nothing_typed_is_nothing_answered(standing: Daemon) -> None:
    assert standing.run([], "") == Reply("")


def test_several_lines_are_answered_in_order(daemon: Daemon) -> None:
    typed = "set_default_active_thread_percentage 25\nbogus\nget_default_active_thread_percentage"
    assert daemon.run([], typed) == Reply('25.0\nUnknown command "bogus"\n25.0\n')


def test_settings_are_lost_with_the_daemon(daemon: Daemon) -> None:
    daemon.ask("set_default_active_thread_percentage 25")
    daemon.ask("set_default_device_pinned_mem_limit 0 1G")
    assert daemon.ask("quit") == Reply("")
    for _ in waiting("the next daemon", START_SECONDS):  # on a busy machine the one before still ends
        if daemon.start().status == 0:
            break
    assert daemon.ask("get_default_active_thread_percentage") == Reply("100.0\n")
    assert daemon.ask("get_default_device_pinned_mem_limit 0") == Reply("")


def test_a_second_daemon_is_refused(standing: Daemon) -> None:
    assert standing.start() == Reply("An instance of this daemon is already running\n", 1)
    assert standing.ask("get_default_client_priority") == Reply("0\n")


@pytest.mark.deadline(120)
def test_shutdown_server_ends_an_idle_server(daemon: Daemon) -> None:
    server = daemon.start_server(os.geteuid())
    assert daemon.ask(f"shutdown_server {server}") == Reply("")
    for _ in waiting(f"the end of server {server}", 20):
        if server not in daemon.ask("get_server_list").out.split():
            return


@pytest.mark.deadline(120)
def test_shutdown_server_waits_for_the_clients(daemon: Daemon) -> None:
    daemon.start_client()
    server = daemon.servers()[0]
    assert daemon.ask(f"shutdown_server {server}") == Reply("")
    assert daemon.ask(f"get_server_status {server}") == Reply("ACTIVE\n")
    daemon.end_clients()
    for _ in waiting(f"the end of server {server}", 20):
        if server not in daemon.ask("get_server_list").out.split():
            return


@pytest.mark.slow
@pytest.mark.deadline(120)
@pytest.mark.parametrize(
    ("line", "seconds"), [("quit -t 0", 0), slow("quit -t 1", 1), slow("quit -t 1.5", 1), slow("quit -t 1x", 1)]
)
def test_quit_ends_clients_when_the_time_is_up(daemon: Daemon, line: str, seconds: int) -> None:
    daemon.start_client()
    begun = time.monotonic()
    assert daemon.ask(line) == Reply("")
    assert seconds <= time.monotonic() - begun < seconds + 5
    assert daemon.ask("get_server_list").status == 1


@pytest.mark.deadline(120)
@pytest.mark.parametrize(
    ("line", "seconds"),
    [("quit", 0.5), *(slow(f"quit {rest}", 2) for rest in ("-t", "-t abc", "-t -1", "1", "-f", "x -t 1"))],
)
def test_quit_waits_for_the_clients(daemon: Daemon, line: str, seconds: float) -> None:
    daemon.start_client()
    with daemon.open_session(line) as session:
        with pytest.raises(subprocess.TimeoutExpired):
            session.wait(seconds)
        daemon.end_clients()
        assert session.wait(20) == 0
        assert session.communicate() == (b"", None)
    assert daemon.ask("get_server_list").status == 1


@pytest.mark.deadline(120)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0 to be two users")
def test_another_user_cannot_end_a_client(daemon: Daemon) -> None:
    client = daemon.start_client()
    server = daemon.servers()[0]
    assert daemon.ask(f"terminate_client {server} {client}", uid=1000).out.endswith("\n800\n")
    assert daemon.ask(f"shutdown_server {server} -f", uid=1000).status == 0
    assert daemon.ask(f"get_client_list {server}").out == f"{client}\n"


def test_a_client_is_listed_while_it_lives(daemon: Daemon) -> None:
    first, second = daemon.start_client(), daemon.start_client()
    servers = daemon.servers()
    listed = [pid for server in servers for pid in daemon.ask(f"get_client_list {server}").out.split()]
    assert sorted(listed) == sorted([first, second])
    rows = [row.split()[0] for row in daemon.ask("ps").out.splitlines()]
    assert (rows[0], sorted(rows[1:])) == ("PID", sorted([first, second]))
    daemon.end_clients()
    for _ in waiting("an empty list", 10):
        if not any(daemon.ask(f"get_client_list {server}").out for server in servers):
            return
