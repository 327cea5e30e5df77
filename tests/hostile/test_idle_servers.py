"""A user who stops their own vendor servers while these have no clients: no domain took a client of another user for 45 s."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mpsd_client import calls

from mpsd.host import processes
from tests.integration.client import Client
from tests.integration.machine import UIDS, Machine
from tests.integration.process import wait_for

ATTACKER, OTHER = UIDS
DOMAINS = 3
PATIENT = f"[domains]\nmax_domains = {DOMAINS}\n[vendor]\ncommand_seconds = 30.0\n"
NEWCOMER_SECONDS = 20.0  # 1 s on a machine that does nothing else


def stop_servers(machine: Machine) -> set[int]:
    """Stop the attacker's servers, none of which has a client; return them."""
    own = {pid for pid in machine.processes("nvidia-cuda-mps-server") if processes.real_uid(pid) == ATTACKER}
    for pid in own:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    return own


@contextmanager
def stopping(machine: Machine) -> Iterator[None]:
    """Stop them as soon as they start, as those of spares do, which mpsd starts for the user who came last."""
    over = threading.Event()

    def keep_on() -> None:
        while not over.wait(0.1):
            stop_servers(machine)

    thread = threading.Thread(target=keep_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def end_client(machine: Machine, client: Client) -> None:
    client.end(signal.SIGKILL)
    with machine.mpsd() as mpsd:
        wait_for("no client", lambda: not any(each.clients for each in mpsd.ask(calls.domain_list()).items))


def test_a_server_that_is_stopped_before_it_is_listed_keeps_no_other_user_waiting(machine: Machine) -> None:
    """Its domain took the next client, which then hung."""
    machine.configure(PATIENT)
    machine.start()
    end_client(machine, machine.counter(uid=ATTACKER).ready())
    assert stop_servers(machine)
    machine.counter(uid=OTHER).ready(NEWCOMER_SECONDS)


def test_stopped_servers_in_all_domains_keep_no_other_user_out(machine: Machine) -> None:
    machine.configure(PATIENT)
    machine.start()
    for _ in range(DOMAINS):
        client = machine.counter(uid=ATTACKER).ready()
        server = machine.server_of(client)
        end_client(machine, client)
        os.kill(server, signal.SIGSTOP)
    with stopping(machine):
        for _ in range(2):
            machine.counter(uid=OTHER).ready(NEWCOMER_SECONDS).end()


def test_a_server_that_is_stopped_before_its_client_ends_keeps_no_other_user_waiting(machine: Machine) -> None:
    """It listed its client for ever, so that its domain never counted as one without clients."""
    machine.configure(f"{PATIENT}[domains]\nmax_domains = 1\nspares = 0\n".replace(f"[domains]\nmax_domains = {DOMAINS}\n", ""))
    machine.start()
    client = machine.counter(uid=ATTACKER).ready()
    os.kill(machine.server_of(client), signal.SIGSTOP)
    client.end(signal.SIGKILL)
    machine.counter(uid=OTHER).ready(NEWCOMER_SECONDS)
