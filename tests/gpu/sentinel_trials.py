"""What tests/gpu/sentinel does: trials in a fresh vendor server each, and the table.

One trial: the vendor's daemon; with a sentinel or without; three co-runners that count; one culprit that faults and then ends
by itself, or is killed where its kernel hangs. A co-runner is exact if it runs to its own end and counted each kernel once.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.comparison import processes
from tests.gpu.gpu_clients import Gated
from tests.native.sentinel_process import ARMED, CONTAINED, FAILED, FAULT, HOLDS, Sentinel

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "tests/clients/bin"
SIMULATOR = ROOT / "native/sim"
VENDOR_DIRECTORIES = ("/usr/local/nvidia/bin", "/usr/bin")
CO_RUNNERS = 3
RUN_SECONDS = 1.6  # of a co-runner, from its first kernel on: the fault comes early in it
START_SECONDS, RESULT_SECONDS, END_SECONDS = 15.0, 2.0, 4.0
LINGER_SECONDS = 0.05
KILLED = frozenset({"stack_overflow", "shared_overrun"})  # their kernels hang: the culprit is killed
OF_FAULTER = ("trap", "misaligned", "illegal_instruction", "stack_overflow", "oob_write")
OF_OURS = ("trap_all", "breakpoint", "noncanonical", "shared_overrun")
MODES = (
    "trap",
    "misaligned",
    "illegal_instruction",
    "breakpoint",
    "noncanonical",
    "trap_all",
    "shared_overrun",
    "stack_overflow",
)
LAST = ("oob_write",)  # not contained: once each way


@dataclass(slots=True)
class Trial:
    mode: str
    has_sentinel: bool
    why: str = ""  # it could not be made
    exact: int = 0
    ended: list[str] = field(default_factory=list)  # each co-runner's end
    stall_ms: float = 0.0
    culprit: str = ""
    armed_ms: float = 0.0
    event_ms: float | None = None  # after the fault was announced
    contained_ms: float | None = None  # after the event
    named_ms: float | None = None  # after the event; None: no PC lies in the culprit's mappings
    wrongly: int = 0  # co-runners whose mappings hold the PC
    mappings_mib: dict[str, float] = field(default_factory=dict)  # in which the PC lies: the culprit's, and others'
    held: list[int] = field(default_factory=list)
    failed: str = ""

    @property
    def is_contained(self) -> bool:
        return self.exact == CO_RUNNERS


class Bench:
    """One place of directories, and the environment of everything started in it."""

    def __init__(self, place: Path, is_simulated: bool) -> None:
        self.place, self.count = place, 0
        self.is_simulated = is_simulated
        self.env = dict(os.environ)
        self.env.pop("OUT", None)
        if is_simulated:
            self.env |= {
                "LD_LIBRARY_PATH": str(SIMULATOR / "lib"),
                "MPSD_SIM_DIR": str(place / "machine"),
                "MPSD_SIM_FAST": "1",
            }
            self.env["PATH"] = f"{SIMULATOR / 'bin'}:{self.env['PATH']}"
        else:
            self.env["PATH"] = ":".join([self.env.get("PATH", ""), *VENDOR_DIRECTORIES])
            self.env.setdefault("CUDA_VISIBLE_DEVICES", "0")

    @contextmanager
    def server(self) -> Iterator[Path]:
        """A fresh daemon; all that was started with it is gone afterwards."""
        self.count += 1
        home = self.place / str(self.count)
        for name in ("pipe", "log"):
            (home / name).mkdir(parents=True)
        self.env |= {"CUDA_MPS_PIPE_DIRECTORY": str(home / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(home / "log")}
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.env, check=True, timeout=20, stdout=subprocess.DEVNULL)
        try:
            yield home
        finally:
            processes.end_below(home)
            shutil.rmtree(home, ignore_errors=True)

    def culprit(self, mode: str) -> Gated:
        program = (
            [str(CLIENTS / "faulter")]
            if mode in OF_FAULTER
            else [sys.executable, str(Path(__file__).with_name("sm_culprit.py"))]
        )
        return Gated([*program, mode, "--gate", "--linger", str(LINGER_SECONDS), "--json"], self.env)

    def co_runner(self) -> Gated:
        return Gated([str(CLIENTS / "counter"), "--seconds", str(RUN_SECONDS), "--ms", "10000", "--json"], self.env)


def run_trial(bench: Bench, mode: str, has_sentinel: bool) -> Trial:
    trial = Trial(mode, has_sentinel)
    with bench.server() as home:
        began = time.monotonic()
        sentinel = Sentinel(home, bench.env) if has_sentinel else None
        try:
            if sentinel and not sentinel.comes(ARMED, START_SECONDS):
                trial.why = f"not armed: {sentinel.of(FAILED) or sentinel.process.poll()}"
                return trial
            trial.armed_ms = (time.monotonic() - began) * 1e3
            _fault(bench, trial, sentinel)
        finally:
            if sentinel:
                sentinel.close()
    return trial


def _fault(bench: Bench, trial: Trial, sentinel: Sentinel | None) -> None:
    culprit = bench.culprit(trial.mode)
    if not culprit.wait_for("ready", START_SECONDS):
        trial.why = f"culprit not ready: {culprit.events[-1:]}"
        return
    others = [bench.co_runner() for _ in range(CO_RUNNERS)]
    if not all(each.wait_for("ready", START_SECONDS) for each in others):
        trial.why = f"co-runner not ready: {[each.events[-1:] for each in others]}"
        return
    if sentinel:
        for each in (culprit, *others):
            sentinel.add(each.pid)
    time.sleep(0.1)
    culprit.open_gate()
    fault = culprit.wait_for("fault", RESULT_SECONDS)
    if sentinel:
        sentinel.comes(CONTAINED, RESULT_SECONDS)
    result = culprit.wait_for("result", RESULT_SECONDS)
    trial.culprit = str(result["code"]) if result else "hangs"
    if not result or trial.mode in KILLED:
        culprit.kill()
    until = time.monotonic() + RUN_SECONDS + END_SECONDS
    for each in others:
        last = each.end(until - time.monotonic())
        is_exact = last.get("event") == "end" and last["count"] == last["kernels"] and each.status == 0
        trial.exact += is_exact
        trial.ended.append(
            "exact" if is_exact else f"error {last['code']}" if "code" in last else "hangs" if each.was_killed else "wrong"
        )
        trial.stall_ms = max(trial.stall_ms, float(last.get("worst_ms", 0.0)))
    if sentinel:
        sentinel.wait_for(lambda reports: False, 0.02)
        _judge(trial, sentinel, culprit.pid, fault)


def _judge(trial: Trial, sentinel: Sentinel, culprit: int, fault: dict[str, Any] | None) -> None:
    faults, contained = sentinel.of(FAULT), sentinel.of(CONTAINED)
    if failed := sentinel.of(FAILED):
        trial.failed = f"step {failed[0].count} status {failed[0].status:#x}"
    if not faults:
        return
    event_ns = faults[0].time_ns
    if fault:
        trial.event_ms = (event_ns - int(fault["monotonic_ns"])) / 1e6
    if contained:
        trial.contained_ms = (contained[0].time_ns - event_ns) / 1e6
    trial.held = [each.count for each in sentinel.of(HOLDS)]
    for each in sentinel.of(HOLDS):
        if each.is_culprit and each.pid == culprit:
            trial.named_ms = (each.time_ns - event_ns) / 1e6
        trial.wrongly += bool(each.is_culprit) and each.pid != culprit
        if each.is_culprit:
            trial.mappings_mib["culprit" if each.pid == culprit else f"other {each.pid}"] = each.mapping_bytes / (1 << 20)


def rates(bench: Bench) -> str:
    """Kernels of the co-runners without a fault, stock and with a sentinel, in turns."""
    found: dict[bool, list[int]] = {False: [], True: []}
    for has_sentinel in (False, True):
        with bench.server() as home:
            sentinel = Sentinel(home, bench.env) if has_sentinel else None
            try:
                if sentinel and not sentinel.comes(ARMED, START_SECONDS):
                    return "not armed"
                others = [bench.co_runner() for _ in range(CO_RUNNERS)]
                ends = [each.end(START_SECONDS) for each in others]
                found[has_sentinel].append(sum(int(end.get("kernels", 0)) for end in ends))
            finally:
                if sentinel:
                    sentinel.close()
    stock, with_sentinel = (sum(found[each]) for each in (False, True))
    return f"{with_sentinel / stock:.3f} ({stock} kernels stock, {with_sentinel} with a sentinel)" if stock else "none"


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f}/{max(values):.0f}" if values else "-"


def table(trials: list[Trial]) -> list[str]:
    lines = ["class | stock: co-runners exact | sentinel: contained | co-runners exact | stall ms (median/max) | "]
    lines[0] += "event ms | contained ms | named by PC | named ms | wrongly | culprit's own result | not contained"
    for mode in dict.fromkeys(each.mode for each in trials):
        stock = [each for each in trials if each.mode == mode and not each.has_sentinel and not each.why]
        ours = [each for each in trials if each.mode == mode and each.has_sentinel and not each.why]
        named = [each.named_ms for each in ours if each.named_ms is not None]
        cells = [
            mode,
            f"{sum(each.exact for each in stock)}/{CO_RUNNERS * len(stock)}",
            f"{sum(each.is_contained for each in ours)}/{len(ours)}",
            f"{sum(each.exact for each in ours)}/{CO_RUNNERS * len(ours)}",
            _spread([each.stall_ms for each in ours if each.is_contained]),
            _spread([each.event_ms for each in ours if each.event_ms is not None]),
            _spread([each.contained_ms for each in ours if each.contained_ms is not None]),
            f"{len(named)}/{len(ours)}",
            _spread(named),
            str(sum(each.wrongly for each in ours)),
            ",".join(sorted({each.culprit for each in ours})),
            "; ".join(f"{each.failed} {','.join(each.ended)}".strip() for each in ours if not each.is_contained),
        ]
        lines.append(" | ".join(cells))
    armed = [each.armed_ms for each in trials if each.has_sentinel and not each.why]
    lines.append(f"sentinel armed after (ms, with the server's start): {_spread(armed)}")
    lines.extend(
        f"{each.mode}: several have the PC, in mappings of (MiB): {each.mappings_mib}" for each in trials if each.wrongly
    )
    lines.extend(f"{each.mode}: not made: {each.why}" for each in trials if each.why)
    return lines


def build(is_simulated: bool) -> None:
    cuda = "sim" if is_simulated else os.environ.get("CUDA_HOME", "/usr/local/cuda")
    env = {name: value for name, value in os.environ.items() if name != "OUT"}  # the Makefiles have one of that name
    for words in (["native/sentinel"], ["tests/clients", f"CUDA={cuda}", "bin/counter", "bin/faulter"]):
        subprocess.run(["make", "-s", "-C", str(ROOT / words[0]), "CC=gcc", *words[1:]], check=True, env=env)


def run_rounds(bench: Bench, modes: list[str], until: float) -> list[Trial]:
    """Stock once for each class, then classes with a sentinel in turns for as long as there is time."""
    trials: list[Trial] = []
    slowest = 4.0

    def one(mode: str, has_sentinel: bool) -> None:
        nonlocal slowest
        began = time.monotonic()
        if began + slowest > until:
            return
        trials.append(run_trial(bench, mode, has_sentinel))
        slowest = max(slowest, time.monotonic() - began)
        made = trials[-1]
        print(f"{'sentinel' if has_sentinel else 'stock'} {mode}: {made.why or ','.join(made.ended)} {made.failed}", flush=True)

    for mode in modes:
        one(mode, True)
    for mode in modes:
        one(mode, False)
    while time.monotonic() + slowest < until:
        for mode in modes:
            if mode not in LAST:
                one(mode, True)
        if all(mode in LAST for mode in modes):
            break
    return trials


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/gpu/sentinel")
    parser.add_argument("--only", default=",".join((*MODES, *LAST)))
    parser.add_argument("--dry-run-sim", action="store_true")
    options = parser.parse_args()
    until = time.monotonic() + float(os.environ.get("BUDGET", "150")) - 5
    build(options.dry_run_sim)
    place = Path(tempfile.mkdtemp(prefix="mpsd-sentinel-", dir="/tmp"))
    trials: list[Trial] = []
    try:
        bench = Bench(place, options.dry_run_sim)
        ratio = rates(bench)
        modes = [mode for mode in options.only.split(",") if not options.dry_run_sim or mode in OF_FAULTER]
        trials = run_rounds(bench, modes, until)
        print(*table(trials), f"throughput without a fault: {ratio}", sep="\n")
    finally:
        processes.end_below(place)
        shutil.rmtree(place, ignore_errors=True)
    if out := os.environ.get("OUT"):
        with suppress(OSError):
            Path(out, "sentinel.json").write_text(json.dumps([asdict(each) for each in trials], indent=1))
    contained = [each.is_contained for each in trials if each.has_sentinel and each.mode not in LAST]
    return 0 if contained and all(contained) else 1
