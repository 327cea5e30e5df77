"""mpsd as an ordinary user: its clients reach the domains through links, and new ones a healthy domain."""

import subprocess
import time

from tests.gpu.comparison import figures
from tests.gpu.comparison.stage import AS_OTHER, OTHER_UID, Stage
from tests.gpu.comparison.system import System

READY_SECONDS = 10.0


def run(stage: Stage) -> None:
    if why := _why_not(stage):
        stage.add("skipped", remark=why)
        return
    own = stage.another("own", stage.options.front_end, stage.mpsd, OTHER_UID, AS_OTHER)
    stage.add(f"-d as uid {OTHER_UID}", mpsd=figures.ms(own.start()))
    victim = own.client("counter", "--seconds", "600", "--ms", "50")
    ready = victim.wait_for("ready", READY_SECONDS)
    is_member = victim.pid in {pid for server in own.servers() for pid in server.clients}
    cell = f"{figures.ms(ready['first_kernel_ms'])}" if ready else victim.fate
    stage.add("client: first kernel", mpsd=cell, goal="runs", met=bool(ready) and is_member)
    has_spare = own.wait_for_spare(READY_SECONDS)
    culprit = own.client("faulter", "trap")
    culprit.wait_for("result", READY_SECONDS)
    victim.wait(READY_SECONDS)
    stage.add("after a trap: co-runner", mpsd=victim.fate, remark="" if has_spare else "there was no spare")
    tries, took_ms = _until_one_runs(own)
    stage.add("after a trap: new client runs at try", mpsd=f"{tries}, {figures.ms(took_ms)}", goal="1", met=tries == 1)
    links = sorted(path.name for path in own.pipe.iterdir() if path.is_symlink())
    stage.add("links in the pipe directory", mpsd=", ".join(links))
    reply = own.quit()
    stage.add(
        "quit", mpsd=f"status {reply.status}" if reply else "no daemon", goal="status 0", met=bool(reply) and not reply.status
    )


def _until_one_runs(system: System) -> tuple[int, float | None]:
    began, tries = time.monotonic(), 0
    while time.monotonic() < began + READY_SECONDS:
        tries += 1
        if system.client("counter", "--seconds", "0").wait_for("ready", READY_SECONDS):
            return tries, (time.monotonic() - began) * 1e3
    return tries, None


def _why_not(stage: Stage) -> str:
    """What keeps that user from running mpsd here at all."""
    python = str(stage.options.python)
    for argv in (["test", "-x", python], [python, "-I", "-c", "import mpsd.app.start"]):
        done = subprocess.run([*AS_OTHER, *argv], capture_output=True, text=True, check=False, cwd="/")
        if done.returncode:
            return f"uid {OTHER_UID} cannot use {python}: {' '.join(done.stderr.split()[-8:]) or 'no access'}"
    return ""
