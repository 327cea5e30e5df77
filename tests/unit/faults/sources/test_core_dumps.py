"""Core dumps as a source: whom they accuse, whom they clear, and where they cannot be read."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import structlog
import trio
import trio.testing

from mpsd.fairness.rates import Rate
from mpsd.faults.sources import core_dumps
from mpsd.faults.sources.core_dump_directory import CoreDirectory, Dump
from mpsd.faults.sources.core_dump_file import parse_core
from mpsd.faults.sources.core_dumps import CoreDumps, environment, find_owner, find_writer, has_begun, observe, pid_inside
from mpsd.model.fault import FaultClass, Observation, Source
from mpsd.model.process import ProcessId
from tests.running import running
from tests.unit.faults.sources import core_builder as made
from tests.unit.faults.sources.test_core_dump_file import SAMPLES, parse

ONE, OTHER = ProcessId(100, 5), ProcessId(200, 6)


def dump_of(data: bytes, kept_as: str = "") -> Dump:
    return Dump("core.7", 7, 1000, 0.0, parse(data), kept_as=kept_as)


def seen_in(data: bytes, owner: ProcessId | None = ONE) -> Observation:
    dump = dump_of(data, "kept/core.7.1")
    return observe(dump, dump.core, owner, 12)


def test_an_exception_is_proof_of_who_did_it():
    seen = seen_in(SAMPLES["misaligned-culprit"])
    assert (seen.source, seen.seen_ns, seen.process) == (Source.CORE_DUMP, 12, ONE)
    assert (seen.fault_class, seen.is_proof, seen.clears) == (FaultClass.SM, True, False)
    assert (seen.kernel, seen.pc) == ("misaligned", 0x7F2C237A2A90)
    expected = "WARP_MISALIGNED_ADDRESS in misaligned+0x90, block (0,0,0) thread (0,0,0), SM 0"
    assert seen.text == f"core dump of pid 7: {expected}; kept as cores/kept/core.7.1"


def test_no_work_on_the_gpu_clears():
    seen = seen_in(SAMPLES["misaligned-innocent"])
    assert (seen.fault_class, seen.is_proof, seen.clears) == (FaultClass.UNKNOWN, False, True)


def test_work_without_an_exception_neither_accuses_nor_clears():
    seen = seen_in(made.core(made.work(lanes=[made.lane()])))
    assert (seen.is_proof, seen.clears) == (False, False)


def test_a_dump_of_nobody_known_proves_and_clears_nothing():
    assert not seen_in(SAMPLES["trap-culprit"], None).is_proof
    assert not seen_in(SAMPLES["trap-innocent"], None).clears


def test_an_exception_of_the_mmu_is_no_proof():
    """The contents of dumps after an MMU fault under MPS were not measured."""
    seen = seen_in(made.core(made.work(lanes=[made.lane(exception=14)])))
    assert (seen.fault_class, seen.is_proof) == (FaultClass.MMU, False)


@pytest.mark.parametrize(
    ("pid", "inside", "owner"),
    [
        pytest.param(100, {}, ONE, id="never asked: taken to be in our namespace"),
        pytest.param(7, {ONE: 7}, ONE, id="in a container"),
        pytest.param(100, {ONE: 7}, None, id="our number of it is not its own"),
        pytest.param(7, {ONE: 7, OTHER: 7}, None, id="two containers"),
        pytest.param(300, {}, None, id="no client of ours"),
    ],
)
def test_the_owner_is_who_calls_itself_so(pid, inside, owner):
    assert find_owner(pid, [ONE, OTHER], inside) == owner


@pytest.mark.parametrize(
    ("lineages", "owner"),
    [
        pytest.param([(100, 50)], ONE, id="itself"),
        pytest.param([(300, 100, 50)], ONE, id="a child of it"),
        pytest.param([(100, 200, 50)], ONE, id="a client that is another's child"),
        pytest.param([(300, 50)], None, id="no client of ours"),
        pytest.param([(100, 50), (300, 100)], ONE, id="itself and a child of it"),
        pytest.param([(100, 50), (200, 50)], None, id="two clients"),
        pytest.param([(100, 50), (300, 50)], None, id="a client and a stranger"),
    ],
)
def test_the_owner_is_who_wrote_it(lineages, owner):
    assert find_writer(lineages, [ONE, OTHER]) == owner


def test_a_process_is_asked_for_its_own_pid():
    assert pid_inside(os.getpid()) is not None
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert pid_inside(gone.pid) is None


@pytest.mark.parametrize("name", [r"\fNSpid: z", r"\vNSpid: 7", r"\034NSpid: 7", r"\nNSpid: 7", r"\rNSpid: 7"])
def test_a_name_says_nothing_of_the_pid(name):
    """A name that could not be read ended every mpsd that adopted the client."""
    with subprocess.Popen(["sh", "-c", f"printf '{name}' > /proc/$$/comm && echo set && read end"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as named:  # fmt: skip
        assert named.stdout.readline() == b"set\n"
        try:
            assert pid_inside(named.pid) == named.pid
        finally:
            named.stdin.close()


@pytest.mark.root
def test_in_another_pid_namespace_it_is_another_number():
    child = subprocess.Popen(["unshare", "--pid", "--fork", "cat"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        end = time.monotonic() + 10
        while child.poll() is None and time.monotonic() < end and not children.read_text().split():
            os.sched_yield()
        if child.poll() is not None:
            pytest.skip(f"no pid namespaces here: {child.stderr.read().decode()}")
        assert pid_inside(int(children.read_text().split()[0])) == 1
    finally:
        child.communicate()


@pytest.fixture
def by_name(monkeypatch):
    """A kernel that does not report a file's writer, as for an mpsd without root."""

    def refuse(directory):
        raise PermissionError(errno.EPERM, "fanotify_init: Operation not permitted")

    monkeypatch.setattr(core_dumps, "FileWriters", refuse)


