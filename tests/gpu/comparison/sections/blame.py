"""A client that faults now and then, and that no source names: the number of faults until mpsd has found it.

No client writes core dumps, so an SM exception names no client. Innocents and the culprit are started again after each fault,
as in a service; mpsd places the suspects apart until one faults alone.
"""

import shutil
import time
from pathlib import Path

from tests.gpu.comparison import figures, trials
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.listener import Listener
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

TRIALS = 5
INNOCENTS = ("innocent1", "innocent2", "innocent3")  # without a lease a client is known by its user and program
MOST_ROUNDS = 6
VERDICT_SECONDS = 1.2
BETWEEN_SECONDS = 0.5
DEATH_SECONDS = 0.5  # an innocent gets the error of a trap up to 0.66 s later
CONFIG = "[faults]\ncrash_pause_max = 0.0\nculprit_seconds = 0.0\n[domains]\nmax_domains = 8\n"


def run(stage: Stage) -> None:
    found: list[tuple[int, bool, int]] = []
    for name in INNOCENTS:
        shutil.copy(stage.mpsd.programs / trials.NEVER_ENDING[0], stage.mpsd.programs / name)
    for number in range(stage.trials(TRIALS)):
        system = stage.another(f"blame{number}", stage.options.front_end, stage.mpsd, config=CONFIG)
        system.start()
        listener = Listener(system)
        try:
            found.append(_find(system, listener))
        finally:
            listener.close()
            end_all(system.clients)
            system.clients.clear()
            system.kill()
    stage.keep("rounds", found)
    rounds = [each for each, is_right, _ in found if is_right]
    took = f"median {figures.number(figures.median(rounds))}, most {max(rounds, default=0)}"
    stage.add(
        "SM exception, nobody writes dumps, 4 clients: faults until the culprit is convicted",
        mpsd=f"{figures.of(len(rounds), len(found))}, {took}",
        goal=f"{len(found)} of {len(found)}",
        met=len(rounds) == len(found),
    )
    wrong = sum(each for _, _, each in found)
    stage.add("... innocents convicted", mpsd=str(wrong), goal="0", met=wrong == 0)


def _find(system: System, listener: Listener) -> tuple[int, bool, int]:
    """Return the number of faults, whether mpsd found the culprit, and the number of convicted innocents. Dead clients are
    started again."""
    innocents: list[Client] = []
    for number in range(1, MOST_ROUNDS + 1):
        time.sleep(BETWEEN_SECONDS)
        names = {Path(client.argv[0]).name for client in innocents}
        innocents += [trials.started(system, name, *trials.NEVER_ENDING[1:]) for name in INNOCENTS if name not in names]
        culprit = trials.started(system, "faulter", "trap", "--after", "0.3")
        launched = culprit.wait_for("fault", trials.READY_SECONDS)
        if launched is None:
            raise SystemFailed(f"the culprit did nothing: {culprit.fate}")
        verdict = listener.culprit_since(int(launched["monotonic_ns"]), VERDICT_SECONDS)
        wrong = int(verdict is not None and verdict.pid != culprit.pid)
        time.sleep(DEATH_SECONDS)
        _end(system, [culprit])
        innocents = [client for client in innocents if client.is_running]
        if verdict is not None:
            return number, not wrong, wrong
    return MOST_ROUNDS, False, 0


def _end(system: System, clients: list[Client]) -> None:
    end_all(clients)
    system.clients[:] = [client for client in system.clients if client not in clients]
