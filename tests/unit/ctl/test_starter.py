"""The parts of a starter: output files, the matching of members and children, messages, wanted members."""

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import IO

import pytest
from mpsctl.session import NoMpsd
from mpsctl.starter import log_writer
from mpsctl.starter.child_group import ChildGroup
from mpsctl.starter.children import MISSED_SECONDS, Child, Place, free_number
from mpsctl.starter.ending import Manner, end
from mpsctl.starter.groups import eligible, groups, share_out
from mpsctl.starter.mpsd_connection import Away, MpsdConnection
from mpsctl.starter.plan import Make
from mpsctl.starter.reports import Reporter, differences, stopping
from mpsctl.starter.settings import Given, Settings, Task, changes, of_service
from mpsd_client import Client, Disconnected, calls, values

from tests.integration.process import wait_for

WAITS_SECONDS = 20.0


# -- output --------------------------------------------------------------------------------------------------------------


def write(text: bytes, *words: str) -> bytes:
    program = [sys.executable, "-I", "-S", log_writer.__file__, *words]
    return subprocess.run(program, input=text, stdout=subprocess.PIPE, timeout=WAITS_SECONDS, check=True).stdout


def test_each_line_has_a_prefix() -> None:
    long = b"x" * 200_000
    assert write(b"one\n\ntwo", "lines", "llm-1: ") == b"llm-1: one\nllm-1: \nllm-1: two\n"
    assert write(long, "lines", "").replace(b"\n", b"") == long


def test_a_file_is_ones_own_and_does_not_grow_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "llm-1.log"
    for text in (b"first " * 10, b"second " * 10, b"third " * 10):
        write(text, "file", str(path), "100")
    assert (path.read_bytes(), (tmp_path / "llm-1.log.1").read_bytes()) == (b"third " * 10, b"second " * 10)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_renamed_does_not_grow_for_ever(tmp_path: Path) -> None:
    """Another user made PATH.1 a directory, as in /tmp."""
    path = tmp_path / "llm-1.log"
    (tmp_path / "llm-1.log.1").mkdir()
    for text in (b"first " * 10, b"second " * 10, b"third " * 10):
        assert write(text, "file", str(path), "100") == b""
    assert path.read_bytes() == b"third " * 10


@pytest.mark.parametrize(
    ("path", "why"),
    [
        pytest.param("link", b"Too many levels of symbolic links\n", id="a link is not followed"),
        pytest.param("no/such", b"No such file or directory\n", id="no directory"),
        pytest.param("/dev/full", b"No space left on device\n", id="a full disk"),
        pytest.param("fifo", b"No such device or address\n", id="a FIFO that nobody reads"),
    ],
)
def test_what_cannot_be_written_keeps_nobody_waiting_and_is_said_once(path: str, why: bytes, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "fifo")
    assert write(b"x" * 200_000, "file", str(tmp_path / path), "1000000") == why
    assert not (tmp_path / "target").exists()


@pytest.mark.root
def test_another_users_file_gets_no_output(tmp_path: Path) -> None:
    """In a directory such as /tmp, that user could read it."""
    path = tmp_path / "llm-1.log"
    path.touch(0o666)
    os.chown(path, 1000, 1000)
    assert write(b"secret", "file", str(path), "1000000") == b"it belongs to user 1000\n"
    assert path.read_bytes() == b""