async def test_a_dump_that_is_written_is_told_of_with_its_owner(tmp_path, by_name):
    """The real directory, a real kernel's events.  That the name means it proves nothing."""
    directory = tmp_path / "cores"
    send, receive = trio.open_memory_channel(10)
    asked = []
    source = CoreDumps(directory, lambda uid: asked.append(uid) or [ONE, OTHER])
    async with running(source.run, send.send_nowait):
        with trio.fail_after(10):
            await trio.testing.wait_all_tasks_blocked()
            assert source.absent == ""
            name = Path(environment(directory)["CUDA_COREDUMP_FILE"]).name.replace("%h", "node").replace("%p", "200")
            (directory / name).write_bytes(SAMPLES["trap-culprit"])
            seen = await receive.receive()
    assert (seen.process, seen.is_proof, seen.kernel) == (OTHER, False, "trap")
    assert abs(time.monotonic_ns() - seen.seen_ns) < 10e9
    assert asked == [os.getuid()]
    assert source.absent == "stopped"


@pytest.mark.root
@pytest.mark.parametrize(
    ("clients", "is_ours"),
    [
        pytest.param([ProcessId(os.getpid(), 5), OTHER], True, id="whatever it calls itself"),
        pytest.param([OTHER], False, id="none of ours wrote it"),
    ],
)
async def test_a_dump_is_of_whoever_wrote_it(tmp_path, clients, is_ours):
    """Its name has another client's pid: by forgery, or from a container in which all have the same pid."""
    directory = tmp_path / "cores"
    send, receive = trio.open_memory_channel(10)
    source = CoreDumps(directory, lambda uid: clients)
    async with running(source.run, send.send_nowait):
        with trio.fail_after(10):
            await trio.testing.wait_all_tasks_blocked()
            (directory / f"core.{OTHER.pid}").write_bytes(SAMPLES["trap-culprit"])
            seen = await receive.receive()
    assert (seen.process, seen.is_proof) == ((clients[0], True) if is_ours else (None, False))


