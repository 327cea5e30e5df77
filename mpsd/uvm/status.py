"""Values: the settings of the attachments, and the state of one, for lists of clients.  Pure."""


from msgspec import Struct

from mpsd.model.client import ShieldSetting


class UvmSettings(Struct, frozen=True):
    """events: listen for the faults of each client.  hold, hold_seconds: keep the VA space of a killed client, for this time at
    most, so that its running work hurts no other client.  most: attachments at once."""

    events: bool = True
    shield: ShieldSetting = "low"
    hold: bool = True
    hold_seconds: float = 2.0
    most: int = 4096

    @property
    def is_idle(self) -> bool:
        return not (self.events or self.hold or self.shield != "off")
