"""Reads of other processes by a process that can be killed: what comes back, and that each ends."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from mpsd.fairness.uid_ranges import parse
from mpsd.host import inspector_messages as wire
from mpsd.host import processes
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.inspector_messages import InspectorOp, Question
from tests.descriptors import descriptors
from tests.inspecting import INSPECTOR

READY = "print('ready', flush=True); input()"


@contextmanager
def a_process(environment: dict[str, str], *words: str) -> Iterator[int]:
    """It runs its program: before that, its environment cannot be read."""
    argv = [sys.executable, "-S", "-c", READY, *words]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert child.stdout
    try:
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
    finally:
        child.communicate(b"\n")


@pytest.fixture
def impatient() -> Iterator[Inspector]:
    """An inspector of its own, for a test that stops or kills it."""
    made = Inspector(deadline_seconds=0.2)
    made.start()
    yield made
    made.close()


async def test_what_a_process_was_started_with() -> None:
    with a_process({"ONE": "1 = 1", "TWO": "", "ONEMORE": "x"}) as pid:
        found = await INSPECTOR.facts(pid, ["ONE", "TWO", "THREE"])
        assert found == INSPECTOR.facts_now(pid, ["ONE", "TWO", "THREE"])
    assert found == wire.StartFacts(os.path.basename(sys.executable), {"ONE": "1 = 1", "TWO": ""})


async def test_a_variable_behind_a_megabyte_of_others_is_seen() -> None:
    """Else a client could hide what lifts its limits."""
    many = {f"FILL{number}": "x" * 100_000 for number in range(12)}
    with a_process(many | {"LAST": "seen"}) as pid:
        found = await INSPECTOR.facts(pid, ["LAST"])
    assert found is not None
    assert found.variables == {"LAST": "seen"}


async def test_a_value_that_does_not_fit_is_refused_and_not_cut() -> None:
    with a_process({"LONG": "x" * 70_000}) as pid:
        with pytest.raises(Unreadable, match="too long"):
            await INSPECTOR.facts(pid, ["LONG"])


async def test_of_one_that_has_gone_there_is_nothing() -> None:
    with a_process({}) as pid:
        pass
    assert await INSPECTOR.facts(pid, ["ONE"]) is None
    with pytest.raises(ProcessLookupError if processes.process_id(pid) else FileNotFoundError):
        INSPECTOR.maps_now(pid)


async def test_one_that_does_not_answer_is_replaced(impatient: Inspector) -> None:
    """The question that found it so is refused; the next one is answered."""
    before = impatient.pid
    os.kill(before, signal.SIGSTOP)
    with structlog.testing.capture_logs() as lines:
        began = time.monotonic()
        with pytest.raises(Unreadable, match="in time"):
            await impatient.facts(os.getpid(), ["PATH"])
        assert time.monotonic() - began < 5  # 0.2 s, 0.5 s of patience, 0.5 s for a sign of life
        assert await impatient.facts(os.getpid(), ["NOTHING"]) is not None
    assert impatient.pid not in (0, before)
    assert [line["event"] for line in lines] == ["inspector.replaced"]


RECORDER = """#!{python} -IS
import os, socket
request, *_ = socket.recv_fds(socket.socket(fileno=3), 65536, 4)
with open({path!r}, "wb") as file:
    file.write(request)
"""


def test_a_process_may_wait_for_a_processor_when_it_starts(impatient: Inspector) -> None:
    """On a busy machine mpsd did not start: its inspector had not got a processor for 1.5 s."""
    impatient.start()
    os.kill(impatient.pid, signal.SIGSTOP)
    later = threading.Timer(0.9, os.kill, (impatient.pid, signal.SIGCONT))  # past the deadline and its slack
    later.start()
    try:
        reader = impatient.start_reader()
    finally:
        later.join()
    reader.kill()
    reader.reap()


@pytest.mark.root
def test_no_question_about_a_process_of_roots_reads_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel took 15 ms of the event loop to write it with 65,536 groups, for each question about each client of root's."""
    monkeypatch.setattr(processes, "_status", lambda pid: pytest.fail("its status was read"))
    assert INSPECTOR.share_of(os.getpid()) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
