"""The names of images.  Pure."""

import re

from mpsd.errors import BadRequest

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")  # a file's name: never . or .., never hidden

MOST_TEXT = 256  # characters of what names a group of arenas, an arena or its GPU: each image keeps them in its manifest


def check_name(name: str) -> None:
    """Raise BadRequest if the text cannot name an image."""
    if _NAME.fullmatch(name) is None:
        raise BadRequest(f"image name {name!r:.140}: use 1 to 128 of A-Z a-z 0-9 . _ -, and not . first")


def check_group(group: str) -> None:
    """Raise BadRequest if the text cannot name a group of arenas."""
    if len(group) > MOST_TEXT:
        raise BadRequest(f"the name of a group of arenas has {len(group)} characters: use {MOST_TEXT} at most")
