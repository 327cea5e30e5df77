"""The imager: the process that takes images of an arena, started and asked by this one.

The messages are those of mpsd/images/imager/requests.py.  Prose: mpsd's docs/images.md.
"""

import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from mpsd_client import _calls as calls
from mpsd_client import _datagrams
from mpsd_client import _values as values
from mpsd_client._call import Call
from mpsd_client._client import Client
from mpsd_client._enlisting import has_cuda_begun
from mpsd_client._errors import MpsdError

PROGRAM = "mpsd-imager"
MOST_BYTES = 128 << 10  # of a datagram
ROWS_AT_ONCE = 128
BELOW_NORMAL = {"CUDA_MPS_CLIENT_PRIORITY": "1"}  # of the vendor's MPS: the client's kernels come first
START_SECONDS = 60.0  # cuda-bindings are loaded, a context is made
TELL_SECONDS = 0.5  # between two reports of the progress

Row = tuple[int, int, int]  # offset, bytes, the commit that the allocation came with
T = TypeVar("T")
Told = Callable[[int, int], object]  # is called with the bytes that are copied, and those to copy, as known so far


class Asks(Protocol):
    """A Client, or an object with its `ask`."""

    def ask(self, call: Call[T], /) -> T: ...


class ImageError(MpsdError):
    """An image could not be taken, or the imager has ended; what was complete before stays."""


def _program() -> str:
    """Find the program: $MPSD_IMAGER, the one in this Python's folder, or in PATH.  Raises ImageError if it is missing."""
    beside = os.path.join(os.path.dirname(sys.executable), PROGRAM)
    found = os.environ.get("MPSD_IMAGER") or (beside if os.access(beside, os.X_OK) else shutil.which(PROGRAM))
    if not found:
        raise ImageError(f"{PROGRAM} is not in PATH: install mpsd with its extra `images` (pip install 'mpsd[images]')")
    return found


def _has_place(token: str) -> bool:
    """Return whether the lease of this token has a place in addition to this process's."""
    with suppress(MpsdError, OSError), Client(program="mpsd_client") as mpsd:
        for each in mpsd.pages(calls.lease_list()):
            if each.selector.value == token:
                return each.processes > max(each.clients, 1)
    return False


