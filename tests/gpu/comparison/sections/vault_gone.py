"""mpsd killed in the middle of each call, and again and again under a writer that never rests: nothing is lost."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.gpu.comparison import figures, vault
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System
from tests.gpu.comparison.vault_wire import Refusal, Wire

GRANULE = vault.GRANULE
CAPACITY = 32 * GRANULE
ARENA = "gone"
CHURN_SECONDS = 12.0
KILLS = 10  # of mpsd, while it churns
BETWEEN_SECONDS = (0.1, 0.5)
DELAYS_SECONDS = (0.0, 0.0005, 0.002, 0.01)  # from the request to mpsd's end
SEED = 7


def run(stage: Stage) -> None:
    stage.mpsd.renew()
    stage.mpsd.warm(10)
    with vault.lent_memory(stage.mpsd) as memory:
        _gone(stage, memory)
    _churn(stage)


def _gone(stage: Stage, memory: int) -> None:
    """Kill mpsd during each call; the repeated call gets the result that the first would have got."""
    system, chance = stage.mpsd, random.Random(SEED)
    layout = os.memfd_create("layout")
    os.write(layout, b"of the middle")
    calls: tuple[tuple[str, Sequence[int], Callable[[dict[str, Any]], dict[str, Any]]], ...] = (
        ("create", (), lambda arena: {"name": ARENA, "gpu": "0", "capacity_bytes": CAPACITY}),
        ("open", (), lambda arena: {"name": ARENA, "access": "write"}),
        ("put", (memory,), lambda arena: vault.places(arena, (0, GRANULE))),
        ("put", (memory,), lambda arena: vault.places(arena, (GRANULE, GRANULE))),
        ("commit", (layout,), lambda arena: {"id": arena["id"], "generation": arena["generation"], "has_layout": True}),
        ("take", (), lambda arena: {"id": arena["id"]}),
        ("layout", (), lambda arena: {"id": arena["id"]}),
        ("drop", (), lambda arena: {"id": arena["id"], "generation": arena["generation"], "offsets": [0]}),
        (
            "change",
            (),
            lambda arena: {"name": ARENA, "mode": 0o640} if "id" not in arena else {"id": arena["id"], "mode": 0o640},
        ),
        ("seal", (), lambda arena: {"id": arena["id"], "generation": arena["generation"]}),
        ("close", (), lambda arena: {"id": arena["id"]}),
        ("remove", (), lambda arena: {"name": ARENA}),
    )
    wrong, total = [], 0
    for _ in range(stage.trials(len(DELAYS_SECONDS))):
        arena: dict[str, Any] = {}
        for method, fds, params in calls:
            total += 1
            found = _interrupted(system, method, fds, params(arena), chance.choice(DELAYS_SECONDS))
            if isinstance(found, str):
                wrong.append(f"{method}: {found}")
            elif method in ("create", "open"):
                arena = found
    os.close(layout)
    vault.remove(system, ARENA)
    stage.add(
        "mpsd killed in the middle of a call, then the call again",
        mpsd=figures.of(total - len(wrong), total),
        goal=figures.of(total, total),
        met=not wrong,
        remark="; ".join(dict.fromkeys(wrong))[:300] or f"{len(calls)} calls in turn, each with what the ones before had done",
    )


def _interrupted(
    system: System, method: str, fds: Sequence[int], params: dict[str, Any], seconds: float
) -> dict[str, Any] | str:
    """The second answer; in words where it is not as it should be."""
    wire = Wire(system.pipe)
    wire.send(f"arena.{method}", fds, **params)
    time.sleep(seconds)
    vault.kill_mpsd(system)
    wire.close()
    system.start()
    with Wire(system.pipe) as again:
        try:
            return dict(again.ask(f"arena.{method}", fds, **params) or {})
        except Refusal as refusal:
            if method == "create":  # it was made, and the answer was lost
                return dict(again.ask("arena.get", name=ARENA))
            if method in ("close", "remove", "drop") and refusal.name in ("NO_SUCH_ARENA", "NOT_ALLOWED", "BAD_REQUEST"):
                return {}  # it had been done
            if method == "seal" and refusal.name == "ARENA_SEALED":
                return {}
            return str(refusal)


def _churn(stage: Stage) -> None:
    """A writer that allocates, frees and commits all the time, while mpsd is killed again and again, and once its keeper."""
    system, chance = stage.mpsd, random.Random(SEED)
    kills = stage.trials(KILLS)
    seconds = CHURN_SECONDS * kills / KILLS + 2
    client = vault.start(system, "churn", "--arena", "churn", "--seconds", f"{seconds:.1f}")
    vault.said(client, "ready")
    for number in range(kills):
        time.sleep(chance.uniform(*BETWEEN_SECONDS))
        vault.kill_mpsd(system)
        if number == kills // 2:
            for keeper in vault.keeper_pids(system):
                os.kill(keeper, signal.SIGKILL)
        system.start()
    churned = vault.said(client, "churned")
    client.wait(vault.EVENT_SECONDS)
    system.clients.remove(client)
    adopted = vault.run(system, "adopted", "adopt", "--arena", "churn")
    vault.remove(system, "churn")
    is_same = adopted["wrong"] == 0 and adopted["is_whole"] and adopted["count"] == churned["count"]
    stage.add(
        f"mpsd killed {kills} times, its keeper once, under a writer that commits all the time",
        mpsd="all is there, and as it was filled" if is_same else f"not as committed: {adopted}",
        goal="the last commit, whole",
        met=is_same,
        remark=f"{churned['commits']} commits, {churned['allocated']} allocations, {churned['freed']} freed",
    )
