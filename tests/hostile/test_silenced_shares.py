"""Where users share servers: one user silences domain after domain with own, stopped clients."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hostile.attacker import NOBODY
from tests.integration.machine import UIDS, Machine
from tests.integration.process import state_of, wait_for

DOMAINS = 4  # the last one is for users who have none
WAITS = "#include <unistd.h>\n\nint main(void)\n{\n\tfor (;;)\n\t\tpause();\n}\n"
# Preloaded into a client: on SIGUSR1 it executes that program. A child keeps its connections.
BECOMES = """
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static void become(int number)
{
	char *program = getenv("MPSD_TEST_ROOTS");

	(void)number;
	if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	execl(program, program, (char *)0);
	_exit(9);
}

__attribute__((constructor)) static void begin(void)
{
	signal(SIGUSR1, become);
}
"""


@pytest.fixture
def stop() -> Iterator[Callable[[int], None]]:
    """Return a function that stops a client; all are continued in the end."""
    stopped: list[int] = []

    def stop(pid: int) -> None:
        stopped.append(pid)
        os.kill(pid, signal.SIGSTOP)
        wait_for("the stop of a client", lambda: state_of(pid) == "T")

    yield stop
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_user_whose_domain_another_closed_starts_clients(machine: Machine, stop: Callable[[int], None]) -> None:
    """All these domains counted as those of the users who had clients there, and no user but the attacker could do anything."""
    machine.configure(f"[domains]\nmax_domains = {DOMAINS}\n")
    machine.start("-multiuser-server")
    victim = machine.counter(uid=UIDS[0]).ready()
    for number in range(1, DOMAINS):
        own = machine.counter(uid=NOBODY).ready(60)
        if number == 1:
            assert machine.domain_of(own) == machine.domain_of(victim)
        stop(own.pid)
        machine.client("faulter", "trap", uid=NOBODY)
        wait_for("a silent domain", lambda many=number: len(machine.journal("domain.hindered")) >= many, 30)
    again = machine.counter(uid=UIDS[0]).ready(60)
    assert machine.domain_of(again) not in {each["domain"] for each in machine.journal("domain.hindered")}
    machine.counter(uid=NOBODY)
    waits = wait_for("a wait of the attacker", lambda: [e for e in machine.journal("client.waiting") if e["uid"] == NOBODY])
    assert "its user has fault domains" in waits[-1]["reason"]


@pytest.fixture
def becomes_roots(short_dir: Path) -> dict[str, str]:
    """The environment of a client that executes a program of root's on SIGUSR1; its user may still stop it."""
    if os.statvfs(short_dir).f_flag & os.ST_NOSUID:
        pytest.skip(f"{short_dir} is mounted nosuid")
    program, library = short_dir / "waits", short_dir / "becomes.so"
    for made, text, how in ((program, WAITS, []), (library, BECOMES, ["-shared", "-fPIC"])):
        source = made.with_suffix(".c")
        source.write_text(text)
        subprocess.run(["gcc", *how, "-o", made, source], check=True)
    program.chmod(0o4755)
    return {"LD_PRELOAD": str(library), "MPSD_TEST_ROOTS": str(program)}


def test_a_stopped_program_of_roots_counts_against_the_user_who_connected(
    machine: Machine, stop: Callable[[int], None], becomes_roots: dict[str, str]
) -> None:
    """A domain that it blocked counted as root's, so that one user could block all of them."""
    machine.configure(f"[domains]\nmax_domains = {DOMAINS}\n")
    machine.start("-multiuser-server")
    for number in range(1, DOMAINS):
        own = machine.counter(uid=NOBODY, **becomes_roots).ready(60)
        os.kill(own.pid, signal.SIGUSR1)
        wait_for("it to be root's", lambda pid=own.pid: f"Uid:\t{NOBODY}\t0\t" in Path(f"/proc/{pid}/status").read_text())
        subprocess.run(["kill", "-STOP", str(own.pid)], user=NOBODY, group=NOBODY, extra_groups=[], check=True)
        stop(own.pid)
        machine.client("faulter", "trap", uid=NOBODY)
        wait_for("a silent domain", lambda many=number: len(machine.journal("client.stopped")) >= many, 30)
    assert {each["uid"] for each in machine.journal("client.stopped")} == {NOBODY}
    machine.counter(uid=NOBODY)
    waits = wait_for("a wait of the attacker", lambda: [e for e in machine.journal("client.waiting") if e["uid"] == NOBODY])
    assert "its user has fault domains" in waits[-1]["reason"]
    machine.counter(uid=UIDS[0]).ready(60)
