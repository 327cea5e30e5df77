"""Two GPUs: a language model that serves streams moves from one to the other and back, under load.

No connection drops, and all tokens equal those of an undisturbed run.
"""

import time
from dataclasses import dataclass

from mpsd_client import Client as Mpsd
from mpsd_client import calls, values

from tests.gpu.comparison import figures, pauses
from tests.gpu.comparison.listener import Listener
from tests.gpu.comparison.llm import Llm
from tests.gpu.comparison.pytorch import has_torch
from tests.gpu.comparison.replicas import ReplicatedLlm, images_in_memory
from tests.gpu.comparison.sections.failover_llm import FEW_TOKENS, SHAPES, STREAMS, STRUCK_AFTER, TOKENS, wait_for_steps
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import SystemFailed

NAME = "moving"
TRIALS = 10
MOVE_SECONDS, END_SECONDS = 60.0, 30.0
TRIAL_SECONDS = 40.0
MOST_PAUSE_MS = 50.0


def run(stage: Stage) -> None:
    if not stage.options.is_simulated and not has_torch(stage):
        return
    stage.mpsd.renew()
    if not (gpus := stage.two_gpus("a service that moves to a second GPU")):
        return
    with images_in_memory(stage) as directory:
        replicated = ReplicatedLlm(Llm(stage, stage.mpsd, NAME, SHAPES[0]), directory)
        try:
            _Moves(stage, replicated, gpus[:2]).run()
        finally:
            replicated.end()
            stage.mpsd.clients.clear()


@dataclass(slots=True)
class _Moves:
    """Guards that a member runs on each GPU."""

    stage: Stage
    replicated: ReplicatedLlm
    gpus: list[str]

    def run(self) -> None:
        stage, tokens = self.stage, FEW_TOKENS if self.stage.options.is_simulated else TOKENS
        self.replicated.start(self.gpus[0], "promoted")
        undisturbed = self.replicated.llm.load("undisturbed", requests=STREAMS, tokens=tokens).result()
        self.replicated.start(self.gpus[1], "warm")
        done: list[values.Move] = []
        moments: list[dict[str, float]] = []
        gaps, right, total = list[float](), 0, 2 * stage.trials(TRIALS)
        for number in range(total):
            if number > 1 and stage.left() < TRIAL_SECONDS:
                break
            found, move, times = self._move(tokens)
            done.append(move)
            moments.append(times)
            gaps.append(float(found["worst_gap_ms"]))
            is_same = found["digest"] == undisturbed["digest"] and not found["dropped"] and not found["wrong"]
            right += is_same and move.state == "done"
            if not is_same or move.why:
                stage.say(f"move {number}: {move.state} {move.why}, dropped {found['dropped']}, wrong {found['wrong']}")
        self._report(done, moments, gaps, right, float(undisturbed["worst_gap_ms"]))

    def _report(
        self, done: list[values.Move], moments: list[dict[str, float]], gaps: list[float], right: int, undisturbed_ms: float
    ) -> None:
        stage, found = self.stage, [each.pause_ms for each in done if each.pause_ms is not None]
        facts = {"pauses_ms": found, "gaps_ms": gaps, "seconds": [each.seconds for each in done]}
        stage.keep("move", {**facts, "steps_ms": [pauses.steps_of(each) for each in moments]})
        stage.add(
            f"{self.replicated.llm.shape}, {STREAMS} streams: moved, all tokens equal, no connection dropped",
            mpsd=figures.of(right, len(done)), goal="all", met=right == len(done) >= 2,
        )  # fmt: skip
        median, worst = figures.ms(figures.median(found)), figures.ms(max(found, default=None))
        is_short = bool(found) and max(found) <= MOST_PAUSE_MS
        stage.add(
            "from the last barrier until the other GPU's member serves", mpsd=f"median {median}, worst {worst}",
            goal=f"<= {MOST_PAUSE_MS:g} ms", met=None if stage.options.is_simulated else is_short,
            remark=f"whole moves took {max(each.seconds for each in done):.1f} s at most",
        )  # fmt: skip
        stage.add(
            "the longest time between two tokens of a stream, in a move",
            mpsd=f"median {figures.ms(figures.median(gaps))}, worst {figures.ms(max(gaps))}",
            remark=f"undisturbed {undisturbed_ms} ms",
        )
        for what, cell in pauses.rows(moments):
            stage.add(f"from the end of the last step here to that of the first one there: {what}", mpsd=cell)

    def _move(self, tokens: int) -> tuple[dict[str, object], values.Move, dict[str, float]]:
        """Move the service to the other GPU under load.  Return what the clients got, the move, as it ended, and the moments of
        its pause (pauses.py)."""
        here = self.replicated.service().gpu
        there = next(gpu for gpu in self.gpus if gpu != here)
        self.replicated.wait_for_replica(time.time())
        load = self.replicated.llm.load("moved", requests=STREAMS, tokens=tokens)
        wait_for_steps(self.replicated.members[here], STRUCK_AFTER)
        listener, since_ns = Listener(self.stage.mpsd, "service.*"), time.monotonic_ns()
        with Mpsd(self.stage.mpsd.pipe / "mpsd.sock") as mpsd:
            mpsd.ask(calls.service_move(NAME, there, MOVE_SECONDS))
        move = self._outcome()
        moments = self._moments(here, there, listener, since_ns) if move.state == "done" else {}
        listener.close()
        found = load.result()
        if move.state == "done":
            self.replicated.members[here].wait(END_SECONDS)
            self.replicated.start(here, "warm")
        return found, move, moments

    def _moments(self, here: str, there: str, listener: Listener, since_ns: int) -> dict[str, float]:
        """Return the moments of the pause of a move that was begun then, as far as they are known."""
        old, new = self.replicated.members[here], self.replicated.members[there]
        over, first = old.wait_for(pauses.OVER, END_SECONDS, since_ns), new.wait_for("first_step", END_SECONDS, since_ns)
        promoted = new.wait_for("promoted", END_SECONDS, since_ns)
        given = listener.first("service.moved", since_ns, END_SECONDS)
        if over is None or first is None or promoted is None or given is None:
            return {}
        times = {
            pauses.OVER: over["monotonic_ns"], pauses.GIVEN: given[0], pauses.ORDERED: promoted["told_ns"],
            pauses.BEGUN: promoted["monotonic_ns"], pauses.FIRST: first["monotonic_ns"],
        }  # fmt: skip
        seconds = {name: each / 1e9 for name, each in times.items()}
        python, directory = self.stage.options.python, self.replicated.directory
        return seconds | pauses.image_moments(python, directory, seconds[pauses.OVER], seconds[pauses.GIVEN])

    def _outcome(self) -> values.Move:
        end = time.monotonic() + 2 * MOVE_SECONDS
        while time.monotonic() < end:
            move = self.replicated.service().move
            if move is not None and move.state in ("done", "cancelled"):
                return move
            time.sleep(0.1)
        raise SystemFailed("the move does not end")
