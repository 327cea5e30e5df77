"""The first step after a promotion, of a model that is a service as docs/python.md describes: with `rehearse`, and with a
warm-up that omits some of the step's kernels; compared with a step in the middle of a term, and with an undisturbed run."""

import os
import signal
import time
from dataclasses import dataclass

from mpsd_client import Client as Mpsd
from mpsd_client import calls

from tests.gpu.comparison import failover, figures, vault
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.failover import Crew
from tests.gpu.comparison.pytorch import has_torch, python_path
from tests.gpu.comparison.sections.vault_torch import run_checks
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import System, SystemFailed

PROGRAM = ROOT / "tests/gpu/gru_member.py"
TRIALS = 10
MEMBERS = 6  # started at once, since PyTorch takes its time; each serves one term
CALM_SECONDS = 45.0  # for all of them to be ready: what one does at its start takes time from the others
EVENT_SECONDS = 20.0
MOST_RATIO = 2.0
END_SECONDS = 40.0  # for the undisturbed run
CHECKS = ("a_rehearsal_writes_to_copies", "a_rehearsal_of_many_pieces_writes_to_copies")


@dataclass(frozen=True, slots=True)
class Trial:
    """Milliseconds: the first step of a term, and of that until its record was read, and from there until its kernels were
    launched; its publish, the second step, the one in the middle."""

    way: str
    first: float
    prepared: float
    launched: float
    publish: float
    second: float
    steady: float

    @property
    def ratio(self) -> float:
        return self.first / self.steady


def run(stage: Stage) -> None:
    if not has_torch(stage):
        return
    run_checks(stage, *CHECKS)
    system = stage.another("gru", stage.options.front_end, stage.mpsd, config=failover.CONFIG)
    system.start()
    system.warm(10)
    digests: dict[int, set[str]] = {}
    for service, words, leave_seconds in (("gru", (), 80.0), ("gru-cold", ("--cold",), END_SECONDS)):
        trials = _trials(stage, system, service, words, digests, leave_seconds)
        _report(stage, "rehearsed" if not words else "warmed up without sampling", trials, is_goal=not words)
    _compare(stage, system, digests)
    system.quit()


def _trials(
    stage: Stage,
    system: System,
    service: str,
    words: tuple[str, ...],
    digests: dict[int, set[str]],
    leave_seconds: float,
) -> list[Trial]:
    """Every other time the active is killed, and hands over.  digests: of each number of steps, what was reported.
    leave_seconds: of the section's time, for what comes after."""
    seen: list[Client] = []
    found: list[Trial] = []

    def start() -> Client:
        seen.append(member(stage, system, "--service", service, *words))
        return seen[-1]

    wanted = stage.trials(TRIALS)
    crew = Crew(stage, system, service, start, wanted=min(MEMBERS, wanted + 1), fewest=2, calm=CALM_SECONDS)
    try:
        for number in range(wanted):
            if stage.left() < leave_seconds:
                break
            crew.wanted = min(crew.wanted, wanted - number + 1)
            found.append(_trial(crew, (failover.KILLED, failover.HANDED_OVER)[number % 2]))
    except SystemFailed as error:
        stage.say(f"{service}: {error}")
        stage.add(f"{service}: a trial could not be made", met=False, remark=str(error)[:300])
    finally:
        crew.end()
    for client in seen:
        for said in client.events("step"):
            digests.setdefault(int(said["n"]), set()).add(said["digest"])
        if not words:
            _check_rehearsal(stage, client)
    stage.keep(service, [{name: getattr(each, name) for name in each.__slots__} for each in found])
    stage.keep(f"{service}: rehearsals", [said for client in seen for said in client.events("rehearsed")])
    vault.remove(system, service)
    return found


def _check_rehearsal(stage: Stage, client: Client) -> None:
    for said in client.events("rehearsed"):
        if not said["done"] or not said["is_generator_kept"]:
            stage.add("a rehearsal that was not as it should be", met=False, remark=str(said))


def _trial(crew: Crew, way: str) -> Trial:
    active = crew.settle()
    since_ns = time.monotonic_ns()
    if way == failover.KILLED:
        os.kill(active.pid, signal.SIGKILL)
    else:
        with Mpsd(crew.system.pipe / "mpsd.sock", program="compare", timeout_seconds=EVENT_SECONDS + 5) as mpsd:
            mpsd.ask(calls.service_handover(crew.service, wait_seconds=EVENT_SECONDS))
    standby = crew.successor(active, since_ns)
    first, steady, split = (vault.said(standby, event, EVENT_SECONDS) for event in ("first", "steady", "split"))
    end_all([active])
    return Trial(
        way,
        first=float(first["step_ms"]),
        prepared=float(split["prepared_ms"]),
        launched=float(split["launched_ms"]),
        publish=float(first["publish_ms"]),
        second=float(first["second_ms"]),
        steady=float(steady["step_ms"]),
    )


def _report(stage: Stage, name: str, trials: list[Trial], is_goal: bool) -> None:
    if not trials:
        return
    steady = [each.steady for each in trials]
    for way in (failover.KILLED, failover.HANDED_OVER):
        ours = [each for each in trials if each.way == way]
        first, ratios = [each.first for each in ours], [each.ratio for each in ours]
        if not ours:
            continue
        stage.add(
            f"first step after a promotion ({way}), {name}",
            vendor=f"steady {_ms(steady)}",
            mpsd=_ms(first),
            ratio=f"{figures.median(ratios):.2f} (worst {max(ratios):.2f})",
            goal=f"<= {MOST_RATIO:g}, in the middle" if is_goal else "",
            met=(figures.median(ratios) or 0.0) <= MOST_RATIO if is_goal else None,
            remark=f"n={len(ours)}; record {_ms([each.prepared for each in ours])}; "
            f"launch {_ms([each.launched for each in ours])}; its publish {_ms([each.publish for each in ours])}; "
            f"the second step {_ms([each.second for each in ours])}; all: {' '.join(f'{each:.2f}' for each in first)}",
        )


def _ms(values: list[float]) -> str:
    return f"{figures.median(values):.2f} ms (worst {max(values):.2f})"


def _compare(stage: Stage, system: System, digests: dict[int, set[str]]) -> None:
    """Compare all tokens of all terms of both services with those of an undisturbed run."""
    last = max(digests, default=0)
    plain = member(stage, system, "--plain", "--steps", str(last))
    vault.said(plain, "end", END_SECONDS)
    wanted = {int(said["n"]): said["digest"] for said in plain.events("step")}
    end_all([plain])
    same = sum(found == {wanted.get(number)} for number, found in digests.items())
    stage.add(
        "digests of all tokens so far, each tenth step: as of an undisturbed run",
        mpsd=figures.of(same, len(digests)),
        goal=figures.of(len(digests), len(digests)),
        met=bool(digests) and same == len(digests),
        remark=f"{last} steps",
    )


def member(stage: Stage, system: System, *words: str) -> Client:
    env = {**system.environment(), "PYTHONPATH": python_path(stage)}
    return system.spawn([str(stage.options.torch_python), str(PROGRAM), *words], env)
