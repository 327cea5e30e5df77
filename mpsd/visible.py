"""Text of others, made so that a terminal or a log only shows it: what is not printable becomes an escape."""


def visible(text: str, keep: str = "") -> str:
    """keep: characters that stay although they are not printable, such as the ends of lines."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text)
