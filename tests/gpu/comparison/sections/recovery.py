"""A client that comes, alone, while the GPU recovers from another's fault: from its start to its first kernel, in a hot spare.

The vendor's cannot be asked: its newcomers are refused then (the sections of faults).
"""

import signal
import time

from tests.gpu.comparison import figures, trials
from tests.gpu.comparison.clients import end_all
from tests.gpu.comparison.listener import Listener
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import SystemFailed

TRIALS = 5
MODES = ("oob_write", "trap")
LATER_SECONDS = (0.02, 0.15)
SPARE_SECONDS = 8.0
GOAL_MS = 200.0


def run(stage: Stage) -> None:
    stage.mpsd.renew()
    listener = Listener(stage.mpsd)
    alone = [_start(stage, 0.0) for _ in range(stage.trials(TRIALS))]
    stage.add("no fault: start to first kernel", mpsd=_cell(alone))
    for mode in MODES:
        for later in LATER_SECONDS:
            found = []
            for _ in range(stage.trials(TRIALS)):
                holder = trials.started(stage.mpsd, "hold")  # in the domain that is to fault: the spare is another
                if not listener.wait_for_spare(SPARE_SECONDS):
                    raise SystemFailed("there is no spare")
                culprit = trials.started(stage.mpsd, "faulter", mode)
                if culprit.wait_for("fault", trials.READY_SECONDS) is None:
                    raise SystemFailed(f"the culprit did nothing: {culprit.fate}")
                found.append(_start(stage, later))
                holder.signal(signal.SIGKILL)
                end_all(stage.mpsd.clients)
                stage.mpsd.clients.clear()
            first = [each["first_kernel_ms"] for each in found if each]
            stage.keep(f"{mode}, {later}", found)
            stage.add(
                f"{mode}: comes {later * 1e3:.0f} ms after the launch: start to first kernel",
                mpsd=_cell(found),
                goal=f"{GOAL_MS:.0f} ms",
                met=len(first) == len(found) and (figures.median(first) or GOAL_MS) < GOAL_MS,
            )
    listener.close()


def _start(stage: Stage, later: float) -> dict[str, float]:
    """Empty: it did not run."""
    time.sleep(later)
    client = stage.mpsd.client("counter", "--seconds", "0.05")
    ready = client.wait_for("ready", trials.READY_SECONDS)
    client.wait(trials.READY_SECONDS)
    return {name: float(ready[name]) for name in ("first_kernel_ms", "init_ms", "context_ms")} if ready else {}


def _cell(found: list[dict[str, float]]) -> str:
    ran = [each for each in found if each]
    parts = (f"{name[:-3]} {figures.ms(figures.median([each[name] for each in ran]))}" for name in ("init_ms", "context_ms"))
    first = [each["first_kernel_ms"] for each in ran]
    slowest = figures.ms(max(first, default=None))
    return f"{figures.of(len(ran), len(found))}, {figures.ms(figures.median(first))}, slowest {slowest}; {', '.join(parts)}"
