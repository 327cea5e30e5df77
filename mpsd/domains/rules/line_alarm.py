"""How long a vendor's log line alone keeps newcomers out of a domain: any user can write such a line.  Pure."""

import math

from msgspec import Struct

LINE_SECONDS = 2.0  # by then the vendor's server has answered FAULT, or it was a false alarm
LINE_PAUSE_SECONDS = 20.0


class LineAlarm(Struct):
    """Guards that lines alone keep newcomers out for LINE_SECONDS of LINE_PAUSE_SECONDS at most."""

    again_at: float = -math.inf

    def until(self, now: float) -> float | None:
        """Return until when newcomers go to other domains because of a line; None during the pause after an earlier line."""
        if now < self.again_at:
            return None
        self.again_at = now + LINE_PAUSE_SECONDS
        return now + LINE_SECONDS
