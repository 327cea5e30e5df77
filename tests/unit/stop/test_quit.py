"""What `quit` does where one of its steps fails by a bug in mpsd."""

from collections.abc import Sequence

import pytest
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.model.domain import DomainState
from mpsd.stop.quit import Shutdown

BUG = RuntimeError("a bug")


class Vendor:
    """A vendor daemon without servers.  bug: raised when it is told to quit, after the others were told."""

    process = None
    is_exposed = False

    def __init__(self, bug: Exception | None = None) -> None:
        self.bug = bug
        self.did: list[str] = []

    async def commands(self, lines: Sequence[str]) -> str:
        return ""

    async def quit(self, patience_seconds: float) -> bool:
        if self.bug is not None:
            raise self.bug
        await trio.sleep(1)  # it is being ended as the other one fails
        self.did.append("quit")
        return True

    async def kill(self) -> None:
        self.did.append("kill")

    async def sweep(self) -> int:
        return 0


class NoRefuser:
    def __init__(self, bug: Exception | None = None) -> None:
        self.bug = bug

    async def open(self) -> None:
        if self.bug is not None:
            raise self.bug

    async def close(self, patience_seconds: float) -> None: ...


def shutdown(refuser: NoRefuser, *vendors: Vendor) -> Shutdown:
    pool = Pool(None, None, (), None, None, None, None)  # type: ignore[arg-type]
    for number, vendor in enumerate(vendors, 1):
        name = f"domain-{number}"
        pool.domains[name] = Domain(name, number, ("GPU-a",), vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]

    async def see_off() -> None: ...

    return Shutdown(pool, refuser, 5.0, see_off)  # type: ignore[arg-type]


async def test_a_domain_that_cannot_be_ended_leaves_the_others_their_end(autojump_clock: object) -> None:
    bad, good = Vendor(BUG), Vendor()
    assert await shutdown(NoRefuser(), bad, good).quit_all(0) == 1
    assert (bad.did, good.did) == (["kill"], ["quit"])


async def test_a_quit_that_fails_ends_for_all_who_wait_for_it(autojump_clock: object) -> None:
    ending = shutdown(NoRefuser(BUG))
    with pytest.raises(RuntimeError):
        await ending.quit_all(0)
    with trio.fail_after(60):
        assert (ending.status, await ending.quit_all(0)) == (1, 1)
