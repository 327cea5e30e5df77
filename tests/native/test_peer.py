"""Who may listen where mpsd should: one table for both languages, which also have the same words."""

import subprocess
from pathlib import Path

import pytest
from mpsd_client._peer import OVERFLOW_UID, hides_root, is_trusted, refusal

ROOT = Path(__file__).resolve().parents[2]
MAPS = {
    "the machine's own": "         0          0 4294967295\n",
    "a container with all users": "0 0 65536\n",
    "two ranges, root in the second": "0 1000 1\n1 0 1\n",
    "an ordinary user's container": "         0       1000          1\n",
    "users moved by a daemon of root's": "0 100000 65536\n",
    "nobody is mapped": "",
}
HIDES = {"an ordinary user's container", "users moved by a daemon of root's"}
CASES = [  # who listens, who asks, in which namespace; trusted?
    pytest.param(0, 1000, "the machine's own", True, id="root's"),
    pytest.param(1000, 1000, "the machine's own", True, id="one's own"),
    pytest.param(0, 0, "the machine's own", True, id="root asks root"),
    pytest.param(1001, 1000, "the machine's own", False, id="another user's"),
    pytest.param(1000, 0, "the machine's own", False, id="root asks a user's"),
    pytest.param(OVERFLOW_UID, 1000, "the machine's own", False, id="the user nobody's"),
    pytest.param(OVERFLOW_UID, OVERFLOW_UID, "the machine's own", True, id="nobody asks nobody"),
    pytest.param(OVERFLOW_UID, 0, "an ordinary user's container", True, id="root of the outside"),
    pytest.param(OVERFLOW_UID, 0, "users moved by a daemon of root's", True, id="root of the outside, users moved"),
    pytest.param(1000, 0, "an ordinary user's container", False, id="a user of the container"),
    pytest.param(OVERFLOW_UID, 0, "a container with all users", False, id="root would be 0"),
    pytest.param(OVERFLOW_UID, 0, "two ranges, root in the second", False, id="root would be 1"),
    pytest.param(OVERFLOW_UID, 7, "nobody is mapped", False, id="an empty map hides nobody"),
    pytest.param(4294967295, 0, "the machine's own", False, id="no user"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("peer") / "peer"
    source, include = ROOT / "tests/native/c_client/peer.c", ROOT / "clients/c/include"
    words = ["cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", f"-I{include}", source, "-o", out]
    subprocess.run(words, check=True)
    return out


@pytest.mark.parametrize(("listens", "own", "namespace", "trusted"), CASES)
def test_who_may_listen(program: Path, tmp_path: Path, listens: int, own: int, namespace: str, trusted: bool) -> None:
    uid_map = tmp_path / "uid_map"
    uid_map.write_text(MAPS[namespace])
    assert hides_root(MAPS[namespace]) == (namespace in HIDES)
    assert is_trusted(listens, own, is_root_hidden=hides_root(MAPS[namespace])) == trusted
    done = subprocess.run([program, str(listens), "5", str(own), uid_map], capture_output=True, text=True, check=True)
    assert done.stdout == ("1\n" if trusted else f"{refusal(listens, 5, own)}\n")


def test_a_map_that_cannot_be_read_hides_nobody(program: Path, tmp_path: Path) -> None:
    done = subprocess.run([program, str(OVERFLOW_UID), "5", "7", tmp_path / "none"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{refusal(OVERFLOW_UID, 5, 7)}\n"
