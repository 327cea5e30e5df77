"""The kernel's reports of a dump's writer, for which mpsd had no descriptor at its start."""

import errno
import os
from pathlib import Path

import pytest
import structlog
import trio

from mpsd.faults.sources import core_dumps
from mpsd.faults.sources.core_dumps import CoreDumps
from mpsd.host.file_writers import FileWriters
from tests.running import running
from tests.unit.faults.sources.test_core_dumps import opened, write_and_end

__all__ = ["write_and_end"]  # a fixture
pytestmark = pytest.mark.root


async def test_dumps_prove_again_once_a_descriptor_is_free(tmp_path, write_and_end, monkeypatch) -> None:
    """A moment without a free descriptor left them without a known writer until the next start of mpsd."""
    left = 2

    def open_writers(directory: Path) -> FileWriters:
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return FileWriters(directory)

    monkeypatch.setattr(core_dumps, "FileWriters", open_writers)
    monkeypatch.setattr(core_dumps, "_LOOK_SECONDS", 0.05)
    send, receive = trio.open_memory_channel(10)
    client, end = write_and_end("trap-culprit", tmp_path / "cores/core.1")
    source = CoreDumps(tmp_path / "cores", lambda uid: [client])
    with structlog.testing.capture_logs() as logs:
        async with running(source.run, send.send_nowait):
            with trio.fail_after(10):
                await opened(source)
                while source._writers is None:  # noqa: ASYNC110  no event is set then
                    await trio.sleep(0.01)
                end()
                seen = await receive.receive()
    assert (seen.process, seen.is_proof) == (client, True)
    assert [each["event"] for each in logs].count("faults.core_dumps_by_name") == 1


async def test_a_kernel_without_such_reports_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def refuse(directory: Path) -> FileWriters:
        nonlocal asked
        asked += 1
        raise PermissionError(errno.EPERM, "fanotify_init: Operation not permitted")

    monkeypatch.setattr(core_dumps, "FileWriters", refuse)
    monkeypatch.setattr(core_dumps, "_LOOK_SECONDS", 0.01)
    async with running(CoreDumps(tmp_path / "cores", lambda uid: []).run, print):
        await trio.sleep(0.1)
    assert asked == 1
