"""Processes that cannot be read: tests/hostile/guest, in a separate virtual machine; here it would hang `ps` for every user.

The guest is the kernel module's (tests/kmod): its first run fetches a distribution, and without that these tests are skipped.
MPSD_KMOD_ALL=1 adds Debian 11's kernel, in which a user can hold the lock that `stat` takes.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.kmod.cases import ALL_WANTED
from tests.kmod.distributions import (
    DEBIAN11,
    KERNEL_DIRECTORY,
    TOOLS,
    Distribution,
    Root,
    Unavailable,
    cache_directory,
    root_of,
)
from tests.kmod.machine import Boot, names_of_guest_tests, pytest_command, run

pytestmark = pytest.mark.kmod  # by the machinery of tests/kmod, and by its cache of roots
GUEST = Path(__file__).with_name("guest")


def cached_root() -> Root:
    """One that the cache has, whichever distribution's; the last by name."""
    for place in sorted((cache_directory() / "roots").glob("debian*"), reverse=True):
        if (place / KERNEL_DIRECTORY / "release").exists() and "half" not in place.name:
            return Root(Distribution(place.name.partition("-")[0], "", "", ""), place)
    pytest.skip("no guest in the cache: run tests/kmod once, with -m kmod")


def oldest_root() -> Root:
    if os.environ.get(ALL_WANTED) != "1":
        pytest.skip(f"{ALL_WANTED}=1 asks for it")
    try:
        return root_of(DEBIAN11)
    except Unavailable as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module", params=[cached_root, oldest_root], ids=["cached", DEBIAN11.name])
def root(request: pytest.FixtureRequest) -> Root:
    if missing := [each for each in TOOLS if not shutil.which(each)]:
        pytest.skip(f"no {', '.join(missing)}: run tests/kmod/setup as root")
    found: Root = request.param()
    return found


@pytest.fixture(scope="module")
def booted(programs: None, root: Root) -> Boot:
    variables = {"MPSD_GUEST_KERNEL": str(root.path / KERNEL_DIRECTORY)}
    return run(root, root.kernel_image, pytest_command(GUEST, variables))


@pytest.mark.deadline(900)
@pytest.mark.parametrize("name", names_of_guest_tests(GUEST))
def test_in_the_guest(booted: Boot, name: str) -> None:
    assert name in booted.results, f"the guest did not come so far; its console ends:\n{booted.console[-4000:]}"
    result = booted.results[name]
    print(booted.facts)
    assert result.outcome == "passed", result.text
