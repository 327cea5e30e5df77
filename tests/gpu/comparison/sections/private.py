"""A domain's private directory, with the vendor's real programs: its open files, and what other processes can reach in it.

"exposed" is an mpsd that may not make mount namespaces, so that other users can reach its vendor daemons.
"""

import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.stage import AS_OTHER, OTHER_UID, Stage
from tests.gpu.comparison.system import System, SystemFailed
from tests.hostile.attacker import NOBODY, attack, attacking
from tests.hostile.private_attacks import CONNECT, FORGE, LOOK, SILENT
from tests.hostile.refusing import make_refusing

ATTACKERS = ((NOBODY, f"uid {NOBODY}"), (OTHER_UID, "the client's own user"))
COUNTING = ("counter", "--seconds", "600", "--ms", "50")
READY_SECONDS = 20.0
FORGE_SECONDS = 4.0
REPEATS = 10
HARM = frozenset({"fault.opened", "blame.changed", "domain.kill", "domain.failed"})
CONFIG = '[faults]\nquarantine = "on"\nrecycle_seconds = 2.0\n'
REFUSING = "exposed-front-end"


def run(stage: Stage) -> None:
    ours = stage.another("hidden", stage.options.front_end, stage.mpsd, config=CONFIG)
    front_end = make_refusing(stage.work / REFUSING, stage.options.front_end, _python(stage))
    exposed = stage.another("exposed", front_end, stage.mpsd, config=CONFIG)
    for system in (ours, exposed):
        system.start()
    stage.vendor.renew()
    _files(stage, ours, exposed)
    for uid, who in ATTACKERS:
        _reach(stage, ours, exposed, uid, who)
        _forge(stage, ours, uid, who)
        _silence(stage, ours, uid, who)
    _forge(stage, exposed, NOBODY, "uid 65534, without the namespace")
    _past_the_relay(stage, exposed)
    _starts(stage, ours, exposed)


def _python(stage: Stage) -> str:
    """Return a Python without the environment of the installation: the first line of a script has little room."""
    found = os.path.realpath(sys.executable)
    return found if len(found) < 100 else "/usr/bin/python3"


# -- files ---------------------------------------------------------------------------------------------------------------


def _files(stage: Stage, ours: System, exposed: System) -> None:
    """While a client of another user than root runs, so that its server has passed."""
    cells: dict[str, dict[str, str]] = {}
    for system, home in ((stage.vendor, stage.vendor.place), (ours, _home(ours)), (exposed, _home(exposed))):
        with _client(system) as client:
            paths = (home, *sorted(home.glob("pipe/*")), *sorted(home.glob("log/*")))
            cells[system.name] = {str(path.relative_to(home)): _look(path) for path in paths}
            cells[system.name]["server"] = "yes" if _server_of(system, client) else ""
    stage.keep("files", cells)
    names = dict.fromkeys(name for found in cells.values() for name in found)
    for name in (each for each in names if not each.startswith("log/mpsd") and each != "server"):
        shown = {key: found.get(name, "") for key, found in cells.items()}
        stage.add(name, vendor=shown["vendor"], mpsd=shown["hidden"], remark=f"exposed: {shown['exposed']}")
    hidden = cells["hidden"]["."]
    stage.add("the directory above them", mpsd=hidden, goal="0700 of root", met=hidden.startswith("drwx------ root"))
    has_server = all(found["server"] for found in cells.values())
    stage.add("a client of another user had a server", mpsd="yes" if has_server else "no", goal="yes", met=has_server)


def _home(system: System) -> Path:
    return _state(system) / "domains/default"


def _state(system: System) -> Path:
    return system.place / "state"


def _look(path: Path) -> str:
    found = path.lstat()
    return f"{stat.filemode(found.st_mode)} {'root' if found.st_uid == 0 else found.st_uid}"


# -- attacks -------------------------------------------------------------------------------------------------------------


def _reach(stage: Stage, ours: System, exposed: System, uid: int, who: str) -> None:
    with _client(ours) as client:
        server = _server_of(ours, client)
        found = {system.name: json.loads(attack(CONNECT, _state(system), uid=uid)) for system in (ours, exposed)}
        seen = json.loads(attack(LOOK, server, uid=uid))
    stage.keep(f"reach {uid}", found)
    cells = [figures.of(len(found[each.name]["reached"]), len(found[each.name]["found"])) for each in (ours, exposed)]
    is_met = bool(found["hidden"]["found"]) and not found["hidden"]["reached"]
    stage.add(f"{who}: connects to private sockets", mpsd=cells[0], goal="0", met=is_met, remark=f"exposed: {cells[1]}")
    stage.add(f"{who}: looks into the server", mpsd=", ".join(seen) or "nothing", goal="nothing", met=not seen)


