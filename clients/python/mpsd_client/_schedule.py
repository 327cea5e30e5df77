"""Take images of an arena that this process writes, at an interval.  Prose: mpsd's docs/images.md."""

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from mpsd_client._errors import MpsdError
from mpsd_client._imager import START_SECONDS, ImageError

if TYPE_CHECKING:
    from mpsd_client._arena import Arena
    from mpsd_client._image import Image, Taking

STALL_SECONDS = 10.0  # the longest barrier: without an answer the program goes on without the image
LOOK_SECONDS = 0.5  # how soon the thread sees that it has to end
_FAILURES = (MpsdError, OSError, ValueError)  # ValueError: the arena is closed
_NOT_BEGUN = f"the imager has not begun for {START_SECONDS:.0f} s: it may wait for a place at MPS (mpsctl queue)"
_log = logging.getLogger("mpsd_client")


class ImageSchedule:
    """Takes images of an arena at an interval; the writer calls `step_done` between two steps.  A failure is logged, and costs
    the program at most a barrier.

    every: seconds from the end of an image to the begin of the next one.  directory: as for Arena.image.  taken, failed:
    counts of images.  last: the last complete image.  trouble: why the last image failed, or has not begun; "" after a complete
    one.
    """

    def __init__(self, every: float, directory: str | os.PathLike[str] | None = None) -> None:
        if not every > 0:
            raise ValueError(f"every: seconds, more than 0, not {every}")
        self.every, self.directory = every, directory
        self.taken = self.failed = 0
        self.last: Image | None = None
        self.trouble = ""
        self._changed = threading.Condition()  # protects the fields below
        self._prepared: Taking | None = None  # waits for a barrier
        self._had_barrier = threading.Event()
        self._stop: threading.Event | None = None  # of the thread that runs now
        self._is_hurried = False  # no pause between two images
        self._on_last: Callable[[], object] | None = None  # called when the last image is prepared
        self._last: Taking | None = None  # that image, which waits for `take_last`

    def step_done(self, arena: "Arena") -> None:
        """Set the moment of a prepared image.  No thread of this process may launch work that writes the arena until it
        returns.  The first call, and the first one after `end`, begin the schedule."""
        if self._stop is None:
            self._begin(arena)
        taking = self._prepared
        if taking is None:
            return
        with self._changed:
            if self._prepared is not taking:  # it has become the last one
                return
            self._prepared = None
        try:
            taking.barrier(STALL_SECONDS)
        except _FAILURES as exc:
            self._note_failure(exc)
        self._had_barrier.set()

    def _begin(self, arena: "Arena") -> None:
        stop = threading.Event()
        try:
            threading.Thread(target=self._run, args=(arena, stop), name="mpsd images", daemon=True).start()
        except RuntimeError as exc:  # this process may start none now: the next step tries again
            if str(exc) != self.trouble:
                self._note_failure(exc)
            return
        self._stop = stop

    def end(self) -> None:
        """End the schedule.  An image that has had its barrier is completed; one before it is given up."""
        with self._changed:
            stop, self._stop, self._prepared = self._stop, None, None
            self._is_hurried, self._on_last, self._last = False, None, None
            if stop:
                stop.set()
            self._changed.notify_all()

    def hurry(self, is_hurried: bool, on_last: Callable[[], object] | None) -> None:
        """Take images without a pause, or as before.  on_last: called, in any thread, when the last image is prepared, with
        `take_last` as its barrier; None: images have their barriers in `step_done`.  May be repeated."""
        with self._changed:
            self._is_hurried, self._on_last = is_hurried, on_last
            if on_last is None and self._last is not None:
                self._prepared, self._last = self._last, None
            elif on_last is not None and self._prepared is not None:
                self._prepared, self._last = None, self._prepared
                on_last()
            self._changed.notify_all()

    def take_last(self) -> "Taking":
        """Set the moment of the last image, which the program has stopped at, and return it: it is complete later.

        Raises ImageError, TimeoutError, OSError: there will be none."""
        with self._changed:
            taking, self._last = self._last, None
        if taking is None:
            raise ImageError("no image was prepared")
        taking.barrier(STALL_SECONDS, is_waited_for=True)
        return taking

    def _run(self, arena: "Arena", stop: threading.Event) -> None:
        while self._wait_for_turn(stop):
            failed = self.failed
            try:
                self._take(arena, stop)
            except _FAILURES as exc:
                if not stop.is_set() and self.failed == failed:
                    self._note_failure(exc)
                stop.wait(min(LOOK_SECONDS, self.every))  # also without a pause between images

    def _wait_for_turn(self, stop: threading.Event) -> bool:
        """Wait until the next image is due; return False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_hurried or stop.is_set(), self.every)
        return not stop.is_set()

    def _take(self, arena: "Arena", stop: threading.Event) -> None:
        taking = arena.image(directory=self.directory)
        try:
            if not self._wait_prepared(taking, stop) or stop.is_set():
                return
            self._had_barrier.clear()
            if not self._offer(taking, stop):
                return
            while not self._had_barrier.wait(LOOK_SECONDS):  # as long as the program's step
                if stop.is_set():
                    return
            if not taking.has_failed and taking.wait_for_answer(stop, LOOK_SECONDS):
                self.last = taking.wait()
                self.taken += 1
                self.trouble = ""
        finally:
            if arena.is_closed:  # maybe before the arena knew this image
                taking.end()

    def _wait_prepared(self, taking: "Taking", stop: threading.Event) -> bool:
        """Wait until the image is prepared; return False at the end of the schedule.

        An imager that cannot begin is reported and keeps its turn: one under the program's own lease may have none before the
        program ends."""
        if taking.wait_for_answer(stop, LOOK_SECONDS, START_SECONDS):
            return True
        if not stop.is_set() and taking.progress == (0, 0):
            self._report(_NOT_BEGUN)
        return taking.wait_for_answer(stop, LOOK_SECONDS)

    def _offer(self, taking: "Taking", stop: threading.Event) -> bool:
        """Let a prepared image wait for its barrier; return False at the end of the schedule."""
        with self._changed:
            if stop.is_set():
                return False
            if self._on_last is None:
                self._prepared = taking
            else:
                self._last = taking
                self._on_last()
            return True

    def _note_failure(self, exc: Exception) -> None:
        self.failed += 1
        self._report(str(exc))

    def _report(self, why: str) -> None:
        if why != self.trouble:  # once, as it may be the same for days
            _log.warning("no image of the arena was taken: %s", why)
        self.trouble = why
