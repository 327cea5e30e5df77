"""What trials of faults have in common: clients that are started, looked at, and waited for."""

import time

from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.system import System, SystemFailed

READY_SECONDS = 10.0
DEATH_SECONDS = 5.0
NEVER_ENDING = ("counter", "--seconds", "600", "--ms", "50")


def started(system: System, program: str, *arguments: str, has_input: bool = False) -> Client:
    """Running; a vendor daemon that is still busy with the last fault is given time."""
    end = time.monotonic() + READY_SECONDS
    while True:
        client = system.client(program, *arguments, has_input=has_input)
        if client.wait_for("ready", READY_SECONDS):
            return client
        if time.monotonic() > end:
            raise SystemFailed(f"{system.name}: {program} did not start: {client.fate}")
        time.sleep(0.1)


def usable(system: System, launched_ns: int, first: list[Client]) -> float | None:
    """Milliseconds from the launch until a new client's first kernel had finished."""
    clients = list(first)
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        done = [ready["monotonic_ns"] for client in clients if (ready := client.wait_for("ready", DEATH_SECONDS))]
        if done:
            return (min(done) - launched_ns) / 1e6
        clients = [system.client("counter", "--seconds", "0.1")]
    return None


def stall(bystander: Client, since_ns: int) -> float | None:
    """Return the longest wait for a kernel since the launch; each tick has the worst until then."""
    before = [tick["worst_ms"] for tick in bystander.events("tick") if tick["monotonic_ns"] < since_ns]
    after = [tick["worst_ms"] for tick in bystander.events("tick") if tick["monotonic_ns"] >= since_ns]
    grew = bool(after) and (not before or after[-1] > before[-1])
    return float(after[-1]) if grew else None


def server_of(system: System, client: Client) -> int:
    """The MPS server that serves it; it is listed a moment after it came."""
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        for server in system.servers():
            if client.pid in server.clients:
                return server.pid
        time.sleep(0.02)
    raise SystemFailed(f"no server has pid {client.pid}")
