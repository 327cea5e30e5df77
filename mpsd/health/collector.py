"""The facts behind `health`, updated regularly, so that no request waits for them.

health/rules/problems.py decides what follows from them.
"""

from collections.abc import Callable, Mapping, Sequence

import trio
from msgspec import Struct

from mpsd.domains.pool import Pool
from mpsd.health.rules import problems as health
from mpsd.health.rules.problems import HealthFacts, Storage
from mpsd.health.state_directory import StateDirectory
from mpsd.leases.lease_book import LeaseBook
from mpsd.model.arena import KeeperView
from mpsd.threads import run_in_thread

SECONDS = 0.5


class Health(Struct):
    """Guards that an answer is at most as old as the last look.

    missing: the names in the pipe directory that clients need and that do not exist.  has_keeper: None if none is needed.
    vault: the keepers of arenas.  unwritten: why mpsd's facts about its domains could not be stored.  lost_gpus: whose errors
    NVML no longer reports, and why.  unprotected: which domains lack the sentinel that is configured, and why.  barred: why no
    client gets the one that it needs.
    """

    pool: Pool
    book: LeaseBook
    state_directory: StateDirectory
    missing: Callable[[], Sequence[str]]
    has_keeper: Callable[[], bool | None]
    vault: Callable[[], KeeperView]
    unwritten: Callable[[], str]
    lost_gpus: Callable[[], Mapping[str, str]]
    unprotected: Callable[[], Sequence[str]] = tuple
    barred: Callable[[], Sequence[str]] = tuple
    _seen: Storage | None = None
    _seen_at: float = 0.0  # trio time

    async def run(self) -> None:
        """Update the facts as long as mpsd runs, in a thread: a disk that hangs stops the thread and not the loop."""
        self._seen_at = trio.current_time()
        while True:
            self._seen = await run_in_thread(self.state_directory.look, abandon_on_cancel=True)
            self._seen_at = trio.current_time()
            await trio.sleep(SECONDS)

    def problems(self) -> list[str]:
        return health.problems(self._facts())

    def warnings(self) -> list[str]:
        return health.warnings(self._facts())

    def _facts(self) -> HealthFacts:
        waiting, longest = self.pool.waits.because_of_the_machine()
        views = self.pool.views()
        return HealthFacts(
            domains=views,
            placement=self.pool.placement_of_a_newcomer(views),
            is_stopping=self.pool.is_stopping,
            storage=self._seen,
            seen_seconds=trio.current_time() - self._seen_at,
            unwritten=self.unwritten(),
            has_keeper=self.has_keeper(),
            vault=self.vault(),
            missing=self.missing(),
            queued=self.book.queued,
            places=self.book.settings.max_queue,
            waiting=waiting,
            waited_seconds=longest.machine_seconds if longest else 0.0,
            waits_for=longest.reason if longest else "",
            clients=len(self.book.grants()),
            most_clients=self.book.settings.max_clients,
            lost_gpus=self.lost_gpus(),
            unprotected=self.unprotected(),
            barred=self.barred(),
        )
