"""A running service's share of the SMs is changed by a planned handover: `mpsctl service run`, then `mpsctl service change`."""

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpsd_client import Client as Mpsd
from mpsd_client import calls

from tests.gpu.comparison import failover, figures, vault
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.sections.failover_count import PROGRAM
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import System, SystemFailed

TRIALS = 10
SERVICE = "resized"
STEP_PERCENT = 2.0  # a client has whole pairs of SMs: 26 of 132 for 20 %
CHANGE_SECONDS, ENDING_SECONDS = 30.0, 20.0
SHARES = (20.0, 30.0)  # for a moment three members exist, each with its share


def run(stage: Stage) -> None:
    system = stage.another("resize", stage.options.front_end, stage.mpsd, config=failover.CONFIG)
    system.start()
    system.warm(10)
    report = stage.work / "resized.events"
    words = ("--steps", str(10**9), "--pace", "0.001", "--every", "1", "--report", str(report))
    member = [str(stage.options.python), str(PROGRAM), *words]
    env = {**system.environment(), "PYTHONPATH": f"{ROOT}/clients/python:{ROOT}/clients/mpsctl"}
    run = ["service", "run", SERVICE, "--standbys", "1", "--sm", f"{SHARES[0]:g}%", "--", *member]
    starter = system.spawn([str(stage.options.python), "-m", "mpsctl", *run], env)
    gaps: list[float] = []
    handovers: list[float] = []
    wanted = stage.trials(TRIALS)
    try:
        _wait(system, starter, SHARES[0])
        for number in range(wanted):
            share = SHARES[(number + 1) % 2]
            _mpsctl(stage, env, "service", "change", SERVICE, "--sm", f"{share:g}%")
            last = _wait(system, starter, share)
            handovers.append(float(last.promote_ms or 0.0) + float(last.fence_ms or 0.0))
            gaps.append(_gap_ms(report, int(last.generation)))
    finally:
        _report(stage, wanted, handovers, gaps)
        end_all([starter], ENDING_SECONDS)
    vault.remove(system, SERVICE)
    system.quit()


def _report(stage: Stage, wanted: int, handovers: list[float], gaps: list[float]) -> None:
    stage.keep("handovers, ms", handovers)
    stage.keep("longest time between two steps, ms", gaps)
    stage.add(
        "the share of a running service is changed: the handover, as mpsd has it",
        mpsd=f"{figures.ms(figures.median(handovers))} (worst {figures.ms(max(handovers, default=None))})",
        goal=figures.of(wanted, wanted),
        met=len(handovers) == wanted,
        remark=f"{figures.of(len(handovers), wanted)} changes between {SHARES[0]:g} and {SHARES[1]:g} % of the SMs",
    )
    stage.add(
        "the same, the time between the last step of the one and the first of the other",
        mpsd=f"{figures.ms(figures.median(gaps))} (worst {figures.ms(max(gaps, default=None))})",
    )


def _mpsctl(stage: Stage, env: dict[str, str], *words: str) -> None:
    argv: Sequence[str] = [str(stage.options.python), "-m", "mpsctl", *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise SystemFailed(f"mpsctl {' '.join(words)}: {done.stderr.strip()[-200:]}")


def _wait(system: System, starter: Client, share: float) -> Any:
    """Until the active and a standby have this share; the last promotion."""
    deadline = time.monotonic() + CHANGE_SECONDS
    while time.monotonic() < deadline and starter.is_running:
        with Mpsd(system.pipe / "mpsd.sock", program="compare") as mpsd:
            found = [each for each in mpsd.pages(calls.service_list()) if each.name == SERVICE]
            leases = {each.pid: each.sm_percent for each in mpsd.pages(calls.client_list())}
        if found and found[0].phase == "serving" and found[0].settings.sm_percent == share:  # and its starter has reported it
            shares = [leases.get(each.pid) for each in found[0].members if each.standing == "ready" or each.is_writer]
            if len(shares) == 2 and all(each is not None and abs(each - share) < STEP_PERCENT for each in shares):
                return found[0].last
        time.sleep(0.05)
    words = " ".join(starter.other[-8:])
    raise SystemFailed(f"the service has not come to {share:g} %: the starter: {starter.fate} {words}"[:600])


def _gap_ms(report: Path, generation: int) -> float:
    """From the last step before this term to its first one."""
    events = [json.loads(line) for line in report.read_text().splitlines() if line.startswith("{")]
    at = next(number for number, each in enumerate(events) if each["event"] == "promoted" and each["generation"] == generation)
    first = next(each for each in events[at:] if each["event"] == "first_step" and each["pid"] == events[at]["pid"])
    steps = (int(each["monotonic_ns"]) for each in events if each["event"] == "step")
    return (int(first["monotonic_ns"]) - max(at_ns for at_ns in steps if at_ns < first["monotonic_ns"])) / 1e6
