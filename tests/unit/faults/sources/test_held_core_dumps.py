"""A directory of core dumps that cannot be used: calls fail, or do not return, since a user holds a lock there."""

import errno
import math
import os
import threading

import pytest
import structlog
import trio

from mpsd.faults.sources import core_dump_directory, core_dumps
from mpsd.faults.sources.core_dumps import CoreDumps
from tests.running import running
from tests.unit.faults.sources.test_core_dump_file import SAMPLES


class Held:
    """Replaces a function by one that does not return before the end of the test.  The kernel would not return it at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.ended, self.calls, self.is_over = threading.Event(), threading.Event(), 0, False
        self._monkeypatch = monkeypatch

    def hold(self, owner: object, name: str) -> None:
        real = getattr(owner, name)

        def wait(*words: object, **facts: object) -> object:
            self.calls += 1
            self.begun.set()
            assert self.ended.wait(60), "held for longer than the test lasts, or called on the event loop"
            if self.is_over:  # else this thread would go on to what the next test holds
                raise OSError(errno.EIO, "the test has ended")
            return real(*words, **facts)

        self._monkeypatch.setattr(owner, name, wait)

    async def wait(self) -> None:
        """Wait until the function has been called."""
        assert await trio.to_thread.run_sync(self.begun.wait, 60)


@pytest.fixture
def held(monkeypatch):
    made = Held(monkeypatch)
    yield made
    made.is_over = True
    made.ended.set()


async def logged(logs: list, event: str) -> dict:
    with trio.fail_after(600):
        while not (found := [entry for entry in logs if entry["event"] == event]):  # noqa: ASYNC110
            await trio.sleep(1)  # structlog has no event for a line
    return found[0]


@pytest.mark.parametrize("call", ["mkdir", "fchmod"])
async def test_an_mpsd_starts_and_ends_while_the_directory_is_held(tmp_path, held, autojump_clock, call):
    """Each new mpsd waited before it served, and could not be killed."""
    autojump_clock.autojump_threshold = 0.5
    held.hold(core_dump_directory.os, call)
    source = CoreDumps(tmp_path / "cores", lambda uid: [])
    with structlog.testing.capture_logs() as logs:
        async with running(source.run, lambda seen: None):
            line = await logged(logs, "faults.no_core_dumps")
            assert line["why"] == source.absent
            assert "does not answer" in line["why"]
            await held.wait()
    assert (len(logs), held.calls, held.ended.is_set()) == (1, 1, False)


@pytest.mark.parametrize("call", ["unlink", "scandir"])
async def test_an_mpsd_ends_while_a_look_is_held(tmp_path, held, autojump_clock, call):
    """`quit` and SIGTERM waited for the look."""
    autojump_clock.autojump_threshold = 0.5
    directory = tmp_path / "cores"
    directory.mkdir()
    (directory / "core.100").write_bytes(SAMPLES["trap-innocent"])
    held.hold(core_dump_directory.os, call)
    source = CoreDumps(directory, lambda uid: [])
    with structlog.testing.capture_logs() as logs:
        async with running(source.run, lambda seen: None):
            line = await logged(logs, "faults.no_core_dumps")
            assert "does not answer" in line["why"]
            await held.wait()
            await trio.sleep(100)
            assert held.calls == 1, "no other look begins meanwhile"
    assert not held.ended.is_set()


async def test_dumps_are_read_again_when_a_held_look_returns(tmp_path, held, autojump_clock, monkeypatch):
    autojump_clock.autojump_threshold = 0.5
    directory = tmp_path / "cores"
    directory.mkdir()
    (directory / "core.100").write_bytes(SAMPLES["trap-innocent"])
    monkeypatch.setattr(core_dump_directory, "_QUIET_SECONDS", 0)
    held.hold(core_dump_directory.os, "unlink")
    send, receive = trio.open_memory_channel(10)
    source = CoreDumps(directory, lambda uid: [])
    with structlog.testing.capture_logs() as logs:
        async with running(source.run, send.send_nowait):
            await held.wait()
            await logged(logs, "faults.no_core_dumps")
            held.ended.set()
            with trio.fail_after(600):
                await receive.receive()
            assert source.absent == ""


async def test_an_mpsd_ends_while_the_events_of_files_are_held(tmp_path, held, monkeypatch):
    """It looks for a file by its name, for which the kernel locks the directory."""
    readable, end = os.pipe()
    os.write(end, b"event")

    class Writers:
        descriptor = readable

        def drain(self) -> None:
            os.read(readable, 100)

        def close(self) -> None:
            raise AssertionError("a thread uses it")

    held.hold(Writers, "drain")
    monkeypatch.setattr(core_dumps, "FileWriters", lambda place: Writers())
    try:
        with trio.fail_after(60):
            async with running(CoreDumps(tmp_path / "cores", lambda uid: []).run, lambda seen: None):
                while not held.begun.is_set():  # noqa: ASYNC110
                    await trio.sleep(0.01)
        assert not held.ended.is_set()
    finally:
        held.ended.set()
        os.close(end)


async def test_where_there_can_be_no_directory_that_is_said_once(tmp_path, autojump_clock, monkeypatch):
    """It ended the source: a directory that could be used later, as with a free descriptor again, was not."""
    autojump_clock.autojump_threshold = 0.5  # a thread looks meanwhile
    monkeypatch.setattr(core_dumps, "_SLOW_SECONDS", math.inf)
    place = tmp_path / "absent"
    source = CoreDumps(place / "cores", lambda uid: [])
    with structlog.testing.capture_logs() as logs:
        async with running(source.run, lambda seen: None):
            await trio.sleep(20)
            assert [entry["event"] for entry in logs] == ["faults.no_core_dumps"]
            assert "No such file" in source.absent
            place.mkdir()
            with trio.fail_after(600):
                while source.absent:  # noqa: ASYNC110
                    await trio.sleep(1)  # no event is set then
