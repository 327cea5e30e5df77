"""Processes that nobody can read: tests/hostile/guest, in a virtual machine of its own; here it would hang `ps` for everybody.

The guest is the kernel module's (tests/kmod): its first run fetches a distribution, and without that these tests are skipped.
"""

import re
import shutil
from pathlib import Path

import pytest

from tests.kmod.distributions import KERNEL_DIRECTORY, TOOLS, Distribution, Root, cache_directory
from tests.kmod.machine import Boot, pytest_command, run

GUEST = Path(__file__).with_name("guest")
NAMES = re.findall(r"^(?:async )?def (test_\w+)", (GUEST / "test_reads.py").read_text(), re.MULTILINE)


def cached_root() -> Root | None:
    """One that the cache has, whichever distribution's; the last by name."""
    for place in sorted((cache_directory() / "roots").glob("debian*"), reverse=True):
        if (place / KERNEL_DIRECTORY / "release").exists() and "half" not in place.name:
            return Root(Distribution(place.name.partition("-")[0], "", "", ""), place)
    return None


@pytest.fixture(scope="module")
def booted() -> Boot:
    if missing := [each for each in TOOLS if not shutil.which(each)]:
        pytest.skip(f"no {', '.join(missing)}: run tests/kmod/setup as root")
    root = cached_root()
    if root is None:
        pytest.skip("no guest in the cache: run tests/kmod once, with -m kmod")
    variables = {"MPSD_GUEST_KERNEL": str(root.path / KERNEL_DIRECTORY)}
    return run(root, root.kernel_image, pytest_command(GUEST, variables))


@pytest.mark.deadline(900)
@pytest.mark.parametrize("name", NAMES)
def test_in_the_guest(booted: Boot, name: str) -> None:
    assert name in booted.results, f"the guest did not come so far; its console ends:\n{booted.console[-4000:]}"
    result = booted.results[name]
    print(booted.facts)
    assert result.outcome == "passed", result.text
