"""A restart of mpsd while its refusing vendor daemon runs."""

import pytest

from tests.integration.machine import Machine

pytestmark = pytest.mark.root


def test_a_restarted_mpsd_refuses_with_the_error_and_leaves_no_daemon_behind(machine: Machine) -> None:
    machine.configure('[admission]\ndefault = "refuse"\nrefuse_with = "error"\n')
    machine.start()
    assert machine.counter().error() == 805
    machine.kill_daemon()
    machine.start()
    assert machine.counter().error() == 805
    assert machine.quit() == 0
    assert machine.processes("nvidia-cuda-mps-control") == []
