"""Two GPUs: the GPU of a language model that serves streams is lost, and its replica on the other one serves.

No program can end a GPU, or write a record of the driver into the kernel's log: mpsd reads the log from a file here. The
section writes an Xid 79 there, and kills the active, as a program ends that gets an error of its lost GPU.  Of a real loss the
active might hang first.

The new active repeats what the replica lacks: it computes the cache of tokens that clients have already as a prompt's, whose
last bits can differ from those of single steps.  So later tokens may differ from an undisturbed run's; none that was sent does.
"""

import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from mpsd_client import Client as Mpsd
from mpsd_client import calls

from tests.gpu.comparison import failover, figures
from tests.gpu.comparison.listener import Listener
from tests.gpu.comparison.llm import Llm
from tests.gpu.comparison.pytorch import has_torch
from tests.gpu.comparison.replicas import MOST_AGE, READY_SECONDS, ReplicatedLlm, images_in_memory
from tests.gpu.comparison.sections.failover_llm import FEW_TOKENS, SHAPES, STREAMS, STRUCK_AFTER, TOKENS, wait_for_steps
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import SystemFailed

NAME = "mirrored"
TRIALS = 5
SERVED_SECONDS = 30.0
TRIAL_SECONDS = 45.0


def run(stage: Stage) -> None:
    if not stage.options.is_simulated and not has_torch(stage):
        return
    system = stage.another("lossy", stage.options.front_end, stage.mpsd, config=failover.CONFIG)
    log = system.place / "kmsg"
    log.touch()
    python = system.place / "python"
    python.write_text(f'#!/bin/sh\nshift 3\nexec {stage.options.python} -I {ROOT}/tests/gpu/mpsd_with_log.py {log} "$@"\n')
    python.chmod(0o755)
    system.variables = {**system.variables, "MPSD_PYTHON": str(python)}
    system.start()
    with Mpsd(system.pipe / "mpsd.sock") as mpsd:
        gpus = {each.uuid: each.pci_bus_id for each in mpsd.ask(calls.device_list()).items}
    if len(gpus) < 2:
        stage.add("a lost GPU", remark="not run: it needs two GPUs")
        return
    with images_in_memory(stage) as directory:
        replicated = ReplicatedLlm(Llm(stage, system, NAME, SHAPES[0]), directory)
        try:
            _Losses(stage, replicated, dict(list(gpus.items())[:2]), log).run()
        finally:
            replicated.end()


@dataclass(slots=True)
class _Loss:
    """Milliseconds from the record in the log until the replica's first step had ended; publishes lost at most, and the seconds
    in which they were made; the longest time between two tokens of a stream; whether each client got each token once and in
    order, on its one connection; whether all tokens are those of an undisturbed run."""

    first_ms: float
    steps: int
    seconds: float
    gap_ms: float
    is_right: bool
    is_same: bool


