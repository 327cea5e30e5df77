"""A user has mpsd end the GPU work of their own client, which is stopped: the server that others share would wait for it."""

import os
import signal
from contextlib import suppress

import pytest
from mpsd_client import Refused, calls

from tests.hostile.attacker import NOBODY
from tests.integration.cgroup import freeze, open_cgroup
from tests.integration.machine import UIDS, Machine
from tests.integration.process import state_of, wait_for


def test_the_work_of_a_stopped_client_is_not_ended(machine: Machine) -> None:
    """It silenced the domain, and all clients there stood still."""
    machine.start("-multiuser-server")
    own, victim = machine.counter(uid=NOBODY).ready(), machine.counter(uid=UIDS[0]).ready()
    assert machine.domain_of(own) == machine.domain_of(victim)
    os.kill(own.pid, signal.SIGSTOP)
    try:
        wait_for("the stop of a client", lambda: state_of(own.pid) == "T")
        with machine.mpsd(uid=NOBODY) as mpsd, pytest.raises(Refused, match="is stopped"):
            mpsd.ask(calls.client_terminate(own.pid))
        victim.goes_on()
        assert not machine.journal("domain.hindered")
    finally:
        with suppress(ProcessLookupError):
            os.kill(own.pid, signal.SIGCONT)
    with machine.mpsd(uid=NOBODY) as mpsd:
        mpsd.ask(calls.client_terminate(own.pid))
    victim.goes_on()


@pytest.mark.parametrize("method", ["terminate", "stop"])
def test_the_work_of_a_frozen_client_is_not_ended(machine: Machine, method: str) -> None:
    """Its user needs no help for that in a cgroup of their own; /proc shows it like any process that waits."""
    machine.start("-multiuser-server")
    own, victim = machine.counter(uid=NOBODY).ready(), machine.counter(uid=UIDS[0]).ready()
    assert machine.domain_of(own) == machine.domain_of(victim)
    with open_cgroup() as cgroup, machine.mpsd(uid=NOBODY) as mpsd:
        freeze(cgroup, own)
        if method == "terminate":
            with pytest.raises(Refused, match="is frozen with its cgroup"):
                mpsd.ask(calls.client_terminate(own.pid))
        else:
            [left] = mpsd.ask(calls.client_stop(own.pid)).processes
            assert "is frozen with its cgroup" in left.why
        victim.goes_on()
        assert not machine.journal("domain.hindered")
        (cgroup / "cgroup.freeze").write_text("0")
        mpsd.ask(calls.client_terminate(own.pid))
    victim.goes_on()
