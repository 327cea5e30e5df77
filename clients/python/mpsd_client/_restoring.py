"""An arena made of an image: the imager fills memory, and this process gives it to mpsd.  It needs no CUDA.

Prose: mpsd's docs/images.md, "Restoring an image".
"""

import fcntl
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mpsd_client import _calls as calls
from mpsd_client import _values as values
from mpsd_client._call import Call
from mpsd_client._client import Client
from mpsd_client._errors import ErrorCode, MpsdError, Refused
from mpsd_client._imager import START_SECONDS, ImagerProcess, NoSuchImage, Told, images_directory
from mpsd_client._native import ffi, lib
from mpsd_client._state_reader import check

KILLED_TTL = 60.0  # an arena that is not restored yet expires so soon after the end of this process
FILL_SECONDS = 6 * 3600.0  # for one allocation, from a slow disk
T = TypeVar("T")


class Asks(Protocol):
    """A Client, or an object with its `ask`."""

    def ask(self, call: Call[T], /) -> T: ...


def restore_image(
    mpsd: Asks, image: str, name: str = "", *, arena: str = "", gpu: str = "", mode: int = 0o600, ttl: float | None = None,
    directory: str | os.PathLike[str] | None = None, told: Told | None = None,
) -> values.Arena:  # fmt: skip
    """Make an arena with the memory, the layout and the forward state of an image; return it committed and closed.

    image: "": the newest one of `arena`.  name: of the new arena; "": as in the image.  arena: which, if the image has several.
    gpu: ordinal or UUID; "": the same GPU.  mode, ttl: as for Arena.create.  told: called with the bytes that are restored and
    all of them, each half second and after each part.  The new arena has addresses of its own.
    Raises ImageError (the image does not exist, or is damaged), Refused (an arena has the name; no room), TimeoutError; the new
    arena is then removed.
    """
    place = Path(directory) if directory else images_directory()
    imager = ImagerProcess()
    with ExitStack() as stack:
        stack.callback(imager.close)
        imager.begin({"do": "restore", "image": image, "arena": arena, "directory": str(place.absolute())})
        found, files = imager.answer_with_files("found", START_SECONDS)
        for each in files:
            stack.callback(os.close, each)
        wanted = name or found["arena"], gpu or found["gpu"], found["capacity_bytes"], found["window_bytes"]
        made = mpsd.ask(calls.arena_create(*wanted, mode=mode, ttl_seconds=KILLED_TTL))
        try:
            _fill(mpsd, imager, made, found, files, told)
            mpsd.ask(calls.arena_change(made.id, ttl_seconds=ttl or 0.0))
            return mpsd.ask(calls.arena_close(made.id))
        except BaseException:
            with suppress(MpsdError):
                mpsd.ask(calls.arena_close(made.id))
            with suppress(MpsdError):
                mpsd.ask(calls.arena_remove(made.name))
            raise


def restore_if_missing(
    name: str, gpu: str, path: str | os.PathLike[str] | None, directory: str | os.PathLike[str] | None, *, mode: int, ttl: float
) -> None:
    """Make the arena `name` of the newest image of an arena of this name, if it does not exist, or was never committed and no
    process has it: that of a restorer that was killed.  Does nothing without an image.  Raises as restore_image does.

    It locks the directory: of several processes that miss the arena, one restores it, and the others find it complete.
    """
    place = Path(directory) if directory else images_directory()
    if not place.is_dir():
        return
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # the end of the process that has it ends the wait
        with Client(path, program="mpsd_client") as mpsd:
            if _is_missing(mpsd, name):
                restore_image(mpsd, "", name, arena=name, gpu=gpu, mode=mode, ttl=ttl, directory=directory)
    except NoSuchImage:
        pass
    finally:
        os.close(descriptor)


def _is_missing(mpsd: Asks, name: str) -> bool:
    try:
        found = mpsd.ask(calls.arena_get(name))
    except Refused as exc:
        if exc.code != ErrorCode.NO_SUCH_ARENA:
            raise
        return True
    if found.commit or found.unheld_since is None:
        return False
    mpsd.ask(calls.arena_remove(name))
    return True


def _fill(
    mpsd: Asks, imager: ImagerProcess, made: values.Arena, facts: dict[str, Any], files: list[int], told: Told | None
) -> None:
    """Put the memory into the arena, and commit it with layout and forward state."""
    generation = mpsd.ask(calls.arena_open(made.name, "write")).generation
    done = 0
    while True:
        imager.ask({"do": "fill", "gpu": made.gpu, "done": done})
        part, descriptors = imager.answer_with_files("filled", FILL_SECONDS, told)
        if not descriptors:
            break
        try:
            mpsd.ask(calls.arena_put(made.id, generation, part["items"], descriptors))
        finally:
            for each in descriptors:
                os.close(each)
        done += len(descriptors)
        if told:
            told(*imager.progress)
    state = _State(files[-1], generation) if facts["has_state"] else None
    layout = files[0] if facts["has_layout"] else None
    mpsd.ask(calls.arena_commit(made.id, generation, layout, None if state is None else state.descriptor))


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
        self.descriptor = int(lib.mpsd_state_fd(self._state))
