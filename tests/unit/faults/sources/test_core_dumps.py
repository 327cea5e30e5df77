"""Core dumps as a source: whom they accuse, whom they clear, and where they cannot be read."""

import errno
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog
import trio

from mpsd.fairness.rates import Rate
from mpsd.faults.sources import core_dumps
from mpsd.faults.sources.core_dump_directory import CoreDirectory, Dump
from mpsd.faults.sources.core_dump_file import parse_core
from mpsd.faults.sources.core_dumps import CoreDumps, environment, find_owner, find_writer, observe
from mpsd.host import processes
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


CHILD, SHELL = ProcessId(300, 7), ProcessId(50, 1)


@pytest.mark.parametrize(
    ("lineages", "owner"),
    [
        pytest.param([(ONE, SHELL)], ONE, id="itself"),
        pytest.param([(CHILD, ONE, SHELL)], ONE, id="a child of it"),
        pytest.param([(ONE, OTHER, SHELL)], ONE, id="a client that is another's child"),
        pytest.param([(CHILD, SHELL)], None, id="no client of ours"),
        pytest.param([(ProcessId(ONE.pid, 9), SHELL)], None, id="a later process with its pid"),
        pytest.param([(ONE, SHELL), (CHILD, ONE)], ONE, id="itself and a child of it"),
        pytest.param([(ONE, SHELL), (OTHER, SHELL)], None, id="two clients"),
        pytest.param([(ONE, SHELL), (CHILD, SHELL)], None, id="a client and a stranger"),
        pytest.param([], None, id="not known"),
    ],
)
def test_the_owner_is_who_wrote_it(lineages, owner):
    assert find_writer(lineages, [ONE, OTHER]) == owner


def test_a_process_is_asked_for_its_own_pid():
    assert processes.pid_inside(os.getpid()) is not None
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert processes.pid_inside(gone.pid) is None


@pytest.mark.parametrize("name", [r"\fNSpid: z", r"\vNSpid: 7", r"\034NSpid: 7", r"\nNSpid: 7", r"\rNSpid: 7"])
def test_a_name_says_nothing_of_the_pid(name):
    """A name that could not be read ended every mpsd that adopted the client."""
    with subprocess.Popen(["sh", "-c", f"printf '{name}' > /proc/$$/comm && echo set && read end"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as named:  # fmt: skip
        assert named.stdout.readline() == b"set\n"
        try:
            assert processes.pid_inside(named.pid) == named.pid
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
        assert processes.pid_inside(int(children.read_text().split()[0])) == 1
    finally:
        child.communicate()


@pytest.fixture
def by_name(monkeypatch):
    """A kernel that does not report a file's writer, as for an mpsd without root."""

    def refuse(directory):
        raise PermissionError(errno.EPERM, "fanotify_init: Operation not permitted")

    monkeypatch.setattr(core_dumps, "FileWriters", refuse)


async def opened(source: CoreDumps) -> None:
    """Wait until it reads dumps: it opens the directory in a thread."""
    while source.absent:  # noqa: ASYNC110
        await trio.sleep(0.01)  # no event is set then


async def test_a_dump_that_is_written_is_told_of_with_its_owner(tmp_path, by_name):
    """The real directory, a real kernel's events.  That the name means it proves nothing."""
    directory = tmp_path / "cores"
    send, receive = trio.open_memory_channel(10)
    asked = []
    source = CoreDumps(directory, lambda uid: asked.append(uid) or [ONE, OTHER])
    async with running(source.run, send.send_nowait):
        with trio.fail_after(10):
            await opened(source)
            name = Path(environment(directory)["CUDA_COREDUMP_FILE"]).name.replace("%h", "node").replace("%p", "200")
            (directory / name).write_bytes(SAMPLES["trap-culprit"])
            seen = await receive.receive()
    assert (seen.process, seen.is_proof, seen.kernel) == (OTHER, False, "trap")
    assert abs(time.monotonic_ns() - seen.seen_ns) < 10e9
    assert asked == [os.getuid()]
    assert source.absent == "stopped"


WRITE = "import shutil, sys; sys.stdin.read(); shutil.copyfile(sys.argv[1], sys.argv[2])"


@pytest.fixture
def write_and_end(tmp_path):
    """Start a process that writes a sample to a file; return it and a function that lets it write, and waits until it ended.

    It is not reaped yet, so that no other process has its pid.
    """
    with ExitStack() as started:

        def start(sample, name):
            (tmp_path / "sample").write_bytes(SAMPLES[sample])
            words = [sys.executable, "-c", WRITE, tmp_path / "sample", name]
            made = started.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE))

            def end() -> None:
                made.stdin.close()
                os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOWAIT)

            return processes.find(made.pid), end

        yield start


