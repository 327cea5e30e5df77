"""How one part of the daemon tells others: Signal for a value, Changed for a state, Outbox for what can wait.

All subscriptions are in one table, mpsd/app/subscriptions.py.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, ParamSpec

import trio

P = ParamSpec("P")
_BREATH_SECONDS = 0.001
_MOST_CALLS = 4096


class Signal(Generic[P]):
    """Calls its subscribers with each value, in the order of their subscription.

    A subscriber does not wait.  If one raises, the error is a bug, and reaches the sender.
    """

    def __init__(self) -> None:
        self._subscribers: tuple[Callable[P, object], ...] = ()

    def subscribe(self, *subscribers: Callable[P, object]) -> None:
        self._subscribers += subscribers

    def emit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for tell in self._subscribers:
            tell(*args, **kwargs)


class Changed:
    """Wakes the tasks that wait for a state to change.  A task looks at the state and waits, with no other wait in between."""

    def __init__(self) -> None:
        self._waiting = trio.lowlevel.ParkingLot()

    def notify(self) -> None:
        self._waiting.unpark_all()

    async def wait(self) -> None:
        await self._waiting.park()  # for ever: the state may never change


class Outbox:
    """Runs calls in order: at once, unless they are held, or a task was just answered that has to run first."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._holds = 0
        self._is_answering = self._runs = False
        self._answered = Changed()

    def put(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._release()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the calls until the outermost of these contexts ends: a decision is carried out before it is published."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            self._release()

    def answer_first(self) -> None:
        """Hold the calls for a moment: a task that was just answered, such as a standby that takes over, runs first."""
        self._is_answering = self._runs
        self._answered.notify()

    async def run(self) -> None:
        """Run as long as mpsd; before, no call waits for an answer."""
        self._runs = True
        while True:
            while not self._is_answering:
                await self._answered.wait()
            await trio.sleep(_BREATH_SECONDS)
            self._is_answering = False
            self._release()

    def _release(self) -> None:
        while self._calls and not self._holds and not (self._is_answering and len(self._calls) <= _MOST_CALLS):
            self._holds += 1  # a call that puts another does not overtake the rest
            try:
                self._calls.popleft()()
            finally:
                self._holds -= 1
