"""The loop of a service, made of its step: adopt, rehearse, wait, build, step, publish, answer.

    @service.step
    def step(arena, last):                             # last: what was published last; None before the first step
        ...                                            # a step, and the GPU has finished it
        return {"step": last["step"] + 1 if last else 1}

    service.serve(answer)                              # or, with trio: await service.serve_async(answer)

Prose: mpsd's docs/python.md, "The loop".
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from mpsd_client import _cuda
from mpsd_client._arena import Arena
from mpsd_client._record import Record
from mpsd_client._term import Term

Values = Mapping[str, Any]
Adopt = TypeVar("Adopt", bound=Callable[[Arena], object])
Build = TypeVar("Build", bound=Callable[[Arena], object])
Step = TypeVar("Step", bound=Callable[[Arena, Any], Values | None])
LOOK_SECONDS = 0.5  # how soon a standby notices that the task that waits for it is cancelled


class Stepping(ABC):
    """A service that can run its loop itself."""

    _build: Callable[[Arena], object] | None = None
    _step: Callable[[Arena, Values | None], Values | None] | None = None

    @abstractmethod
    def open(self) -> Arena: ...

    @abstractmethod
    def on_commit(self, call: Adopt) -> Adopt: ...

    @abstractmethod
    def rehearse(self, step: Callable[[], object], *, writes: Iterable[str] | None = None) -> bool: ...

    @abstractmethod
    def standby(self, timeout: float | None = None) -> Term | None: ...

    @abstractmethod
    def _adopt(self, arena: Arena) -> None:
        """Call the functions of `on_commit`."""

    @abstractmethod
    def _last_record(self) -> Record | None:
        """Return what the active has published last, as far as this process knows."""

    @abstractmethod
    def __enter__(self) -> object: ...

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def build(self, call: Build) -> Build:
        """Register the function that `serve` calls with an empty arena.  It allocates, fills and commits; the functions of
        `on_commit` run next."""
        self._build = call
        return call

    def step(self, call: Step) -> Step:
        """Register the function that `serve` calls for each step, with the arena and what was published last, None before the
        first step.  It returns, when the GPU has finished, what to publish; or None: the work is done."""
        self._step = call
        return call

    def serve(
        self,
        answer: Callable[[Values], object] | None = None,
        *,
        writes: Iterable[str] | None = None,
        is_rehearsed: bool = True,
    ) -> None:
        """Open the service if it is not open, adopt, rehearse the step, and serve one term after another until the step returns
        None.  The service is closed then, also by an exception.

        answer: called with the values of each step once they are published.  writes: as for `rehearse`.  is_rehearsed: False
        for a step that waits for requests or answers them itself, and so must not run before a term.

        Raises Dismissed, and all that `open` and `standby` raise; RuntimeError if no step is registered, or if the arena is
        empty and no function builds it.
        """
        self._serve(answer, writes, is_rehearsed, None)

    async def serve_async(
        self,
        answer: Callable[[Values], Awaitable[object]] | None = None,
        *,
        writes: Iterable[str] | None = None,
        is_rehearsed: bool = True,
    ) -> None:
        """Do as `serve` in a thread, with the context that is current here; `answer` runs in this trio program, and the next
        step begins when it returns.  If this task is cancelled, the step under way ends first, and the service is closed."""
        import trio

        context = _cuda.current_context()

        def there(values: Values) -> None:
            if answer is not None:
                trio.from_thread.run(answer, values)
            trio.from_thread.check_cancelled()

        def serve() -> None:
            with _cuda.with_context(context):
                self._serve(there, writes, is_rehearsed, trio.from_thread.check_cancelled)

        await trio.to_thread.run_sync(serve, limiter=trio.CapacityLimiter(1))

    def _serve(
        self,
        answer: Callable[[Values], object] | None,
        writes: Iterable[str] | None,
        is_rehearsed: bool,
        look: Callable[[], None] | None,
    ) -> None:
        """Serve.  look: raises when a standby is to stop."""
        step = self._step
        if step is None:
            raise RuntimeError("this service has no step: register a function with @service.step before serve")
        names = None if writes is None else list(writes)

        def rehearse(arena: Arena) -> None:
            self.rehearse(lambda: step(arena, self._last_record()), writes=names)

        with self:
            arena = self.open()
            if is_rehearsed:
                self.on_commit(rehearse)
            if arena.layout is not None:
                self._adopt(arena)
            while True:
                term = self.standby(None if look is None else LOOK_SECONDS)
                if term is not None:
                    if self._serve_term(term, step, answer):
                        return
                elif look is not None:
                    look()

    def _serve_term(
        self, term: Term, step: Callable[[Arena, Values | None], Values | None], answer: Callable[[Values], object] | None
    ) -> bool:
        """Return whether the work is done."""
        with term:
            if term.arena.layout is None:
                if self._build is None:
                    raise RuntimeError(f"arena {term.arena.name} is empty: register a function with @service.build")
                self._build(term.arena)
                self._adopt(term.arena)
            last: Values | None = term.record
            while not term.is_over:
                with term.at_work():
                    values = step(term.arena, last)
                if values is None:
                    return True
                term.publish(**values)
                last = {**(last or {}), **values}
                if answer is not None:
                    answer(values)
        return False
