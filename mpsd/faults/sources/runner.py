"""The sources of observations: started together; each is optional."""

from collections.abc import Callable, Mapping
from typing import Protocol

import structlog
import trio
from msgspec import Struct, field

from mpsd.model.fault import Observation
from mpsd.notify import Signal

log = structlog.get_logger()
See = Callable[[Observation], None]


class SourceOfFaults(Protocol):
    """One source.  absent: why it publishes nothing; "" while it works."""

    @property
    def absent(self) -> str: ...
    async def run(self, publish: See) -> None: ...


class Sources(Struct, frozen=True):
    """All sources.  Guards that a bug in one ends no other.  lost_gpus: those that NVML no longer watches, and why."""

    by_name: Mapping[str, SourceOfFaults]
    lost_gpus: Mapping[str, str] = field(default_factory=dict)
    observed: Signal[[Observation]] = field(default_factory=Signal)
    _bugs: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Run until cancelled; a source that cannot run logs the reason and returns."""
        async with trio.open_nursery() as nursery:
            for name, source in self.by_name.items():
                nursery.start_soon(self._run, name, source)
            await trio.sleep_forever()

    def standing(self) -> dict[str, str]:
        """Return each source for `mpsctl status`, with "works" or why it does not."""
        return {name: self._bugs.get(name) or source.absent or "works" for name, source in self.by_name.items()}

    async def _run(self, name: str, source: SourceOfFaults) -> None:
        """Run one source.  An error in here ends this source and nothing else."""
        try:
            await source.run(self.observed.emit)
        except Exception as exc:
            self._bugs[name] = f"a bug ended it: {exc!r}"
            log.exception("faults.bug", source=name, effect="it reports nothing until mpsd is restarted")
