"""The settings of failover.  Values."""


from msgspec import Struct, field

from mpsd.services.rules.fault_fence import Settle
from mpsd.services.rules.promotion_types import PromotionLimits


class FailoverSettings(Struct, frozen=True):
    """The settings of all services.  follow_grace: a standby that has not polled for so many seconds is silent."""

    limits: PromotionLimits = field(default_factory=PromotionLimits)
    settle: Settle = field(default_factory=Settle)
    follow_grace: float = 10.0