def test_the_uids_of_one_range_have_one_share_of_its_places(tmp_path: Path) -> None:
    """Reads that their users let hang, as any of 65,536 users, took all of them."""
    program = tmp_path / "recorder"
    program.write_text(RECORDER.format(python=sys.executable, path=str(tmp_path / "request")))
    program.chmod(0o700)
    inspector = Inspector(program, deadline_seconds=20.0, ranges=parse("eve:100000:65536\n"))
    reader = subprocess.Popen(["sleep", "60"], user=100_777)
    try:
        with suppress(OSError, Unreadable):
            inspector.facts_now(reader.pid, [])
    finally:
        inspector.close()
        reader.kill()
        reader.wait()
    request = (tmp_path / "request").read_bytes()
    assert request == wire.pack_question(Question(InspectorOp.FACTS, reader.pid), 100_000, 20_000, os.getpid())


@pytest.mark.root
def test_a_user_of_many_uids_makes_a_comparison_wait_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for one process of each uid, 1.5 s each, one after the other."""
    inspector, asked = Inspector(ranges=parse("eve:100000:65536\n")), []

    def ask(question: Question) -> tuple[bytes, list[int]]:
        asked.append(question.pid)
        raise Unreadable("it could not be read in time")

    monkeypatch.setattr(inspector, "_ask_now", ask)
    readers = [subprocess.Popen(["sleep", "60"], user=uid) for uid in (100_001, 1000, 100_002, 100_777)]
    try:
        found = inspector.same_now([wire.Pair(0, 0, reader.pid) for reader in readers])
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
    assert found == [wire.Same.UNKNOWN] * 4
    assert asked == [reader.pid for reader in readers[:2]]


def test_one_that_died_is_replaced_before_anybody_notices(impatient: Inspector) -> None:
    before = impatient.pid
    os.kill(before, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    with structlog.testing.capture_logs():
        assert impatient.facts_now(os.getpid(), []) is not None
    assert impatient.pid not in (0, before)


def test_many_threads_ask_at_once_and_nothing_is_left() -> None:
    before, answers, refusals = descriptors(), [], []

    def ask() -> None:
        for _ in range(20):
            try:
                answers.append(INSPECTOR.facts_now(os.getpid(), []))
            except Unreadable as exc:  # a very busy machine may not answer within the deadline
                refusals.append(str(exc))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(answers) + len(refusals) == 60
    assert descriptors() <= before, "what earlier tests left may be closed meanwhile"
    assert answers
    assert not [each for each in refusals if "too many" in each], "three, and some that have answered, are under eight"


def exchange(inspector: Inspector, request: bytes) -> bytes:
    """Its answer to any datagram; empty where it gives none."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            socket.send_fds(inspector._open().requests, [request], [theirs.fileno()])
        ours.settimeout(10)
        return ours.recv(wire.DATAGRAM_BYTES)


@given(st.binary(max_size=200))
def test_whatever_it_is_sent_it_answers_and_goes_on(request: bytes) -> None:
    """Only mpsd can send it anything; its input is untrusted all the same."""
    exchange(INSPECTOR, request or b"x")
    assert INSPECTOR.facts_now(os.getpid(), []) is not None


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda good: good[:-1], id="a word without its end"),
        pytest.param(lambda good: b"\x02" + good[1:], id="another version"),
        pytest.param(lambda good: good[:4] + b"\x0c" + good[5:], id="another op"),
        pytest.param(lambda good: good[:16] + bytes(4) + good[20:], id="no deadline"),
        pytest.param(lambda good: good[:32] + b"\x40" + good[33:], id="pairs that are not there"),
        pytest.param(lambda good: good[:36] + b"\x01" + good[37:], id="a reserved word"),
        pytest.param(lambda good: good[:39], id="too short"),
    ],
)
def test_a_malformed_request_is_refused(broken) -> None:
    good = wire.pack_question(Question(InspectorOp.FACTS, os.getpid(), ["PATH"]), 0, 1000, os.getpid())
    assert wire.parse_answer(exchange(INSPECTOR, good))[1]
    with pytest.raises(OSError, match="EINVAL"):
        wire.parse_answer(exchange(INSPECTOR, broken(good)))


def test_it_ends_with_mpsd() -> None:
    """And takes nothing along: its children end by their own deadlines."""
    code = "from mpsd.host.inspector import Inspector; made = Inspector(); made.start(); print(made.pid, flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    pid = int(child.stdout.readline())
    pidfd = os.pidfd_open(pid)
    child.kill()
    child.communicate()
    poll = select.poll()
    poll.register(pidfd)
    assert poll.poll(10_000)
    os.close(pidfd)


def test_the_layouts_are_those_of_the_header() -> None:
    assert (wire._REQUEST.size, wire._PAIR.size, wire._ANSWER.size, array("i").itemsize) == (40, 12, 8, 4)
