"""Every class of fault in a domain with a sentinel, and on stock MPS: which co-runners continue, how long they stand still,
whether the culprit is named, and how fast newcomers start.

The classes take turns with a sentinel, and on stock MPS in the first CONTAINMENT_STOCK rounds (1); memory faults and deaths,
which no sentinel contains, are once.  CONTAINMENT_CLASSES="trap,graph" takes those classes alone with one of the words in their
name, CONTAINMENT_CLASSES=sm all SM exceptions, CONTAINMENT_CLASSES=rest all others, these in each round then.

After an exception without a program counter mpsd learns the culprit from its end, or sooner from the shim: half of the culprits
run under it.  Each trial with a sentinel has a row of its own, with all that happened.
"""

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.containment import (
    CO_RUNNERS,
    CONFIG,
    SHIM,
    Bench,
    Kind,
    Trial,
    run_trial,
    undisturbed_losses,
)
from tests.gpu.comparison.listener import Listener
from tests.gpu.comparison.stage import AS_OTHER, Stage
from tests.gpu.comparison.system import System

TRIALS, OTHER_TRIALS, SHARE_TRIALS = 20, 1, 5
SM, REST = "sm", "rest"
FAULTERS = ("trap", "misaligned", "illegal_instruction", "stack_overflow", "assert_fail")
OURS = (
    "trap_all",
    "trap_waves",
    "breakpoint",
    "noncanonical",
    "shared_overrun",
    "atomic_misaligned",
    "atomic_noncanonical",
    "cluster_trap",
    "cluster_shared",
    "tma_misaligned",
    "tma_noncanonical",
    "graph_trap",
    "graph_misaligned",
)
REST_FAULTERS = (
    "oob_write",
    "oob_read",
    "oob_atomic",
    "null_write",
    "near_null_write",
    "use_after_free",
    "ro_write",
    "managed_freed",
    "managed_oob",
    "copy",
    "busy_write",
    "killed",
)
REST_OURS = ("tma_unmapped", "graph_oob_write", "jump_unmapped", "jump_misaligned", "jump_null")
KINDS = (
    *(Kind(mode, SM) for mode in FAULTERS),
    *(Kind(mode, SM, is_ours=True) for mode in OURS),
    *(Kind(mode, REST) for mode in REST_FAULTERS),
    *(Kind(mode, REST, is_ours=True) for mode in REST_OURS),
)
WORDS = tuple(filter(None, os.environ.get("CONTAINMENT_CLASSES", "").split(",")))
STOCK_ROUNDS = int(os.environ.get("CONTAINMENT_STOCK") or 1)
WITHOUT_PC = ("trap", "trap_all", "trap_waves", "breakpoint", "assert_fail", "cluster_trap", "graph_trap")
AHEAD = 6  # PyTorch is started for so many trials to come: on 16 cores that takes as long as six trials
UNDISTURBED_SECONDS = 8.0  # longer than any trial, and alone: more steps
SLOWEST_SECONDS = 8.0
JUDGED = 8  # the last trials, whose verdict can still come
WARM_SECONDS = 15.0
STALL_GOAL_MS, NAMED_GOAL_MS = 50.0, 30.0


def run(stage: Stage) -> None:
    kinds = [kind for kind in KINDS if not WORDS or any(word == kind.fault_class or word in kind.mode for word in WORDS)]
    system = stage.another("guarded", stage.options.front_end, stage.mpsd, config=CONFIG)
    system.start()
    stage.vendor.renew()
    bench = Bench(stage)
    bench.losses = undisturbed_losses(bench, stage.vendor, UNDISTURBED_SECONDS)
    found: list[Trial] = []
    try:
        _run_all(bench, _plan(stage, system, kinds), found)
    finally:
        _report(stage, kinds, found)


Step = tuple[System, Kind, bool, bool]  # with PyTorch; the culprit under the shim


