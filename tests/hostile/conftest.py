"""The machines of the integration tests, and other users who mean harm."""

import pytest

from tests.integration.conftest import (  # noqa: F401
    cgroup,
    host,
    installed_front_end,
    machine,
    programs,
    shared,
    started,
    strangers,
    strangers_python,
)

HERE = "tests/hostile/"

collect_ignore = ["guest"]  # those run in the guest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these need several users, and belong to the slow suite if not to the kernel module's."""
    for item in items:
        if HERE in item.path.as_posix():
            if item.get_closest_marker("kmod") is None:
                item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("root") is None:
                item.add_marker(pytest.mark.root)