def _forge(stage: Stage, system: System, uid: int, who: str) -> None:
    """Write lines that report a fault of the server, for a while; mpsd would restart the domain 2 s after the first."""
    with _client(system) as victim:
        before = len(_journal(system))
        said = json.loads(attack(FORGE, _state(system), FORGE_SECONDS, _server_of(system, victim), uid=uid))
        since = time.monotonic_ns()
        newcomer = system.client("counter", "--seconds", "0", before=AS_OTHER)
        is_ready = newcomer.wait_for("ready", READY_SECONDS)
        goes_on = victim.wait_for("tick", READY_SECONDS, since) is not None and victim.is_running
        harm = sorted({str(entry["event"]) for entry in _journal(system)[before:]} & HARM)
        end_all([newcomer])
        system.clients.remove(newcomer)
    reached = figures.of(len(said["reached"]), len({os.path.dirname(path) for path in said["found"]}))
    words = ["goes on" if goes_on else victim.fate, "newcomer runs" if is_ready else f"newcomer {newcomer.fate}", *harm]
    fate = "; ".join(words)
    stage.keep(f"forge {system.name} {uid}", said | {"fate": fate})
    is_met = goes_on and bool(is_ready) and not harm and (system.name == "exposed" or not said["reached"])
    stage.add(f"{who}: forges lines, {reached} logs", mpsd=fate, goal="goes on, runs", met=is_met)


def _silence(stage: Stage, system: System, uid: int, who: str) -> None:
    with _client(system):
        with attacking(SILENT, _state(system), uid=uid):
            times = _times(system, stage.trials(3))
    runs = None not in times
    stage.add(f"{who}: silent connections; a newcomer", mpsd=_cell(times), goal="runs", met=runs)


def _past_the_relay(stage: Stage, system: System) -> None:
    """A client of the same user that goes to the private directory, where it can."""
    with _client(system) as let_in:
        env = system.environment() | {"CUDA_MPS_PIPE_DIRECTORY": str(_home(system) / "pipe")}
        past = system.spawn([*AS_OTHER, str(system.programs / "counter"), *COUNTING[1:], "--json"], env)
        past.wait_for("ready", READY_SECONDS)
        is_listed = bool(_server_of(system, past))
        told = _wait_for_event(system, "client.stranger", READY_SECONDS) if is_listed else []
        is_met = [entry["pid"] for entry in told] == ([past.pid] if is_listed else [])
        words = f"{past.fate}; reported {len(told)}" if is_listed else f"{past.fate}, in no server's list: without MPS"
        stage.add("exposed: a client past the relay", mpsd=words, goal="reported if listed", met=is_met)
        stage.add("... the one that was let in", mpsd=let_in.fate, goal="running", met=let_in.is_running)
        end_all([past])
        system.clients.remove(past)


# -- times ---------------------------------------------------------------------------------------------------------------


def _starts(stage: Stage, ours: System, exposed: System) -> None:
    """In turns; the server of that user is there."""
    systems = (stage.vendor, ours, exposed)
    times: dict[str, list[float | None]] = {system.name: [] for system in systems}
    for system in systems:
        holder = system.client("hold", before=AS_OTHER)
        holder.wait_for("ready", READY_SECONDS)
    for _ in range(stage.trials(REPEATS)):
        for system in systems:
            times[system.name] += _times(system, 1)
    stage.keep("starts", times)
    cells = {name: _cell(each) for name, each in times.items()}
    stage.add("a newcomer: start to first kernel", vendor=cells["vendor"], mpsd=cells["hidden"], goal="runs",
              met=None not in times["hidden"], remark=f"exposed: {cells['exposed']}")  # fmt: skip


def _times(system: System, repeats: int) -> list[float | None]:
    times: list[float | None] = []
    for _ in range(repeats):
        client = system.client("counter", "--seconds", "0", before=AS_OTHER)
        ready = client.wait_for("ready", READY_SECONDS)
        times.append(float(ready["first_kernel_ms"]) if ready else None)
        end_all([client])
        system.clients.remove(client)
    return times


def _cell(times: Sequence[float | None]) -> str:
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return f"hangs, over {READY_SECONDS:g} s"
    return f"{figures.ms(figures.median(known))}, slowest {figures.ms(max(known))}"


# -- a client and mpsd's events ---------------------------------------------------------------------------------------


@contextmanager
def _client(system: System) -> Iterator[Client]:
    """One that counts, of another user than root, which runs inside the block."""
    client = system.client(*COUNTING, before=AS_OTHER)
    if not client.wait_for("ready", READY_SECONDS):
        raise SystemFailed(f"{system.name}: a client did not start: {client.fate}")
    try:
        yield client
    finally:
        end_all([client])
        system.clients.remove(client)


def _server_of(system: System, client: Client) -> int:
    """0 where none lists it."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        for server in system.servers():
            if client.pid in server.clients:
                return server.pid
        time.sleep(0.1)
    return 0


def _journal(system: System) -> list[dict[str, Any]]:
    text = (system.log / "mpsd.log").read_text(errors="replace")
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def _wait_for_event(system: System, event: str, seconds: float) -> list[dict[str, Any]]:
    deadline = time.monotonic() + seconds
    while not (found := [entry for entry in _journal(system) if entry["event"] == event]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
