"""Events about fault domains: one for each change of state, as subscribers get it (docs/protocol.md, "Events")."""

from collections.abc import Callable, Mapping
from typing import Any

from mpsd.domains.pool import Pool
from mpsd.model.domain import DomainState


async def tell_of_domains(pool: Pool, publish: Callable[[str, Mapping[str, Any]], None]) -> None:
    """Publish changes of state; run as long as mpsd.  A state that lasted only a moment may be left out."""
    known: dict[str, DomainState] = {}
    while True:
        views = {view.name: view for view in pool.views()}
        for name in set(known) - set(views):
            publish("domain.gone", {"domain": name, "was": known.pop(name).value})
        for name, view in views.items():
            if known.get(name) is not view.state:
                was = known.get(name)
                facts: dict[str, Any] = {"domain": name, "was": was.value if was else None}
                facts |= {"gpus": sorted(view.gpus), "clients": view.clients}
                if view.state is DomainState.CONTAINED:
                    facts["ends_at"] = view.ends_at
                publish(f"domain.{view.state.value}", facts)
                known[name] = view.state
        await pool.changed()
