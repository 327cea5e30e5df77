"""Elastic shares against fixed ones: a service that answers requests, at times few and at times many, and two batch services.

A turn is a quiet time and a burst; turns with fixed shares and elastic ones follow each other, or with ELASTIC_MINUTES=10 ten
minutes with fixed shares, and then ten with elastic ones.  In the end all are elastic, and the load is steady: no share may
move then.
"""

import json
import os
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from mpsd_client import Client as Mpsd
from mpsd_client import calls
from mpsd_client._values import Service as ServiceView

from tests.gpu.comparison import failover, figures, vault
from tests.gpu.comparison.clients import Client, end_all
from tests.gpu.comparison.stage import ROOT, Stage
from tests.gpu.comparison.system import System, SystemFailed

MEMBER = ROOT / "tests/gpu/load_member.py"
CONFIG = failover.CONFIG + "[admission]\nsm_oversubscription = 2.0\n"  # a move runs two members of a service for a moment
CHAT, BATCH = "chat", ("batch-a", "batch-b")
SHARE = 33.0
QUIET, BURST, STEADY = 0.15, 1.2, 0.62  # of what the chat service can answer with its fixed share
SATURATING_RATE = 1000.0
PHASE_SECONDS = (8.0, 25.0)
MINUTES = int(os.environ.get("ELASTIC_MINUTES", "0"))  # of each mode at a stretch; 0: short turns
_EACH = round(MINUTES * 60 / (2 * PHASE_SECONDS[1]))
TURNS = ("fixed",) * _EACH + ("elastic",) * _EACH or ("fixed", "elastic", "fixed", "elastic")
SECONDS = 120.0 * MINUTES + 300.0 if MINUTES else 590.0
DRAIN_SECONDS = 20.0
CALIBRATE_SECONDS, SWITCH_SECONDS, START_SECONDS, END_SECONDS = 4.0, 40.0, 60.0, 20.0
STEP_PERCENT = 2.5  # a client has whole pairs of SMs


@dataclass(slots=True)
class Found:
    """Of one kind of turn, by phase: latencies of the chat service in ms, seconds, steps of the batch services; moves."""

    latencies: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    moves: int = 0

    def add(self, phase: str, latencies: list[float], seconds: float, steps: int) -> None:
        self.latencies.setdefault(phase, []).extend(latencies)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
        self.steps[phase] = self.steps.get(phase, 0) + steps


