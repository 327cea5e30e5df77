"""The Debian package's prerm, in a mount namespace with a systemd that only notes what it is asked."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.root
SYSTEMCTL = """\
#!/bin/sh
case $* in
show*) echo "$OWN" ;;
*is-active*) exit "$INACTIVE" ;;
*) echo "$1" >>"$NOTES" ;;
esac
"""
# A process of this user has a file of the installation mapped: its program.
SCRIPT = """\
mount -t tmpfs none /opt && mount -t tmpfs none /run && mkdir -p /opt/mpsd/venv /run/systemd/system || exit 9
cp "$0/clients/debian/in-use" /opt/mpsd && cp /bin/sleep /opt/mpsd/venv && chmod -R go+rX /opt || exit 9
setpriv --reuid 65534 --regid 65534 --clear-groups /opt/mpsd/venv/sleep 600 & user=$!
until grep -q /opt/mpsd/venv/sleep "/proc/$user/maps"; do sleep 0.1; done
sh "$0/clients/debian/prerm" remove
status=$?
kill $user
exit $status
"""


@pytest.mark.parametrize(
    ("is_own", "is_active", "asked"),
    [
        pytest.param(False, True, [], id="of another user"),
        pytest.param(True, True, ["stop", "start"], id="of the service, and stays"),
        pytest.param(True, False, ["stop"], id="of the service, which did not run"),
    ],
)
def test_a_refused_removal_leaves_the_service_as_it_was(
    tmp_path: Path, is_own: bool, is_active: bool, asked: list[str]
) -> None:
    """Every user can map a file of the installation: mpsd was stopped, and the package stayed."""
    # without the pauses between in-use's ten looks: the program that it finds runs throughout
    for name, text in (("systemctl", SYSTEMCTL), ("mpsctl", "#!/bin/sh\necho '[]'\n"), ("sleep", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    notes = tmp_path / "notes"
    notes.touch()
    cgroup = Path("/proc/self/cgroup").read_text().splitlines()[0].split(":", 2)[2]
    environ = {
        "PATH": f"{tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin", "NOTES": str(notes), "OWN": cgroup if is_own else "/of-mpsd",
        "INACTIVE": str(int(not is_active)),
    }  # fmt: skip
    words = ["unshare", "--mount", "sh", "-c", SCRIPT, str(ROOT)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 9:
        pytest.skip(f"no mounts here: {done.stderr}")
    assert (done.returncode, "(sleep) uses /opt/mpsd/venv" in done.stderr) == (1, True), done
    assert notes.read_text().split() == asked
