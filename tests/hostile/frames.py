"""The frames that attackers send to mpsd.sock: whole datagrams, since they have no library but Python's."""

from typing import Any

from mpsd_client import _conversation
from mpsd_client._call import Call
from mpsd_client._conversation import Conversation


def frames(*wanted: Call[Any]) -> list[str]:
    """Hello and then these calls, each in hexadecimal."""
    conversation = Conversation()
    return [bytes(conversation.ask(each)[1]).hex() for each in (_conversation.hello("attack"), *wanted)]
