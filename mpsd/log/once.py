"""What is logged once, however often it comes."""


class Once:
    """Guards that a trouble that stays is logged once, until its reason changes or it is over."""

    def __init__(self) -> None:
        self._why = ""

    def is_new(self, why: str) -> bool:
        """Return whether this reason is to be logged: it differs from the last one."""
        was, self._why = self._why, why
        return why != was

    def clear(self) -> None:
        """The trouble is over: the same reason is new the next time."""
        self._why = ""
