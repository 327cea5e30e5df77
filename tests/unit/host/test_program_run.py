"""Programs that the inspector starts: children of mpsd's, with no descriptor but those that they were given."""

import errno
import os
import resource
import signal
import sys
import time
from pathlib import Path

import pytest
import trio

from mpsd.host import processes
from mpsd.host.inspector import Inspector
from mpsd.host.process_reader import ProcessReader
from mpsd.host.program_run import run_program
from tests.inspecting import INSPECTOR

SHELL = "/bin/sh"


async def sh(script: str, text: bytes = b"", uid: int | None = None, **environment: str) -> tuple[int, bytes]:
    with trio.fail_after(60):
        return await run_program(INSPECTOR, [SHELL, "-c", script], text, environment, uid)


async def test_status_and_output_come_back() -> None:
    assert await sh('cat; echo "$WHO" >&2; exit 7', b"words\n", WHO="me") == (7, b"words\nme\n")
    assert (await sh("kill -9 $$"))[0] == -9


async def test_a_program_has_its_own_session_and_nothing_of_mpsds() -> None:
    """/bin/sh lists its descriptors by itself."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(null, True)
    try:
        _, output = await sh("echo /proc/self/fd/*; echo $PPID; pwd; env; exec cat /proc/self/stat")
    finally:
        os.close(null)
    links, parent, directory, *environment, stat = output.decode().splitlines()
    assert {Path(each).name for each in links.split()} <= {"0", "1", "2", "3"}  # 3: of the directory itself
    assert int(parent) == os.getpid()
    assert directory == "/"
    assert {each.partition("=")[0] for each in environment} <= {"PWD", "OLDPWD", "SHLVL", "_"}
    assert stat.split()[0] == stat.split()[5], "the leader of its session"


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a program of another user")
async def test_a_program_of_another_user() -> None:
    """Not with the group that has the number of the user, which may be any."""
    assert await sh("id -u; id -g; id -G", uid=65534) == (0, b"65534\n2147483646\n2147483646\n")


async def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    for program, error in ((tmp_path / "absent", errno.ENOENT), (tmp_path, errno.EACCES)):
        with pytest.raises(OSError, match=os.strerror(error)):
            await run_program(INSPECTOR, [str(program)], b"", {})


async def test_a_program_that_gets_no_pipe_takes_no_descriptor() -> None:
    """Each attempt kept the first of its two pipes, for ever, exactly where descriptors had run out."""
    before = set(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(3)]
    for each in free:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, hard))  # for one pipe, and half of another
    try:
        with pytest.raises(OSError, match="Too many open files"):
            await run_program(INSPECTOR, [SHELL, "-c", "true"], b"", {})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert set(os.listdir("/proc/self/fd")) == before


async def test_a_cancelled_program_is_killed() -> None:
    before = set(os.listdir("/proc/self/fd"))
    began = time.monotonic()
    with trio.move_on_after(0.2) as waiting:
        await sh("trap '' TERM INT; sleep 600")
    assert waiting.cancelled_caught
    assert time.monotonic() - began < 60
    assert set(os.listdir("/proc/self/fd")) == before


def test_an_inspector_starts_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that waits is replaced on the event loop, where an exec in mpsd could wait for a client's file."""
    reader = ProcessReader(processes.effective_uid)
    reader.start_by(INSPECTOR.start_reader)
    monkeypatch.delattr(os, "posix_spawn")
    try:
        assert reader.stat(os.getpid()).split()[0] == str(os.getpid()).encode()
        assert processes.parent(reader.pid) == os.getpid()
        os.kill(reader.pid, signal.SIGKILL)
        assert reader._process.has_ended(30)
        assert reader.linked_file(os.getpid(), "exe").path == os.path.realpath(sys.executable)
    finally:
        reader.close()


def test_a_program_of_an_asker_that_waits_no_longer_does_not_start(tmp_path: Path) -> None:
    """mpsd has reported by then that it cannot be started."""
    inspector = Inspector(deadline_seconds=0.1)
    inspector.start()
    stopped = inspector.pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(OSError, match="in time"):
            inspector.start_program(["/bin/touch", str(tmp_path / "started")], {}, [0, 1, 2])
        assert inspector.pid != stopped
        assert not (tmp_path / "started").exists()
    finally:
        inspector.close()
