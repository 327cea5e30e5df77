"""Everything at once: a front end, and a service of members that mpsd keeps going.

    python serve.py --shape 0.5B                     prints the URL; needs mpsd, a GPU and PyTorch
    python serve.py --engine toy                     needs mpsd alone

    curl -N -d '{"prompt": "Hello", "max_tokens": 20}' http://127.0.0.1:8080/generate

It passes unknown options to member.py.  Ctrl-C or SIGTERM ends the front end and the members.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOOK_SECONDS = 0.2
END_SECONDS = 30.0  # for the members to end; mpsd lets their work on the GPU drain


def front_of(options: argparse.Namespace, backend: str) -> "tuple[subprocess.Popen[str], str]":
    """Start the front end, and return it with its URL.  Raises SystemExit if it cannot listen; it has printed the reason."""
    command = [sys.executable, str(HERE / "front.py"), "--listen", options.listen, "--backend", backend]
    if options.record:
        command += ["--record", options.record]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    if not url:
        raise SystemExit(process.wait())
    return process, url


def starter_of(options: argparse.Namespace, backend: str, words: list[str]) -> "subprocess.Popen[bytes]":
    """Start mpsctl, which keeps the members running."""
    mpsctl = shutil.which("mpsctl")
    command = [mpsctl] if mpsctl else [sys.executable, "-P", "-m", "mpsctl"]  # -P: not the one in the working directory
    command += ["service", "run", options.service, "--standbys", str(options.standbys)]
    for name in ("sm", "memory-limit", "log-dir"):
        if value := getattr(options, name.replace("-", "_")):
            command += ["--memory" if name == "memory-limit" else f"--{name}", value]
    member = [sys.executable, str(HERE / "member.py"), "--service", options.service, "--backend", backend, *words]
    return subprocess.Popen([*command, "--", *member], start_new_session=True)


def run(options: argparse.Namespace, words: list[str], place: str) -> int:
    """Run front end and starter until a signal arrives or one of the two ends.  Return its status."""
    backend = os.path.join(place, "members.sock")
    front, url = front_of(options, backend)
    starter = None
    try:
        starter = starter_of(options, backend, words)
        print(url, flush=True)
        while (status := front.poll()) is None and (status := starter.poll()) is None:
            time.sleep(LOOK_SECONDS)
        return status
    finally:
        for process in (starter, front):  # the front end last, so that clients get the members' last tokens
            end(process)


def end(process: "subprocess.Popen[bytes] | subprocess.Popen[str] | None") -> None:
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--listen", default="127.0.0.1:8080", help="host:port for clients")
    parser.add_argument("--service", default="llm", help="name of the service and its arena")
    parser.add_argument("--standbys", type=int, default=1, help="members besides the one that serves")
    parser.add_argument("--sm", default="", help="the share of the SMs of each member: 30%%")
    parser.add_argument("--memory-limit", default="", help="of each member: 20G")
    parser.add_argument("--log-dir", default="", help="where the output of members goes; otherwise it is printed")
    parser.add_argument("--record", default="", help="a file: when each token came, as JSON lines")
    options, words = parser.parse_known_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="llm-") as place:
        raise SystemExit(run(options, words, place))


if __name__ == "__main__":
    main()
