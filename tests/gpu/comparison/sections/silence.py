"""Strangers who connect to `control` and send nothing."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.gpu.comparison import figures
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System

HANG_SECONDS = 6.0
REPEATS = 3
MANY = 1000


def run(stage: Stage) -> None:
    for system in stage.both:
        system.renew()
        system.warm(HANG_SECONDS)
    alone = [_times(system, stage.trials(REPEATS)) for system in stage.both]
    _row(stage, "a new client, nobody else", alone)
    beside = []
    for system in stage.both:
        with open_silent(system, 1):
            beside.append(_times(system, stage.trials(REPEATS) if system is stage.mpsd else 1))
    _row(stage, "a new client, one silent connection", beside, has_goal=True)
    _row(stage, "a new client, after it has gone", [_times(system, 1) for system in stage.both])
    with open_silent(stage.mpsd, MANY) as held:
        many = _times(stage.mpsd, stage.trials(REPEATS))
        answered = stage.mpsd.ask("get_server_list", HANG_SECONDS)
        what, is_answered = f"a command, {held} silent connections", answered.status == 0
        stage.add(what, mpsd=figures.ms(answered.ms), goal="answered", met=is_answered)
        _row(stage, f"a new client, {held} silent connections", [[], many], has_goal=True)
    _row(stage, "a new client, after they have gone", [[], _times(stage.mpsd, 1)])


@contextmanager
def open_silent(system: System, count: int) -> Iterator[int]:
    """Open connections that send nothing, and return their number."""
    with ExitStack() as stack:
        opened = 0
        for _ in range(count):
            end = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            end.settimeout(1.0)
            try:
                end.connect(os.fspath(system.pipe / "control"))
            except OSError:
                break
            opened += 1
        yield opened


def _times(system: System, repeats: int) -> list[float | None]:
    """Milliseconds from start to first kernel; None for one that did not get there in time."""
    times: list[float | None] = []
    for _ in range(repeats):
        client = system.client("counter", "--seconds", "0")
        ready = client.wait_for("ready", HANG_SECONDS)
        times.append(float(ready["first_kernel_ms"]) if ready else None)
        client.signal(9)
        client.wait(2)
        system.clients.remove(client)
    return times


def _row(stage: Stage, what: str, times: list[list[float | None]], has_goal: bool = False) -> None:
    stage.keep(what, dict(zip(("vendor", "mpsd"), times, strict=True)))
    cells = [_cell(each) for each in times]
    runs = None not in times[1]
    stage.add(what, vendor=cells[0], mpsd=cells[1], goal="runs" if has_goal else "", met=runs if has_goal else None)


def _cell(times: list[float | None]) -> str:
    if not times:
        return figures.NONE
    if None in times:
        return f"hangs, over {HANG_SECONDS:g} s"
    known = [time for time in times if time is not None]
    return f"{figures.ms(figures.median(known))}, slowest {figures.ms(max(known))}"
