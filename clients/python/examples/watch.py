"""Tell what happens, as it happens: `python watch.py --seconds 60 'lease.*' 'fault.*'`."""

import argparse
import json
import time

from mpsd_client import Client, Lost


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, help="end when nothing has happened for so long")
    options.add_argument("topics", nargs="*", default=["*"])
    asked = options.parse_args()
    with Client(program="watch") as mpsd:
        mpsd.subscribe(*asked.topics)
        for event in mpsd.events(timeout_seconds=asked.seconds):
            if isinstance(event, Lost):
                print(f"... {event.count} events are missing: this reader was too slow")
            else:
                clock = time.strftime("%H:%M:%S", time.localtime(event.time))
                print(clock, event.topic, json.dumps(event.facts), flush=True)


if __name__ == "__main__":
    main()
