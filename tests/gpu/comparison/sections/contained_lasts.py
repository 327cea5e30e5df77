"""How long a contained domain serves its clients: after a trap its co-runners work on for CONTAINMENT_LASTS seconds.

Every ten seconds each co-runner has to have made progress, the domain has to be contained still, and a newcomer starts in
another domain. Then a second client traps, which ends them all. Four hours:
CONTAINMENT_LASTS=14400 tests/gpu/containment --only contained_lasts --budget 14500.
"""

import os
import time
from dataclasses import dataclass, field

from mpsd_client import Client as Mpsd
from mpsd_client import calls

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.containment import (
    CONFIG,
    END_SECONDS,
    FAULT_SECONDS,
    NOTICE_SECONDS,
    READY_SECONDS,
    SPARE_SECONDS,
    TORCH_PROGRAM,
    Bench,
    Kind,
    launch,
)
from tests.gpu.comparison.course import in_words, of_events, of_reports, reports_of
from tests.gpu.comparison.listener import Listener
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

LASTS_SECONDS = float(os.environ.get("CONTAINMENT_LASTS") or 20)
STARTS_SECONDS = 60.0  # for what comes before and after
LOOK_SECONDS = 10.0
TICK_SECONDS = 5.0  # a co-runner reports each second
WARM_SECONDS = 15.0
TRAP = Kind("trap", "sm")
STATE = "contained"


@dataclass(slots=True)
class Course:
    """What became of the co-runners. why: what ended it early."""

    seconds: float = 0.0
    newcomers: list[float] = field(default_factory=list)  # ms to the first kernel
    failed: list[str] = field(default_factory=list)  # newcomers that did not get there
    why: str = ""


def run(stage: Stage) -> None:
    system = stage.another("lasting", stage.options.front_end, stage.mpsd, config=CONFIG)
    system.start()
    system.warm(WARM_SECONDS)
    listener = Listener(system, "fault.*", "domain.*", "gpu.*")
    listener.wait_for_spare(SPARE_SECONDS)
    bench = Bench(stage)
    others = _co_runners(stage, system)
    culprits = [bench.culprit(system, TRAP, has_shim=False) for _ in range(2)]
    for name, each in {**others, "culprit": culprits[0], "second culprit": culprits[1]}.items():
        if not each.wait_for("ready", READY_SECONDS):
            raise SystemFailed(f"{name} did not start: {each.fate} {each.events('error')[:1]}")
    launched_ns = launch(culprits[0])
    if listener.first("domain.contained", launched_ns, FAULT_SECONDS) is None:
        raise SystemFailed(f"the trap was not contained: {_course(system, listener, launched_ns)}")
    lasted = _watch(stage, system, others)
    _add_lasted(stage, lasted, others, _course(system, listener, launched_ns))
    if not lasted.why:
        _add_second(stage, system, bench, others, culprits[1], listener)
    listener.close()


def _co_runners(stage: Stage, system: System) -> dict[str, Client]:
    seconds = str(LASTS_SECONDS + STARTS_SECONDS)
    words = ("--ms", "1000", "--seconds", seconds, "--until-release")
    found = {
        "short": system.client("counter", *words, has_input=True),
        "wide": system.client("counter", *words, "--grid", "132", has_input=True),
        "long": system.client("counter", "--kernel-us", "500000", *words, has_input=True),
    }
    python = stage.options.torch_python
    if python is not None and not stage.options.is_simulated:
        found["matmul"] = system.spawn([str(python), str(TORCH_PROGRAM), "matmul"], None, True)
        found["matmul"].tell("go")
    return found


def _watch(stage: Stage, system: System, others: dict[str, Client]) -> Course:
    """Return once the time is over, or a co-runner makes no progress."""
    began, course = time.monotonic(), Course()
    end = min(began + LASTS_SECONDS, stage.deadline - STARTS_SECONDS / 2)
    while not course.why:
        asked_ns = time.monotonic_ns()
        idle = [name for name, each in others.items() if not each.wait_for("tick", TICK_SECONDS, asked_ns)]
        course.seconds = time.monotonic() - began
        if idle:
            course.why = ", ".join(f"{name} {others[name].fate}" for name in idle)
        elif (count := _contained_domains(system)) != 1:
            course.why = f"{count} domains are contained"
        elif time.monotonic() >= end:
            break
        else:
            _newcomer(system, course)
            time.sleep(max(0.0, min(LOOK_SECONDS - (time.monotonic_ns() - asked_ns) / 1e9, end - time.monotonic())))
    return course


def _contained_domains(system: System) -> int:
    with Mpsd(system.pipe / "mpsd.sock", program="compare") as mpsd:
        return sum(each.state == STATE for each in mpsd.ask(calls.domain_list()).items)


def _newcomer(system: System, course: Course) -> None:
    client = system.client("counter", "--seconds", "0")
    client.wait(READY_SECONDS)
    ready = client.events("ready")
    if ready:
        course.newcomers.append(float(ready[0]["first_kernel_ms"]))
    else:
        course.failed.append(client.fate)
    system.clients.remove(client)


def _course(system: System, listener: Listener, since_ns: int) -> str:
    moments = [*of_reports(reports_of(system.log / "mpsd.log", since_ns)), *of_events(listener.heard(since_ns))]
    return in_words(moments, since_ns)


def _add_lasted(stage: Stage, course: Course, others: dict[str, Client], words: str) -> None:
    tries = len(course.newcomers) + len(course.failed)
    worst = {name: float(each.events("tick")[-1]["worst_ms"]) for name, each in others.items() if each.events("tick")}
    stage.keep("newcomers", course.newcomers)
    stage.add(
        f"a contained domain: {len(others)} co-runners ({', '.join(others)}) work on",
        mpsd=f"for {course.seconds:.0f} s{f', then {course.why}' if course.why else ''}",
        goal=f"{LASTS_SECONDS:.0f} s",
        met=not course.why and not course.failed and course.seconds >= LASTS_SECONDS,
        remark=f"longest step {', '.join(f'{name} {figures.ms(each)}' for name, each in worst.items())}; newcomers "
        f"{figures.of(len(course.newcomers), tries)} in {figures.ms(figures.median(course.newcomers))}, longest "
        f"{figures.ms(max(course.newcomers, default=None))} {' '.join(dict.fromkeys(course.failed))}; {words}",
    )


def _add_second(
    stage: Stage, system: System, bench: Bench, others: dict[str, Client], culprit: Client, listener: Listener
) -> None:
    """Let a second client trap: no co-runner may hang."""
    launched_ns = launch(culprit)
    told = listener.first("fault.opened", launched_ns, NOTICE_SECONDS)  # the domain was contained already
    until = time.monotonic() + END_SECONDS
    ends = {name: bench.end_of(name, each, until) for name, each in others.items()}
    failed = sum(each.startswith("error") for each in ends.values())
    stage.add(
        "a second trap there, which ends all",
        mpsd=f"{'told' if told else 'not reported'}, ended with an error {figures.of(failed, len(ends))}",
        goal="all",
        met=told is not None and failed == len(ends),
        remark=f"{', '.join(f'{name} {each}' for name, each in ends.items())}; {_course(system, listener, launched_ns)}",
    )
