"""The reader's start, by which mpsd gets a descriptor of its status, and what it reads beside stat and links."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.host import process_reader
from mpsd.host.process_reader import ProcessReader, Unanswered


@pytest.fixture
def reader() -> Iterator[ProcessReader]:
    made = ProcessReader(lambda _: 0)
    yield made
    made.close()


def test_texts_of_a_process(reader: ProcessReader) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            for name in ("comm", "uid_map"):
                assert reader.text(child.pid, name) == Path(f"/proc/{child.pid}/{name}").read_bytes()
            assert reader.text(child.pid, "status").startswith(b"Name:\tsleep\n")
            assert child.pid in reader.children(os.getpid())
            assert reader.threads(child.pid) == [child.pid]
            for word in ("environ", "../1/environ", ""):
                with pytest.raises(OSError, match="EINVAL"):
                    reader.text(child.pid, word)
        finally:
            child.kill()


def test_a_reader_leaves_no_descriptor_open(reader: ProcessReader) -> None:
    """With the process goes the descriptor of its status."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        reader.stat(os.getpid())
        reader.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_new_reader_that_does_not_start_delays_mpsd_seldom(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user may hold the directory of the new process before it has looked up its own status."""
    program = tmp_path / "reader"
    program.write_text("#!/bin/sh\nread line <&3\n")
    program.chmod(0o700)
    reader = ProcessReader(lambda _: 0, program)
    monkeypatch.setattr(process_reader, "_START_SECONDS", 0.05)
    with pytest.raises(Unanswered, match="does not start"):
        reader.stat(os.getpid())
    with monkeypatch.context() as patch:
        patch.setattr(reader, "_start", lambda: pytest.fail("another one was started at once"))
        with pytest.raises(Unanswered, match="did not start"):
            reader.stat(os.getpid())
    monkeypatch.setattr(process_reader, "_START_SECONDS", 60.0)
    monkeypatch.setattr(reader, "_start", ProcessReader(lambda _: 0)._start)
    monkeypatch.setattr(reader, "_rest_until", 0.0)
    assert reader.stat(os.getpid())
    reader.close()
