"""PyTorch decoding a language model, with weights, cache and position in an arena, disturbed in the ways of vault_survival."""

import json
import signal
import subprocess
from pathlib import Path

from tests.gpu.comparison import figures, vault
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.pytorch import has_torch, python_path
from tests.gpu.comparison.sections import vault_survival
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import SystemFailed

TRIALS = 5
TOKENS, DISTURBED_AT = 150, 25
PACE = "0.01"  # seconds a token
DECODE = ROOT / "tests/gpu/torch/decode.py"
CHECKS = ROOT / "tests/gpu/torch/checks.py"
FAULTING = ROOT / "tests/gpu/fault_on_signal.py"


def run(stage: Stage) -> None:
    if not has_torch(stage):
        return
    stage.mpsd.renew()
    stage.mpsd.warm(10)
    vault_survival.disturb(stage, "PyTorch", _Decoding(stage), stage.trials(TRIALS))


def run_promotions(stage: Stage) -> None:
    """What every standby with PyTorch rests on, in as little time as can be: before all other sections of failover."""
    run_checks(stage, "a_graph_captured_while_reading_runs_when_promoted", "many_pieces_can_be_written_when_promoted")


def run_checks(stage: Stage, *names: str) -> None:
    """What docs/python.md promises, each in one line of tests/gpu/torch/checks.py; no names: all."""
    if not has_torch(stage):
        return
    stage.mpsd.renew()
    stage.mpsd.warm(10)
    argv = [str(stage.options.torch_python), str(CHECKS), *names]
    env = {**stage.mpsd.environment(), "PYTHONPATH": python_path(stage)}
    seconds = max(1.0, stage.left() - 5)
    try:
        done = subprocess.run(argv, env=env, capture_output=True, timeout=seconds, check=False)
        said, trouble = done.stdout, done.stderr.decode(errors="replace")[-300:] if done.returncode else ""
    except subprocess.TimeoutExpired as cut:  # the finished ones are reported
        said, trouble = cut.stdout or b"", f"not all were done after {seconds:.0f} s"
    found = [json.loads(line) for line in said.splitlines() if line.startswith(b"{") and line.endswith(b"}")]
    checks = [each for each in found if "check" in each]
    stage.keep("checks", checks)
    failed = [f"{each['check']}: {each['why']}" for each in checks if not each["ok"]]
    told = [each["told"] for each in checks if each["told"]]
    stage.add(
        "promises about PyTorch that hold",
        mpsd=figures.of(len(checks) - len(failed), len(checks)),
        goal="all",
        met=bool(checks) and not failed and not trouble,
        remark="; ".join(filter(None, [*failed, trouble, *told]))[:900],
    )


def python(stage: Stage, *words: str, has_input: bool = False, **more: str) -> Client:
    """PyTorch's Python, with mpsd_client."""
    env = {**stage.mpsd.environment(), "PYTHONPATH": python_path(stage), **more}
    return stage.mpsd.spawn([str(stage.options.torch_python), *words], env, has_input)


class _Decoding:
    """decode.py.  Guards what the undisturbed run came to."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        plain = self._start(DECODE)
        end = vault.said(plain, "end")
        plain.wait(vault.EVENT_SECONDS)
        stage.mpsd.clients.remove(plain)
        self._result = (end["tokens"], end["digest"])

    def first(self, faults: bool) -> Client:
        arena = ("--arena", vault_survival.ARENA, "--state")
        return self._start(FAULTING, str(DECODE), *arena) if faults else self._start(DECODE, *arena)

    def reached(self, client: Client) -> bool:
        tokens = client.events("token")
        return bool(tokens) and tokens[-1]["position"] >= DISTURBED_AT

    def fault(self, client: Client) -> None:
        client.signal(signal.SIGUSR1)

    def second(self) -> Client:
        return self._start(DECODE, "--arena", vault_survival.ARENA, "--state", "--adopt")

    def is_same(self, client: Client) -> bool:
        ready, end = vault.said(client, "ready"), vault.said(client, "end")
        return bool(ready["position"] >= DISTURBED_AT and (end["tokens"], end["digest"]) == self._result)

    def open_ms(self, client: Client) -> float | None:
        """From its context to everything being adopted."""
        context, arena = client.events("context"), client.events("arena")
        return float(arena[0]["ms"] - context[0]["ms"]) if context and arena else None

    def _start(self, program: Path, *words: str) -> Client:
        client = python(self._stage, str(program), *words, "--tokens", str(TOKENS), "--pace", PACE)
        if client.wait_for("begin", vault.EVENT_SECONDS) is None:
            raise SystemFailed(f"{program.name}: {client.trouble}"[:300])
        return client
