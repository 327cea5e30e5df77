"""A service's reasons on a bad day: that its state was lost, and why no member serves now."""

import os
import signal
import subprocess
import sys

import pytest

from tests.integration.machine import Machine
from tests.integration.process import wait_for
from tests.integration.test_starter import WAITS_SECONDS, Starter, begun
from tests.integration.test_vault import vault_keeper


def shown(machine: Machine) -> str:
    """By `mpsctl service show`."""
    command = [sys.executable, "-m", "mpsctl", "service", "show", "count"]
    return subprocess.run(command, env=machine.variables, stdout=subprocess.PIPE, text=True, check=True, timeout=40).stdout


def kill_the_active(starter: Starter) -> int:
    active = starter.wait("a standby that is ready", lambda it: any(not each.is_writer for each in it.members)).writer_pid
    assert active is not None
    os.kill(active, signal.SIGKILL)
    return active


@pytest.mark.deadline(120)
def test_a_service_that_begins_anew_says_so_for_as_long_as_mpsd_runs(machine: Machine) -> None:
    """The vault's keeper is killed, and the active before it has given the memory again. mpsd knows of the keeper's end first:
    else it promotes the standby with all contents, and nothing is lost."""
    machine.start()
    with begun(machine) as starter:
        first = starter.wait("two members", lambda it: len(it.members) == 2)
        assert "STATE LOST" not in shown(machine)
        assert first.writer_pid is not None
        os.kill(first.writer_pid, signal.SIGSTOP)  # so that it cannot give the memory again in between
        os.kill(vault_keeper(machine), signal.SIGKILL)
        machine.wait_for_journal("vault.lost")
        os.kill(first.writer_pid, signal.SIGKILL)
        second = starter.wait("another active", lambda it: it.writer_pid != first.writer_pid)
        [said] = wait_for("a word of the starter", lambda: starter.said("state_lost"), WAITS_SECONDS)
        assert (said["pid"], said["generation"], said["losses"]) == (second.writer_pid, second.generation, 1)
        assert f"pid {first.writer_pid}, which served, stopped before it had given the memory" in said["why"]
        losses = lambda: [event for event in machine.journal("service.event") if event["what"] == "lost"]  # noqa: E731
        [logged] = wait_for("the loss in mpsd's log, which a thread writes", losses)
        assert (logged["level"], logged["why"], logged["losses"]) == ("warning", said["why"], 1)
        kill_the_active(starter)
        starter.wait("a third active", lambda it: it.generation > second.generation)
        out = " ".join(shown(machine).split())
        assert "promotions 3 since mpsd began" in out
        assert "STATE LOST once since mpsd began; " in out
        assert f"pid {second.writer_pid} began anew, generation {second.generation}" in out
        assert "the vault's keeper died" in out
        assert len(starter.said("state_lost")) == 1


@pytest.mark.deadline(120)
def test_the_reason_for_which_nobody_serves_is_that_of_now(machine: Machine) -> None:
    """The log and the starter kept the first reason while a standby had become ready and the limit was what it waited for."""
    machine.configure("[services]\nmost_promotions = 1\nwindow_seconds = 300.0\n")
    machine.start()
    with begun(machine) as starter:
        before = kill_the_active(starter)
        second = starter.wait("a standby", lambda it: it.writer_pid != before and len(it.members) == 2)
        os.kill(starter.process.pid, signal.SIGSTOP)  # it starts no replacement before both are known to be dead
        for member in second.members:
            os.kill(member.pid, signal.SIGKILL)

        def reasons() -> list[str]:
            return [event["why"] for event in machine.journal("service.event") if event["what"] == "unserved"]

        wait_for("the first reason", lambda: reasons()[-1:] == ["no process is left"], WAITS_SECONDS)
        os.kill(starter.process.pid, signal.SIGCONT)
        wait_for("the reason of now", lambda: [why for why in reasons()[-1:] if "too many promotions" in why], WAITS_SECONDS)
        assert "no standby is ready" in reasons()
        is_told = lambda: [each for each in starter.said("unserved")[-1:] if "too many promotions" in each["why"]]  # noqa: E731
        wait_for("the same of the starter", is_told, WAITS_SECONDS)
        assert "no member serves: too many promotions" in " ".join(shown(machine).split())
