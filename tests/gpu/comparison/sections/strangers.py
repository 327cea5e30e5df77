"""Clients that are not like the daemon: of another user, in namespaces of their own, without its environment."""

from collections.abc import Sequence

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.stage import AS_OTHER, Stage
from tests.gpu.comparison.system import System

WAIT_SECONDS = 4.0
SURE_SECONDS = 3.0  # mpsd reports a client that the vendor lists and that it did not admit after a second answer
OWN_PROCESSES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def run(stage: Stage) -> None:
    for system in stage.both:
        system.renew()
        system.warm(WAIT_SECONDS * 2)
    container = ("unshare", "--pid", "--uts", "--mount", "--fork", "--kill-child", "--mount-proc", "env", "-i")
    for what, before in (
        ("client in a pid namespace of its own", {system.name: OWN_PROCESSES for system in stage.both}),
        ("client that cannot see mpsd's private directories", {"mpsd": _blind(stage.mpsd)}),
        (
            "client in pid, uts and mount namespaces, an empty environment",
            {system.name: (*container, *_least_environment(system)) for system in stage.both},
        ),
        ("client of another user, nobody else", {system.name: AS_OTHER for system in stage.both}),
    ):
        _row(stage, what, {name: _try(_named(stage, name), words) for name, words in before.items()})
    _beside_root(stage)


def _beside_root(stage: Stage) -> None:
    """The vendor's daemon has one server, of one user; the other waits until that user's clients have gone."""
    found = {}
    for system in stage.both:
        first = system.client("counter", "--seconds", "600")
        first.wait_for("ready", WAIT_SECONDS * 2)
        if system is stage.mpsd:
            system.wait_for_spare(WAIT_SECONDS)
        found[system.name] = _try(system, AS_OTHER)
        end_all([first])
        system.clients.remove(first)
    _row(stage, "client of another user beside a running one of root", found)


def _named(stage: Stage, name: str) -> System:
    return next(system for system in stage.both if system.name == name)


def _blind(system: System) -> Sequence[str]:
    """Return a command that mounts an empty file system over the state directory, in a mount namespace."""
    script = f'mount -t tmpfs none {system.place}/state && ! ls {system.place}/state/domains >&2 2>/dev/null && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", script, "sh")


def _least_environment(system: System) -> Sequence[str]:
    """What a container gets: the pipe directory; on the simulator, the simulator too."""
    names = ("CUDA_MPS_PIPE_DIRECTORY", "LD_LIBRARY_PATH", "MPSD_SIM_DIR", "MPSD_SIM_FAST")
    return [f"{name}={value}" for name, value in system.environment().items() if name in names]


def _try(system: System, before: Sequence[str]) -> tuple[bool, str]:
    """Whether it ran as a client of MPS, and in words."""
    known = _listed(system)
    client = system.client("counter", "--seconds", f"{SURE_SECONDS:g}", before=before)
    ready = client.wait_for("ready", WAIT_SECONDS)
    is_member = bool(_listed(system) - known)
    client.wait(SURE_SECONDS + 1.0)
    words = _words(client, ready and ready["first_kernel_ms"], is_member)
    end_all([client])
    system.clients.remove(client)
    is_stranger = _is_reported(system)
    return bool(ready) and is_member and not is_stranger, words + ", reported as past mpsd" * is_stranger


def _is_reported(system: System) -> bool:
    """Return whether mpsd logged a client that it did not admit, such as one with a pid of an inner namespace."""
    journal = system.log / "mpsd.log"
    return journal.exists() and '"client.stranger"' in journal.read_text(errors="replace")


def _listed(system: System) -> set[int]:
    return {pid for server in system.servers() for pid in server.clients}


def _words(client: Client, first_kernel_ms: float | None, is_member: bool) -> str:
    if first_kernel_ms is None:
        return f"waits, over {WAIT_SECONDS:g} s" if client.is_running else client.fate
    return f"{figures.ms(first_kernel_ms)}{'' if is_member else ', WITHOUT MPS'}"


def _row(stage: Stage, what: str, found: dict[str, tuple[bool, str]]) -> None:
    cells = {name: words for name, (_, words) in found.items()}
    stage.add(f"{what}: first kernel", **cells, goal="runs", met=found["mpsd"][0])
