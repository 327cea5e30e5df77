"""The options of the sentinel (docs/sentinel.md)."""

from dataclasses import dataclass
from typing import Literal

from mpsd.config.schema import option
from mpsd.config.value_checks import NOT_NEGATIVE, POSITIVE


@dataclass(frozen=True, slots=True)
class SentinelOptions:
    """The sentinel, which contains SM exceptions on the stock driver (docs/sentinel.md)."""

    mode: Literal["off", "on", "required"] = option(
        "off",
        'Start a sentinel in each domain before its first client. "on": where that fails, clients start without, and `health` '
        'reports it. "required": where that fails, clients wait. Needs root.',
        needs_restart=True,
    )
    self_test: bool = option(
        True,
        "At the first start with this driver, GPU and kernel, cause an SM exception among clients of mpsd's own, and test that "
        "a sentinel contains it (`mpsd check --gpu`). Where it does not, sentinels are off. false: use them untested.",
        needs_restart=True,
    )
    start_seconds: float = option(
        10.0, "How long a domain's first client waits for it.", accept=POSITIVE, needs_restart=True
    )
    drain_seconds: float = option(
        3600.0,
        "After a contained exception the domain takes no new client; after so long mpsd ends its remaining ones. 0: never.",
        accept=NOT_NEGATIVE,
        needs_restart=True,
    )