def test_a_file_says_what_is_missing_in_it(tmp_path: Path) -> None:
    """As soon as the disk has room again. A limit of the process behaves like a full disk."""
    path = tmp_path / "llm-1.log"
    program = [sys.executable, "-I", "-S", log_writer.__file__, "file", str(path), "1000000"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        resource.prlimit(writer.pid, resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
        writer.stdin.write(b"0123456789abcd")
        assert writer.stdout.readline() == b"File too large\n"
        resource.prlimit(writer.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        writer.stdin.write(b"more")
        writer.stdin.close()
        assert writer.stdout.read() == b""
    assert path.read_bytes() == b"0123456789\n[4 bytes are missing here: File too large]\nmore"


# -- children ------------------------------------------------------------------------------------------------------------


def unheard(child: Child, why: str) -> None:
    raise AssertionError(f"its output is lost: {why}")


def begin(place: Place, lease: values.Lease | None = None) -> tuple[Child, list[int]]:
    """Return its status, when it has ended."""
    statuses: list[int] = []
    is_told = threading.Event()

    def ended(child: Child, status: int) -> None:
        statuses.append(status)
        is_told.set()

    child = place.begin(1, Make(), lease, ended, unheard)
    assert is_told.wait(WAITS_SECONDS)
    return child, statuses


def test_a_child_is_told_its_service_and_its_lease(tmp_path: Path) -> None:
    lease = values.Lease(
        7, 0, False, "active", 0.0, None, 0, "llm-1", values.Selector.of_token("a-token"), (), 30.0, 30.0, 40, {}, 0, "shared",
        "", 1, None, 0.0, "",
    )  # fmt: skip
    command = ["sh", "-c", "echo $MPSD_SERVICE $MPSD_LEASE; cut -d' ' -f5 /proc/$$/stat; echo $$"]
    child, statuses = begin(Place("llm", command, os.environ, str(tmp_path), 1), lease)
    assert (statuses, child.lease_id) == ([0], 7)
    log = tmp_path / "llm-1.log"  # who writes it ends after the child has
    wait_for("its output", lambda: log.exists() and log.read_text() == f"llm a-token\n{child.pid}\n{child.pid}\n")


def test_a_child_sees_one_gpu_if_a_replica_is_kept(tmp_path: Path) -> None:
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": "0,1"}
    place = Place("llm", ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"], environ, str(tmp_path), 1)
    log = tmp_path / "llm-1.log"
    for make, seen in ((Make(), "0,1\n"), (Make(gpu="GPU-b"), "GPU-b\n")):
        is_told = threading.Event()
        place.begin(1, make, None, lambda child, status, told=is_told: told.set(), unheard)  # type: ignore[misc]
        assert is_told.wait(WAITS_SECONDS)
        wait_for("its output", lambda seen=seen: log.exists() and log.read_text() == seen)  # type: ignore[misc]
        log.unlink()


def test_the_replica_uses_the_gpu_that_the_service_does_not() -> None:
    task = Task(Given(), ["GPU-1"], replica_gpu="GPU-2")
    assert (task.home(None), task.away("GPU-1")) == ("GPU-1", "GPU-2")
    assert task.home(replace(SERVICE, gpu="GPU-2")) == "GPU-2", "it has moved"
    assert task.away("GPU-2") == "GPU-1"
    assert task.away("GPU-3") == "GPU-2"
    assert Task(Given(), ["GPU-1"]).home(SERVICE) == "", "members without a replica see what the starter sees"


def test_one_that_never_joined_is_missed_once_and_not_at_once(tmp_path: Path) -> None:
    child, _ = begin(Place("llm", ["true"], os.environ, str(tmp_path), 1))
    assert not child.miss()
    child.began_at -= MISSED_SECONDS
    assert (child.miss(), child.miss()) == (True, False)
    child.member_pid, child.is_missed = 586, False
    assert not child.miss()


def test_how_it_ended_is_told(tmp_path: Path) -> None:
    _, statuses = begin(Place("llm", ["sh", "-c", "kill -9 $$"], os.environ, str(tmp_path), 1))
    assert statuses == [-signal.SIGKILL]


def test_that_its_output_is_lost_is_told(tmp_path: Path) -> None:
    (tmp_path / "llm-1.log").symlink_to("/dev/full")
    reasons: SimpleQueue[str] = SimpleQueue()
    place = Place("llm", ["echo", "a line"], os.environ, str(tmp_path), 1)
    place.begin(1, Make(), None, lambda child, status: None, lambda child, why: reasons.put(why))
    assert reasons.get(timeout=WAITS_SECONDS) == "Too many levels of symbolic links"


def no_mpsd() -> Client:
    raise NoMpsd("no mpsd")


@pytest.mark.parametrize("command", ["exec sleep 1000", "trap '' TERM; echo; while :; do sleep 1000; done"])
def test_without_mpsd_a_child_is_ended_by_signals(command: str, tmp_path: Path) -> None:
    """The signals go from mild to strong."""
    is_told = threading.Event()
    place = Place("llm", ["sh", "-c", command], os.environ, str(tmp_path), 1)
    child = place.begin(1, Make(), None, lambda child, status: is_told.set(), unheard)
    if "trap" in command:
        log = tmp_path / "llm-1.log"
        wait_for("its first line", lambda: log.exists() and log.read_text(), WAITS_SECONDS)
    assert end(child, no_mpsd, Manner(grace_seconds=0.2)) == "not ended through mpsd, but by signals: no mpsd"
    assert is_told.wait(WAITS_SECONDS)


def test_a_child_that_may_not_be_signalled_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command runs as another user, as under sudo.  The starter reports that, instead of waiting for ever."""

    def refuse(group: int, number: int) -> None:
        raise PermissionError

    ended, told = threading.Event(), SimpleQueue[object]()
    place = Place("llm", ["sleep", "1000"], os.environ, str(tmp_path), 1)
    reporter = Reporter(None, "llm")  # type: ignore[arg-type]
    group = ChildGroup(MpsdConnection(None), place, Manner(grace_seconds=0.01), reporter, told.put)  # type: ignore[arg-type]
    child = group.children[1] = place.begin(1, Make(), None, lambda child, status: ended.set(), unheard)
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", refuse)
        assert end(child, no_mpsd, Manner(grace_seconds=0.01)).endswith(f"pid {child.pid} does not end")
        group.kill()
    assert child.is_left
    group.kill()
    assert not child.is_left
    assert ended.wait(WAITS_SECONDS)


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), TimeoutError()])
def test_without_a_descriptor_mpsd_counts_as_away(error: OSError) -> None:
    """It ended the thread that follows the service, and the starter knew of no change any more."""

    class Lacking:
        mpsd = SimpleNamespace()

        def ask(self, call: object) -> str:
            raise error

        def close(self) -> None:
            pass

    with pytest.raises(Away):
        MpsdConnection(Lacking()).ask(calls.status())  # type: ignore[arg-type]


def test_a_connection_that_mpsd_ended_is_made_anew() -> None:
    class Stale:
        closed, mpsd = 0, SimpleNamespace()

        def ask(self, call: object) -> str:
            if not self.closed:
                raise Disconnected(None)
            return "asked again"

        def close(self) -> None:
            self.closed += 1

    session = Stale()
    assert MpsdConnection(session).ask(calls.status()) == "asked again"  # type: ignore[arg-type, comparison-overlap]
    assert session.closed == 1


def test_numbers_are_used_again() -> None:
    assert free_number({}) == 1
    assert free_number({1: None, 3: None}) == 2  # type: ignore[dict-item]


def test_who_is_in_a_process_group() -> None:
    """All processes that a child has started belong to it."""
    command = ["sh", "-c", "sleep 100 & echo $!; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as shell:
        assert shell.stdout is not None
        sleeper = int(shell.stdout.readline())
        found = groups([shell.pid])[shell.pid]
        os.killpg(shell.pid, signal.SIGKILL)
    assert {pid for pid, _ in found} == {shell.pid, sleeper}
    assert all(start_time > 0 for _, start_time in found)


def test_nothing_is_read_of_processes_outside_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may have one whose `stat` never comes: the starter would stand still for ever."""
    opened: list[str] = []

    def recorded(path: str, mode: str) -> IO[bytes]:
        opened.append(path)
        return open(path, mode)

    monkeypatch.setattr("mpsctl.starter.groups.open", recorded, raising=False)
    with (
        subprocess.Popen(["sleep", "100"], process_group=0) as own,
        subprocess.Popen(["sleep", "100"], process_group=0) as other,
    ):
        found = groups([own.pid])
        own.kill()
        other.kill()
    assert {pid for pid, _ in found[own.pid]} == {own.pid}
    assert opened == [f"/proc/{own.pid}/stat"]


def member(pid: int, start_time: int = 5, *, is_writer: bool = False, standing: str = "ready") -> values.Member:
    return values.Member(pid, start_time, "d1", 0, standing, is_writer, True, 1.0)


def test_no_client_of_another_user_is_taken_for_a_members() -> None:
    """It could have begun in the same hundredth of a second, and the starter would end it."""
    listed = [((11, 6), 1000), ((40, 6), 1001), ((41, 6), None)]
    assert eligible(listed, 1000, is_same_namespace=False) == {(11, 6)}
    assert eligible(listed, 1000, is_same_namespace=True) == {(11, 6), (40, 6), (41, 6)}  # compared by pid as well


def test_members_are_known_again() -> None:
    """By their start times, if mpsd is in another pid namespace."""
    found = {10: frozenset({(10, 5), (11, 6)}), 20: frozenset({(20, 7)})}
    mine, yours = member(11, 6), member(30, 7)
    assert share_out((mine, yours), found, is_same_namespace=True) == ({10: mine}, (yours,))
    assert share_out((mine, yours), found, is_same_namespace=False) == ({10: mine, 20: yours}, ())
    two = (member(10), member(11, 6, is_writer=True))
    assert share_out(two, found, is_same_namespace=True)[0] == {10: two[1]}


# -- wanted members, messages ------------------------------------------------------------------------------------------


def test_the_command_line_comes_first_and_then_the_service() -> None:
    theirs = values.ServiceSettings(2, 30.0, None, 0.0, until_done=False, elastic="off")
    assert of_service(replace(SERVICE, settings=theirs)) == Settings(2, 30.0, None)
    none = values.ServiceSettings(1, 0.0, 0, 0.0, until_done=False, elastic="off")
    assert of_service(replace(SERVICE, settings=none)) == Settings(1, None, None)
    dealt = values.ServiceShare(41.2, 0.9, "interactive", "", 0.0, 1)
    assert of_service(replace(SERVICE, settings=theirs, share=dealt)) == Settings(2, 41.2, None)
    given = Given(standbys=0, memory_bytes=5)
    assert given.of(Settings()) == Settings(0, None, 5)
    assert changes(given, theirs) == {"standbys": 0, "memory_bytes": 5}
    assert changes(Given(standbys=2), theirs) == {}
    assert Given(until_done=True).of(Settings()) == Settings()
    assert changes(Given(until_done=True), theirs) == {"until_done": True}
    assert changes(Given(until_done=False), theirs) == {}


SERVICE = values.Service(
    1, "llm", 0, "GPU-1", "serving", 7, 586, 3, values.ServiceSettings(1, None, None, 0.0, until_done=False, elastic="off"),
    (member(586, is_writer=True), member(587, standing="warming")), 0, None, "", 0, None, None, None, None,
)  # fmt: skip
LAST = values.Promotion(9.0, "fault", 586, 587, 8, 0.4, 12.5, 0.9)


@pytest.mark.parametrize(
    ("after", "told"),
    [
        pytest.param({}, [], id="nothing"),
        pytest.param({"last": LAST, "revision": 4}, ["promoted"], id="a promotion"),
        pytest.param({"phase": "fencing"}, ["unserved"], id="nobody serves"),
        pytest.param({"phase": "yielding"}, [], id="it serves while it yields"),
        pytest.param({"members": (member(586), member(587))}, ["ready"], id="one is ready"),
        pytest.param({"protection": "two in one domain"}, ["protection"], id="not protected"),
    ],
)
def test_what_is_worth_a_line(after: dict[str, object], told: list[str]) -> None:
    assert [each.event for each in differences(SERVICE, replace(SERVICE, **after))] == told  # type: ignore[arg-type]


def test_one_whose_domain_is_not_known_yet_is_ready() -> None:
    members = (member(586), replace(member(587), domain=""))
    (told,) = differences(SERVICE, replace(SERVICE, members=members))
    assert told.text == "pid 587 is ready"


def test_a_service_that_is_found_is_told_as_it_is() -> None:
    (told,) = differences(None, replace(SERVICE, last=LAST))
    assert told.text == "the service exists, generation 7: pid 586 serves; members: 586, 587"
    assert [each.event for each in differences(SERVICE, None)] == ["gone"]


def test_what_nobody_serves_is_not_called_protected() -> None:
    before = replace(SERVICE, protection="it has no standby")
    assert [each.event for each in differences(before, replace(before, phase="fencing", protection=""))] == ["unserved"]


def test_why_nobody_serves_is_told_anew_when_the_reason_changes() -> None:
    idle = replace(SERVICE, phase="idle", protection="no member serves: no standby is ready")
    too_many = replace(idle, protection="no member serves: too many promotions")
    assert [each.text for each in differences(SERVICE, idle)] == ["no member serves: no standby is ready"]
    assert [each.text for each in differences(idle, too_many)] == ["no member serves: too many promotions"]
    assert list(differences(too_many, too_many)) == []


def test_a_lost_state_is_told_once_and_so_is_that_of_before() -> None:
    lost = values.Loss(100.0, 8, 587, "the keeper died")
    after = replace(SERVICE, losses=2, lost=lost)
    (told,) = differences(SERVICE, after)
    assert told.text == "THE STATE WAS LOST (2 times since mpsd began): pid 587 lacks it, generation 8: the keeper died"
    assert told.facts == {"at": 100.0, "generation": 8, "pid": 587, "why": "the keeper died", "losses": 2}
    assert list(differences(after, replace(after, phase="yielding"))) == []
    assert [each.event for each in differences(None, after)] == ["found", "state_lost"]


def test_a_promotion_is_told_in_its_parts() -> None:
    (told,) = differences(SERVICE, replace(SERVICE, last=LAST))
    assert told.text == "pid 587 serves, generation 8: fault, detected in 0.4 ms, fenced in 12.5 ms, promoted in 0.9 ms"
    assert told.facts["to_pid"] == 587
    (known,) = differences(SERVICE, replace(SERVICE, last=replace(LAST, cause="asked", detect_ms=None, fence_ms=None)))
    assert known.text.endswith(": asked, promoted in 0.9 ms")


def test_what_a_quit_means_for_members_is_said() -> None:
    assert "WAITS FOR THE MEMBERS" in stopping(None, 100.0)
    assert "in 20 s: the members are ended before" in stopping(120.0, 100.0)
