"""Why an image cannot be used.  They never go over mpsd.sock, and so have no code of their own.  Pure."""

from mpsd.errors import MpsdError


class NoSuchImage(MpsdError):
    """No image of the directory has the name."""


class ImageDamaged(MpsdError):
    """The stored bytes are not those that were written."""
