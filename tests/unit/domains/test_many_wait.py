"""Many clients wait for a domain: what each change costs, and that each is told why it waits."""

from collections import Counter

import trio
import trio.testing
from structlog.testing import capture_logs

from mpsd.domains.pool import Pool
from mpsd.model import ProcessId
from mpsd.policy.placement import Ask, Wait

USERS, EACH = 5, 40


class FullPool(Pool):
    """No domain takes anybody; counts how often one was looked for."""

    def __init__(self) -> None:
        super().__init__(None, None, (), None, None, None, None)  # type: ignore[arg-type]
        self.decided = 0
        self.why, self.is_own = "full", False

    def _decide(self, ask: Ask, process: ProcessId | None) -> Wait:
        self.decided += 1
        return Wait(self.why, self.is_own)


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
        assert len(pool.waits.because_of_the_machine()) == len(processes)
        pool.is_own = True
        pool.notify()
        await trio.testing.wait_all_tasks_blocked()
        assert pool.waits.because_of_the_machine() == []
        nursery.cancel_scope.cancel()


async def test_what_domains_do_is_told_to_those_who_ask_and_is_no_line_of_the_log_for_each_who_waits() -> None:
    """400 clients wrote 11,540 lines in 45 s."""
    pool = FullPool()
    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            for pid in range(1, EACH + 1):
                nursery.start_soon(pool.place, Ask(7, frozenset({"GPU-a"})), ProcessId(pid, 1))
            for number in range(3):
                pool.why = f"all domains are taken: d1 ready {number}/48"
                pool.notify()
                await trio.testing.wait_all_tasks_blocked()
            assert {wait.reason for wait in pool.waits.listed()} == {pool.why}
            pool.why = "GPU-a takes nobody: an operator drained it"
            pool.notify()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    reasons = Counter(line["reason"] for line in lines if line["event"] == "client.waiting")
    assert reasons == {"all domains are taken: d1 ready 0/48": EACH, "GPU-a takes nobody: an operator drained it": EACH}
