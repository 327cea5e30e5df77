"""The settings of failover.  Values."""


from msgspec import Struct, field

from mpsd.leases.rules.elastic_shares import Elastic
from mpsd.services.rules.fault_fence import Settle
from mpsd.services.rules.promotion_types import PromotionLimits

LEAST_MOVE = 5.0  # percent of a GPU: a start of processes for less disturbs more than it gives
FLOOR = 0.5  # of its own share each service keeps, so that it has that at once when its load comes back
SURPLUS = 0.9


def elastic_policy(cost_seconds: float) -> Elastic:
    """Return the policy for services, whose moves are handovers."""
    return Elastic(cost_seconds, least_move=LEAST_MOVE, floor=FLOOR, surplus=SURPLUS)


class FailoverSettings(Struct, frozen=True):
    """The settings of all services.  follow_grace: a standby that has not polled for so many seconds is silent."""

    limits: PromotionLimits = field(default_factory=PromotionLimits)
    settle: Settle = field(default_factory=Settle)
    follow_grace: float = 10.0
    elastic: Elastic = field(default_factory=lambda: elastic_policy(5.0))
