"""Lease a share of every GPU for this process and its children, and give it back when the command has ended.

    python lease_a_share.py --sm-percent 30 --seconds 3600 -- python train.py

mpsd matches the command with the lease by the token in its environment, which all its child processes inherit.
"""

import argparse
import os
import secrets
import subprocess
import sys

from mpsd_client import Client, ErrorCode, Refused, Selector, calls, leased


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--sm-percent", type=float, default=100.0)
    options.add_argument("--memory-gib", type=int, help="of each GPU")
    options.add_argument("--seconds", type=float, help="how long it may last; None: as long as the command")
    options.add_argument("--wait", type=float, default=0.0, help="how many seconds it may be queued")
    options.add_argument("command", nargs="+")
    asked = options.parse_args()

    token, memory = secrets.token_hex(16), None
    if asked.memory_gib:
        with Client(program="lease_a_share") as mpsd:
            memory = {device.uuid: asked.memory_gib << 30 for device in mpsd.pages(calls.device_list())}
    share = calls.lease_create(
        os.path.basename(asked.command[0]),
        Selector.of_token(token),
        sm_percent=asked.sm_percent,
        memory_bytes=memory,
        ttl_seconds=asked.seconds,
        wait_seconds=asked.wait,
    )
    try:
        with leased(share, program="lease_a_share") as lease:
            print(f"lease {lease.id} is {lease.state}", file=sys.stderr)
            return subprocess.run(asked.command, env={**os.environ, "MPSD_LEASE": token}, check=False).returncode
    except Refused as refused:
        print(f"no lease: {refused.message}", file=sys.stderr)
        return 75 if refused.code == ErrorCode.NO_ROOM else 1  # EX_TEMPFAIL: it may fit later
    except TimeoutError as exc:
        print(f"no lease: {exc}", file=sys.stderr)
        return 75


if __name__ == "__main__":
    sys.exit(main())
