"""Runs the example two_ranks.py and strikes its ranks at random moments: on the simulator, and in tests/gpu/compare.

It also compares the result with that of a run without strikes.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[1] / "clients/python/examples/two_ranks.py"
STRIKES = ("rank",) * 8 + ("both",) * 6 + ("imager",) * 4 + ("hung",) * 2  # both: a rank and its imager
STEPS, EVERY, HUNG_SECONDS = 80, 3, 12
RANKS = (0, 1)
SEED = 19
FIRST_PAUSE, PAUSES = 5, (-1, 16)  # steps reported before a strike; -1: as soon as the next rank starts, which then restores

Report = dict[str, Any]


@dataclass(slots=True)
class Strike:
    """seconds: from the strike until both ranks had reported a step; None if they did not."""

    kind: str
    pid: int  # of the rank
    at: float = field(default_factory=time.monotonic)
    seconds: float | None = None
    _waits_for: set[int] = field(default_factory=lambda: set(RANKS))

    def note_step(self, report: Report) -> None:
        """Take a report of a step.  One of a rank that the strike ended, or let hang, was made before it."""
        if self.kind == "imager" or report["pid"] != self.pid:
            self._waits_for.discard(report["rank"])
        if self.seconds is None and not self._waits_for:
            self.seconds = time.monotonic() - self.at


@dataclass(slots=True)
class Training:
    """What the launcher and its ranks reported, in order.  status: the launcher's."""

    reports: list[Report] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    status: int = 0

    def values(self, name: str) -> list[Any]:
        return [each[name] for each in self.reports if name in each]

    def is_as(self, undisturbed: "Training") -> bool:
        """Return whether both ranks have the weights that both ranks have there."""
        expected = undisturbed.values("weights")
        return len(expected) == len(RANKS) and len(set(expected)) == 1 and self.values("weights")[-len(RANKS) :] == expected

    @property
    def repeated(self) -> int:
        """Steps that were made again, of both ranks together."""
        return len(self.values("step")) - STEPS * len(RANKS)


def train(
    python: Path, gpus: Sequence[str], group: str, directory: Path, environment: Mapping[str, str], strikes: int = 0
) -> Training:
    """Run a training to its end, and make so many of STRIKES, as far as it lasts long enough.

    python: of an environment that has mpsd.  gpus: of both ranks, which may be the same one.
    """
    words = [str(python), str(PROGRAM), group, str(directory), "--gpus", *gpus]
    words += ["--steps", str(STEPS), "--every", str(EVERY), "--hung-after", str(HUNG_SECONDS)]
    path = f"{python.parent}:{environment.get('PATH', os.defpath)}"  # of mpsd-images and mpsd-imager
    found = Training()
    with subprocess.Popen(words, env={**environment, "PATH": path}, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        try:
            _follow(launcher.stdout, found, strikes)
        except BaseException:  # also the end of the caller's time; the caller ends the ranks
            launcher.kill()
            raise
    found.status = launcher.returncode
    return found


def _follow(lines: Iterable[str], found: Training, strikes: int) -> None:
    chosen = random.Random(SEED)
    left = chosen.sample(STRIKES, strikes)
    pause = FIRST_PAUSE
    for line in lines:
        report = json.loads(line)
        found.reports.append(report)
        if "step" in report:
            pause -= 1
            for each in found.strikes:
                each.note_step(report)
        if pause < 0 and left and "pid" in report:
            with suppress(ProcessLookupError, FileNotFoundError):  # it has just ended
                if _strike(left[-1], report["pid"]):
                    found.strikes.append(Strike(left.pop(), report["pid"]))
                    pause = chosen.randrange(*PAUSES)


def _strike(kind: str, pid: int) -> bool:
    """End a rank, its imager, or both; or let the rank hang.  Return False if it has no such process now."""
    imagers = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    if kind in ("imager", "both") and not imagers:
        return False
    for each in imagers if kind in ("imager", "both") else []:
        os.kill(each, signal.SIGKILL)
    if kind != "imager":
        os.kill(pid, signal.SIGSTOP if kind == "hung" else signal.SIGKILL)
    return True
