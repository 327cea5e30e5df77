"""What `health` is answered from: facts that are kept up to date, so that nothing is waited for when somebody asks.

What follows from them is decided in policy/health.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from mpsd.domains.pool import Pool
from mpsd.leases.book import LeaseBook
from mpsd.policy import health
from mpsd.policy.health import Facts, Storage
from mpsd.runtime.state_directory import StateDirectory

SECONDS = 0.5


@dataclass(slots=True)
class Health:
    """Guards that an answer is as old as the last look at most.

    missing: what clients find mpsd by and is not there.  has_keeper: None where none is needed.  unwritten: why what mpsd knows
    of its domains could not be stored.
    """

    pool: Pool
    book: LeaseBook
    state_directory: StateDirectory
    missing: Callable[[], Sequence[str]]
    has_keeper: Callable[[], bool | None]
    unwritten: Callable[[], str]
    _seen: Storage | None = None
    _seen_at: float = 0.0  # trio time

    async def run(self) -> None:
        """Lives as long as mpsd.  In a thread: a disk that hangs stops the thread and not the loop."""
        self._seen_at = trio.current_time()
        while True:
            self._seen = await trio.to_thread.run_sync(self.state_directory.look, abandon_on_cancel=True)
            self._seen_at = trio.current_time()
            await trio.sleep(SECONDS)

    def problems(self) -> list[str]:
        return health.problems(self._facts())

    def _facts(self) -> Facts:
        waits = self.pool.waits.because_of_the_machine()
        return Facts(
            domains=self.pool.views(),
            placement=self.pool.placement_of_a_newcomer(),
            is_stopping=self.pool.is_stopping,
            storage=self._seen,
            seen_seconds=trio.current_time() - self._seen_at,
            unwritten=self.unwritten(),
            has_keeper=self.has_keeper(),
            missing=self.missing(),
            queued=self.book.queued,
            places=self.book.settings.max_queue,
            waiting=len(waits),
            waited_seconds=waits[0].machine_seconds if waits else 0.0,
            waits_for=waits[0].reason if waits else "",
            clients=len(self.book.grants()),
            most_clients=self.book.settings.max_clients,
        )