def _plan(stage: Stage, system: System, kinds: Sequence[Kind]) -> Iterator[Step]:
    """Every other round of SM exceptions is with PyTorch, which takes longer to start than a trial lasts; of each two such
    rounds, one is with the shim."""
    for number in range(stage.trials(TRIALS)):
        now = [kind for kind in kinds if kind.fault_class == SM or WORDS or number < stage.trials(OTHER_TRIALS)]
        for kind in now:
            has_shim = kind.mode in WITHOUT_PC and number % 4 in (1, 2) and SHIM.exists()
            yield system, kind, kind.fault_class == SM and number % 2 == 0, has_shim
        if number < STOCK_ROUNDS:
            yield from ((stage.vendor, kind, False, False) for kind in now)


def _run_all(bench: Bench, plan: Iterator[Step], found: list[Trial]) -> None:
    """In order, as far as the time suffices. A system in which a trial left something behind is started anew."""
    listeners: dict[str, Listener] = {}
    waiting: deque[tuple[Step, dict[str, Client]]] = deque()
    slowest = SLOWEST_SECONDS

    def prepared(step: Step) -> dict[str, Client]:
        return bench.start_torch(step[0]) if step[2] else {}

    while bench.stage.left() > slowest + 2:
        waiting.extend((step, prepared(step)) for step in islice(plan, AHEAD + 1 - len(waiting)))
        if not waiting:
            break
        (system, kind, _, has_shim), clients = waiting.popleft()
        if system.has_spares and system.name not in listeners:
            system.warm(WARM_SECONDS)
            listeners[system.name] = Listener(system, "fault.*", "domain.*", "service.*", "gpu.*")
        trial = run_trial(bench, system, kind, clients, listeners.get(system.name), has_shim)
        found.append(trial)
        slowest = max(slowest, trial.seconds)
        bench.stage.say(f"{system.name} {kind.mode}: {trial.why or trial.ends} culprit {trial.culprit} {trial.seconds:.1f} s")
        _judge(found, listeners)
        if trial.why or (kind.fault_class == REST and trial.culprit == "hangs"):
            if system.name in listeners:
                listeners.pop(system.name).close()
            system.renew()  # also ends what was started ahead for it
            waiting = deque((step, prepared(step) if step[0] is system else each) for step, each in waiting)
    _judge(found, listeners)
    for each in listeners.values():
        each.close()


def _judge(found: Sequence[Trial], listeners: Mapping[str, Listener]) -> None:
    for trial in found[-JUDGED:]:
        if trial.system in listeners:
            trial.judge(listeners[trial.system])


def _report(stage: Stage, kinds: Sequence[Kind], found: Sequence[Trial]) -> None:
    stage.keep("trials", [asdict(each) for each in found])
    _add_courses(stage, kinds, found)
    for kind in kinds:
        of_kind = [each for each in found if each.mode == kind.mode]
        stock = [each for each in of_kind if each.system == "vendor" and not each.why]
        ours = [each for each in of_kind if each.system != "vendor" and not each.why]
        if ours or of_kind:
            _add(stage, kind, stock, ours, [each.why for each in of_kind if each.why])


def _add_courses(stage: Stage, kinds: Sequence[Kind], found: Sequence[Trial]) -> None:
    """One row for each SM exception with a sentinel; times after the driver's event."""
    modes = [kind.mode for kind in kinds if kind.fault_class == SM]
    for number, each in enumerate(found, 1):
        if each.mode in modes and each.system != "vendor" and not each.why:
            beside = f"{' PyTorch' * each.has_torch}{' shim' * each.has_shim}"
            stalls = ", ".join(f"{name} {each.ends[name]} {figures.ms(each.stall.get(name))}" for name in each.ends)
            stage.add(f"{number}: {each.mode}{beside}", mpsd=stalls, remark=each.course)


