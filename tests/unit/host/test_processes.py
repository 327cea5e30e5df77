"""Facts about processes, and that nothing but ENOENT and ESRCH makes a living one look ended."""

import ctypes
import os
import platform
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from mpsd.host import processes
from mpsd.host.descriptors import SPARE_DESCRIPTORS
from mpsd.host.process_exit import wait_ended
from mpsd.host.process_reader import ProcessReader
from mpsd.model.process import ProcessId
from tests.hostile.attacker import PYTHON
from tests.integration.process import wait_for
from tests.leaderless import crowded, execute, leaderless


@pytest.fixture
def child() -> Iterator[tuple["subprocess.Popen[bytes]", ProcessId]]:
    made = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    process = processes.process_id(made.pid)
    assert process is not None
    yield made, process
    made.kill()
    made.communicate()


@contextmanager
def without_descriptors(spare: int) -> Iterator[None]:
    """All that this process may open are open; `spare` more are allowed by the hard limit alone."""
    was = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    with suppress(OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 30, was[1]))
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with open_limit(soft, soft + spare):
        try:
            yield
        finally:
            for each in opened:
                os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, was)


@contextmanager
def open_limit(soft: int, most: int) -> Iterator[None]:
    """In place of a hard limit, which could not be raised again by everybody."""
    real = resource.getrlimit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resource, "getrlimit", lambda which: (real(which)[0], most))
        patch.setattr(resource, "setrlimit", _keeping_hard(resource.setrlimit, real(resource.RLIMIT_NOFILE)[1]))
        yield


def _keeping_hard(real, hard: int):  # type: ignore[no-untyped-def]
    return lambda which, limits: real(which, (limits[0], hard))


def test_a_spare_descriptor_is_enough_to_know_a_process(child) -> None:
    made, process = child
    with without_descriptors(spare=SPARE_DESCRIPTORS):
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        found = processes.process_id(made.pid), processes.is_alive(process), processes.owner(made.pid), processes.state(1)
    assert found[:2] == (process, True)
    assert found[2] == (os.geteuid(), os.getegid())


