"""The machines of the integration tests, and other users who mean harm."""

import os
import subprocess
from pathlib import Path

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

ROOTS = "#include <unistd.h>\n\nint main(void)\n{\n\tif (setuid(0))\n\t\treturn 1;\n\tfor (;;)\n\t\tpause();\n}\n"

collect_ignore = ["guest"]  # those run in the guest


@pytest.fixture
def roots_program(short_dir: Path) -> Path:
    """A program that becomes root's altogether for any user who starts it, and waits."""
    made, source = short_dir / "roots", short_dir / "roots.c"
    source.write_text(ROOTS)
    subprocess.run(["gcc", "-o", made, source], check=True)
    made.chmod(0o4755)
    if os.statvfs(made).f_flag & os.ST_NOSUID:
        pytest.skip(f"{short_dir} is mounted nosuid")
    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of these need several users, and belong to the slow suite if not to the kernel module's."""
    for item in items:
        if HERE in item.path.as_posix():
            if item.get_closest_marker("kmod") is None:
                item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("root") is None:
                item.add_marker(pytest.mark.root)
