"""An arena made of an image: the imager fills memory, and this process gives it to mpsd.  It needs no CUDA.

Prose: mpsd's docs/images.md, "Restoring an image".
"""

import fcntl
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any

from mpsd_client import _calls as calls
from mpsd_client import _values as values
from mpsd_client._client import Client
from mpsd_client._errors import ErrorCode, MpsdError, Refused
from mpsd_client._imager import START_SECONDS, Asks, ImageError, ImagerProcess, NoSuchImage, Told, images_directory, memory_file
from mpsd_client._layout import LayoutError
from mpsd_client._native import ffi, lib
from mpsd_client._record import Record
from mpsd_client._state_reader import StateReader, check

KILLED_TTL = 60.0  # an arena that is not restored yet expires so soon after the end of this process
FILL_SECONDS = 6 * 3600.0  # for all bytes, from a slow disk
BLOCK_BYTES = 2 << 20  # of an image

def restore_image(
    mpsd: Asks, image: str, name: str = "", *, arena: str = "", gpu: str = "", mode: int = 0o600, ttl: float | None = None,
    directory: str | os.PathLike[str] | None = None, told: Told | None = None, lost: list[tuple[int, int]] | None = None,
    imager: ImagerProcess | None = None,
) -> values.Arena:  # fmt: skip
    """Make an arena with the memory, the layout and the forward state of an image; return it committed and closed.

    image: "": the newest one of `arena`.  name: of the new arena; "": as in the image.  arena: which, if the image has several.
    gpu: ordinal or UUID; "": the same GPU.  mode, ttl: as for Arena.create.  told: called with the bytes that are restored and
    all of them, each half second and after each part.  The new arena has its own addresses.
    lost: a list that gets the (offset, bytes) that are damaged, or that parity cannot rebuild, and are zeros in the new arena;
    None: then there is no arena.
    imager: one that `start_imager` has started earlier; it ends with this call.
    Raises ImageError (the image does not exist, or is damaged), Refused (an arena has the name; no room), TimeoutError; the new
    arena is then removed.
    """
    with ImageSource(image, arena, directory, gpu, imager) as source:
        return _restore(mpsd, source, name, gpu, mode, ttl, told, lost)


def _restore(
    mpsd: Asks, source: "ImageSource", name: str, gpu: str, mode: int, ttl: float | None, told: Told | None = None,
    lost: list[tuple[int, int]] | None = None,
) -> values.Arena:  # fmt: skip
    """Make an arena of the image that was found: see restore_image."""
    made = mpsd.ask(calls.arena_create(*source.wanted(name, gpu), mode=mode, ttl_seconds=KILLED_TTL))
    try:
        generation = mpsd.ask(calls.arena_open(made.name, "write")).generation
        source.fill(range(source.blocks), is_partial=lost is not None)
        source.put(mpsd, made.id, generation, made.gpu)
        filled = source.imager.answer("filled", FILL_SECONDS, told)
        if lost is not None:
            lost += [(offset, size) for offset, size in filled.get("lost", ())]
        if told:
            told(*source.imager.progress)
        state = source.state(generation)
        mpsd.ask(calls.arena_change(made.id, ttl_seconds=ttl or 0.0))  # first: a complete arena must not expire so soon
        mpsd.ask(calls.arena_commit(made.id, generation, source.layout, None if state is None else state.fd))
        return mpsd.ask(calls.arena_close(made.id))
    except BaseException:
        with suppress(MpsdError):
            mpsd.ask(calls.arena_close(made.id))
        with suppress(MpsdError):
            mpsd.ask(calls.arena_remove(made.name))
        raise