def _add(stage: Stage, kind: Kind, stock: Sequence[Trial], ours: Sequence[Trial], why_not: Sequence[str]) -> None:
    contained = sum(each.is_contained for each in ours)
    stalls = [max(each.stall.values()) for each in ours if each.is_contained and each.stall]
    named = [each.named for each in ours if each.is_right and each.named is not None]
    wrong = sum(each.is_right is False for each in ours)
    newcomers = [each.newcomer for each in ours if each.newcomer is not None]
    is_met = bool(ours) and contained == len(ours) and not wrong and max(stalls, default=0.0) < STALL_GOAL_MS
    stage.add(
        kind.mode,
        vendor=f"{sum(each.exact for each in stock)} of {len(CO_RUNNERS) * len(stock)} exact",
        mpsd="; ".join(
            (
                f"contained {figures.of(contained, len(ours))}, exact {sum(each.exact for each in ours)}",
                f"stall {_spread(stalls)}, event {_spread([each.event for each in ours])}",
                f"told {_spread([each.contained for each in ours])} later",
                f"named {figures.of(len(named), len(ours))} after {_spread(named)}, wrongly {wrong}",
                *_named_after(ours),
                f"newcomer {figures.of(len(newcomers), len(ours))} in {_spread(newcomers)}",
            )
        ),
        goal="" if kind.fault_class != SM else f"all, stall {STALL_GOAL_MS:.0f} ms, named {NAMED_GOAL_MS:.0f} ms",
        met=is_met if kind.fault_class == SM else None,
        remark="; ".join(_remarks(stock, ours, why_not)),
    )


def _named_after(ours: Sequence[Trial]) -> Iterator[str]:
    """How long mpsd took, of an exception without a program counter: after the culprit's own error, or after its end."""
    known = [each for each in ours if each.mode in WITHOUT_PC and each.is_right and each.named is not None]
    with_shim = [each.named - each.failed for each in known if each.has_shim and each.named and each.failed]
    without = [each.named - each.ended for each in known if not each.has_shim and each.named and each.ended]
    if known:
        yield f"of that {_spread(without)} after the culprit's end; with the shim {_spread(with_shim)} after its error"


def _remarks(stock: Sequence[Trial], ours: Sequence[Trial], why_not: Sequence[str]) -> Iterator[str]:
    yield f"culprit: {_tally([each.culprit for each in ours])} (stock {_tally([each.culprit for each in stock])})"
    if bad := [each for trial in ours for name, each in trial.ends.items() if each != "exact"]:
        yield f"not exact: {_tally(bad)}"
    yield f"resumed {_spread([each.resumed for each in ours])} after the event"
    if drained := sum(each.drained for each in ours):
        yield f"GPU taken out of use: {drained}"
    if kinds := [each.confidence for each in ours if each.confidence]:
        yield _tally(kinds)
    if fates := [each.newcomer_fate for each in ours if each.newcomer_fate != "done"]:
        yield f"newcomers: {_tally(fates)}"
    yield from (f"no trial: {each}" for each in dict.fromkeys(why_not))


def _tally(words: Sequence[str]) -> str:
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)) or figures.NONE


def _spread(values: Sequence[float | None]) -> str:
    known = [each for each in values if each is not None]
    return f"{figures.ms(figures.median(known))} (worst {figures.ms(max(known))})" if known else figures.NONE


def run_shares(stage: Stage) -> None:
    """In a server with a default share of 50 %, where the sentinel sees half of the SMs; and among clients of another user, who
    has the stopped client too. Without PyTorch."""
    half = stage.another("half", stage.options.front_end, stage.mpsd, config=CONFIG)
    half.start()
    half.ask("set_default_active_thread_percentage 50")
    wide = [Kind(mode, SM, is_ours=True) for mode in ("trap_all", "misaligned_all", "cluster_trap")]
    _run_in(Bench(stage, without_torch=True), half, [*wide, Kind("misaligned", SM)])
    other = stage.another("other_user", stage.options.front_end, stage.mpsd, config=CONFIG)
    other.start()
    _run_in(Bench(stage, without_torch=True, user=AS_OTHER), other, [Kind("trap", SM), Kind("misaligned", SM)])


def _run_in(bench: Bench, system: System, kinds: Sequence[Kind]) -> None:
    found: list[Trial] = []
    _run_all(bench, ((system, kind, False, False) for _ in range(bench.stage.trials(SHARE_TRIALS)) for kind in kinds), found)
    bench.stage.keep(system.name, [asdict(each) for each in found])
    for kind in kinds:
        ours = [each for each in found if each.mode == kind.mode]
        made, why = [each for each in ours if not each.why], [each.why for each in ours if each.why]
        _add(bench.stage, Kind(f"{system.name}: {kind.mode}", SM), [], made, why)
