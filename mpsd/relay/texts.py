"""Texts in a client's message that mpsd does not pass on: relayed, they would harm the clients of others.

mpsd does not know where in a message a text begins; it looks at the bytes alone.
"""

from mpsd.native import ffi, lib

MOST_TEXT_BYTES = 4093  # a command of 4,094 bytes ends the daemon of driver 580 (measured)

# The commands that not everybody may give (commands/language/command_table.py).  The vendor's daemon lets root give each, and
# the user of a server those about it; it takes them only in this case (measured).
CHANGES = (
    "quit",
    "set_active_thread_percentage",
    "set_default_active_thread_percentage",
    "set_default_client_priority",
    "set_default_device_pinned_mem_limit",
    "set_device_pinned_mem_limit",
    "shutdown_server",
    "sm_partition",
    "start_server",
    "terminate_client",
)
_ENDS = b"\0\t\n\v\f\r "  # of a word
# The short one only as a whole word: a program's name can end in its letters, and others follow.
_QUIT = tuple(b"quit" + _ENDS[at : at + 1] for at in range(len(_ENDS)))
_WORDS = tuple(name.encode() for name in CHANGES if name != "quit") + _QUIT


def change_in(data: bytes) -> str:
    """Return the name of a command in the message that not everybody may give; empty without one.

    A message can hold 200,000 bytes.  Python's own search takes 5 ms where they repeat the last letter of words, memmem(3) 0.3
    (measured).
    """
    words = (word for word in _WORDS if lib.memmem(data, len(data), word, len(word)) != ffi.NULL)
    found = next(words, b"quit" if data.endswith(b"quit") else b"")
    return found.strip(_ENDS).decode()


def long_text(data: bytes) -> int:
    """Return the size of the first text over MOST_TEXT_BYTES; 0 without one.  A text has no zero byte before its end.

    Numbers have zero bytes, so long messages with numbers pass.  It looks at few zero bytes of a message: to split 200,000 of
    them takes 15 to 30 ms (measured).
    """
    at = 0
    while len(data) - at > MOST_TEXT_BYTES:
        last = data.rfind(b"\0", at, at + MOST_TEXT_BYTES + 1)
        if last < 0:
            end = data.find(b"\0", at)
            return (len(data) if end < 0 else end) - at
        at = last + 1
    return 0
