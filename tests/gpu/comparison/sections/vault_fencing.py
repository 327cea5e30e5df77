"""Writers that are killed in the middle of a kernel that counts in their arena: when is the next one admitted, and does the
counter ever move again?

Each writer is the one that was admitted when the last was killed. They are of two users in turn, so that they are in two
domains: without co-runners a dead client's work ends with it; with co-runners mpsd holds its descriptors for a while, so that
the others live. If vault.fence is "prompt" it releases them as soon as a writer waits.
"""

import random
import time
from dataclasses import asdict, dataclass, field
from functools import partial

from tests.gpu.comparison import figures, trials, vault
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.stage import OTHER_UID, Stage
from tests.gpu.comparison.system import System, SystemFailed

UIDS = (0, OTHER_UID)
TRIALS = 50
PROMPT_TRIALS = 10
KERNEL_MS = (200, 1000)
AFTER_SECONDS = (0.02, 0.15)  # of the kernel's launch
WATCH_MS = 60
ARENA = "fence"
SEED = 5
FAULTS = '[faults]\nquarantine = "off"\ncrash_pause_max = 0.0\nhold_seconds = 1.0\n'  # 2 s is the default


@dataclass(frozen=True, slots=True)
class Kind:
    what: str
    trials: int
    has_company: bool
    fence: str = "gentle"


KINDS = (
    Kind("alone in its domain", TRIALS, False),
    Kind("with a co-runner: held for 1 s", TRIALS, True),
    Kind("with a co-runner, let go at once", PROMPT_TRIALS, True, "prompt"),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """kernel_ms: of the killed one's kernels.  moved: the counter was seen to change.  hurt: co-runners that died."""

    admitted_ms: float
    kernel_ms: float
    moved: bool
    generation: int
    hurt: int


@dataclass(slots=True)
class Company:
    """Keeps one client that counts all the time in each user's domain, if the trial wants co-runners."""

    system: System
    is_wanted: bool
    clients: dict[int, Client] = field(default_factory=dict)

    def renew(self) -> None:
        for uid in UIDS if self.is_wanted else ():
            if uid not in self.clients:
                begin = partial(_start, self.system, uid, *trials.NEVER_ENDING)
                self.clients[uid], _ = vault.until_said(self.system, begin, "ready")

    def count_hurt(self) -> int:
        """How many have died since they were started; they are gone then."""
        now = time.monotonic_ns()
        hurt = [uid for uid, client in self.clients.items() if not client.wait_for("tick", trials.DEATH_SECONDS, now)]
        for uid in hurt:
            client = self.clients.pop(uid)
            end_all([client])
            self.system.clients.remove(client)
        return len(hurt)


def run(stage: Stage) -> None:
    chance = random.Random(SEED)
    for kind in KINDS:
        config = f'{FAULTS}[vault]\nfence = "{kind.fence}"\n'
        name = f"fence-{kind.fence}-{int(kind.has_company)}"
        system = stage.another(name, stage.options.front_end, stage.mpsd, config=config)
        system.start()
        system.warm(10)
        found: list[Trial] = []
        try:
            _kill_writers(system, kind, stage.trials(kind.trials), chance, found)
        except SystemFailed as error:
            stage.add(f"{kind.what}: broken off", met=False, remark=str(error))
        finally:
            _report(stage, kind, found)
        end_all(system.clients)
        system.clients.clear()
        vault.remove(system, ARENA)
        system.quit()


def _kill_writers(system: System, kind: Kind, total: int, chance: random.Random, found: list[Trial]) -> None:
    company = Company(system, kind.has_company)
    company.renew()
    kernel_ms = chance.uniform(*KERNEL_MS)
    writer = _writer(system, UIDS[0], kernel_ms)
    vault.said(writer, "running")
    for number in range(total):
        next_ms = chance.uniform(*KERNEL_MS)
        standby, _ = vault.until_said(system, partial(_writer, system, UIDS[(number + 1) % 2], next_ms), "waiting")
        time.sleep(chance.uniform(*AFTER_SECONDS))
        killed_ns = vault.end(system, writer)
        admitted = vault.said(standby, "admitted")
        moved = bool(admitted["seen"]) or admitted["before"] != admitted["after"]
        after_ms = (admitted["admitted_ns"] - killed_ns) / 1e6
        writer = standby
        vault.said(writer, "running")
        found.append(Trial(after_ms, kernel_ms, moved, admitted["generation"], company.count_hurt()))
        company.renew()
        kernel_ms = next_ms
    vault.end(system, writer)


def _writer(system: System, uid: int, kernel_ms: float) -> Client:
    times = ("--ms", f"{kernel_ms:.0f}", "--watch-ms", str(WATCH_MS))
    return _start(system, uid, vault.CLIENT, "fence", "--arena", ARENA, "--mode", "666", *times)


def _start(system: System, uid: int, program: str, *arguments: str) -> Client:
    before = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups") if uid else ()
    return system.client(program, *arguments, before=before)


def _report(stage: Stage, kind: Kind, found: list[Trial]) -> None:
    if not found:
        return
    stage.keep(kind.what, [asdict(trial) for trial in found])
    times = [trial.admitted_ms for trial in found]
    total = len(found)
    generations = [trial.generation for trial in found]
    stage.add(
        f"{kind.what}: kill to the next one's admission",
        mpsd=f"median {figures.ms(figures.median(times))}, worst {figures.ms(max(times))}, best {figures.ms(min(times))}",
        remark=f"{total} trials, kernels of {KERNEL_MS[0]} to {KERNEL_MS[1]} ms",
    )
    stage.add(
        f"{kind.what}: the old writer's kernel wrote after that",
        mpsd=figures.of(sum(trial.moved for trial in found), total),
        goal=figures.of(0, total),
        met=not any(trial.moved for trial in found) and generations == sorted(set(generations)),
        remark=f"watched for {WATCH_MS} ms",
    )
    if kind.has_company:
        hurt = sum(trial.hurt > 0 for trial in found)
        is_gentle = kind.fence == "gentle"
        stage.add(
            f"{kind.what}: kills that hurt a co-runner",
            mpsd=figures.of(hurt, total),
            goal=figures.of(0, total) if is_gentle else "",
            met=not hurt if is_gentle else None,
        )
