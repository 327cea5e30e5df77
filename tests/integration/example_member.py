"""A process of an example that is a service: what it reports, and whether it stands by."""

import os
import subprocess
from pathlib import Path

from mpsd_client import MpsdError, calls

from tests.integration.client import Client
from tests.integration.machine import ROOT, Machine
from tests.integration.process import wait_for


def start_member(machine: Machine, program: Path, *words: str) -> Client:
    """As the machine's user, with the option --report of the examples."""
    report = machine.place / f"member-{len(list(machine.place.glob('member-*.jsonl')))}.jsonl"
    paths = os.pathsep.join([str(ROOT / "clients/python"), os.environ.get("PYTHONPATH", "")])
    with report.open("ab") as file:
        if machine.uid is not None:
            os.chown(report, machine.uid, -1)
        process = subprocess.Popen(
            [machine.variables["MPSD_PYTHON"], str(program), *words, "--report", str(report)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=machine.variables | {"PYTHONPATH": paths},
            **machine._user(None),
        )
    machine.addition(process)
    return Client(process, report)


def wait_until_ready(machine: Machine, service: str, member: Client, seconds: float) -> None:
    def look() -> bool:
        with machine.mpsd() as mpsd:
            try:
                members = mpsd.ask(calls.service_get(service)).members
            except MpsdError:
                return False
        return any(each.pid == member.pid and each.standing == "ready" for each in members)

    wait_for(f"{member.pid} to be ready", look, seconds)
