"""Draw the throughput of token streams across a fault: a service with mpsd, and the same service on the vendor's MPS.

    .venv/bin/python clients/demo/failover.py --out failover.png [--backend gpu|sim] [--torch-python PYTHON] [--fast]

With a GPU: the LLM service of clients/python/examples/llm in PyTorch (of the other Python, if this one has none). Without:
the
simulator and its toy engine; then the shape of the picture is right, and its times mean nothing.

In both acts another client of the service's GPU traps.  With mpsd a standby takes over; without, the process is started
again
after its death.  The records stay in the picture's directory: throughput.py draws them again, also on another machine
(matplotlib).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from control_daemon import ROOT, ControlDaemon, Unfit, Workspace
from mpsd_client import Client, MpsdError, calls
from throughput import plot, read, told

LLM = ROOT / "clients/python/examples/llm"
SERVICE = "demo"
STREAMS, TOKENS = 8, 900
BEFORE_SECONDS, LIMIT_SECONDS = 5.0, 90.0
TAIL_SECONDS = 4.0  # after the streams have gone on
LAST_LINES = 25
AGAIN_SECONDS = 0.5  # between two starts of a process that dies at once
FAULT = "a co-runner's trap"


class Act:
    """One service, its clients and the fault.  Guards that all it started ends with it."""

    def __init__(self, name: str, workspace: Workspace, daemon: ControlDaemon, asked: argparse.Namespace) -> None:
        self.name, self.workspace, self.daemon, self.asked = name, workspace, daemon, asked
        self.record = asked.out.with_name(f"{asked.out.stem}-{name}.jsonl")
        self.backend = workspace.directory / f"{name}.sock"
        self.members = workspace.directory / f"{name}.events"
        self.log = workspace.directory / f"{name}.log"  # the output of the quiet processes
        self.processes: list[subprocess.Popen[str]] = []
        self.is_over = threading.Event()

    def play(self, begin: Callable[[], None], place_beside: Callable[[], None]) -> None:
        self.record.unlink(missing_ok=True)
        self.daemon.open()
        front = self.run(sys.executable, LLM / "front.py", "--listen", "127.0.0.1:0", "--backend", self.backend,
                         "--record", self.record, piped=True)  # fmt: skip
        assert front.stdout is not None
        url = front.stdout.readline().strip()
        if not url:
            raise Unfit(f"{self.name}: the front end did not start")
        begin()
        tokens = 100 if self.asked.fast else TOKENS  # what a process that is started again has to read again
        words = ("--url", url, "--clients", STREAMS, "--requests", 1000, "--tokens", tokens)
        self.run(sys.executable, LLM / "load.py", *words, quiet=True)
        self.wait_for(lambda: self.tokens() > 0, "no token came")
        time.sleep(1.0 if self.asked.fast else BEFORE_SECONDS)
        place_beside()
        at_ns, count = self.strike(), self.tokens()
        self.say(f"{FAULT}; {count} tokens until then")
        self.wait_for(lambda: self.last_gap_is_over(at_ns), "the streams did not go on")
        time.sleep(0.5 if self.asked.fast else TAIL_SECONDS)

    def strike(self) -> int:
        words = (self.workspace.clients / "faulter", "trap", "--after", "0.3", "--linger", "0.2", "--json")
        faulter = self.run(*words, piped=True)
        assert faulter.stdout is not None
        for line in faulter.stdout:
            said = json.loads(line)
            if said["event"] == "fault":
                mark = {"mark": "fault", "monotonic_ns": said["monotonic_ns"], "text": FAULT}
                with self.record.open("a") as record:  # whole lines only: the front end writes whole lines too
                    record.write(json.dumps(mark) + "\n")
                return int(said["monotonic_ns"])
        raise Unfit(f"{self.name}: the co-runner did not fault")

    # -- members -----------------------------------------------------------------------------------------------------

    def member(self, *words: object) -> list[str]:
        engine = ["--engine", "toy", "--pace", "0.005"] if self.workspace.backend == "sim" else ["--shape", self.asked.shape]
        argv = [self.asked.torch_python, LLM / "member.py", "--backend", self.backend, "--report", self.members]
        return list(map(str, [*argv, *engine, *words]))

    def serve_with_standby(self) -> None:
        member = self.member("--service", SERVICE)
        self.run(sys.executable, "-m", "mpsctl", "service", "run", SERVICE, "--", *member, quiet=True)
        self.wait_for(self.is_protected, "there is no standby")

    def serve_again_and_again(self) -> None:
        threading.Thread(target=self._again, daemon=True).start()

    def _again(self) -> None:
        while not self.is_over.is_set():
            self.run(*self.member("--memory", "plain"), quiet=True).wait()
            self.is_over.wait(AGAIN_SECONDS)

    def is_protected(self) -> bool:
        with suppress(MpsdError, OSError), self.mpsd() as mpsd:
            service = mpsd.ask(calls.service_get(SERVICE))
            return service.phase == "serving" and not service.protection
        return False

    def wish_beside(self) -> None:
        """Place the next client where the active member is, as if it had connected before the service started."""
        with self.mpsd() as mpsd:
            service = mpsd.ask(calls.service_get(SERVICE))
            [active] = [each for each in service.members if each.is_writer]
            mpsd.ask(calls.client_move(active.pid, active.domain))

    def mpsd(self) -> Client:
        return Client(self.workspace.directory / "mpsd/pipe/mpsd.sock", program="demo")

    # -- what came ---------------------------------------------------------------------------------------------------

    def tokens(self) -> int:
        return self.record.read_text().count('"index"') if self.record.exists() else 0

    def last_gap_is_over(self, at_ns: int) -> bool:
        """Tokens came that were made after the fault: not only those that were on their way."""
        times = [json.loads(line)["monotonic_ns"] for line in self.record.read_text().splitlines() if line.endswith("}")]
        return any(each > at_ns + 1e9 for each in times)

    # -- processes ---------------------------------------------------------------------------------------------------

    def run(self, *argv: object, piped: bool = False, quiet: bool = False) -> "subprocess.Popen[str]":
        path = [f"{ROOT}/clients/python", f"{ROOT}/clients/mpsctl"]
        if self.asked.torch_python != sys.executable:  # which need not have what mpsd_client imports
            path.append(sysconfig.get_path("purelib"))
        env: Mapping[str, str] = {**self.daemon.clients, "PYTHONPATH": ":".join(path)}
        with self.log.open("a") as log:
            kept = log if quiet else None
            made = subprocess.Popen(
                list(map(str, argv)), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if piped else kept, stderr=kept,
                text=True, start_new_session=True,
            )  # fmt: skip
        self.processes.append(made)
        return made

    def close(self) -> None:
        self.is_over.set()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in reversed(self.processes):
                if each.poll() is None:
                    each.send_signal(number)
            for each in self.processes:
                with suppress(subprocess.TimeoutExpired):
                    each.wait(10)
        self.daemon.close()

    def wait_for(self, is_so: Callable[[], bool], otherwise: str) -> None:
        end = time.monotonic() + LIMIT_SECONDS
        while not is_so():
            if time.monotonic() > end:
                said = "\n".join(self.log.read_text(errors="replace").splitlines()[-LAST_LINES:])
                raise Unfit(f"{self.name}: {otherwise} within {LIMIT_SECONDS:.0f} s\n{said}".rstrip())
            time.sleep(0.1)

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)


def play(workspace: Workspace, asked: argparse.Namespace) -> Sequence[Path]:
    """The records."""
    acts = []
    for name, daemon in (("mpsd", workspace.mpsd_daemon), ("stock", workspace.vendor_daemon)):
        act = Act(name, workspace, daemon(), asked)
        acts.append(act)
        try:
            if name == "mpsd":
                act.play(act.serve_with_standby, act.wish_beside)
            else:
                act.play(act.serve_again_and_again, lambda: None)
        finally:
            act.close()
        act.say(f"longest silence after the fault: {told(read(name, act.record).silence_seconds)}")
    return [act.record for act in acts]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("failover.png"), help="png, svg or pdf")
    parser.add_argument("--backend", choices=("gpu", "sim"), help="otherwise the GPU where there is one")
    parser.add_argument("--torch-python", default=sys.executable, help="a Python with PyTorch, of the same version as this one")
    parser.add_argument("--shape", default="0.5B", help="of the model, on a GPU")
    parser.add_argument("--fast", action="store_true", help="short: for tests")
    asked = parser.parse_args()
    asked.out = asked.out.absolute()
    backend = asked.backend or ("gpu" if os.path.exists("/dev/nvidiactl") else "sim")
    workspace = None
    try:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        workspace = Workspace.build(backend)
        mpsd, stock = play(workspace, asked)
    except (Unfit, OSError, MpsdError) as exc:
        print(f"The scene cannot be played: {exc}", file=sys.stderr)
        return 2
    finally:
        if workspace:
            workspace.clear()
    if backend == "sim":
        print("On the simulator, with a toy engine: these times mean nothing.")
    records = [read("mpsd, with a standby", mpsd), read("the vendor's MPS, started again", stock)]
    where = "the simulator, a toy engine: the times mean nothing" if backend == "sim" else f"Qwen2.5-{asked.shape}'s shape"
    try:
        plot(records, asked.out, f"{STREAMS} streams of tokens, one fault ({where})")
    except ImportError:
        print(f"The picture, where matplotlib is: python clients/demo/throughput.py mpsd={mpsd} "
              f"stock={stock} --out {asked.out}")  # fmt: skip
        return 0
    print(asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
