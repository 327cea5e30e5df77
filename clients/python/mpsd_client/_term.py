"""A term of a service: the time in which this process is the active.  Prose: mpsd's docs/services.md, "In Python"."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mpsd_client._arena import Arena
from mpsd_client._errors import Dismissed, MpsdError
from mpsd_client._record import Record
from mpsd_client._schedule import ImageSchedule
from mpsd_client._state import State

if TYPE_CHECKING:
    from mpsd_client._image import Taking

KEEP_SECONDS = 30.0  # how long the first publish waits for mpsd, which may be restarting


class Term:
    """A term, returned by Service.standby: a context manager, `with term:` around the work.

    generation: the arena's at the start of the term, higher than that of the term before.  arena: open for writing.  record:
    the last record of the previous term; None if none was ever published.  state: where this term publishes; it already has
    the field values of `record`.  promoted_ns: CLOCK_MONOTONIC when mpsd's order arrived.  is_over: the process has to end the
    term after the current step, because another member is to serve; once the program has read that, it holds.  is_dismissed:
    it has to stop at once, because another member may serve already.

    At the end of the block the process yields if mpsd asked for that, and may call Service.standby again; otherwise the
    service is closed.  The process reports an exception to mpsd as a failure, which ends its membership; the exception
    propagates.
    """

    def __init__(
        self,
        arena: Arena,
        generation: int,
        record: Record | None,
        state: State,
        promoted_ns: int,
        leave: "Callable[[Term, BaseException | None], None]",
        images: ImageSchedule | None = None,
    ) -> None:
        """Called by Service.standby."""
        self.arena, self.generation, self.record, self.state, self.promoted_ns = arena, generation, record, state, promoted_ns
        self.is_dismissed = False
        self.kept_serial = 0  # mpsd's serial of the state; 0: mpsd does not have it yet
        self.kept_generation = generation  # the arena's generation at mpsd; it changes after the death of mpsd's keeper
        self._leave, self._images = leave, images
        self._lock = threading.Condition()  # protects the fields below
        self._may_publish = False
        self._why_not = ""
        self._is_over = self._is_read = False  # the latter: the program knows that it is over
        self._is_moving = False  # it is to end with a last image, for the replica on another GPU
        self._is_withdrawn = False  # so it was, and the program knew

    @property
    def is_over(self) -> bool:
        if not self._is_over:
            return False
        with self._lock:
            self._is_read = self._is_over
            return self._is_over

    def publish(self, **values: Any) -> None:
        """Publish as State.publish does, after the GPU has finished the step: the record survives the end of this process.

        Without values it is a heartbeat.  With values, a service with `images` may take one meanwhile: no other thread may
        write the arena.  The first call waits until mpsd has this term's state, which another thread sends
        during the first step.  Raises Dismissed, and publishes nothing, if this process is not to serve any more; TimeoutError
        if mpsd could not be reached for KEEP_SECONDS.
        """
        if not self._may_publish:
            self._wait_until_kept()
        self.state.publish(**values)
        if self._images and values:
            self._images.step_done(self.arena)

    def publisher(self, *names: str) -> Callable[..., None]:
        """Return a fast function that publishes these values, as State.publisher does; it raises as `publish` does."""
        publish, images = self.state.publisher(*names), self._images

        def published(*values: Any) -> None:
            if not self._may_publish:
                self._wait_until_kept()
            publish(*values)
            if images:
                images.step_done(self.arena)

        return published

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Count the time inside the `with` block as work: elastic shares follow it.  Put the wait for requests outside."""
        self.state.work(True)
        try:
            yield
        finally:
            self.state.work(False)

    def _wait_until_kept(self) -> None:
        with self._lock:
            self._lock.wait_for(lambda: self._may_publish or self._why_not, KEEP_SECONDS)
            if self._may_publish:
                return
            if self._why_not:
                raise Dismissed(self._why_not)
        raise TimeoutError(f"mpsd has not taken the state of generation {self.generation} for {KEEP_SECONDS:g} seconds")

    def __enter__(self) -> "Term":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(self, error)

    # -- for the service ---------------------------------------------------------------------------------------------

    def obey(self, is_asked: bool, is_moving: bool) -> None:
        """Follow an order.  is_asked: to yield; in a move once an image is prepared, so that the program stops briefly."""
        with self._lock:
            was_moving, self._is_moving = self._is_moving, is_asked and is_moving
            if not self._is_moving:
                self._is_withdrawn = self._is_withdrawn or (was_moving and self._is_read)
                self._is_over = is_asked or self._is_read or bool(self._why_not)
        if self._images:
            self._images.hurry(is_moving, self._stop_at_last_image if self._is_moving else None)

    def calm(self) -> None:
        """Take images with pauses again while mpsd, which may have forgotten the move, is away."""
        if self._images and not self._is_moving:
            self._images.hurry(False, None)

    def _stop_at_last_image(self) -> None:
        self._is_over = True

    def take_last(self) -> "tuple[Taking | None, str | None]":
        """Take the last image before a move, at the end of the block.  Return it, and why there will be none, "" if there will
        be; None, None: the term ends for another reason."""
        if not self._is_moving or not self._is_over or self._images is None:
            return None, "the move was cancelled before" if self._is_withdrawn else None
        try:
            return self._images.take_last(), ""
        except (MpsdError, OSError) as exc:
            return None, str(exc) or repr(exc)

    def kept(self, serial: int, generation: int) -> None:
        """Record that mpsd has the state, and allow publishing: the next active will find the records."""
        with self._lock:
            self.kept_serial, self.kept_generation = serial, generation
            self._may_publish = not self._why_not
            self._lock.notify_all()

    def dismiss(self, why: str) -> None:
        """End the term by mpsd's order: another member serves, or is about to."""
        self.is_dismissed = True
        self.end(why)

    def end(self, why: str) -> None:
        """End the term: from now on `publish` raises Dismissed."""
        with self._lock:
            self._why_not, self._may_publish, self._is_over = why, False, True
            self._lock.notify_all()
        if self._images:
            self._images.end()