@dataclass(slots=True)
class Mix:
    """Runs the three services by starters."""

    stage: Stage
    system: System
    starters: list[Client] = field(default_factory=list)

    @property
    def rate(self) -> Path:
        return self.stage.work / "chat.rate"

    def report(self, name: str) -> Path:
        return self.stage.work / f"{name}.steps"

    def begin(self) -> None:
        self.ask_for(0.0, "regular")
        env = {**self.system.environment(), "PYTHONPATH": f"{ROOT}/clients/python:{ROOT}/clients/mpsctl"}
        python = str(self.stage.options.python)
        for name in (CHAT, *BATCH):
            words = ["--blocks", "2112", "--rate", str(self.rate)] if name == CHAT else ["--blocks", "4224"]
            member = [python, str(MEMBER), "--report", str(self.report(name)), *words]
            run = ["service", "run", name, "--standbys", "0", "--sm", f"{SHARE:g}%", "--", *member]
            self.starters.append(self.system.spawn([python, "-m", "mpsctl", *run], env))
        self.wait_for_own_shares(START_SECONDS)

    def ask_for(self, rate: float, kind: str) -> None:
        new, before = self.rate.with_suffix(".new"), self.rate.read_text() if self.rate.exists() else ""
        new.write_text(f"{before}{time.monotonic_ns()} {rate} {kind}\n")
        new.replace(self.rate)

    def mpsd(self) -> Mpsd:
        return Mpsd(self.system.pipe / "mpsd.sock", program="compare")

    def services(self) -> list[ServiceView]:
        with self.mpsd() as mpsd:
            return list(mpsd.pages(calls.service_list()))

    def set(self, mode: str) -> None:
        """Make the shares fixed or elastic; every service has its own share when this returns."""
        with self.mpsd() as mpsd:
            for name in (CHAT, *BATCH):
                level = "off" if mode == "fixed" else "interactive" if name == CHAT else "batch"
                mpsd.ask(calls.service_change(name, elastic=level))
        if mode == "fixed":
            self.wait_for_own_shares(SWITCH_SECONDS)

    def wait_for_own_shares(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and all(each.is_running for each in self.starters):
            with self.mpsd() as mpsd:
                found = list(mpsd.pages(calls.service_list()))
                shares = {each.pid: each.sm_percent for each in mpsd.pages(calls.client_list())}
            has = [shares.get(each.writer_pid) for each in found if each.phase == "serving" and each.writer_pid is not None]
            alone = all(len(each.members) == 1 for each in found)
            if len(found) == 3 and alone and sum(each is not None and abs(each - SHARE) < STEP_PERCENT for each in has) == 3:
                return
            time.sleep(0.05)
        words = "; ".join(f"{each.fate} {' '.join(each.other[-3:])}" for each in self.starters)
        raise SystemFailed(f"the services do not all have {SHARE:g} %: {words}"[:600])

    def phase(self, rate: float, kind: str, seconds: float) -> tuple[list[float], list[float], int]:
        """Return the chat service's latencies and its steps' times in ms, and the steps of the batch services."""
        began_ns = time.monotonic_ns()
        self.ask_for(rate, kind)
        time.sleep(seconds)
        ended_ns = time.monotonic_ns()
        self.ask_for(0.0, kind)
        self._wait_for_answers()
        chat = [each for each in self._steps(CHAT) if began_ns <= each[0] < ended_ns]
        batch = sum(began_ns <= each[2] < ended_ns for name in BATCH for each in self._steps(name))
        return [(done - came) / 1e6 for came, _, done in chat], [(done - began) / 1e6 for _, began, done in chat], batch

    def _wait_for_answers(self) -> None:
        """Wait until all requests so far are answered: those that wait longest are the tail."""
        deadline, before = time.monotonic() + DRAIN_SECONDS, -1
        while time.monotonic() < deadline and (now := len(self._steps(CHAT))) != before:
            before = now
            time.sleep(0.5)

    def _steps(self, name: str) -> list[tuple[int, int, int]]:
        lines = self.report(name).read_text().splitlines(keepends=True) if self.report(name).exists() else []
        return [(int(a), int(b), int(c)) for a, b, c in (line.split() for line in lines if line.endswith("\n"))]


def run(stage: Stage) -> None:
    system = stage.another("elastic", stage.options.front_end, stage.mpsd, config=CONFIG)
    system.start()
    system.warm(10)
    mix = Mix(stage, system)
    kinds = {"fixed": Found(), "elastic": Found()}
    try:
        mix.begin()
        _, steps, _ = mix.phase(SATURATING_RATE, "regular", CALIBRATE_SECONDS)  # alone a step takes longer
        step_ms = figures.median(steps)
        if step_ms is None:
            raise SystemFailed("the chat service answered nothing")
        full = 1000.0 / step_ms
        least, most = PHASE_SECONDS
        seconds = min(most, max(least, (stage.left() - 90.0) / (2 * len(TURNS) + 1)))
        stage.say(f"a step takes {step_ms:.2f} ms with {SHARE:g} %; a phase {seconds:.0f} s")
        for before, mode in pairwise(("", *TURNS)):
            if stage.left() > 3 * seconds + 2 * END_SECONDS:  # the steady load needs one more phase
                _turn(stage, mix, kinds[mode], mode, full, seconds, is_new=mode != before)
        _report(stage, kinds)
        if stage.left() > seconds + END_SECONDS:
            _steady(stage, mix, full, min(seconds, stage.left() - END_SECONDS))
        _check(stage, mix)
    finally:
        end_all(mix.starters, END_SECONDS)
    for name in (CHAT, *BATCH):
        vault.remove(system, name)
    system.quit()


def _turn(stage: Stage, mix: Mix, found: Found, mode: str, full: float, seconds: float, is_new: bool) -> None:
    if is_new:
        mix.ask_for(QUIET * full, "random")
        mix.set("fixed")
        mix.set(mode)
    before = _moves(mix.services())
    for phase, load in (("quiet", QUIET), ("burst", BURST)):
        latencies, _, steps = mix.phase(load * full, "random", seconds)
        found.add(phase, latencies, seconds, steps)
        now = mix.services()
        stage.say(f"{mode}, {phase}: {_words(now)}; batch {steps / seconds:.0f} steps/s, chat {_tail(latencies)}")
        stage.keep(f"{mode}, {phase}: latencies, ms", [round(each, 2) for each in latencies])
        stage.keep(f"{mode}, {phase}: services", [_facts(each) for each in now])
    found.moves += _moves(mix.services()) - before


def _steady(stage: Stage, mix: Mix, full: float, seconds: float) -> None:
    mix.ask_for(STEADY * full, "regular")
    mix.set("fixed")
    mix.set("elastic")
    before = _moves(mix.services())
    latencies, _, steps = mix.phase(STEADY * full, "regular", seconds)
    now = mix.services()
    moves = _moves(now) - before
    why = next((each.share.why for each in now if each.share), "")
    stage.add(
        f"a steady load for {seconds:.0f} s, elastic: shares moved", mpsd=str(moves), goal="0", met=moves == 0,
        remark=f"batch {steps / seconds:.0f} steps/s, chat {_tail(latencies)}; {why}"[:300],
    )  # fmt: skip


def _report(stage: Stage, kinds: dict[str, Found]) -> None:
    fixed, elastic = kinds["fixed"], kinds["elastic"]
    for phase in ("quiet", "burst"):
        if phase not in fixed.steps or phase not in elastic.steps:
            continue
        theirs, ours = (each.steps[phase] / each.seconds[phase] for each in (fixed, elastic))
        stage.add(
            f"{phase}: steps a second of the two batch services, fixed shares (left) and elastic ones",
            vendor=figures.number(theirs), mpsd=figures.number(ours), ratio=figures.times(ours / theirs if theirs else None),
        )  # fmt: skip
        stage.add(
            f"{phase}: latency of the chat service, p50, p95, p99",
            vendor=_tail(fixed.latencies[phase]), mpsd=_tail(elastic.latencies[phase]),
            remark=f"{len(fixed.latencies[phase])} and {len(elastic.latencies[phase])} requests",
        )  # fmt: skip
    what = "shares moved in the elastic turns, of the three services"
    stage.add(what, mpsd=str(elastic.moves), remark=f"fixed: {fixed.moves}")


def _check(stage: Stage, mix: Mix) -> None:
    """What each next active found in GPU memory is what was published.  A step that ended and was not published is done again:
    that is one more from then on, and in a planned handover no step is."""
    good = terms = repeated = 0
    for starter in mix.starters:
        more = 0
        for line in (line for line in starter.other if '"promoted"' in line):
            found = json.loads(line[line.index("{") :])
            before, more = more, found["value"] - found["n"]
            terms, good, repeated = terms + 1, good + (more - before in (0, 1)), repeated + (more > before)
    what = "terms that found in GPU memory the steps that were published"
    remark = f"{repeated} steps were done again"
    met = good == terms > 3
    stage.add(what, mpsd=figures.of(good, terms), goal=figures.of(terms, terms), met=met, remark=remark)


def _tail(latencies: list[float]) -> str:
    return ", ".join(figures.ms(figures.quantile(latencies, each)) for each in (0.5, 0.95, 0.99))


def _moves(services: list[ServiceView]) -> int:
    return sum(each.share.moves for each in services if each.share)


def _facts(of: ServiceView) -> dict[str, Any]:
    share, last = of.share, of.last
    domain = next((each.domain for each in of.members if each.is_writer), "")
    return {
        "name": of.name,
        "domain": domain,
        "sm_percent": share.sm_percent if share else of.settings.sm_percent,
        "busy": share.busy if share else None,
        "why": share.why if share else "",
        "handover_ms": (last.fence_ms or 0.0) + (last.promote_ms or 0.0) if last else None,
    }


def _words(services: list[ServiceView]) -> str:
    facts = [_facts(each) for each in services]
    handed = "/".join(figures.ms(each["handover_ms"]) for each in facts)
    why = next((each["why"] for each in facts), "")
    shares = ", ".join(f"{each['name']} {each['sm_percent']:g} % in {each['domain']}" for each in facts)
    return f"{shares} ({why}), handovers {handed}"