def test_a_process_that_began_after_the_writing_is_not_the_writer():
    ticks = os.sysconf("SC_CLK_TCK")
    assert has_begun(ProcessId(100, 50 * ticks), 50.0)
    assert not has_begun(ProcessId(100, 50 * ticks + 1), 50.0)


WRITE = "import shutil, sys; sys.stdin.read(); shutil.copyfile(sys.argv[1], sys.argv[2])"


@pytest.mark.root
@pytest.mark.parametrize(
    ("is_client", "ends_first", "counts"),
    [
        pytest.param(True, False, True, id="a client that wrote it and ended"),
        pytest.param(True, True, False, id="one that has the pid of a client which had ended before"),
        pytest.param(False, False, False, id="no client, which named it as one"),
    ],
)
async def test_a_dump_of_a_writer_that_has_ended_is_no_other_clients(tmp_path, is_client, ends_first, counts):
    """By then the kernel reports only its pid: the file's name must not accuse a client."""
    directory, sample = tmp_path / "cores", tmp_path / "sample"
    sample.write_bytes(SAMPLES["trap-culprit"])
    send, receive = trio.open_memory_channel(10)
    name = directory / f"core.{OTHER.pid}"
    writer = subprocess.Popen([sys.executable, "-c", WRITE, sample, name], stdin=subprocess.PIPE)  # noqa: ASYNC220
    clients = [ProcessId(writer.pid, 5) if is_client else ONE, OTHER]
    source = CoreDumps(directory, lambda uid: clients, lambda process, at_ns: not ends_first)
    async with running(source.run, send.send_nowait):
        with trio.fail_after(10):
            await trio.testing.wait_all_tasks_blocked()
            writer.communicate()  # it has ended, before mpsd reads the kernel's event
            seen = await receive.receive()
    assert (seen.process, seen.is_proof) == ((clients[0], True) if counts else (None, False))


@pytest.mark.root
async def test_a_dump_without_an_exception_clears_the_client_that_wrote_it(tmp_path):
    """mpsd deletes such a dump, and looked for its writer by the file's name only then."""
    directory, sample = tmp_path / "cores", tmp_path / "sample"
    sample.write_bytes(SAMPLES["trap-innocent"])
    send, receive = trio.open_memory_channel(10)
    writer = subprocess.Popen([sys.executable, "-c", WRITE, sample, directory / "core.1"], stdin=subprocess.PIPE)  # noqa: ASYNC220
    client = ProcessId(writer.pid, 5)
    async with running(CoreDumps(directory, lambda uid: [client]).run, send.send_nowait):
        with trio.fail_after(10):
            await trio.testing.wait_all_tasks_blocked()
            writer.communicate()
            seen = await receive.receive()
    assert (seen.process, seen.clears) == (client, True)
    assert not [each for each in directory.iterdir() if each.is_file()]


async def test_a_look_that_fails_is_repeated(tmp_path, autojump_clock, monkeypatch, by_name):
    """One without a free descriptor ended the source until the next start."""
    directory = tmp_path / "cores"
    directory.mkdir()
    (directory / "core.100").write_bytes(SAMPLES["trap-innocent"])
    monkeypatch.setattr("mpsd.faults.sources.core_dump_directory._QUIET_SECONDS", 0)
    look, left = CoreDirectory.look, 3

    def fail(self, closed):
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return look(self, closed)

    monkeypatch.setattr(CoreDirectory, "look", fail)
    autojump_clock.autojump_threshold = 0.5  # a thread reads the files meanwhile
    send, receive = trio.open_memory_channel(10)
    source = CoreDumps(directory, lambda uid: [ONE])
    with structlog.testing.capture_logs() as logs:
        async with running(source.run, send.send_nowait):
            assert (await receive.receive()).process == ONE
            assert source.absent == ""
    assert [entry["event"] for entry in logs if entry["event"] == "faults.no_core_dumps"] == ["faults.no_core_dumps"]


