"""A client under a lease ends, and a child that it forked keeps its connections, and so its GPU memory (measured, H200)."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpsd_client import Selector, calls

from tests.hostile.attacker import NOBODY
from tests.integration.client import Client
from tests.integration.machine import Machine
from tests.integration.process import wait_for

TOKEN = "t" * 32
# Preloaded into a client: on SIGUSR1 it ends, and a child keeps its connections until its standard input ends, without the
# driver's knowledge, which would close them.
LEAVES = """
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static void leave(int number)
{
	char byte;

	(void)number;
	if (syscall(SYS_fork))
		_exit(0);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0);
}

__attribute__((constructor)) static void begin(void)
{
	signal(SIGUSR1, leave);
}
"""


@contextmanager
def left_by(machine: Machine, place: Path, **how: object) -> Iterator[tuple[Client, int]]:
    """A client that has ended, and its server; a child has its connections until the end of the block."""
    library = place / "leaves.so"
    library.with_suffix(".c").write_text(LEAVES)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, library.with_suffix(".c")], check=True)
    reads, writes = os.pipe()
    try:
        words = ("counter", "--seconds", "600", "--ms", "50", "--kernel-us", "3000")
        ended = machine.client(*words, stdin=reads, LD_PRELOAD=str(library), **how).ready()
        server = machine.server_of(ended)
        os.kill(ended.pid, signal.SIGUSR1)
        ended.process.wait()
        yield ended, server
    finally:
        os.close(reads)
        os.close(writes)


def test_the_memory_of_its_lease_stays_taken(machine: Machine, short_dir: Path) -> None:
    """One lease of most of the GPU's memory gave any number of clients as much."""
    machine.configure("[domains]\npoll_seconds = 0.2\n")
    machine.start()
    with machine.mpsd(NOBODY) as mpsd:
        mpsd.ask(calls.lease_create("mine", Selector.of_token(TOKEN), sm_percent=10, memory_bytes={"0": 100 << 30}))
    leased = {"uid": NOBODY, "MPSD_LEASE": TOKEN}
    with left_by(machine, short_dir, **leased) as (ended, server):
        assert machine.numbers(f"get_client_list {server}") == [ended.pid]
        second = machine.counter(**leased)
        with machine.mpsd(NOBODY) as mpsd:

            def reasons() -> list[str]:
                return [each.reason for each in mpsd.ask(calls.queue_list()).items if each.pid == second.pid]

            [why] = wait_for("it to wait", reasons)
        assert "1 of which ended, and their memory is not free yet" in why
    second.ready()


def test_terminate_client_of_it_is_refused_and_the_others_go_on(machine: Machine, short_dir: Path) -> None:
    """To the server its pid is no client's.  `quit` ends the child's connections with the server."""
    machine.start()
    other = machine.counter().ready()
    with left_by(machine, short_dir) as (ended, server):
        assert server == machine.server_of(other)
        assert machine.tell(f"terminate_client {server} {ended.pid}") == f"Invalid process {ended.pid}!\n1\n"
        other.goes_on()
        newcomer = machine.counter().ready()
        assert server == machine.server_of(newcomer)
        assert machine.quit() == 0
