"""Each test of tests/kmod/guest, as it went in the virtual machine of each distribution."""

import pytest

from tests.kmod.building import Build
from tests.kmod.cases import Case
from tests.kmod.machine import Boot, names_of_guest_tests


@pytest.mark.parametrize("name", names_of_guest_tests())
def test_in_the_guest(booted: Boot, name: str) -> None:
    assert name in booted.results, f"the guest did not come so far; its console ends:\n{booted.console[-4000:]}"
    result = booted.results[name]
    assert result.outcome == "passed", result.text


def test_the_guest_ran_what_was_built(booted: Boot, build: Build) -> None:
    assert booted.facts["kernel"] == build.kernel


def test_lockdep_looked_to_the_end(case: Case, booted: Boot) -> None:
    assert booted.facts.get("debug_locks") == ("1" if case.distribution.is_debug else None)


def test_kasan_watched_the_debug_kernel_alone(case: Case, booted: Boot) -> None:
    assert booted.facts.get("kasan") == ("on" if case.distribution.is_debug else None)


def test_the_guest_ran_nothing_else(booted: Boot) -> None:
    """A guest test that the host does not ask for could fail unseen."""
    assert set(booted.results) == set(names_of_guest_tests())


def test_the_kernel_complained_of_nothing_from_boot_to_power_off(booted: Boot) -> None:
    """Also outside tests, and in the console's output before the first one."""
    assert "Power down" in booted.console
    words = ("BUG:", "WARNING:", "Oops", "Call Trace", "general protection", "Kernel panic")
    assert not [line for line in booted.console.splitlines() if any(word in line for word in words)]
