"""The output of a starter: text lines with the time, or JSON lines; and which changes of a service to report."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mpsd_client import values

from mpsctl.output import Output, plain
from mpsctl.quantities import show_percent, show_size
from mpsctl.starter.plan import SERVING


@dataclass(frozen=True, slots=True)
class Report:
    """A report.  event, facts: for programs.  text: for people."""

    event: str
    text: str
    facts: Mapping[str, Any]


@dataclass(slots=True)
class Reporter:
    """Prints reports.  It ignores errors of the output, so that a closed terminal does not end the starter."""

    out: Output
    name: str

    def report(self, event: str, text: str, **facts: Any) -> None:
        now = self.out.surroundings.now()
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        try:
            self.out.line({"time": now, "event": event, "service": self.name, **facts}, lambda: f"{clock} {self.name}: {text}")
        except OSError:
            pass

    def report_differences(self, before: values.Service | None, after: values.Service | None) -> None:
        for each in differences(before, after):
            self.report(each.event, each.text, **each.facts)


def differences(before: values.Service | None, after: values.Service | None) -> Iterator[Report]:
    """Return the reports for the changes between two views of a service; None: the service does not exist."""
    if after is None:
        if before is not None:
            yield Report("gone", "the service no longer exists", {})
        return
    if before is None:
        yield _found(after)
    elif after.last is not None and after.last != before.last:
        yield _promoted(after.last)
    if after.lost is not None and (before is None or after.lost != before.lost):
        yield _lost(after.lost, after.losses)
    if before is not None and _is_unserved_anew(before, after):
        text = after.protection or f"no member serves now: {after.phase}"
        yield Report("unserved", text, {"phase": after.phase, "why": after.protection})
    was_ready = {each.pid for each in (before or after).members if each.standing == "ready"}
    for each in after.members:
        if each.standing == "ready" and each.pid not in was_ready and not each.is_writer:
            where = f" in domain {each.domain}" if each.domain else ""
            yield Report("ready", f"pid {each.pid}{where} is ready", {"pid": each.pid, "domain": each.domain})
    known = before.protection if before and before.phase == SERVING else ""
    if after.phase == SERVING and after.protection != known:
        text = f"unprotected: {after.protection}" if after.protection else "protected"
        yield Report("protection", text, {"protection": after.protection})


def _is_unserved_anew(before: values.Service, after: values.Service) -> bool:
    """Return whether the service has become unserved, or is unserved for another reason than before."""
    if after.phase == "idle" and before.phase in ("idle", "fencing"):
        return after.protection != before.protection
    return before.phase == SERVING and after.phase in ("idle", "fencing")


def _lost(of: values.Loss, losses: int) -> Report:
    times = "once" if losses == 1 else f"{losses} times"
    text = f"THE STATE WAS LOST ({times} since mpsd began): pid {of.pid} lacks it, generation {of.generation}: {of.why}"
    return Report("state_lost", text, {**plain(of), "losses": losses})


def _found(of: values.Service) -> Report:
    pids = [each.pid for each in of.members]
    who = "no member serves yet" if of.writer_pid is None else f"pid {of.writer_pid} serves"
    text = f"the service exists, generation {of.generation}: {who}; members: {', '.join(map(str, pids)) or 'none'}"
    return Report("found", text, {"writer_pid": of.writer_pid, "generation": of.generation, "pids": pids})


def _promoted(of: values.Promotion) -> Report:
    return Report("promoted", f"pid {of.to_pid} serves, generation {of.generation}: {promotion(of)}", plain(of))


def promotion(of: values.Promotion) -> str:
    """Return the cause of a promotion and the known durations of its parts, as text."""
    parts = (("detected", of.detect_ms), ("fenced", of.fence_ms), ("promoted", of.promote_ms))
    known = [f"{word} in {milliseconds(value)}" for word, value in parts if value is not None]
    return ", ".join([of.cause, *known])


def milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def reservation(sm_percent: float | None, memory_bytes: int | None) -> str:
    """Return the reservation as text; empty without one."""
    parts = [f"{show_percent(sm_percent)} of the SMs" if sm_percent else "", show_size(memory_bytes) if memory_bytes else ""]
    return ", ".join(filter(None, parts))


def stopping(ends_at: float | None, now: float) -> str:
    """Return as text what happens to the members when mpsd quits.  ends_at: when it ends them by force; None: it waits."""
    if ends_at is None:
        what = "mpsd is quitting, and WAITS FOR THE MEMBERS: they continue, and no further one is started"
        return f"{what}. To end them, end this starter"
    what = f"mpsd is quitting, and ends all work on its GPUs in {max(0.0, ends_at - now):.0f} s"
    return f"{what}: the members are ended before, the active last, and started again when mpsd is back"
