"""The names of fault domains, by their numbers: default, d2, d3, ...  Pure."""

_FIRST = "default"


def name_of(number: int) -> str:
    return _FIRST if number == 1 else f"d{number}"


def number_of(name: str) -> int | None:
    """Return the number of the domain with this name; None if no domain can have it."""
    if name == _FIRST:
        return 1
    digits = name.removeprefix("d")
    is_number = name.startswith("d") and digits.isascii() and digits.isdecimal() and len(digits) <= 9
    return int(digits) if is_number and int(digits) > 1 else None
