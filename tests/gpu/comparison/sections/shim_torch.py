"""Unmodified programs under the shim, with and without an arena behind their allocations: whether they compute the same, and
how long a step of PyTorch takes, in turns.
"""

import statistics
import time
from collections.abc import Mapping

from mpsd_client import calls

from tests.gpu.comparison import figures, vault
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.pytorch import has_torch
from tests.gpu.comparison.sections.shim_shield import LOG_CHARACTERS, SHIM, shim_variables
from tests.gpu.comparison.sections.vault_torch import python
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import SystemFailed

PROGRAM = str(ROOT / "tests/gpu/array_program.py")
STEPS = str(ROOT / "tests/gpu/torch/steps.py")
LIBRARIES = ("torch", "cupy", "jax")
ROUNDS = 4  # in one process
TURNS, TURN_STEPS = 30, "5"  # of processes that live at once
KINDS = {"infer": "100", "train": "40"}  # steps
CAPACITY = "16G"
RESULT_SECONDS = 45.0  # of one library
MOST_RATIO = 1.005
ARENA = "shim"
LOG = "shim-torch.log"

Variables = Mapping[str, str]


def run(stage: Stage) -> None:
    if not has_torch(stage):
        return
    if not SHIM.exists():
        stage.add("skipped", remark=f"no {SHIM.name} here (make -C clients/shim)")
        return
    stage.mpsd.renew()
    stage.mpsd.warm(10)
    for kind in KINDS:
        _in_arena(stage, kind)
        _under_shim(stage, kind)
    for library in LIBRARIES:
        if stage.left() < RESULT_SECONDS:
            stage.add(f"{library}: not begun", remark="no time was left")
            continue
        _compare_results(stage, library)
    log = stage.work / LOG
    stage.keep("the shim's log", log.read_text(errors="replace")[-LOG_CHARACTERS:] if log.exists() else "")


def _variants(stage: Stage) -> dict[str, Variables]:
    log = stage.work / LOG
    return {
        "plain": {},
        "shim": shim_variables(log),
        "shim and arena": shim_variables(log, MPSD_ARENA=ARENA, MPSD_ARENA_CAPACITY=CAPACITY),
    }


def _compare_results(stage: Stage, library: str) -> None:
    ends, used, words = {}, 0, []
    for name, variables in _variants(stage).items():
        client = python(stage, PROGRAM, library, **variables)
        end = client.wait_for("end", vault.EVENT_SECONDS)
        client.wait(vault.EVENT_SECONDS)
        stage.mpsd.clients.remove(client)
        ends[name] = end["digest"] if end else _words(client)
        words.append(f"{name} {end['seconds']:.1f} s" if end else f"{name}: {_words(client)}")
        if "MPSD_ARENA" in variables:
            used = _largest(stage)
            vault.remove(stage.mpsd, ARENA)
    stage.keep(library, ends)
    if "ModuleNotFoundError" in ends["plain"]:
        stage.add(f"{library}: skipped", remark=ends["plain"])
        return
    stage.add(
        f"{library}: the same result without the shim, with it, and with memory in an arena",
        mpsd="the same" if len(set(ends.values())) == 1 else "not the same",
        goal="the same",
        met=len(set(ends.values())) == 1,
        remark=f"{'; '.join(words)}; the arena held {used >> 20} MiB afterwards",
    )


def _words(client: Client) -> str:
    return f"{client.fate} {client.other[-1] if client.other else ''}".strip()


def _largest(stage: Stage) -> int:
    with vault.connected(stage.mpsd) as mpsd:
        return max((arena.used_bytes for arena in mpsd.pages(calls.arena_list())), default=0)


def _in_arena(stage: Stage, kind: str) -> None:
    """Both in one process, in turns."""
    rounds = str(stage.trials(ROUNDS))
    client = python(stage, STEPS, "--kind", kind, "--arena", "steps", "--rounds", rounds, "--steps", KINDS[kind])
    client.wait(vault.EVENT_SECONDS * 2)
    found = {event["memory"]: event for event in client.events("steps")}
    if {"plain", "arena"} - set(found):
        stage.add(f"{kind}: a step, in PyTorch's memory and in an arena", met=False, remark=_words(client))
    else:
        plain, arena = found["plain"], found["arena"]
        ratio = arena["median_ms"] / plain["median_ms"]
        stage.add(
            f"{kind}: a step, in PyTorch's memory and in an arena, {rounds} rounds of {KINDS[kind]} in turns",
            vendor=_step(plain),
            mpsd=_step(arena),
            ratio=figures.times(ratio),
            goal=f"<= {MOST_RATIO}",
            met=ratio <= MOST_RATIO,
        )
    stage.mpsd.clients.remove(client)
    vault.remove(stage.mpsd, "steps")


def _step(event: Mapping[str, float]) -> str:
    return f"{event['median_ms']:.3f} ms (10 %: {event['p10_ms']:.3f}, 90 %: {event['p90_ms']:.3f})"


def _under_shim(stage: Stage, kind: str) -> None:
    """Processes that live at once and take turns: what drifts does so for all of them."""
    clients: dict[str, Client] = {}
    medians: dict[str, list[float]] = {name: [] for name in _variants(stage)}
    for name, variables in _variants(stage).items():
        words = ("--kind", kind, "--steps", TURN_STEPS, "--turns")
        clients[name] = python(stage, STEPS, *words, has_input=True, **variables)
    for client in clients.values():
        vault.said(client, "ready")
    for _ in range(stage.trials(TURNS)):
        for name, client in clients.items():
            began_ns = time.monotonic_ns()
            client.tell("go")
            turn = client.wait_for("turn", vault.EVENT_SECONDS, began_ns)
            if turn is None:
                raise SystemFailed(f"{kind}, {name}: {_words(client)}"[:300])
            medians[name].append(float(turn["median_ms"]))
    end_all(list(clients.values()))
    for client in clients.values():
        stage.mpsd.clients.remove(client)
    vault.remove(stage.mpsd, ARENA)
    stage.keep(f"{kind}: medians of each turn, ms", medians)
    plain = medians.pop("plain")
    for name, ours in medians.items():
        ratio = statistics.median(mine / theirs for mine, theirs in zip(ours, plain, strict=True))
        stage.add(
            f"{kind}: a step, without the shim and with {name} (median of {len(plain)} turns of {TURN_STEPS} steps)",
            vendor=figures.ms(figures.median(plain)),
            mpsd=figures.ms(figures.median(ours)),
            ratio=figures.times(ratio),
            goal=f"<= {MOST_RATIO}",
            met=ratio <= MOST_RATIO,
            remark=figures.pair_range(ours, plain),
        )
