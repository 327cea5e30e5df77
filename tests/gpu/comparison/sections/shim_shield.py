"""Wild accesses of a client under the shim, among co-runners in its domain: absorbed, or reported and ended; and the same of a
client without it.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mpsd_client import calls

from tests.gpu.comparison import figures, trials, vault
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.listener import Listener
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import System, SystemFailed

SHIM = ROOT / "clients/shim/libmpsd.so"
MODES = ("overrun", "underrun", "use_after_free", "near_null")
TRIALS = 5
BARE_TRIALS = 2
BEYOND = (0, 1 << 20)  # bytes: of the access, from the end of what is its own
SETTLE_SECONDS = 0.4
AFTER_SECONDS = "0.1"  # until mpsd has laid its own, at low addresses
NAMED_SECONDS = 3.0
PAGE = 64 << 10  # addresses are reported to this precision
LOG_CHARACTERS = 8000
SEED = 3
OFF = '[faults]\nshield = "off"\nquarantine = "off"\ncrash_pause_max = 0.0\n'  # mpsd's own is for low addresses


@dataclass(frozen=True, slots=True)
class Trial:
    """code: the client's result of the access; None: it did not survive it. wrong: wrong words in its memory."""

    mode: str
    fate: str
    code: int | None
    wrong: int | None
    lives: bool
    is_named: bool = False
    named_ms: float | None = None
    named: str = ""


def run(stage: Stage) -> None:
    if not SHIM.exists():
        stage.add("skipped", remark=f"no {SHIM.name} here (make -C clients/shim)")
        return
    bare = stage.another("bare", stage.options.front_end, stage.mpsd, config=OFF)
    bare.start()
    stage.mpsd.renew()
    listener = Listener(stage.mpsd)
    chance = random.Random(SEED)
    for mode in MODES:
        found: dict[str, list[Trial]] = {"bare": [], "absorb": [], "report": []}
        for _ in range(stage.trials(BARE_TRIALS)):
            found["bare"].append(_trial(bare, mode, {}, chance, None))
        for kind in ("absorb", "report"):
            log = stage.work / f"shim-{kind}.log"
            for _ in range(stage.trials(TRIALS)):
                heard = listener if kind == "report" else None
                found[kind].append(_trial(stage.mpsd, mode, shim_variables(log, MPSD_SHIELD=kind), chance, heard))
        _report(stage, mode, found)
    for log in sorted(stage.work.glob("shim-*.log")):
        stage.keep(log.name, log.read_text(errors="replace")[-LOG_CHARACTERS:])
    listener.close()


def shim_variables(log: Path, **more: str) -> dict[str, str]:
    return {"LD_PRELOAD": str(SHIM), "MPSD_LOG": str(log), **more}


def _trial(system: System, mode: str, more: Mapping[str, str], chance: random.Random, listener: Listener | None) -> Trial:
    company = _company(system)
    beyond = chance.randrange(*BEYOND, 8)
    argv = [str(system.programs / "wild"), mode, "--beyond", str(beyond), "--after", AFTER_SECONDS, "--json"]
    client = system.spawn(argv, {**system.environment(), **more})
    fault = client.wait_for("fault", trials.READY_SECONDS)
    if fault is None:
        raise SystemFailed(f"{mode}: the client did nothing: {client.fate} {client.other[:2]}")
    verdict = listener.culprit_since(int(fault["monotonic_ns"]), NAMED_SECONDS) if listener else None
    if client.wait(trials.DEATH_SECONDS) is None:
        end_all([client])
    time.sleep(SETTLE_SECONDS)
    lives = all(_goes_on(each) for each in company)
    results, ends = client.events("result"), client.events("end")
    system.clients.remove(client)
    trial = Trial(
        mode,
        client.fate,
        int(results[0]["code"]) if results else None,
        int(ends[0]["wrong"]) if ends else None,
        lives,
    )
    if verdict is None:
        return trial
    address = _address(system, verdict.number)
    is_named = verdict.pid == client.pid and address is not None and address // PAGE == int(fault["address"]) // PAGE
    named = f"pid {verdict.pid} of {client.pid}, address {address} of {fault['address']}"
    named_ms = (verdict.heard_ns - int(fault["monotonic_ns"])) / 1e6
    return Trial(mode, trial.fate, trial.code, trial.wrong, lives, is_named, named_ms, named)


def _company(system: System) -> Sequence[Client]:
    """One co-runner that goes on from trial to trial, for as long as it lives."""
    for client in [each for each in system.clients if not each.is_running]:
        system.clients.remove(client)
    return list(system.clients) or [trials.started(system, *trials.NEVER_ENDING)]


def _goes_on(client: Client) -> bool:
    return client.wait_for("tick", trials.DEATH_SECONDS, time.monotonic_ns()) is not None and client.is_running


def _address(system: System, number: int) -> int | None:
    with vault.connected(system) as mpsd:
        return mpsd.ask(calls.fault_get(number)).address


def _report(stage: Stage, mode: str, found: dict[str, list[Trial]]) -> None:
    stage.keep(mode, {kind: [asdict(trial) for trial in trials_] for kind, trials_ in found.items()})
    bare, absorbed, reported = found["bare"], found["absorb"], found["report"]
    died = sum(not trial.lives for trial in bare)
    harmless = [trial for trial in absorbed if trial.lives and trial.code == 0 and trial.wrong == 0]
    stage.add(
        f"{mode}: absorbed; co-runner lives, and so does the client, its memory as it was",
        vendor=f"without the shim the co-runner died in {figures.of(died, len(bare))}",
        mpsd=figures.of(len(harmless), len(absorbed)),
        goal=figures.of(len(absorbed), len(absorbed)),
        met=len(harmless) == len(absorbed),
        remark=_fates([trial for trial in absorbed if trial not in harmless]),
    )
    lived = [trial for trial in reported if trial.lives]
    named = [trial for trial in lived if trial.is_named]
    times = [trial.named_ms for trial in named if trial.named_ms is not None]
    is_low = mode == "near_null"  # mpsd's own shield, which absorbs
    stage.add(
        f"{mode}: reported; co-runner lives" + ("" if is_low else ", client and address are named"),
        mpsd=f"{figures.of(len(lived), len(reported))} live, {len(named)} named after {figures.ms(figures.median(times))}",
        goal=figures.of(len(reported), len(reported)),
        met=len(lived if is_low else named) == len(reported),
        remark=_fates(reported),
    )


def _fates(found: Sequence[Trial]) -> str:
    words = [f"client {trial.fate}{'' if trial.lives else ', co-runner died'}" for trial in found]
    words += [trial.named for trial in found if trial.named and not trial.is_named]
    return "; ".join(dict.fromkeys(words))
