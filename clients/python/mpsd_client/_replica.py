"""A replica of a service's arena on another GPU: an arena that this process keeps at the newest image of the service's.

The images survive this process and its imager, and the next replica is made of them.  This arena
has no layout before its turn to serve, so that a process which dies in the middle of a copy leaves nothing that looks complete.
Prose: mpsd's docs/services.md, "A standby on another GPU".
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from mpsd_client import _calls as calls
from mpsd_client._arena import Arena
from mpsd_client._call import Call
from mpsd_client._client import Client
from mpsd_client._errors import Disconnected, ErrorCode, MpsdError, Refused
from mpsd_client._imager import ImageError, NoSuchImage
from mpsd_client._native import lib
from mpsd_client._record import Record
from mpsd_client._restoring import BLOCK_BYTES, FILL_SECONDS, KILLED_TTL, ImageSource, has_images, images_place, is_missing
from mpsd_client._schedule import ImageSchedule
from mpsd_client._session import CudaError

SERVE = "serve"
LAST = (ErrorCode.NOT_ALLOWED, ErrorCode.BAD_REQUEST, ErrorCode.ARENA_SEALED)  # mpsd will never take the replica
PASSING = (ErrorCode.STOPPING, ErrorCode.KEEPER_FAILED, ErrorCode.TOO_MANY, ErrorCode.UNUSABLE_PATH)  # ask again
SUFFIX = ".replica"
LOOK_SECONDS = 0.5  # between two looks at the images, at most
MOVING_SECONDS = 0.005  # in a move: how long the imager waits for the next image, before the replica asks mpsd again
REMOVE_SECONDS = 30.0  # how long the arena of a replica before may be in use still, by a process that was killed
COMPLETE_TRIES = 20
DROPPED_AT_ONCE = 1024  # mpsd takes no more offsets in a call
ANSWER_SECONDS = 10.0
_PASSING = (MpsdError, OSError, TimeoutError)
_log = logging.getLogger("mpsd_client")


class Replica:
    """Used by the thread in Service.standby."""

    def __init__(
        self, service: str, path: str, images: ImageSchedule, bound: float, capacity: int, gpu: str, window: int, mode: int,
        ttl: float,
    ) -> None:  # fmt: skip
        """bound: the lag in seconds at which mpsd publishes that it is too far behind.  The rest: see Service."""
        self._service, self._path, self._bound, self._ttl = service, path, bound, ttl
        self._capacity, self._gpu, self._window, self._mode = capacity, gpu, window, mode
        self._directory, self._pause = images.directory, min(LOOK_SECONDS, images.every / 4)
        self._arena: Arena | None = None
        self._source: ImageSource | None = None
        self._image: tuple[str, float] | None = None  # that the memory has, wholly
        self._given: Sequence[tuple[int, int]] = ()  # the allocations that mpsd was given last, as far as it got
        self._behind_bytes = 0
        self._has_gpu_failed = self._is_moving = False
        self._mpsd: Client | None = None
        self._trouble = ""
        self.record: Record | None = None  # of that image

    def open(self) -> Arena:
        """Make the arena, in place of that of a replica before.  Raises Refused (ARENA_BUSY: the service has a replica)."""
        name = f"{self._service}{SUFFIX}"
        end = time.monotonic() + REMOVE_SECONDS
        while True:
            with Client(self._path, program="mpsd_client") as mpsd:
                is_free = is_missing(mpsd, name)
            with suppress(FileExistsError):
                self._arena = Arena.create(
                    name, self._capacity, self._gpu, window=self._window, mode=self._mode, ttl=KILLED_TTL, path=self._path,
                )  # fmt: skip
                return self._arena
            if not is_free and time.monotonic() > end:
                raise FileExistsError(f"service {self._service} has a replica: arena {name} is in use")
            time.sleep(LOOK_SECONDS)

    def follow(self) -> bool:
        """Copy what the newest image has and the memory lacks, and in a move wait for it.  Return whether memory or layout are
        others than before.  A failure is logged, and the next call tries again."""
        assert self._arena
        before = self._arena.layout
        try:
            if self._source is None and not has_images(images_place(self._directory)):
                return False
            is_new = self._begin(self._arena) if self._source is None else self._renew(self._arena, self._source)
        except NoSuchImage:
            return False
        except (*_PASSING, CudaError) as exc:
            self._note(exc)
            return False
        self._trouble = ""
        return is_new or before != self._arena.layout

    def _note(self, exc: Exception) -> None:
        """Log a failure, once; begin anew next time, unless the imager has answered and the memory is complete."""
        source, has_answered = self._source, isinstance(exc, ImageError)
        if source is not None and (self._image is None or not has_answered or not source.imager.is_alive):
            self._forget()
            self._image = None
        if str(exc) != self._trouble:
            _log.warning("the replica of service %s was not brought up to date: %s", self._service, exc)
        self._trouble = str(exc)

    def _forget(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _begin(self, arena: Arena) -> bool:
        """Copy the whole image to new memory."""
        source = ImageSource("", self._service, self._directory, arena.gpu)
        self._source, self._image = source, None
        with Client(self._path, program="mpsd_client") as mpsd:
            self._empty(arena, mpsd)
            self._given = source.given
            source.put(mpsd, arena.id, arena.generation, arena.gpu)
            mpsd.ask(calls.arena_commit(arena.id, arena.generation))
        arena.refresh()
        self._fill(arena, source, range(source.blocks))
        return True

    def _empty(self, arena: Arena, mpsd: Client) -> None:
        """Free the memory of an image before, since its places may be others' now, and what mpsd got in a failed attempt."""
        for first in range(0, len(self._given), DROPPED_AT_ONCE):
            offsets = [offset for offset, _ in self._given[first : first + DROPPED_AT_ONCE]]
            mpsd.ask(calls.arena_drop(arena.id, arena.generation, offsets))
        for block in arena.blocks():
            arena.free(block)
        arena.commit()

    def _renew(self, arena: Arena, source: ImageSource) -> bool:
        """Copy the blocks in which the newest image differs."""
        differ = source.renew(MOVING_SECONDS if self._is_moving else 0.0)
        if differ is None:
            self._forget()
            return self._begin(arena)
        if source.image != self._image:
            self._fill(arena, source, differ)
        return False

    def _fill(self, arena: Arena, source: ImageSource, order: Sequence[int]) -> None:
        self._image, self._behind_bytes = None, len(order) * BLOCK_BYTES
        source.fill(order)
        source.imager.answer("filled", FILL_SECONDS)
        arena._tensors = arena._spans = arena._layout = None
        if source.layout is not None:
            arena._layout = os.pread(source.layout, os.fstat(source.layout).st_size, 0)
        self.record, self._image, self._behind_bytes = source.record(), source.image, 0

    def is_to_serve(self, seconds: float) -> bool:
        """Report to mpsd how far the replica is, and wait for its turn, so long at most.  mpsd may be away.

        Raises Refused if this process is not to keep the replica any more."""
        assert self._arena
        arena, record = self._arena, self.record
        try:
            if self._mpsd is None:
                self._mpsd = Client(self._path, timeout_seconds=LOOK_SECONDS + ANSWER_SECONDS, program="mpsd_client")
            told = self._mpsd.ask(
                calls.service_replicate(
                    arena.id, arena.generation, self._service, None if self._image is None else self._image[1],
                    state_generation=record.generation if record else 0, sequence=record.sequence if record else 0,
                    behind_bytes=self._behind_bytes, bound_seconds=self._bound, has_gpu_failed=self._has_gpu_failed,
                    wait_seconds=seconds,
                )
            )  # fmt: skip
        except (MpsdError, OSError) as exc:
            self._is_moving = False
            self._away(seconds)
            if isinstance(exc, Refused) and exc.code in LAST:
                raise
            if isinstance(exc, Refused) and exc.code == ErrorCode.STALE_GENERATION:
                arena._restore()  # mpsd's keeper has died; raises if this process is not the writer any more
            return False
        self._has_gpu_failed, self._is_moving = told.has_gpu_failed, told.is_moving
        if told.order != SERVE:
            return False
        _log.warning("the replica of service %s serves: %s; publishes lost at most: %s", self._service, told.why, told.steps)
        arena._yielded()  # here only: mpsd has this process as the writer all the time
        arena._promoted(told.generation)
        arena._session.check(lib.mpsd_arena_renamed(arena.handle, self._service.encode()))
        arena.name = self._service
        return True

    def _away(self, seconds: float) -> None:
        mpsd, self._mpsd = self._mpsd, None
        if mpsd is not None:
            mpsd.close()
        time.sleep(min(seconds, LOOK_SECONDS))

    def wait(self, deadline: float | None, is_closed: Callable[[], bool], adopt: Callable[[Arena], object]) -> bool:
        """Keep the replica until it has to serve, and complete it.  Return False at the deadline, or once it is closed.

        adopt: called with the arena after a change of its memory or layout."""
        assert self._arena
        arena = self._arena
        while not is_closed():
            began = time.monotonic()
            if self.follow():
                adopt(arena)
            left = LOOK_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
            pause = max(0.0, began + MOVING_SECONDS - time.monotonic()) if self._is_moving else self._pause
            if self.is_to_serve(min(left, pause)):
                if self.complete():
                    adopt(arena)
                return True
            if not left:
                return False
        return False

    def complete(self) -> bool:
        """Commit the memory of the newest image, its layout and its record, under the name of the service, which mpsd has given
        to the arena.  Return whether memory or layout are others than before.  Raises ImageError."""
        assert self._arena
        arena, is_new = self._arena, False
        for number in range(COMPLETE_TRIES):
            if number or not self._is_moving:  # else mpsd knows that it has the last barrier, after which there is no image
                is_new = self.follow() or is_new
            if self._image is not None and self._source is not None:
                break
            time.sleep(LOOK_SECONDS)
        else:
            raise ImageError(f"the replica of service {self._service} could not be completed: {self._trouble or 'no image'}")
        source = self._source
        state = source.state(arena.generation)
        commit = calls.arena_commit(arena.id, arena.generation, source.layout, None if state is None else state.fd)
        self._insist(commit)
        self._insist(calls.arena_change(arena.id, ttl_seconds=self._ttl))
        arena.refresh()
        self._arena = None  # it stays
        try:
            threading.Thread(target=self.close, name="mpsd replica", daemon=True).start()  # not waited for: 34 ms of a pause
        except RuntimeError:  # no thread is left for this process
            self.close()
        return is_new

    def _insist(self, call: Call[Any]) -> None:
        """Ask mpsd, and again if it was killed: it has given this arena the service's name, and no other process can serve.

        The call has to be one that may be repeated.  Raises Refused, Disconnected, OSError."""
        end = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                if self._mpsd is None:
                    self._mpsd = Client(self._path, program="mpsd_client")
                self._mpsd.ask(call)
                return
            except (Refused, Disconnected, OSError) as exc:
                may_pass = not isinstance(exc, Refused) or exc.code in PASSING
                if not may_pass or time.monotonic() > end:
                    raise
                self._away(LOOK_SECONDS)

    def close(self) -> None:
        """Let the imager go, and remove the arena, which is closed, unless it serves."""
        self._forget()
        mpsd, self._mpsd = self._mpsd, None
        if mpsd is not None:
            mpsd.close()
        arena, self._arena = self._arena, None
        if arena is not None:
            with suppress(MpsdError, OSError), Client(self._path, program="mpsd_client") as mpsd:
                mpsd.ask(calls.arena_remove(arena.name))


def may_pass(exc: Refused | OSError) -> bool:
    """Return whether a later attempt may succeed: mpsd is away, its keeper is silent, or others commit all the time."""
    if isinstance(exc, Refused):
        return exc.code in PASSING
    return isinstance(exc, ConnectionRefusedError | TimeoutError | BlockingIOError)
