"""Search a sorted list of numbers."""

from array import array

from mpsd.model import sorted_numbers


def test_exactly_its_numbers_are_found() -> None:
    assert not sorted_numbers.has((), 0)
    for numbers in ((5,), (1, 3, 3, 7), array("q", [-(2**63), -1, 0, 2**63 - 1])):
        around = {number + step for number in numbers for step in (-1, 0, 1)}
        assert {number for number in around if sorted_numbers.has(numbers, number)} == set(numbers)
