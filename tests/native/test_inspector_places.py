"""The inspector's places: a read that cannot be killed keeps its own for as long as the user of the process likes."""

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
INSPECTOR = HERE.parent.parent / "native" / "inspector"


def test_a_few_users_do_not_take_all_places(tmp_path: Path) -> None:
    """FUSE lets an unprivileged user keep a reader for ever, and /etc/subuid gives one person 65,536 uids.

    24 users with four cgroups each, which they hold, left every other read one place a user: the rest of their clients waited.
    """
    program = tmp_path / "places"
    names = ("facts", "identity", "descriptors", "starter", "cgroups", "texts")
    sources = [HERE / "inspector_places.c", *(INSPECTOR / f"{name}.c" for name in names)]
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-o", program, *sources], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == (
        "files of cgroups:\n24 users take more than one place\n472 users leave none\n"
        "other reads:\n12 users take more than one place\n460 users leave none\n"
    )
