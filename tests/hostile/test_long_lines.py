"""A command that the vendor's daemon does not survive: the relay does not pass it on."""

import pytest

from tests.hostile.attacker import CONNECTS, GREETS, NOBODY, attacking
from tests.integration.machine import UIDS, Machine
from tests.integration.process import wait_for

KILLS = CONNECTS + "made = connected()" + GREETS + 'say(COMMAND, b"x" * 5000)\ntime.sleep(1000)\n'


@pytest.mark.parametrize("mode", ["multiuser", "exclusive", "separate"])
def test_one_message_ends_no_daemon(machine: Machine, mode: str) -> None:
    """It ended the daemon, and in the first two modes the other user's client."""
    if mode == "exclusive":
        machine.set_compute_mode("0", "EXCLUSIVE_PROCESS")
    machine.start(*(("-multiuser-server",) if mode == "multiuser" else ()))
    friend = machine.counter(uid=UIDS[1]).ready()
    with attacking(KILLS, machine.pipe / "control") as attacker:
        wait_for("a refusal or an end", lambda: machine.journal("relay.held") or machine.journal("domain.failed"), 30)
        [held] = machine.journal("relay.held")
        assert (held["pid"], held["uid"]) == (attacker.pid, NOBODY)
        assert "a text of 5000 bytes" in held["why"]
        friend.goes_on()
        later = machine.counter(uid=UIDS[0])
        if mode != "exclusive":
            later.ready(60)
        assert not machine.journal("domain.failed")
