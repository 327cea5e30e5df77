"""The attacks of these tests run as another user, without rights."""

import pytest

from tests.hostile.attacker import NOBODY, attack, attacking

WHO = "import os; print(os.getuid(), os.getgid(), os.getgroups())"


def test_an_attack_has_no_rights() -> None:
    assert attack(WHO) == f"{NOBODY} {NOBODY} []\n"
    assert attack(WHO, uid=1001) == "1001 1001 []\n"


def test_an_attack_that_breaks_is_no_success() -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        attack("1 / 0")
    with pytest.raises(AssertionError, match="ZeroDivisionError"), attacking("1 / 0"):
        pass


def test_an_attack_goes_on_inside_the_block() -> None:
    with attacking("import time; print('ready', flush=True); time.sleep(600)") as process:
        assert process.poll() is None
    assert process.poll() is not None