@dataclass(slots=True)
class _Losses:
    """Guards that a member runs on each GPU.  gpus: PCI places by UUID."""

    stage: Stage
    replicated: ReplicatedLlm
    gpus: dict[str, str]
    log: Path

    def run(self) -> None:
        stage, tokens = self.stage, FEW_TOKENS if self.stage.options.is_simulated else TOKENS
        here, there = self.gpus
        self.replicated.start(here, "promoted")
        undisturbed = self.replicated.llm.load("undisturbed", requests=STREAMS, tokens=tokens).result()
        self.replicated.start(there, "warm")
        found: list[_Loss] = []
        for number in range(stage.trials(TRIALS)):
            if number and stage.left() < TRIAL_SECONDS:
                break
            found.append(self._lose(here, there, tokens, undisturbed))
            here, there = there, here
        self._report(found, float(undisturbed["worst_gap_ms"]))

    def _lose(self, here: str, there: str, tokens: int, undisturbed: dict[str, Any]) -> _Loss:
        """Lose a GPU under load, then use it again for a new replica."""
        self.replicated.wait_for_replica(time.time())
        load = self.replicated.llm.load("lost", requests=STREAMS, tokens=tokens)
        wait_for_steps(self.replicated.members[here], STRUCK_AFTER)
        listener = Listener(self.replicated.llm.system, "service.*", "gpu.*")
        at_ns = time.monotonic_ns()
        with self.log.open("a") as log:
            place = self.gpus[here].rpartition(".")[0][-10:].lower()  # 0000:00:06 of 00000000:00:06.0
            log.write(f"4,1,{at_ns // 1000},-;NVRM: Xid (PCI:{place}): 79, pid='<unknown>', GPU has fallen off the bus.\n")
        self.replicated.members[here].signal(signal.SIGKILL)
        new = self.replicated.members[there]
        self.replicated.wait("a first step of the replica", lambda: bool(new.events("first_step")))
        result = load.result()
        moved = listener.first("service.moved", at_ns, SERVED_SECONDS)
        drained = listener.first("gpu.drained", at_ns, SERVED_SECONDS)
        listener.close()
        if moved is None or drained is None:
            raise SystemFailed(f"service.moved: {moved}, gpu.drained: {drained}"[:300])
        first_ns = int(new.events("first_step")[0]["monotonic_ns"])
        is_right, is_same = not result["dropped"] and not result["wrong"], result["digest"] == undisturbed["digest"]
        if not is_right or not is_same:
            self.stage.say("; ".join(_differences(result["results"], undisturbed["results"]))[:2000])
        facts = moved[1].facts
        lost_seconds = max(0.0, time.time() - (time.monotonic_ns() - at_ns) / 1e9 - float(facts["at"]))
        self.replicated.members[here].wait(READY_SECONDS)
        with Mpsd(self.replicated.llm.system.pipe / "mpsd.sock") as mpsd:
            mpsd.ask(calls.blame_pardon(here))
        self.replicated.start(here, "warm")
        first_ms, gap_ms = (first_ns - at_ns) / 1e6, float(result["worst_gap_ms"])
        return _Loss(first_ms, int(facts["steps"] or 0), lost_seconds, gap_ms, is_right, is_same)

    def _report(self, found: list[_Loss], undisturbed_ms: float) -> None:
        stage = self.stage
        stage.keep("lost", [astuple(each) for each in found])
        right, what = sum(each.is_right for each in found), f"{self.replicated.llm.shape}, {STREAMS} streams, the GPU is lost"
        stage.add(
            f"{what}: each client gets each token once and in order, no connection dropped",
            mpsd=figures.of(right, len(found)), goal="all", met=right == len(found) > 0,
            remark=f"{sum(each.is_same for each in found)} have the tokens of an undisturbed run",
        )  # fmt: skip
        first = [each.first_ms for each in found]
        stage.add(
            f"{what}: until the replica's first step has ended",
            mpsd=f"median {figures.ms(figures.median(first))}, worst {figures.ms(max(first))}",
        )
        seconds, steps = [each.seconds for each in found], [each.steps for each in found]
        stage.add(
            f"{what}: publishes lost, which the replica repeats",
            mpsd=f"{max(steps)} at most, of {max(seconds):.1f} s",
            goal=f"<= {MOST_AGE:g} s", met=max(seconds) <= MOST_AGE,
        )  # fmt: skip
        gaps = [each.gap_ms for each in found]
        stage.add(
            f"{what}: the longest time between two tokens of a stream",
            mpsd=f"median {figures.ms(figures.median(gaps))}, worst {figures.ms(max(gaps))}",
            remark=f"undisturbed {figures.ms(undisturbed_ms)}",
        )


def _differences(results: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What differs from the undisturbed run, one text for each stream."""
    for number, (found, other) in enumerate(zip(results, expected, strict=True)):
        pairs = enumerate(zip(found["tokens"], other["tokens"], strict=False))
        first = next((index for index, (one, two) in pairs if one != two), None)
        if first is not None or found["trouble"]:
            yield f"stream {number}: {len(found['tokens'])} tokens, the first other one {first}, {found['trouble']}"
