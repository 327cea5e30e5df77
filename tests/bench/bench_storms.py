"""The cost of mpsd, and its response time, while very many clients of many users wait; and its speed in serving a crowd.

    .venv/bin/python tests/bench/bench_storms.py [--waiting 1000,10000] [--arrivals 2000] [--users 200] [--json FILE]

A waiting client is a separate process that has connected and waits for a fault domain: the only one is another user's. Then all
of them are killed at once. mpsd reserves descriptors for clients that run; with --no-reserve waiting clients may use these too,
so that 9,800 can wait where mpsd may open 20,000 files. An arrival is a CUDA program that runs one kernel and ends; all arrive
at once. As root.
"""

import argparse
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpsd_client import Client as Mpsd
from mpsd_client import calls

from tests.bench import setting
from tests.gpu.comparison import figures, processes
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import SystemFailed
from tests.integration.machine import Machine, open_machine
from tests.integration.process import wait_for

FIRST_UID = 20_000
HOLDER_UID = 19_999
OPEN_FILES = 200_000  # 14 for each of 10,000 clients, and the keeper's
ANSWERS = 10
STALL_SECONDS = 5.0
LIMIT_SECONDS = 200.0
ARRIVAL_SECONDS = 120.0
ONE_DOMAIN = "[relay]\nmax_connections = 16384\n[domains]\nmax_domains = 1\nspares = 0\n"
CROWD = "[relay]\nmax_connections = 16384\n"
NO_RESERVE = """
import sys
from msgspec.structs import replace
from mpsd.host.rules import descriptor_budget
budget = descriptor_budget.budget
def all_wait(descriptors, wanted):
    found = budget(descriptors, wanted)
    return replace(found, connections=min(wanted, (descriptors - descriptor_budget.BESIDE) // 2), clients=wanted)
descriptor_budget.budget = all_wait
import runpy
sys.argv = sys.argv[3:]  # without -I -m mpsd
runpy.run_module("mpsd", run_name="__main__", alter_sys=True)
"""
WAITERS = """
import os, socket, sys
path, first_uid, users, count = sys.argv[1], *map(int, sys.argv[2:])
for number in range(count):
    if os.fork():
        continue
    uid = first_uid + number % users
    os.setgroups([]), os.setresgid(uid, uid, uid), os.setresuid(uid, uid, uid)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(path)
        sock.recv(1)
    os._exit(0)
print("ready", flush=True)
sys.stdin.read()
"""


def measure(stage: Stage, asked: argparse.Namespace) -> None:
    stage.deadline = time.monotonic() + LIMIT_SECONDS * (len(asked.waiting) + 1)
    for size in asked.waiting:
        with _machine(ONE_DOMAIN, asked.no_reserve) as machine:
            _wait(stage, machine, size, asked.users)
    if asked.arrivals:
        with _machine(CROWD) as machine:
            _arrive(stage, machine, asked.arrivals, asked.users)


@contextmanager
def _machine(config: str, no_reserve: bool = False) -> Iterator[Machine]:
    """With as many open files as LimitNOFILE= would have to give a service for so many clients."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # without CAP_SYS_RESOURCE, as in a container
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with _lenient(), open_machine() as machine:
            machine.configure(config)
            machine.start(**({"MPSD_PYTHON": str(_no_reserve(machine))} if no_reserve else {}))
            yield machine
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], hard), hard))


def _no_reserve(machine: Machine) -> Path:
    """Return a Python whose mpsd reserves no descriptors."""
    program, python = machine.place / "no_reserve.py", machine.place / "python"
    program.write_text(NO_RESERVE)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    return python


@contextmanager
def _lenient() -> Iterator[None]:
    """What blocked the event loop is a figure here, and not the end of the run (Machine.blocks)."""
    before = os.environ.get("MPSD_TEST_LOOP_MS")
    os.environ["MPSD_TEST_LOOP_MS"] = "1e9"
    try:
        yield
    finally:
        del os.environ["MPSD_TEST_LOOP_MS"]
        if before is not None:
            os.environ["MPSD_TEST_LOOP_MS"] = before


# -- clients that wait -------------------------------------------------------------------------------------------------------


def _wait(stage: Stage, machine: Machine, size: int, users: int) -> None:
    """Measure mpsd while so many wait, and when they are killed."""
    machine.counter(uid=HOLDER_UID).ready(60.0)
    before = _cost(machine)
    words = [sys.executable, "-I", "-S", "-c", WAITERS, str(machine.pipe / "control"), str(FIRST_UID), str(users), str(size)]
    began = time.monotonic()
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as crowd:
        try:
            with machine.mpsd() as mpsd:
                waiting = _until_no_more_come(lambda: mpsd.ask(calls.status()).queue, size)
                came = time.monotonic() - began
                cost, answers = _cost(machine), _answers(mpsd)
        finally:
            os.killpg(crowd.pid, signal.SIGKILL)
        began = time.monotonic()
        with machine.mpsd() as mpsd:
            longest = _until(lambda: mpsd.ask(calls.status()).queue == 0)
            wait_for("the descriptors to be closed", lambda: _cost(machine)[1] <= before[1] + 16, LIMIT_SECONDS)
    gone = time.monotonic() - began
    name = f"{size} waiting clients of {users} users"
    if waiting < size:
        remark = "no more in 5 s: the others are refused, or wait in the kernel's queue"
        stage.add(f"{name}: listed", mpsd=str(waiting), remark=remark)
    memory, descriptors, of_keeper = cost
    remark = f"{before[0]:.0f} before; descriptors {descriptors}, keeper's {of_keeper}"
    stage.add(f"{name}: resident", mpsd=f"{memory:.0f} MiB", remark=remark)
    for what, found in answers.items():
        stage.add(f"{name}: {what}", mpsd=figures.ms(figures.median(found) or 0.0), remark=f"longest {figures.ms(max(found))}")
    blocked = [entry["ms"] for entry in machine.journal("loop.blocked")]
    stage.add(
        f"{name}: killed at once, all gone after",
        mpsd=f"{gone:.1f} s",
        remark=f"longest answer meanwhile {longest * 1e3:.0f} ms; came in {came:.1f} s; loop.blocked {blocked or 'never'}",
    )
    kept = {"came, s": came, "gone, s": gone, "resident, MiB": memory, "descriptors": descriptors, "answers, ms": answers}
    stage.keep(name, kept)


def _answers(mpsd: Mpsd) -> dict[str, list[float]]:
    """Return milliseconds: of health, the first page of the queue, all of it, and why for one of its clients."""
    [*page] = mpsd.ask(calls.queue_list()).items
    pid = next(each.pid for each in page if each.pid)
    asked: dict[str, Callable[[], object]] = {
        "health": lambda: mpsd.ask(calls.health()),
        "queue, a page": lambda: mpsd.ask(calls.queue_list()),
        "queue, all of it": lambda: list(mpsd.pages(calls.queue_list())),
        "why": lambda: mpsd.ask(calls.client_why(pid)),
    }
    return {what: [_ms(ask) for _ in range(ANSWERS)] for what, ask in asked.items()}


def _until_no_more_come(count: Callable[[], int], wanted: int) -> int:
    """How many are listed: as many as wanted, or as mpsd takes on; the others are refused, or wait in the kernel's queue."""
    found, since = 0, time.monotonic()
    while found < wanted and time.monotonic() - since < STALL_SECONDS:
        if (now := count()) > found:
            found, since = now, time.monotonic()
        time.sleep(0.05)
    return found