async def test_a_dump_from_before_the_start_is_told_of_without_an_event(tmp_path, autojump_clock, monkeypatch, by_name):
    directory = tmp_path / "cores"
    directory.mkdir()
    (directory / "core.100").write_bytes(SAMPLES["trap-innocent"])
    monkeypatch.setattr("mpsd.faults.sources.core_dump_directory._QUIET_SECONDS", 0)
    send, receive = trio.open_memory_channel(10)
    async with running(CoreDumps(directory, lambda uid: [ONE]).run, send.send_nowait):
        seen = await receive.receive()
    assert (seen.process, seen.clears) == (ONE, False)


async def test_many_bad_files_make_one_line_in_the_log(tmp_path, autojump_clock, monkeypatch):
    directory = tmp_path / "cores"
    directory.mkdir()
    for number in range(1, 50):
        (directory / f"core.{number}").write_bytes(b"no dump" * 10)
    monkeypatch.setattr("mpsd.faults.sources.core_dump_directory._QUIET_SECONDS", 0)
    autojump_clock.autojump_threshold = 0.5  # a thread reads the files meanwhile
    with structlog.testing.capture_logs() as logs, trio.move_on_after(20):
        await CoreDumps(directory, lambda uid: []).run(lambda seen: None)
    refused = [entry["count"] for entry in logs if entry["event"] == "faults.core_dump_refused"]
    assert refused == [49]


async def test_dumps_of_one_user_leave_time_for_others(tmp_path, monkeypatch, by_name):
    """A user with 240 processes made 235 incidents in half a minute; the last 10,000 of all users are kept."""
    directory = tmp_path / "cores"
    directory.mkdir()
    for number in range(1, 41):
        (directory / f"core.{number}").write_bytes(SAMPLES["trap-culprit"])
    monkeypatch.setattr("mpsd.faults.sources.core_dump_directory._QUIET_SECONDS", 0)
    monkeypatch.setattr("mpsd.faults.sources.core_dump_directory._LOOK_SECONDS", 600)
    monkeypatch.setattr(core_dumps, "_JUDGED", Rate(30, 0))
    judged, begun, judged_before_others = [], trio.Event(), []

    async def other_work() -> None:
        await begun.wait()
        judged_before_others.append(len(judged))

    def judge(seen) -> None:
        judged.append(seen)
        begun.set()

    with structlog.testing.capture_logs() as logs, trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other_work)
            nursery.start_soon(CoreDumps(directory, lambda uid: [ONE]).run, judge)
            while not (left := [each for each in logs if each["event"] == "faults.core_dumps_not_judged"]):  # noqa: ASYNC110
                await trio.sleep(0.01)  # structlog tells of no line
            nursery.cancel_scope.cancel()
    assert (len(judged), left[0]["count"], left[0]["uid"]) == (30, 10, os.getuid())
    assert judged_before_others[0] < 30


async def test_where_there_can_be_no_directory_that_is_said_once(tmp_path):
    source = CoreDumps(tmp_path / "absent" / "cores", lambda uid: [])
    with structlog.testing.capture_logs() as logs:
        await source.run(lambda seen: None)
    assert [entry["event"] for entry in logs] == ["faults.no_core_dumps"]
    assert "No such file" in source.absent


def test_who_is_known_is_bounded(monkeypatch):
    monkeypatch.setattr(core_dumps, "_MOST_KNOWN", 2)
    source = CoreDumps(Path("/nowhere"), lambda uid: [])
    for start_time in range(4):
        source.meet(ProcessId(os.getpid(), start_time))
    assert len(source._inside) == 2


def test_clients_are_told_to_leave_memory_out_of_it():
    flags = environment(Path("/run/cores"))["CUDA_COREDUMP_GENERATION_FLAGS"].split(",")
    assert "skip_global_memory" in flags
    assert "skip_abort" in flags


def test_the_parser_reads_through_a_descriptor(tmp_path):
    """As the directory calls it."""
    path = tmp_path / "core"
    path.write_bytes(SAMPLES["assert_fail-culprit"])
    with path.open("rb") as file:
        core = parse_core(lambda offset, size: os.pread(file.fileno(), size, offset), path.stat().st_size)
    assert core.kernel == "assert_fail"