def test_a_process_of_which_nothing_is_known_has_not_ended(child, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease would be released, and its arena handed on, while it runs."""
    made, process = child
    with without_descriptors(spare=0):
        assert processes.process_id(made.pid) == process  # by the reading process, which needs no descriptor more
        monkeypatch.setattr(processes, "reader", ProcessReader(processes.effective_uid))
        assert processes.is_alive(process)
        for ask in (lambda: processes.process_id(made.pid), lambda: processes.open_pidfd(process)):
            with pytest.raises(OSError, match="Too many open files"):
                ask()


async def test_a_process_lives_without_its_first_thread() -> None:
    """It goes on computing: its place and its limits are not given away."""
    with leaderless() as made:
        process = processes.process_id(made.pid)
        assert process is not None
        assert processes.is_alive(process)
        assert processes.lacks_first_thread(process)
        made.kill()
        with trio.fail_after(10):
            await wait_ended(process)
        assert not processes.is_alive(process)


def test_a_process_is_stopped_without_its_first_thread() -> None:
    """That one counted for the whole process: a client that mpsd took for one that runs kept its co-runners waiting."""
    with leaderless() as made:
        assert processes.state(made.pid) in "RS"
        made.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, made.pid, os.WSTOPPED)
        assert processes.state(made.pid) == "T"
        made.kill()
        os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOWAIT)
        assert processes.state(made.pid) == "Z"


# Its first thread waits in the kernel until its child ends, as in vfork(2); its other threads sleep.
IN_VFORK = f"""
import ctypes, signal, sys, threading
libc = ctypes.CDLL(None)
for _ in range(int(sys.argv[1])):
    threading.Thread(target=signal.pause).start()
clone, CLONE_VFORK = {220 if platform.machine() == "aarch64" else 56}, 0x4000
libc.syscall(ctypes.c_long(clone), ctypes.c_long(CLONE_VFORK | signal.SIGCHLD), 0, 0, 0, 0)
libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # the child
signal.pause()
"""


@pytest.mark.parametrize("others", [1, 40])
def test_a_process_is_stopped_whose_first_thread_is_in_vfork(others: int) -> None:
    """That thread goes on waiting: mpsd took a stopped client for one that runs, and its co-runners waited for it."""
    with subprocess.Popen([PYTHON, "-I", "-S", "-c", IN_VFORK, str(others)]) as made:
        try:
            wait_for("its first thread to wait", lambda: (stat := processes.read_stat(made.pid)) and stat.state == "D")
            assert processes.state(made.pid) == "S"
            # One for the process would wait for the first thread.
            assert ctypes.CDLL(None).tgkill(made.pid, processes.reader.threads(made.pid)[-1], signal.SIGSTOP) == 0
            wait_for("its other threads to stop", lambda: processes.state(made.pid) == "T")
        finally:
            made.kill()


def test_a_process_of_many_threads_is_stopped_without_its_first_one() -> None:
    """With more than 32 its state was not known: a stop of a client whose domain is silent was to be tried again for ever."""
    with leaderless(40) as made:
        assert processes.state(made.pid) in "RS"
        made.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, made.pid, os.WSTOPPED)
        assert processes.state(made.pid) == "T"


def test_a_process_lives_whose_last_thread_becomes_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It executed a program after mpsd had looked at the first thread, and before it looked at that one.  125 of 444 such
    processes, asked for all the time, counted as ended; a client that does so as it is admitted had no lease of its cgroup."""
    stat = processes.reader.stat
    with leaderless() as made:
        process = processes.process_id(made.pid)
        assert process is not None

        def execute_before(pid: int) -> bytes:
            if pid != made.pid:
                monkeypatch.undo()
                execute(made)
            return stat(pid)

        monkeypatch.setattr(processes.reader, "stat", execute_before)
        assert processes.is_alive(process)


def test_a_process_lives_whose_last_thread_has_begun_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracer keeps those that have ended, so none of those that mpsd had listed was missing."""
    lists = iter([[7, 8], [7, 8, 9]])
    lives = processes.read_stat(os.getpid())
    assert lives is not None
    over = replace(lives, state="Z", threads=2)
    monkeypatch.setattr(processes, "_threads", lambda *_: next(lists))
    monkeypatch.setattr(processes, "_stat", {7: over, 8: over, 9: lives}.__getitem__)
    assert not processes._is_ending(7, over)


def test_ended_threads_take_little_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracer keeps them.  With 508 each question took 16 to 58 ms, and 5,400 connections of one such process delayed each
    start of another user's client by a minute."""
    asked: list[int] = []
    stat = processes.reader.stat
    monkeypatch.setattr(processes.reader, "stat", lambda pid: asked.append(pid) or stat(pid))
    with crowded(100) as pid:
        assert processes.find(pid) is not None
    assert len(asked) <= 33


def test_very_many_threads_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel took 3 ms for the first thousand of 10,000."""
    threads = processes.reader.threads

    def list_few(pid: int, *, few: bool = False) -> list[int]:
        assert few
        return threads(pid, few=True)

    monkeypatch.setattr(processes.reader, "threads", list_few)
    with crowded(80) as pid:
        assert processes.find(pid) is not None
        assert (processes.state(pid), len(threads(pid, few=True))) == ("?", 64)


def test_a_living_process_has_its_first_thread(child) -> None:
    assert not processes.lacks_first_thread(child[1])


async def test_the_end_of_a_process_is_seen_also_without_a_descriptor(child) -> None:
    """At first it has no descriptor, and then it ends."""
    made, process = child
    ended = trio.Event()

    async def wait() -> None:
        await wait_ended(process)
        ended.set()

    async with trio.open_nursery() as nursery:
        with without_descriptors(spare=SPARE_DESCRIPTORS):
            nursery.start_soon(wait)
            await trio.sleep(0.6)  # longer than it waits before it looks again
            assert not ended.is_set()
        made.kill()
        made.wait()
        with trio.fail_after(10):
            await ended.wait()


def test_a_pid_that_another_process_has_now_has_ended(child) -> None:
    _, process = child
    later = ProcessId(process.pid, process.start_time - 1)
    assert (processes.is_alive(later), processes.open_pidfd(later)) == (False, None)


def test_one_that_has_ended() -> None:
    made = subprocess.Popen([sys.executable, "-S", "-c", ""])
    made.wait()
    gone = ProcessId(made.pid, 1)
    found = processes.process_id(made.pid), processes.is_alive(gone), processes.open_pidfd(gone), processes.owner(made.pid)
    assert found == (None, False, None, None)
    assert (processes.command(made.pid), processes.state(made.pid), processes.uids(made.pid)) == ("", "X", set())


@pytest.mark.root
def test_what_a_program_of_roots_does_is_charged_to_who_started_it() -> None:
    code = "import os; os.setresuid(4321, 0, 0); print('ready', flush=True); input()"
    made = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert made.stdout
    made.stdout.readline()
    try:
        assert processes.charged_uid(made.pid) == 4321
    finally:
        made.communicate(b"\n")
    assert processes.charged_uid(made.pid) == 0


@pytest.mark.root
def test_a_process_that_is_not_dumpable_is_its_users_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most files in its /proc directory belong to root; if it counted as root's, its user's bounds would not hold for it."""
    code = "import os; os.setresgid(4321, 4321, 4321); os.setresuid(4321, 4321, 4321); print('ready', flush=True); input()"
    made = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert made.stdout
    made.stdout.readline()
    try:
        assert processes.owner(made.pid) == (4321, 4321)
        assert processes.real_uid(made.pid) == 4321
        monkeypatch.setattr(processes, "_status", lambda *_: pytest.fail("its status was read: it may have 65,536 groups"))
        assert processes.charged_uid(made.pid) == 4321
    finally:
        made.communicate(b"\n")


_NESTED = b"Name:\tsh\nUid:\t0\t0\t0\t0\nGroups:\t1 2 3\nNStgid:\t4711\t1\nNSpid:\t4711\t1\nNSpgid:\t4711\t1\n"


@pytest.mark.parametrize("length", range(len(_NESTED)))
def test_a_cut_line_puts_no_process_into_our_namespace(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(processes, "_status", lambda pid: _NESTED[:length])
    assert not processes.is_in_our_namespace(999_999_901)


@pytest.mark.root
def test_where_a_process_is_takes_no_longer_with_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes 20 ms for the status of one with 65,536 groups, and every connection was asked about twice."""
    monkeypatch.setattr(processes, "_status", lambda *_: pytest.fail("its status was read"))
    assert processes.is_in_our_namespace(os.getpid())


def test_its_state_and_its_parent_take_no_longer_with_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients of a domain are looked at, and the processes of one user could have 65,536 groups each."""
    monkeypatch.setattr(processes, "_status", lambda *_: pytest.fail("its status was read"))
    assert (processes.state(os.getpid()) in "RS", processes.parent(os.getpid())) == (True, os.getppid())


_WITH_GROUPS = """
import os
print("ready", flush=True)
while True:
    full, digits = map(int, input().split())
    os.setgroups([10**9 + each for each in range(full)] + [10 ** (digits - 1)])
    print("set", flush=True)
"""


@pytest.mark.root
def test_no_number_of_groups_brings_a_container_into_our_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its root took so many that mpsd read no further than to the first pid, and was an operator."""
    monkeypatch.setattr(processes, "pid_namespaces", lambda pid: ())
    words = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-S", "-c", _WITH_GROUPS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as outer:
        assert outer.stdin is not None
        assert outer.stdout is not None
        if outer.stdout.readline() != b"ready\n":
            pytest.skip("no pid namespaces here")
        pid = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())

        def taken(full: int, digits: int) -> int:
            """Take these groups; return where the first pid ends."""
            assert outer.stdin is not None
            assert outer.stdout is not None
            outer.stdin.write(b"%d %d\n" % (full, digits))
            outer.stdin.flush()
            assert outer.stdout.readline() == b"set\n"
            first = b"\nNSpid:\t%d" % pid
            status = Path(f"/proc/{pid}/status").read_bytes()
            return status.index(first) + len(first)

        full = ((1 << 16) - taken(0, 1)) // 11 - 1
        ends = set()
        for each in (full, full + 1):
            for digits in range(1, 11):
                ends.add(taken(each, digits))
                assert not processes.is_in_our_namespace(pid)
        outer.kill()
    assert ends & {(1 << 16) - 1, 1 << 16}
