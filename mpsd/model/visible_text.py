"""Untrusted text made safe for a terminal or a log: characters that are not printable become escapes."""


def visible(text: str, keep: str = "") -> str:
    """Escape the text.  keep: characters that stay although they are not printable, such as newlines."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text)
