"""A term of a service: the time in which this process is the one that serves.  Prose: mpsd's docs/services.md, "In Python"."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from mpsd_client._arena import Arena
from mpsd_client._errors import Dismissed
from mpsd_client._record import Record
from mpsd_client._state import State

KEEP_SECONDS = 30.0  # that the first publish waits for mpsd, which may be on its way back


class Term:
    """What Service.standby gives, and a context manager: `with term:` around the work.

    generation: the arena's when it began, higher than that of the term before.  arena: open for writing.  record: what the one
    before published last; None where nobody ever did.  state: where this term publishes; it has the fields of `record` already.
    promoted_ns: CLOCK_MONOTONIC when mpsd's word came.  is_over: it has to end after this step, since another one shall serve.
    is_dismissed: and at once, since another one may do so already.

    Leaving the block yields where that was asked for, and Service.standby may be called again; else it closes the service.  An
    exception is told to mpsd, which ends this process's service, and goes on its way.
    """

    def __init__(
        self,
        arena: Arena,
        generation: int,
        record: Record | None,
        state: State,
        promoted_ns: int,
        leave: "Callable[[Term, BaseException | None], None]",
    ) -> None:
        """Not to be called: see Service.standby."""
        self.arena, self.generation, self.record, self.state, self.promoted_ns = arena, generation, record, state, promoted_ns
        self.is_over = self.is_dismissed = False
        self.kept_serial = 0  # of the state, at mpsd; 0: not yet
        self.kept_generation = generation  # of the arena, for mpsd: another one once its keeper has died
        self._leave = leave
        self._lock = threading.Condition()  # protects what is below
        self._may_publish = False
        self._why_not = ""

    def publish(self, **values: Any) -> None:
        """As State.publish, after the GPU has finished the step: from here on it counts, whatever becomes of this process.

        Without values: a sign of life.  The first one waits until mpsd has this term's state, which it gets beside the first
        step.  Raises Dismissed: this process is not to serve any more, and nothing was published; TimeoutError: mpsd could
        not be reached for KEEP_SECONDS.
        """
        if not self._may_publish:
            self._wait_until_kept()
        self.state.publish(**values)

    def publisher(self, *names: str) -> Callable[..., None]:
        """As State.publisher, the fastest way: a function of these values, which raises as `publish` does."""
        publish = self.state.publisher(*names)

        def published(*values: Any) -> None:
            if not self._may_publish:
                self._wait_until_kept()
            publish(*values)

        return published

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

    def kept(self, serial: int, generation: int) -> None:
        """mpsd has its state: what is published now is found by the next one."""
        with self._lock:
            self.kept_serial, self.kept_generation = serial, generation
            self._may_publish = not self._why_not
            self._lock.notify_all()

    def dismiss(self, why: str) -> None:
        """mpsd's word: another one serves, or is about to."""
        self.is_dismissed = True
        self.end(why)

    def end(self, why: str) -> None:
        """Nothing can be published from now on."""
        with self._lock:
            self._why_not, self._may_publish, self.is_over = why, False, True
            self._lock.notify_all()
