"""A user database that does not answer, as sssd where its server is away: nobody gets more from it, and nobody else waits."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mpsd_client import Client as Mpsd
from mpsd_client import MpsdError, Selector, calls

from tests.integration.machine import Machine

SOURCE = Path(__file__).with_name("silent_users.c")
USER = 1000
DAEMON = 1  # the group's id, on every system
CONFIGURATION = '[ui]\nadmin_group = "daemon"\n[admission]\ngroup_quotas = { daemon = "clients=1" }\n'


@pytest.fixture
def silence(machine: Machine) -> Iterator[Path]:
    """A file: while it exists, mpsd gets no answer.  It does from its start on."""
    library, silence = machine.place / "silent_users.so", machine.place / "silence"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    silence.touch()
    machine.configure(CONFIGURATION)
    machine.start(LD_PRELOAD=str(library), SILENT_USERS=str(silence))
    yield silence
    silence.unlink(missing_ok=True)


def test_mpsd_answers_while_the_user_database_does_not(machine: Machine, silence: Path) -> None:
    """A look-up on the event loop made everybody wait until the database answered."""
    with machine.mpsd() as mpsd, machine.mpsd(uid=USER) as user:
        assert mpsd.ask(calls.health()).ok
        with pytest.raises(MpsdError, match="user database"):  # a quota depends on it: it gets nothing
            user.ask(calls.lease_create("job", Selector.of_uid(USER), sm_percent=10))
        waits = machine.counter(uid=USER)
        machine.wait_for_journal("client.waiting")
        assert mpsd.ask(calls.health()).ok
        machine.counter(uid=0).ready()  # no quota of groups binds an operator
        silence.unlink()
        waits.ready()
    assert machine.blocks() == []


@contextmanager
def member(machine: Machine) -> Iterator[Mpsd]:
    """A connection of a user whose group is DAEMON."""
    os.setegid(DAEMON)
    try:
        with machine.mpsd(uid=USER) as mpsd:
            yield mpsd
    finally:
        os.setegid(0)


def test_members_are_operators_once_the_database_answers(machine: Machine, silence: Path) -> None:
    with member(machine) as mpsd, pytest.raises(MpsdError, match="operator"):
        mpsd.ask(calls.domain_create())
    silence.unlink()
    os.kill(machine.daemon_pid(), signal.SIGHUP)  # otherwise within a minute
    machine.wait_for_journal("reload.done")
    with member(machine) as mpsd:
        mpsd.ask(calls.domain_create())