def _ms(ask: Callable[[], object]) -> float:
    began = time.perf_counter()
    ask()
    return (time.perf_counter() - began) * 1e3


def _until(is_so: Callable[[], bool]) -> float:
    """Seconds that the longest look took, until it is so."""
    longest, until = 0.0, time.monotonic() + LIMIT_SECONDS
    while True:
        began = time.monotonic()
        is_done = is_so()
        longest = max(longest, time.monotonic() - began)
        if is_done:
            return longest
        if time.monotonic() > until:
            raise SystemFailed(f"not within {LIMIT_SECONDS:g} s")
        time.sleep(0.02)


def _cost(machine: Machine) -> tuple[float, int, int]:
    """Return resident MiB and descriptors of mpsd, and descriptors of its keeper."""
    pid = machine.daemon_pid()
    return processes.memory_mib(pid)[0], _descriptors(pid), _descriptors(machine.keeper_pid())


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


# -- clients that arrive -----------------------------------------------------------------------------------------------------


def _arrive(stage: Stage, machine: Machine, size: int, users: int) -> None:
    """Each runs for a tenth of a second; a user's clients share a domain, and a domain serves one user after the other."""
    words = ("--seconds", "0.1", "--ms", "50", "--kernel-us", "1000")
    pid = machine.daemon_pid()
    began, computed = time.monotonic(), _computed(pid)
    coming = [machine.client("counter", *words, uid=FIRST_UID + number % users) for number in range(size)]
    started = time.monotonic() - began
    slowest_health, running = 0.0, list(coming)
    with machine.mpsd() as mpsd:
        while running and time.monotonic() - began < ARRIVAL_SECONDS:
            slowest_health = max(slowest_health, _ms(lambda: mpsd.ask(calls.health())))
            running = [client for client in running if not client.has_ended()]
            time.sleep(0.05)
    seconds = time.monotonic() - began
    computed = _computed(pid) - computed
    served = sum(client.process.poll() == 0 for client in coming)
    stage.add(
        f"{size} arrivals of {users} users: served",
        mpsd=f"{served} in {seconds:.1f} s",
        remark=(
            f"all were started after {started:.1f} s; longest health {slowest_health:.0f} ms; load {os.getloadavg()[0]:.1f}; "
            f"mpsd computed for {computed:.1f} s, {computed * 1e3 / max(served, 1):.0f} ms a client"
        ),
    )
    stage.keep(f"{size} arrivals of {users} users", {"served": served, "s": seconds, "started, s": started})


def _computed(pid: int) -> float:
    """Return the seconds of processor time that the process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


if __name__ == "__main__":
    options = setting.parser("storms", __doc__)
    options.add_argument("--waiting", type=_numbers, default=[1000, 10_000], help="1000,10000; how many clients wait")
    options.add_argument("--no-reserve", action="store_true", help="waiting clients may use all descriptors")
    options.add_argument("--arrivals", type=int, default=2000, help="2000; 0: none")
    options.add_argument("--users", type=int, default=200, help="200")
    sys.exit(setting.run("storms", options.parse_args(), measure))