@pytest.mark.root
@pytest.mark.parametrize(
    ("is_client", "counts"),
    [
        pytest.param(True, True, id="a client that wrote it and ended"),
        pytest.param(False, False, id="no client, which named it as one"),
    ],
)
async def test_a_dump_of_a_writer_that_has_ended_is_no_other_clients(tmp_path, write_and_end, is_client, counts):
    """The file's name must not accuse a client."""
    directory = tmp_path / "cores"
    send, receive = trio.open_memory_channel(10)
    writer, end = write_and_end("trap-culprit", directory / f"core.{OTHER.pid}")
    clients = [writer if is_client else ONE, OTHER]
    source = CoreDumps(directory, lambda uid: clients)
    async with running(source.run, send.send_nowait):
        with trio.fail_after(10):
            await opened(source)
            end()
            seen = await receive.receive()
    assert (seen.process, seen.is_proof) == ((writer, True) if counts else (None, False))


@pytest.mark.root
async def test_a_dump_that_gets_its_name_late_is_not_of_a_later_process_with_its_writers_pid(tmp_path, write_and_end):
    """A container's root could write a dump and end, wait until a client had its pid, and then give the file the client's uid
    and the name of a dump: the change of its ctime made it look written while that client lived."""
    directory = tmp_path / "cores"
    send, receive = trio.open_memory_channel(10)
    writer, end = write_and_end("trap-culprit", directory / "waits")
    clients = [ProcessId(writer.pid, writer.start_time + 1)]
    source = CoreDumps(directory, lambda uid: clients)
    async with running(source.run, send.send_nowait):
        with trio.fail_after(10):
            await opened(source)
            end()
            (directory / "waits").rename(directory / "core.h.1")
            seen = await receive.receive()
    assert (seen.process, seen.is_proof) == (None, False)


HOLD = """
import sys
with open(sys.argv[1], "wb") as file:
    print("open", flush=True)
    sys.stdin.read()
"""
# Another process opens the dump by a link elsewhere, and writes to it.
CHANGE = """
import os, sys
cores = sys.argv[1]
os.mkdir(f"{cores}/d")
os.link(f"{cores}/core.h.1", f"{cores}/d/x")
with open(f"{cores}/d/x", "r+b") as file:
    os.unlink(f"{cores}/d/x")
    file.write(open(sys.argv[2], "rb").read())
"""


@pytest.mark.root
async def test_a_dump_into_which_another_process_wrote_elsewhere_proves_nothing(tmp_path):
    """mpsd watched the directory only."""
    directory, sample = tmp_path / "cores", tmp_path / "sample"
    sample.write_bytes(SAMPLES["trap-culprit"])
    send, receive = trio.open_memory_channel(10)
    clients = []
    source = CoreDumps(directory, lambda uid: clients)
    async with running(source.run, send.send_nowait):
        with trio.fail_after(10):
            await opened(source)
            words = [sys.executable, "-c", HOLD, directory / "core.h.1"]
            with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:  # noqa: ASYNC220
                clients.append(processes.find(client.pid))
                await trio.to_thread.run_sync(client.stdout.readline)
                while not source._writers._found:  # noqa: ASYNC110
                    await trio.sleep(0.001)  # nothing tells of an event that was read
                await trio.run_process([sys.executable, "-c", CHANGE, directory, sample])
                client.stdin.close()
                await trio.to_thread.run_sync(os.waitid, os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)
                seen = await receive.receive()
    assert (seen.kernel, seen.process, seen.is_proof) == ("trap", None, False)


@pytest.mark.root
async def test_a_dump_without_an_exception_clears_the_client_that_wrote_it(tmp_path, write_and_end):
    """mpsd deletes such a dump, and looked for its writer by the file's name only then."""
    directory = tmp_path / "cores"
    send, receive = trio.open_memory_channel(10)
    client, end = write_and_end("trap-innocent", directory / "core.1")
    source = CoreDumps(directory, lambda uid: [client])
    async with running(source.run, send.send_nowait):
        with trio.fail_after(10):
            await opened(source)
            end()
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
