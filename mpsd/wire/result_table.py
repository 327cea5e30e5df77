"""The result of every method, and the minor version that added each field to it."""

from collections.abc import Mapping

from mpsd.wire import arena_results, daemon_results, fault_results, lease_results, service_results
from mpsd.wire.fields import Result

MODULES = (daemon_results, lease_results, fault_results, arena_results, service_results)

# A method that is not here answers with an empty map.
RESULTS: Mapping[str, Result] = {name: result for module in MODULES for name, result in module.RESULTS.items()}


def _later_fields() -> Mapping[str, Mapping[str, int]]:
    """Return the fields that came after their result, by the first method that has it."""
    first = {id(result): name for name, result in reversed(list(RESULTS.items()))}
    later = {name: {each.name: each.since for each in RESULTS[name].fields if each.since} for name in first.values()}
    return {name: later[name] for name in RESULTS if later.get(name)}


FIELDS = _later_fields()
