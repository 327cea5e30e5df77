"""The commands status, health, limits, limits set, and completion."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpsd_client import calls, values

from mpsctl import words
from mpsctl.output import facts
from mpsctl.quantities import show_duration, show_percent
from mpsctl.session import Session

if TYPE_CHECKING:
    from rich.console import RenderableType


def status(session: Session) -> int:
    found = session.ask(calls.status())
    session.out.document(found, lambda: facts(_facts(session, found)))
    return 0


def _facts(session: Session, found: values.Status) -> Mapping[str, object]:
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.started_at))
    lost = {"events": found.events_lost, "audit lines": found.audit_lines_lost}
    return {
        "mpsd": f"{found.version}, pid {found.pid}, user {session.user_name(found.uid)}",
        "state": _state(found),
        "up": f"{show_duration(found.uptime_seconds)}, since {started}",
        "GPUs": found.devices,
        "domains": ", ".join(f"{count} {state}" for state, count in found.domains.items()) or "none",
        "clients": found.clients,
        "leases": f"{found.leases_active} active, {found.leases_queued} queued",
        "queue": found.queue,
        "arenas": found.arenas if found.keeper else None,
        "keeper": _keeper(found.keeper) if found.keeper else None,
        "services": _services(found) if found.services else None,
        "connections": f"{found.connections}, of these {found.subscribers} for events",
        "lost": ", ".join(f"{count} {what}" for what, count in lost.items() if count),
        **{name.replace("_", " "): _fact(value) for name, value in found.facts.items()},
    }


def _state(found: values.Status) -> str:
    if found.ends_at is None:
        return found.state
    return f"{found.state}, ends what clients do {time.strftime('at %H:%M:%S', time.localtime(found.ends_at))}"


def _fact(value: object) -> object:
    """Return a fact as text; of a mapping, the names of the parts that work, then each other part with its state."""
    if not isinstance(value, Mapping):
        return value
    well = ", ".join(str(name) for name, state in value.items() if state == "works")
    others = [f"{name}: {state}" for name, state in value.items() if state != "works"]
    return "; ".join([f"{well} work"] * bool(well) + others)


def _keeper(found: values.Keeper) -> str:
    """Return the state of the arenas' keeper as text."""
    pid = f", pid {', '.join(map(str, found.pids))}" if found.pids else ""
    return f"{found.state}{pid}" + (f", holds {found.descriptors} descriptors" if found.descriptors else "")


def _services(found: values.Status) -> str:
    unserved = f", {found.services_unserved} of them unserved" if found.services_unserved else ""
    return f"{found.services}{unserved}"


def health(session: Session) -> int:
    """Print mpsd's health.  Return 1 if mpsd would not serve a new client."""
    found = session.ask(calls.health())
    session.out.document(found, lambda: "\n".join([*(["ok"] if found.ok else []), *found.problems]))
    return 0 if found.ok else 1


def show_limits(session: Session) -> int:
    found = session.ask(calls.limits_get())
    session.out.document(found, lambda: _limits(session, found))
    return 0


def set_limits(session: Session) -> int:
    asked = session.asked
    session.needs_one_of("sm", "memory", "priority")
    found = session.ask(
        calls.limits_set(
            default_active_thread_percentage=asked.sm,
            default_device_pinned_mem_limit=asked.memory and words.spread(asked.memory, session.all(calls.device_list()), ()),
            default_client_priority=asked.priority,
        )
    )
    session.out.document(found, lambda: _limits(session, found))
    return 0


def _limits(session: Session, found: values.Limits) -> "RenderableType":
    names = words.ordinals(session.all(calls.device_list()))
    return facts(
        {
            "SMs": show_percent(found.default_active_thread_percentage),
            "memory": words.memory_by_gpu(found.default_device_pinned_mem_limit, names) or "no limit",
            "priority": "below normal" if found.default_client_priority else "normal",
        }
    )


def completion(session: Session) -> int:
    """Print the completion script; it works without mpsd."""
    import shtab

    from mpsctl.table import parser

    session.out.write(shtab.complete(parser(), session.asked.shell) + "\n")
    return 0