def images_directory() -> Path:
    """Return the directory of this user's images: $MPSD_IMAGES, or mpsd/images in $XDG_STATE_HOME or ~/.local/state.

    Raises ImageError if this user has no home."""
    if chosen := os.environ.get("MPSD_IMAGES"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "mpsd/images"
    except RuntimeError:
        raise ImageError("this user has no home directory: name the directory of the images, or set MPSD_IMAGES") from None


def image_name(arena: str) -> str:
    """Return a name of an image of the arena at this time."""
    return f"{arena[:100]}.{time.strftime('%Y%m%dT%H%M%S')}.{time.time_ns() // 1_000_000 % 1000:03}"


def memory_file(data: bytes) -> int:
    """Return a file in memory with all these bytes, which the caller closes.  Raises OSError: one write may take a part."""
    descriptor = os.memfd_create("image", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class NoSuchImage(ImageError):
    """The image does not exist, or none of the arena."""


class ImagerProcess:
    """A running imager, and the socket to it.  Not for several threads at a time."""

    _environment: Mapping[str, str] = {}  # in addition to this process's

    def __init__(self, *, is_beside_cuda: bool = False) -> None:
        """Start it.  is_beside_cuda: this process will use CUDA, too.  Raises ImageError."""
        environment = os.environ | self._environment
        token = environment.get("MPSD_LEASE", "")
        if token and (is_beside_cuda or has_cuda_begun()) and not _has_place(token):
            del environment["MPSD_LEASE"]  # it would wait for a place as long as this process has it
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [_program()], stdin=theirs.fileno(), env=environment, start_new_session=True  # no Ctrl-C
                )
            except BaseException as exc:
                ours.close()
                if isinstance(exc, OSError):
                    raise ImageError(f"the imager could not be started: {exc}") from None
                raise
        self._socket = ours
        self._progress = os.memfd_create("progress", os.MFD_CLOEXEC)
        self._rows: defaultdict[str, dict[int, Row]] = defaultdict(dict)  # of each arena, by offset

    def warm(self, arena: str = "", directory: str = "") -> None:
        """Let it make its context before it is asked for an image.  arena, directory: unless that arena's newest image then has
        no room beside it."""
        self.ask({"do": "warm", "arena": arena, "directory": directory})

    def begin(self, request: Mapping[str, Any]) -> None:
        """Send the first request."""
        self.ask(request, [self._progress])

    @property
    def progress(self) -> tuple[int, int]:
        """The bytes that are copied, and those to copy, as known so far."""
        data = b"" if self._progress < 0 else os.pread(self._progress, 16, 0)
        copied, to_copy = struct.unpack("=QQ", data or bytes(16))
        return copied, to_copy

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            raise self._ended() from None

    def answer(self, kind: str, timeout: float, told: Told | None = None) -> dict[str, Any]:
        """Return the next answer, which has to be of this kind and without descriptors.  Raises ImageError, TimeoutError."""
        return self.answer_with_files(kind, timeout, told)[0]

    def answer_with_files(self, kind: str, timeout: float, told: Told | None = None) -> tuple[dict[str, Any], list[int]]:
        """Return the next answer and its descriptors, which the caller closes.  told: is called during the wait.

        Raises ImageError, TimeoutError."""
        end = time.monotonic() + timeout
        while told and not self.waits_for_answer(min(TELL_SECONDS, timeout)) and time.monotonic() < end:
            told(*self.progress)
        self._socket.settimeout(max(0.001, end - time.monotonic()))
        try:
            answer = _datagrams.receive(self._socket, MOST_BYTES)
        except TimeoutError:
            raise TimeoutError(f"the imager did not answer `{kind}` within {timeout} s") from None
        except ConnectionResetError:
            raise self._ended() from None
        data, files = answer.data, list(answer.fds)
        if answer.is_cut:
            _datagrams.close_all(files)
            raise ImageError("this process has no room for the descriptors of the imager's answer")
        if not data:
            raise self._ended()
        found: dict[str, Any] = json.loads(data)
        if found["is"] != kind:
            kind_of_failure = NoSuchImage if found.get("is_missing") else ImageError
            raise kind_of_failure(found.get("why", f"the imager answered {found['is']} instead of {kind}"))
        return found, files

    def follow(self, arena: str, pages: Iterable[tuple[Sequence[Row], Sequence[int]]]) -> None:
        """Give the imager the arena's allocations, and let it drop those that the arena does not have any more.

        pages: rows with a descriptor for each, which are closed here."""
        known, present = self._rows[arena], set[int]()
        for number, (rows, descriptors) in enumerate(pages):
            try:
                if number:  # the socket holds only so many descriptors while the imager starts
                    self.ask({"do": "wait"})
                    self.answer("ready", START_SECONDS)
                fresh = [place for place, row in enumerate(rows) if known.get(row[0]) != row]
                present.update(row[0] for row in rows)
                if fresh:
                    items = [rows[place] for place in fresh]
                    sent = [descriptors[place] for place in fresh]
                    self.ask({"do": "allocations", "arena": arena, "items": items}, sent)
                    known.update((row[0], row) for row in items)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        gone = sorted(set(known) - present)
        for first in range(0, len(gone), ROWS_AT_ONCE):
            self.ask({"do": "drop", "arena": arena, "offsets": gone[first : first + ROWS_AT_ONCE]})
        for offset in gone:
            del known[offset]

    def follow_opened(self, mpsd: Asks, arena: values.Arena) -> None:
        """Give the imager the allocations of an arena that the caller has open through `mpsd`."""
        self.follow(arena.name, _pages(mpsd, arena.id))

    @property
    def has_answered(self) -> bool:
        return self.waits_for_answer(0)

    def waits_for_answer(self, seconds: float) -> bool:
        """Return whether an answer comes within this time."""
        look = select.poll()
        look.register(self._socket, select.POLLIN)
        return bool(look.poll(seconds * 1000))  # also at its end, which `answer` reports

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _ended(self) -> ImageError:
        try:
            status: object = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            status = "unknown"
        return ImageError(f"the imager has ended, with status {status}: its standard error says why")

    def close(self) -> None:
        """Let the imager end by itself; an image that is staged is finished before.  A thread reaps the process then."""
        self._socket.close()
        if self._progress >= 0:
            os.close(self._progress)
            self._progress = -1
        if self._process.poll() is None:
            with suppress(RuntimeError):  # no thread is left for this process: its next Popen reaps the imager
                threading.Thread(target=self._process.wait, name="mpsd-imager", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def start_imager() -> ImagerProcess:
    """Start an imager for one later `restore_arena` or `restore_image`, which then need not wait for its start.

    It is a client of MPS like any other: with its context it takes a place, and memory of the GPU.  `close` lets it go, unless
    it was given to one of them.  Raises ImageError."""
    made = ImagerProcess(is_beside_cuda=True)
    try:
        made.warm()
    except BaseException:
        made.close()
        raise
    return made


def _pages(mpsd: Asks, arena_id: int) -> Iterator[tuple[Sequence[Row], Sequence[int]]]:
    after = None
    while True:
        page = mpsd.ask(calls.arena_take(arena_id, after))
        yield [(row[0], row[1], row[2]) for row in page.items], page.fds
        after = page.next
        if after is None:
            return


class Imager(ImagerProcess):
    """An imager of some arenas, which lasts from image to image."""

    _environment = BELOW_NORMAL

    def __init__(self, arenas: Sequence[Mapping[str, Any]], directory: Path) -> None:
        """arenas: the facts of each, by the names of `open`.  Raises ImageError."""
        super().__init__()
        try:
            for number, arena in enumerate(arenas):
                send = self.ask if number else self.begin
                send({"do": "open", "directory": str(directory.absolute()), **arena})  # a failure is the next answer
        except BaseException:
            self.close()
            raise

    def facts(self, arena: str, commit: int, generation: int, layout: int | None, state: tuple[int, int] | None) -> None:
        """Send the facts of the arena at the barrier, before `stage`.  layout: a descriptor.  state: one, and the generation of
        the writer.  The caller keeps them."""
        descriptors = [each for each in (layout, state[0] if state else None) if each is not None]
        asked = {"arena": arena, "commit": commit, "generation": generation, "state_generation": state[1] if state else 0}
        self.ask({"do": "facts", "has_layout": layout is not None, "has_state": state is not None, **asked}, descriptors)
