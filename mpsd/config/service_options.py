"""The options of services (docs/services.md)."""

from dataclasses import dataclass

from mpsd.config.schema import option
from mpsd.config.value_checks import NOT_NEGATIVE, POSITIVE, between


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Services: arenas with an active process and standbys (docs/services.md)."""

    most_promotions: int = option(
        3,
        "Most promotions of a service within window_seconds; then it waits, since processes that die of their own work would "
        "otherwise cost every standby. The first one and handovers count only if they fail.",
        accept=between(1, 1000),
    )
    window_seconds: float = option(60.0, "See most_promotions.", accept=POSITIVE)
    yield_seconds: float = option(10.0, "How long an active may take to yield.", accept=POSITIVE)
    promote_seconds: float = option(10.0, "How long a promoted standby may take to serve.", accept=POSITIVE)
    fence_seconds: float = option(5.0, "After so long, ending an active is tried again.", accept=POSITIVE)
    settle_sm: float = option(
        0.0,
        "Seconds from the first reliable sign of an SM exception until mpsd assumes that its domain no longer writes.",
        accept=NOT_NEGATIVE,
    )
    settle_mmu: float = option(0.01, "The same for a memory fault, from its Xid on.", accept=NOT_NEGATIVE)
    follow_grace: float = option(
        10.0, "A standby that has not asked for its instruction for so long is silent, and is not promoted.", accept=POSITIVE
    )
