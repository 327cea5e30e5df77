"""Many clients wait for a domain: what each change costs, and that each is told why it waits."""

import trio
import trio.testing

from mpsd.domains.pool import Pool
from mpsd.model import ProcessId
from mpsd.policy.placement import Ask, Wait

USERS, EACH = 5, 40


class FullPool(Pool):
    """No domain takes anybody; counts how often one was looked for."""

    def __init__(self) -> None:
        super().__init__(None, None, (), None, None, None)  # type: ignore[arg-type]
        self.decided = 0
        self.why = "full"

    def _decide(self, ask: Ask, process: ProcessId | None) -> Wait:
        self.decided += 1
        return Wait(self.why)


async def test_a_change_looks_for_one_place_of_each_kind_and_tells_everybody() -> None:
    """Two thousand clients of 200 users made each change cost half a second."""
    pool = FullPool()
    processes = [ProcessId(pid, 1) for pid in range(1, USERS * EACH + 1)]
    async with trio.open_nursery() as nursery:
        for process in processes:
            nursery.start_soon(pool.place, Ask(process.pid % USERS, frozenset({"GPU-a"})), process)
        await trio.testing.wait_all_tasks_blocked()
        pool.decided, pool.why = 0, "still full"
        pool.notify()
        await trio.testing.wait_all_tasks_blocked()
        assert pool.decided <= 2 * USERS
        assert [wait.reason for wait in pool.waits.listed()] == ["still full"] * len(processes)
        nursery.cancel_scope.cancel()
