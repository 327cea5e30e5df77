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
TIMEOUT = """\
#!/bin/sh
[ "$1" = -s ] || { shift && set -- 5 "$@"; } # mpsctl, not a look of in-use
exec /usr/bin/timeout "$@"
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
    cgroup = Path("/proc/self/cgroup").read_text().splitlines()[0].split(":", 2)[2]
    done, noted = remove(tmp_path, "echo '[]'", OWN=cgroup if is_own else "/of-mpsd", INACTIVE=str(int(not is_active)))
    assert (done.returncode, "(sleep) uses /opt/mpsd/venv" in done.stderr) == (1, True), done
    assert noted == asked


@pytest.mark.parametrize(
    ("answer", "goes_on"),
    [
        ("echo '[1]'", False),
        ("echo mpsctl clients: no mpsd at /run/nvidia-mps/mpsd.sock: Connection refused >&2; exit 3", True),
        ("echo mpsctl clients: mpsd closed the connection: TOO_MANY: mpsd cannot tell who asks >&2; exit 3", False),
        ("echo mpsctl clients: mpsd did not answer within 10 s >&2; exit 3", False),
        ("exec /bin/sleep 90", False),
        ("echo '[]'; exit 1", False),
        ("echo '[]'; echo a warning of Python >&2", True),
        ("exit 126", True),
        ("exit 127", True),
        ("exec python3 -I -S -c 'import mpsctl'", True),
    ],
)
def test_an_mpsd_that_serves_clients_or_does_not_say_stays(tmp_path: Path, answer: str, goes_on: bool) -> None:
    """Any user can have mpsd refuse root for a moment: it was removed beneath its clients."""
    done, _ = remove(tmp_path, answer, OWN="/of-mpsd", INACTIVE="0")
    assert done.returncode == 1
    assert ("(mpsctl clients): " in done.stderr, "uses /opt/mpsd/venv" in done.stderr) == (not goes_on, goes_on), done


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """The message was mktemp's alone."""
    done, _ = remove(tmp_path, "echo '[]'", OWN="/of-mpsd", INACTIVE="0", TMPDIR="/nowhere")
    assert (done.returncode, "no file can be written in /nowhere" in done.stderr) == (1, True), done


def remove(place: Path, answer: str, **variables: str) -> tuple["subprocess.CompletedProcess[str]", list[str]]:
    """Remove the package, with this answer of mpsctl's; return what systemctl was asked for, too."""
    # without the pauses between in-use's ten looks: the program that it finds runs throughout
    fakes = {"systemctl": SYSTEMCTL, "mpsctl": f"#!/bin/sh\n{answer}\n", "sleep": "#!/bin/sh\n", "timeout": TIMEOUT}
    for name, text in fakes.items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    notes = place / "notes"
    notes.touch()
    environ = {"PATH": f"{place}:/usr/sbin:/usr/bin:/sbin:/bin", "NOTES": str(notes), **variables}
    words = ["unshare", "--mount", "sh", "-c", SCRIPT, str(ROOT)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 9:
        pytest.skip(f"no mounts here: {done.stderr}")
    return done, notes.read_text().split()
