"""How the driver treats guards where memory comes and goes, and addresses that are taken: clients/shim and mpsd.h rely on it.
Each try is a separate process (tests/clients/guards.c), without MPS and with it."""

from tests.gpu.comparison import vault
from tests.gpu.comparison.clients import Event
from tests.gpu.comparison.stage import Stage

GUARDS = "guards"
TRY_SECONDS = 20.0
TRIES = (
    "over_sparse",
    "over_part",
    "access_over_sparse",
    "over_memory",
    "freed_guard",
    "part_freed",
    "after_unmap",
    "window_freed",
    "over_managed",
    "managed_written",
    "managed_unmapped",
    "managed_replaced",
    "host_page",
    "host_reserved",
    "reserved_twice",
)
HIDDEN = ("event", "client", "pid", "time", "monotonic_ns", "what")


def run(stage: Stage) -> None:
    stage.mpsd.renew()
    for name in TRIES:
        answers = {"without MPS": _try(stage, name, plain=True), "with it": _try(stage, name, plain=False)}
        stage.keep(name, answers)
        alone, under = answers.values()
        stage.add(name, vendor=f"without MPS: {alone}", mpsd="the same" if _codes(alone) == _codes(under) else under)


def _try(stage: Stage, name: str, plain: bool) -> str:
    """What each call answered; else how it ended."""
    system = stage.mpsd
    env = system.environment()
    if plain:
        env["CUDA_MPS_PIPE_DIRECTORY"] = f"{system.place}/nowhere"
    client = system.spawn([str(system.programs / GUARDS), name, "--json"], env)
    found = client.wait_for("found", TRY_SECONDS)
    if client.wait(TRY_SECONDS) is None:
        vault.end(system, client)
    else:
        system.clients.remove(client)
    return _answers(found) if found else client.fate


def _answers(found: Event) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items() if name not in HIDDEN)


def _codes(answers: str) -> str:
    """Without what differs from run to run."""
    return ", ".join(part for part in answers.split(", ") if not part.startswith("write_us"))
