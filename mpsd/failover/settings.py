"""What failover was told.  Values."""

from dataclasses import dataclass, field

from mpsd.policy.fault_fence import Settle
from mpsd.policy.succession_words import Limits


@dataclass(frozen=True, slots=True)
class FailoverSettings:
    """follow_grace: seconds after its last question, after which a standby is silent."""

    limits: Limits = field(default_factory=Limits)
    settle: Settle = field(default_factory=Settle)
    follow_grace: float = 10.0
