"""Sources run concurrently; each may fail."""

import pytest
import structlog
import trio
import trio.testing

from mpsd.faults.sources.runner import Sources
from mpsd.model.fault import Observation, Source
from tests.running import running

SEEN = Observation(Source.NVML, 1)


class FakeSource:
    """Reports one observation, and then fails, ends or waits."""

    def __init__(self, error: Exception | None = None, absent: str = "") -> None:
        self.absent = absent
        self._error = error

    async def run(self, publish) -> None:
        await trio.lowlevel.checkpoint()
        if self.absent:
            return
        publish(SEEN)
        if self._error is not None:
            raise self._error
        await trio.sleep_forever()


ERRORS = [
    pytest.param(ValueError("oops"), id="a bug"),
    pytest.param(ExceptionGroup("several", [KeyError("x"), OSError("y")]), id="several, from a nursery of its own"),
]


@pytest.mark.parametrize("error", ERRORS)
async def test_a_bug_in_one_ends_that_one_and_is_loud(autojump_clock, error):
    heard = []
    sources = Sources({"bad": FakeSource(error), "good": FakeSource(), "none": FakeSource(absent="not there")})
    sources.observed.subscribe(heard.append)
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sources.run)
            await trio.sleep(1)
            assert not nursery.cancel_scope.cancel_called
            nursery.cancel_scope.cancel()
    assert heard == [SEEN, SEEN]
    assert [(entry["event"], entry["source"], entry["log_level"]) for entry in logs] == [("faults.bug", "bad", "error")]
    told = sources.standing()
    assert (told["good"], told["none"]) == ("works", "not there")
    assert told["bad"].startswith("a bug ended it: ")


async def test_when_they_are_stopped_that_is_no_bug(autojump_clock):
    sources = Sources({"good": FakeSource()})
    with structlog.testing.capture_logs() as logs:
        async with running(sources.run):
            await trio.sleep(1)
    assert (logs, sources.standing()) == ([], {"good": "works"})
