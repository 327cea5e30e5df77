"""The sentinel's table of clients, by itself."""

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parent.parent / "native"


def test_each_client_that_lives_has_one_place(tmp_path: Path) -> None:
    program = tmp_path / "clients"
    sources = [HERE / "sentinel_clients.c", *(NATIVE / "sentinel" / each for each in ("clients.c", "holders.c"))]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE / 'include'}"]
    subprocess.run(["cc", *flags, "-o", program, *sources], check=True)
    subprocess.run([program], check=True, timeout=30, stdin=subprocess.DEVNULL)
