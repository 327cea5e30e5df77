"""A service with a standby in a domain with a sentinel: after a co-runner's trap, which is contained, the active goes on, or
mpsd hands it over as planned, and no fault promotes a standby.
"""

import time

from mpsd_client import Client as Mpsd
from mpsd_client import MpsdError, calls

from tests.gpu.comparison import containment, failover, figures, vault
from tests.gpu.comparison.clients import end_all
from tests.gpu.comparison.failover import TRAP_BESIDE, Crew
from tests.gpu.comparison.sections.failover_count import SERVICE, start
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import SystemFailed

TRIALS = 10
WATCHED_SECONDS = 2.0
PLANNED = ("handover", "contained")  # causes of a promotion
FAULT_SECONDS, HANDOVER_SECONDS = 5.0, 10.0


def run(stage: Stage) -> None:
    config = failover.CONFIG + containment.CONFIG
    system = stage.another("served", stage.options.front_end, stage.mpsd, config=config)
    system.start()
    system.warm(15)
    crew = Crew(stage, system, SERVICE, lambda: start(stage, system))
    found: list[str] = []
    wanted = stage.trials(TRIALS)
    try:
        for _ in range(wanted):
            found.append(_trap_beside(crew))
        good = sum(each in ("continues", "handed over") for each in found)
        stage.add(
            f"{TRAP_BESIDE}, contained: the active continues or is handed over, no fault promotes a standby",
            mpsd=figures.of(good, len(found)),
            goal=figures.of(wanted, wanted),
            met=good == wanted,
            remark=", ".join(f"{found.count(each)} {each}" for each in dict.fromkeys(found)),
        )
    finally:
        crew.end()
    vault.remove(system, SERVICE)
    system.quit()


def _trap_beside(crew: Crew) -> str:
    """Return what became of the service; afterwards its members are in domains that take clients."""
    active = crew.settle()
    try:
        culprit = failover.beside(crew, active, TRAP_BESIDE)
    except SystemFailed as error:
        return str(error)[:120]
    assert culprit is not None
    try:
        with failover.heard(crew.system) as listener:
            culprit.release()
            since_ns = int(vault.said(culprit, "fault", FAULT_SECONDS)["monotonic_ns"])
            time.sleep(WATCHED_SECONDS)
            causes = [str(each.facts.get("cause")) for each in listener.events("service.promoting", since_ns)]
    finally:
        end_all([culprit])
    if causes:
        return "handed over" if all(each in PLANNED for each in causes) else f"promoted: {causes[0]}"[:120]
    before = len(active.events("step"))
    time.sleep(0.3)
    if not active.is_running or len(active.events("step")) == before:
        return f"the active stands still: {active.fate}"
    try:
        with Mpsd(crew.system.pipe / "mpsd.sock", program="compare", timeout_seconds=HANDOVER_SECONDS + 5) as mpsd:
            mpsd.ask(calls.service_handover(SERVICE, wait_seconds=HANDOVER_SECONDS))
        end_all([active])
    except MpsdError as error:
        return f"continues, but cannot be handed over: {error}"[:120]
    return "continues"
