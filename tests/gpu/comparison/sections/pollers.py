"""Many programs that send commands to the control daemon at once, each command in a new process, as monitoring does."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.gpu.comparison import figures
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

SOURCE = Path(__file__).resolve().parents[2] / "pollers.c"
CLIENTS = 2
ROUNDS = {1: (200, 200), 4: (200, 200), 64: (40, 1000)}  # pollers: commands each, of the vendor's and of mpsd
START_SECONDS = 20.0


def run(stage: Stage) -> None:
    program = stage.work / "pollers"
    subprocess.run([shutil.which("cc") or "gcc", "-O2", "-o", str(program), str(SOURCE)], check=True)
    questions: dict[str, list[str]] = {}
    for system in stage.both:
        system.renew()
        holders = [system.client("hold") for _ in range(CLIENTS)]
        if not all(holder.wait_for("ready", START_SECONDS) for holder in holders):
            raise SystemFailed(f"{system.name}: {[holder.fate for holder in holders]}")
    stage.mpsd.wait_for_spare(10)
    for system in stage.both:
        questions[system.name] = _questions(system)
    for pollers, (theirs, ours) in ROUNDS.items():
        vendor = _poll(stage, program, stage.vendor, pollers, stage.trials(theirs), questions["vendor"])
        mpsd = _poll(stage, program, stage.mpsd, pollers, stage.trials(ours), questions["mpsd"])
        _rows(stage, pollers, vendor, mpsd)


def _questions(system: System) -> list[str]:
    """Commands and the answers they have while nothing changes."""
    server = next(server for server in system.servers() if len(server.clients) == CLIENTS)
    commands = ("get_server_list", f"get_server_status {server.pid}", f"get_client_list {server.pid}")
    return [word for command in commands for word in (command, system.ask(command).out)]


def _poll(stage: Stage, program: Path, system: System, pollers: int, each: int, questions: list[str]) -> dict[str, Any] | None:
    """What pollers.c counted; None when it did not come to an end."""
    if not system.pid():
        return None
    stage.say(f"{pollers} pollers x {each} commands to {system.name}")
    argv = [str(program), str(pollers), str(each), str(max(1, int(stage.left()) - 4)), str(system.control), *questions]
    done = subprocess.run(argv, env=system.environment(), capture_output=True, text=True, check=False)
    counted: dict[str, Any] | None = json.loads(done.stdout) if done.returncode == 0 else None
    stage.keep(f"{pollers} pollers, {system.name}", counted or done.stderr)
    return counted


def _rows(stage: Stage, pollers: int, vendor: dict[str, Any] | None, mpsd: dict[str, Any] | None) -> None:
    is_goal = pollers > 1
    bad = None if mpsd is None else mpsd["failed"] + mpsd["wrong"] + mpsd["hung"] + mpsd["not_sent"]
    stage.add(
        f"{pollers} pollers: failed or wrong answers",
        vendor=_bad(vendor),
        mpsd=_bad(mpsd),
        goal="0" if is_goal else "",
        met=bad == 0 if is_goal else None,
    )
    rates = [[each["per_second"]] if each else [] for each in (vendor, mpsd)]
    stage.add(
        f"{pollers} pollers: commands per second, 50 %, 99 %, slowest",
        vendor=_speed(vendor),
        mpsd=_speed(mpsd),
        ratio=figures.times(figures.ratio(rates[1], rates[0])),
    )


def _bad(counted: dict[str, Any] | None) -> str:
    if counted is None:
        return "no result"
    text = f"{counted['failed'] + counted['wrong'] + counted['hung']} of {counted['commands']}"
    kinds = ", ".join(f"{counted[kind]} {kind}" for kind in ("failed", "wrong", "hung") if counted[kind])
    unsent = f"; {counted['not_sent']} not sent, no time left" if counted["not_sent"] else ""
    return f"{text} ({kinds}){unsent}" if kinds else text + unsent


def _speed(counted: dict[str, Any] | None) -> str:
    if counted is None:
        return "no result"
    times = ", ".join(figures.ms(counted[key]) for key in ("p50_ms", "p99_ms", "max_ms"))
    return f"{counted['per_second']:,.0f}/s, {times}"
