"""Two tenants share a GPU, one has a bug: the scene under the vendor's MPS, then under mpsd. About a minute.

    .venv/bin/python clients/demo/two_tenants.py [--fast] [--backend gpu|sim]

With a GPU it uses the GPU, otherwise the simulator.  Every line that is printed follows from the output of the tenants'
programs and of the control daemon.  Exit status: 0 if the scene went as announced, 1 if not, 2 if it could not be played,
130 after Ctrl-C.
"""

import argparse
import os
import signal
import subprocess
import sys

from control_daemon import ControlDaemon, Unfit, Workspace
from scene import FAST, Pace, Scene
from stage import Stage
from tenants import Tenant, User

ALICE, BOB = 1001, 1002  # users that need not exist; only with the right to become them
_STALL_MS = 1000.0  # a neighbour's out-of-bounds access busies the GPU itself for some 150 ms (measured on an H200)
_AT_ONCE_SECONDS = 5.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def play_both(stage: Stage, pace: Pace, workspace: Workspace) -> bool:
    """Return whether both acts went as announced."""
    host = "the simulator stands in for driver and GPU" if workspace.backend == "sim" else "on this machine's GPU"
    stage.say(stage.paint("bold", "Two tenants, one GPU, one bug") + f"   ({host})", "")
    stage.pause(1.5)
    one = User(ALICE if workspace.is_privileged else None)
    stage.say(
        stage.paint("bold", "ACT 1: the vendor's MPS"),
        "A and B share the GPU through one server, as MPS does.  They are one user: the",
        "vendor's MPS serves one user at a time.",
        "",
    )
    stage.pause(1.8)
    vendor = run_act(stage, pace, workspace, workspace.vendor_daemon(), one, one)
    stage.pause(1.8)
    stage.say(stage.paint("bold", "ACT 2: mpsd, the same programs, the same commands"), *_second_intro(workspace), "")
    stage.pause(1.8)
    two = User(BOB) if workspace.is_privileged else one
    mpsd = run_act(stage, pace, workspace, workspace.mpsd_daemon(), one, two)
    stage.pause(1.5)
    print_table(stage, vendor, mpsd)
    return judge(stage, vendor, mpsd, workspace.is_privileged)


def _second_intro(workspace: Workspace) -> tuple[str, ...]:
    if workspace.is_privileged:
        return (
            "A and B are different users, so mpsd gives each a fault domain of its own.",
            "C is of B's user: it comes while that user's domain is in FAULT.",
        )
    return (
        "mpsd has not the rights to relay here (it is meant to run as root), so A and B",
        "share a domain, and both will die.  But there is a spare: watch C.",
    )


def run_act(stage: Stage, pace: Pace, workspace: Workspace, daemon: ControlDaemon, first: User, second: User) -> Scene:
    cast = (Tenant("A", first, stage), Tenant("B", second, stage), Tenant("C", second, stage))
    scene = Scene(stage, pace, workspace, daemon, *cast)
    try:
        scene.play()
    finally:
        scene.close()
    return scene


# -- the end -------------------------------------------------------------------------------------------------------------


def print_table(stage: Stage, vendor: Scene, mpsd: Scene) -> None:
    def fate(tenant: Tenant) -> str:
        if tenant.is_dead:
            return f"died: {tenant.error.partition(' ')[0]}"
        return f"counts on, worst stall {tenant.worst_ms:.0f} ms"

    def times(tenant: Tenant) -> str:
        return f"{tenant.refusals} times" if tenant.refusals else "never"

    rows = [
        ("", "the vendor's MPS", "mpsd"),
        ("B, who had the bug", fate(vendor.b), fate(mpsd.b)),
        ("A, who had none", fate(vendor.a), fate(mpsd.a)),
        ("C, who came later, waited", f"{vendor.c.waited_seconds:.2f} s", f"{mpsd.c.waited_seconds:.2f} s"),
        ("   and was refused", times(vendor.c), times(mpsd.c)),
    ]
    for number, row in enumerate(rows):
        line = "   {:<27} {:<18} {}".format(*row).rstrip()
        stage.say(stage.paint("bold", line) if number == 0 else line)
    stage.say("")


def judge(stage: Stage, vendor: Scene, mpsd: Scene, is_privileged: bool) -> bool:
    """Return whether the act went as announced; print the differences."""
    announced = {
        "under the vendor's MPS A dies of B's fault": vendor.a.is_dead,
        "under the vendor's MPS C is refused while the broken program is there": vendor.c.refusals > 0,
        "under mpsd C is never refused": mpsd.c.refusals == 0,
        f"under mpsd C starts within {_AT_ONCE_SECONDS:.0f} s": mpsd.c.waited_seconds < _AT_ONCE_SECONDS,
        "in both acts C counts at the end": vendor.c.is_counting and mpsd.c.is_counting,
    }
    if is_privileged:
        announced["under mpsd A goes on"] = mpsd.a.is_counting
        announced[f"under mpsd A never stands still for {_STALL_MS:.0f} ms"] = mpsd.a.worst_ms < _STALL_MS
    missed = [what for what, is_so in announced.items() if not is_so]
    for what in missed:
        stage.say(stage.paint("bad", f"Not as announced: {what}."))
    if missed:
        stage.say("Is this machine fit?  .venv/bin/mpsd check says more.")
    else:
        stage.say(*_closing(is_privileged))
    return not missed


def _closing(is_privileged: bool) -> tuple[str, ...]:
    first = "mpsd did not prevent the fault; it kept it in one domain, and had a spare ready."
    if not is_privileged:
        first = "As root, mpsd would have given A and B, as different users, a domain each."
    return (
        first,
        "The price: two busy domains take turns on the GPU.  docs/domains.md has figures.",
        "What is protected and what is not: docs/operating.md.",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fast", action="store_true", help="no pauses: for tests")
    parser.add_argument("--backend", choices=("gpu", "sim"), help="otherwise the GPU where there is one")
    arguments = parser.parse_args()
    backend = arguments.backend or ("gpu" if os.path.exists("/dev/nvidiactl") else "sim")
    for number in _ENDING:
        signal.signal(number, _interrupt)
    stage = Stage(arguments.fast)
    workspace = None
    try:
        workspace = Workspace.build(backend)
        return 0 if play_both(stage, FAST if arguments.fast else Pace(), workspace) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has closed its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Unfit, OSError, subprocess.TimeoutExpired) as exc:
        print(f"The scene cannot be played: {exc}", file=sys.stderr)
        return 2
    finally:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)  # clearing up is not to be interrupted, and has its deadlines
        if workspace:
            workspace.clear()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
