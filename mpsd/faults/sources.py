"""Every source of observations: started together, each of them dispensable."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import trio

from mpsd.fault import Observation

See = Callable[[Observation], None]


class SourceOfFaults(Protocol):
    """absent: why it tells nothing; "" while it does."""

    @property
    def absent(self) -> str: ...
    async def run(self, publish: See) -> None: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """by_name: those that can be asked how they are.  others: what runs beside them."""

    by_name: Mapping[str, SourceOfFaults]
    others: tuple[Callable[[], Awaitable[None]], ...]

    async def run(self, see: See) -> None:
        """Until cancelled; a source that cannot run ends by itself, having said why."""
        async with trio.open_nursery() as nursery:
            for source in self.by_name.values():
                nursery.start_soon(source.run, see)
            for other in self.others:
                nursery.start_soon(other)
            await trio.sleep_forever()

    def standing(self) -> dict[str, str]:
        """For `mpsctl status`: each source, and "works" or why it does not."""
        return {name: source.absent or "works" for name, source in self.by_name.items()}
