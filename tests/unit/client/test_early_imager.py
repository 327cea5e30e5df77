"""When an imager is started before its arena is restored, when it may have a context, and when it is let go."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from mpsd_client import ErrorCode, ImageError, Refused, _early_imager, images_directory
from mpsd_client._early_imager import EarlyImager, early_imager
from mpsd_client._imager import ImagerProcess

# Writes each request to a FIFO, which it opens to read as well: else it would wait for a reader, if that has gone.
FAKE = """#!{python}
import os, socket
connection, told = socket.socket(fileno=0), open({told!r}, "r+b", 0)
while data := connection.recv(1 << 17):
    told.write(data + b"\\n")
"""
MISSING = Refused(ErrorCode.NO_SUCH_ARENA, "NO_SUCH_ARENA", "no such arena")


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Return what the imager is asked, as a descriptor that ends with it."""
    path, program = tmp_path / "told", tmp_path / "imager"
    os.mkfifo(path)
    program.write_text(FAKE.format(python=sys.executable, told=str(path)))
    program.chmod(0o700)
    monkeypatch.setenv("MPSD_IMAGER", str(program))
    (tmp_path / "images/complete").mkdir(parents=True)
    (tmp_path / "images/complete/one").touch()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    held = os.open(path, os.O_WRONLY)  # else it reads an end before the imager has started
    yield descriptor
    os.close(descriptor)
    os.close(held)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return whether this process has begun CUDA."""
    begun = threading.Event()
    monkeypatch.setattr(_early_imager, "has_cuda_begun", begun.is_set)
    return begun


def mpsd(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    """Let mpsd have this arena, or refuse."""

    def ask(_: object) -> object:
        if isinstance(found, Exception):
            raise found
        return found

    class FakeClient:
        def __init__(self, *_: object, **__: object) -> None:
            if isinstance(found, OSError):
                raise found

        def __enter__(self) -> SimpleNamespace:
            return SimpleNamespace(ask=ask)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(_early_imager, "Client", FakeClient)


def test_a_context_is_made_after_that_of_the_program(said: int, cuda: threading.Event, tmp_path: Path) -> None:
    """The program must not wait for the place, or lack the memory, that its imager has."""
    early = EarlyImager("llm", tmp_path / "images")
    os.set_blocking(said, False)
    thread = next(each for each in threading.enumerate() if each.name == "mpsd imager")
    thread.join(0.1)
    with pytest.raises(BlockingIOError):
        os.read(said, 100)
    os.set_blocking(said, True)
    cuda.set()
    assert os.read(said, 1000) == b'{"do": "warm", "arena": "llm", "directory": "%s/images"}\n' % bytes(tmp_path)
    imager = early.take()
    assert imager is not None
    assert early.take() is None
    thread.join(20)
    assert not thread.is_alive()
    assert imager.is_alive, "it is the caller's now"
    imager.close()
    imager._process.wait(20)


def test_one_that_is_not_needed_ends(
    said: int, cuda: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_early_imager, "UNUSED_SECONDS", 0.05)
    early = EarlyImager("llm", tmp_path / "images")
    imager = early._imager
    assert imager is not None
    imager._process.wait(20)
    assert early.take() is None


def test_one_that_has_ended_is_no_trouble(said: int, cuda: threading.Event, tmp_path: Path) -> None:
    """The restore starts another one."""
    early = EarlyImager("llm", tmp_path / "images")
    assert early._imager is not None
    early._imager._process.kill()
    early._imager._process.wait(20)
    early._warm("llm", "/images")
    imager = early.take()
    assert imager is not None
    imager.close()


@pytest.mark.parametrize(
    ("found", "is_started"),
    [
        pytest.param(MISSING, True, id="missing"),
        pytest.param(SimpleNamespace(layout_hash="a hash", unheld_since=None), False, id="there"),
        pytest.param(Refused(ErrorCode.STOPPING, "STOPPING", "it quits"), False, id="mpsd quits"),
        pytest.param(FileNotFoundError(2, "no socket"), False, id="mpsd is away"),
    ],
)
def test_it_is_started_if_its_arena_is_missing(
    said: int, cuda: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: object, is_started: bool
) -> None:
    mpsd(monkeypatch, found)
    early = early_imager("llm", "/mpsd.sock", tmp_path / "images")
    assert (early is not None) == is_started
    if early is not None:
        early.close()


@pytest.mark.parametrize("trouble", ["no images", "no directory", "no program"])
def test_none_is_started_that_could_not_restore(
    said: int, cuda: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    mpsd(monkeypatch, MISSING)
    if trouble == "no program":
        monkeypatch.setenv("MPSD_IMAGER", "/nonexistent")
    else:
        (tmp_path / "images/complete/one").unlink()
    if trouble == "no directory":
        (tmp_path / "images/complete").rmdir()
    assert early_imager("llm", "/mpsd.sock", tmp_path / "images") is None


def test_none_is_started_for_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many containers have: a RuntimeError of pathlib ended the construction of a Service."""
    for name in ("HOME", "MPSD_IMAGES", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert early_imager("llm", "/mpsd.sock", None) is None
    with pytest.raises(ImageError, match="no home"):
        images_directory()


def test_none_is_kept_where_no_thread_can_be_started(
    said: int, cuda: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program goes on without it, as it would without the imager's program."""
    mpsd(monkeypatch, MISSING)
    made: list[ImagerProcess] = []

    class Kept(ImagerProcess):
        def __init__(self, *, is_beside_cuda: bool = False) -> None:
            super().__init__(is_beside_cuda=is_beside_cuda)
            made.append(self)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_early_imager, "ImagerProcess", Kept)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert early_imager("llm", "/mpsd.sock", tmp_path / "images") is None
    made[0]._process.wait(20)