class BlockNumbers:
    """The numbers of an arena's blocks, from 0 on by offset."""

    def __init__(self, allocations: Sequence[tuple[int, int]]) -> None:
        self._allocations = allocations
        self._before = list(accumulate((size // BLOCK_BYTES for _, size in allocations), initial=0))

    @property
    def count(self) -> int:
        return self._before[-1]

    def within(self, offset: int, size: int) -> range:
        """Return the numbers of the blocks with these bytes.  Raises LayoutError: some are not in the arena's memory."""
        first, last = self._number(offset), self._number(offset + size - 1)
        if last - first != (offset + size - 1) // BLOCK_BYTES - offset // BLOCK_BYTES:
            raise LayoutError(f"the image does not have all of the {size} bytes at offset {offset:#x}")
        return range(first, last + 1)

    def _number(self, offset: int) -> int:
        at = bisect_right(self._allocations, offset, key=itemgetter(0)) - 1
        if at < 0 or offset >= sum(self._allocations[at]):
            raise LayoutError(f"the image has no memory at offset {offset:#x}")
        return self._before[at] + (offset - self._allocations[at][0]) // BLOCK_BYTES


class ImageSource:
    """An arena of an image, as an imager gives it: first the memory, and then the bytes.  Owns the imager and descriptors."""

    def __init__(
        self, image: str, arena: str, directory: str | os.PathLike[str] | None, gpu: str, imager: ImagerProcess | None = None
    ) -> None:
        """imager: one that was started, and asked nothing; if it has ended since, another one is started."""
        self._stack, self._files = ExitStack(), list[int]()
        self.given: list[tuple[int, int]] = []  # the allocations that mpsd has, or may have, as (offset, bytes)
        if imager is not None:
            self._stack.callback(imager.close)  # also one that has ended
        try:
            place = images_place(directory)
            if imager is None or not imager.is_alive:
                imager = ImagerProcess()
                self._stack.callback(imager.close)
            self.imager = imager
            self._stack.callback(self._take, {"has_layout": False, "has_state": False}, [])
            asked = {"image": image, "arena": arena, "directory": str(place.absolute()), "gpu": gpu}
            self.imager.begin({"do": "restore", **asked})
            facts, files = self.imager.answer_with_files("found", START_SECONDS)
            allocations = files.pop()
            self._take(facts, files)
            self._stack.callback(os.close, allocations)
            numbers = array("Q", os.pread(allocations, os.fstat(allocations).st_size, 0))
            self._allocations = list(zip(numbers[::2], numbers[1::2], strict=True))
            self.done = os.memfd_create("restore", os.MFD_CLOEXEC)  # a byte for each block
            self._stack.callback(os.close, self.done)
            self.numbers = BlockNumbers(self._allocations)
            self.blocks = self.numbers.count
            os.truncate(self.done, self.blocks)
        except BaseException:
            self.close()
            raise

    def _take(self, facts: dict[str, Any], files: list[int]) -> None:
        """Take over what the imager has answered, in place of the image before.  Owns the descriptors."""
        while self._files:
            os.close(self._files.pop())
        self._facts, self._files = facts, files
        self.layout = files[0] if facts["has_layout"] else None
        self._state = files[-1] if facts["has_state"] else None

    @property
    def image(self) -> tuple[str, float]:
        """The image's name and moment."""
        return self._facts["image"], self._facts["instant"]

    def renew(self, wait_seconds: float = 0.0) -> "array[int] | None":
        """Go on with the newest image of the arena, or wait for another one, so long at most.  Return the numbers of the blocks
        to `fill`; None if that image has other allocations, for which another source has to be made.  Raises ImageError: it is
        as before then."""
        self.imager.ask({"do": "renew", "wait_seconds": wait_seconds})
        facts, files = self.imager.answer_with_files("renewed", START_SECONDS)
        if not facts["is_same_memory"]:
            return None
        differ = files.pop()
        self._take(facts, files)
        try:
            return array("I", os.pread(differ, os.fstat(differ).st_size, 0))
        finally:
            os.close(differ)

    def wanted(self, name: str, gpu: str) -> tuple[str, str, int, int]:
        """Return the name, the GPU, the capacity and the window of the new arena."""
        facts = self._facts
        return name or facts["arena"], gpu or facts["gpu"], facts["capacity_bytes"], facts["window_bytes"]

    def put(self, mpsd: Asks, arena: int, generation: int, gpu: str) -> None:
        """Put memory into the arena, uncommitted.  What `fill` has asked begins with the first of it."""
        for name in self._facts.get("others", ()):
            self._give(mpsd, name)
        self.imager.ask({"do": "make", "gpu": gpu, "done": 0})
        while True:
            _, descriptors = self.imager.answer_with_files("made", START_SECONDS)
            try:
                if not descriptors:
                    break
                part = self._allocations[len(self.given) : len(self.given) + len(descriptors)]
                self.given += part
                self.imager.ask({"do": "make", "gpu": gpu, "done": len(self.given)})  # while mpsd takes these
                mpsd.ask(calls.arena_put(arena, generation, part, descriptors))
            finally:
                for each in descriptors:
                    os.close(each)

    def _give(self, mpsd: Asks, name: str) -> None:
        """Give the imager the memory of another arena, from which and from parity it makes the lost one."""
        try:
            other = mpsd.ask(calls.arena_open(name, "read"))
        except Refused as exc:
            self.imager.ask({"do": "other", "arena": name, "why": str(exc)})
            return
        try:
            self.imager.ask({"do": "other", "arena": name, "gpu": other.gpu, "window_bytes": other.window_bytes})
            self.imager.follow_opened(mpsd, other)
            self.imager.ask({"do": "wait"})  # a socket holds only so many descriptors
            self.imager.answer("ready", START_SECONDS)
        finally:
            mpsd.ask(calls.arena_close(other.id))

    def fill(self, order: Iterable[int], *, is_partial: bool = False) -> None:
        """Let the imager copy the blocks in this order; the answer is `filled`, after that memory is put which is missing."""
        numbers = memory_file(array("I", order).tobytes())
        try:
            self.imager.ask({"do": "fill", "is_partial": is_partial}, [numbers, self.done])
        finally:
            os.close(numbers)

    def state(self, generation: int) -> "_State | None":
        return None if self._state is None else _State(self._state, generation)

    def record(self) -> Record | None:
        """Return the last record of the image's forward state.  Raises StateError if it is damaged."""
        if self._state is None:
            return None
        with StateReader.open(self._state) as reader:
            return reader.read()

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> "ImageSource":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def restore_if_missing(
    name: str, gpu: str, path: str | os.PathLike[str] | None, directory: str | os.PathLike[str] | None, *, mode: int,
    ttl: float, take_imager: Callable[[], ImagerProcess | None] = lambda: None,
) -> None:  # fmt: skip
    """Make the arena `name` of the newest image of an arena of this name, if it is missing.  Does nothing without an image.
    Raises as restore_image does.

    Of several processes that miss the arena, one restores it, and the others wait and find it complete.
    take_imager: called by the one that restores; it may return an imager that was started earlier.
    """
    place = images_place(directory)
    if not place.is_dir():
        return
    descriptor = _open_lock(place)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # the end of the process that has it ends the wait
        with Client(path, program="mpsd_client") as mpsd:
            if not has_images(place) or not looks_missing(mpsd, name):
                return
            with ImageSource("", name, directory, gpu, take_imager()) as source:
                if is_missing(mpsd, name):  # only now: an empty arena may have been made in advance, with its settings
                    _restore(mpsd, source, name, gpu, mode, ttl)
    except NoSuchImage:
        pass
    finally:
        os.close(descriptor)


def images_place(directory: str | os.PathLike[str] | None) -> Path:
    return Path(directory) if directory else images_directory()


def has_images(place: Path) -> bool:
    """Return whether the directory has an image; without one, no imager need be started.  Raise OSError."""
    with suppress(FileNotFoundError):
        return bool(os.listdir(place / "complete"))
    return False


def _open_lock(place: Path) -> int:
    """Open a file that no other user ever could: a process that opened the directory earlier may lock that."""
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if os.fstat(directory).st_uid == os.geteuid():
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open("restore-lock", flags, 0o600, dir_fd=directory)
            if os.fstat(descriptor).st_uid == os.geteuid():
                return descriptor
            os.close(descriptor)
    finally:
        os.close(directory)
    raise ImageError(f"{place}, or its lock, belongs to another user, who could keep this process waiting")


def looks_missing(mpsd: Asks, name: str) -> bool:
    """Return whether the arena does not exist, or no process has it and it is what can be removed (_is_left_over)."""
    found = _found(mpsd, name)
    return found is None or _is_left_over(found)


def is_missing(mpsd: Asks, name: str) -> bool:
    """Return whether the arena does not exist.  One that is left over is removed first."""
    found = _found(mpsd, name)
    if found is None or not _is_left_over(found):
        return found is None
    try:  # mpsd lets root remove another user's arena too, but open none by a name without a uid
        mpsd.ask(calls.arena_close(mpsd.ask(calls.arena_open(name, "read")).id))
        mpsd.ask(calls.arena_remove(name))
    except Refused:  # a process has just opened it, or it is another user's
        return False
    return True


def _found(mpsd: Asks, name: str) -> values.Arena | None:
    try:
        return mpsd.ask(calls.arena_get(name))
    except Refused as exc:
        if exc.code != ErrorCode.NO_SUCH_ARENA:
            raise
        return None


def _is_left_over(found: values.Arena) -> bool:
    """Return whether no process has the arena, and it is empty, or what a killed restorer left: no layout, and KILLED_TTL."""
    if found.layout_hash or found.unheld_since is None:
        return False
    return not (found.used_bytes or found.state_serial) or found.ttl_seconds == KILLED_TTL  # a program need not commit a layout


class _State:
    """A forward state of this generation with the last record of the image's: mpsd refuses a later generation than it has
    admitted."""

    def __init__(self, descriptor: int, generation: int) -> None:
        """Raises StateError if the image's state is damaged."""
        reader, fresh = ffi.new("struct mpsd_state_reader **"), ffi.new("struct mpsd_state **")
        check(lib.mpsd_state_open(descriptor, ffi.NULL, 0, reader))
        before = ffi.gc(reader[0], lib.mpsd_state_reader_close)
        size = lib.mpsd_state_reader_bytes(before)
        check(lib.mpsd_state_create(lib.mpsd_state_schema(before), size, generation, fresh))
        self._state = ffi.gc(fresh[0], lib.mpsd_state_close)
        record, stamp = ffi.new("const void **"), ffi.new("struct mpsd_state_stamp *")
        if lib.mpsd_state_latest(before):
            check(lib.mpsd_state_read(before, record, stamp))
            ffi.memmove(lib.mpsd_state_record(self._state), record[0], size)
            check(lib.mpsd_state_update(self._state, 0, size))
        self.fd = int(lib.mpsd_state_fd(self._state))
