"""Many clients at once, each of which checks what it gets: every token once, in order, to the end.

    python load.py --url http://127.0.0.1:8080 --clients 16 --requests 64 --tokens 200

It prints a table, and exits with 1 if a connection was dropped or a stream was wrong.  The same --seed sends the same
requests, so that two runs can be compared token by token (--json).
"""

import argparse
import hashlib
import json
import random
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import h11
import trio
from web import Url, ask

RETRY_SECONDS, TRIES = 0.2, 100  # after a 503


@dataclass(slots=True)
class Result:
    """The result of a request.  trouble: what was wrong; empty if nothing."""

    number: int
    prompt: list[int]
    options: dict[str, Any]
    tokens: list[int] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    trouble: str = ""
    is_done: bool = False

    def hear(self, status: int, line: dict[str, Any]) -> None:
        if status != 200 or "error" in line:
            self.trouble = f"{status}: {line.get('error', line)}"
        elif "token" in line:
            if line["index"] != len(self.tokens) and not self.trouble:
                self.trouble = f"token {line['index']} came where {len(self.tokens)} was due"
            self.tokens.append(line["token"])
            self.times_ns.append(time.monotonic_ns())
        elif line.get("done"):
            self.is_done = True

    @property
    def worst_gap_ms(self) -> float:
        """The longest time between two tokens, in milliseconds."""
        return max((b - a for a, b in zip(self.times_ns, self.times_ns[1:], strict=False)), default=0) / 1e6


def plan(options: argparse.Namespace) -> list[Result]:
    """Return the requests, the same for the same seed.  Token ids are below 256, which every model has."""
    random_ = random.Random(options.seed)
    found = []
    for number in range(options.requests):
        prompt = [random_.randrange(256) for _ in range(random_.randint(1, options.prompt))]
        asked = {"max_tokens": options.tokens, "seed": random_.randrange(1 << 31), "temperature": options.temperature}
        found.append(Result(number, prompt, asked))
    return found


async def run(url: Url, results: list[Result], clients: int) -> None:
    """Run the clients; each sends one request after another until none is left."""
    left = list(reversed(results))

    async def client() -> None:
        while left:
            await _ask(url, left.pop())

    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(client)


async def _ask(url: Url, result: Result) -> None:
    body = json.dumps({"prompt": result.prompt, **result.options}).encode()
    for _ in range(TRIES):
        result.trouble = ""
        try:
            status = await ask(url, "POST", "/generate", body, result.hear)
        except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError) as exc:
            result.trouble = f"the connection was dropped: {exc!r}"
            return
        if status != 503:
            break
        await trio.sleep(RETRY_SECONDS)  # the server is busy and has not begun the request
    if not result.trouble and (not result.is_done or len(result.tokens) != result.options["max_tokens"]):
        result.trouble = f"{len(result.tokens)} tokens, of {result.options['max_tokens']}"


def summary(results: list[Result], seconds: float) -> dict[str, Any]:
    tokens = sum(len(each.tokens) for each in results)
    said = "\n".join(f"{each.number} {each.tokens}" for each in results)
    return {
        "requests": len(results),
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1),
        "worst_gap_ms": round(max((each.worst_gap_ms for each in results), default=0.0), 3),
        "dropped": sum("dropped" in each.trouble for each in results),
        "wrong": sum(bool(each.trouble) and "dropped" not in each.trouble for each in results),
        "digest": hashlib.sha256(said.encode()).hexdigest()[:16],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--clients", type=int, default=16, help="at the same time")
    parser.add_argument("--requests", type=int, default=64, help="of all clients together")
    parser.add_argument("--tokens", type=int, default=200, help="of each request")
    parser.add_argument("--prompt", type=int, default=100, help="tokens of a prompt, at most")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=586, help="of prompts and draws")
    parser.add_argument("--json", default="", help="a file: the summary, and what each request got")
    parser.add_argument("--record", default="", help="a file: when each token came, as JSON lines")
    options = parser.parse_args()
    results = plan(options)
    began = time.monotonic()
    trio.run(partial(run, Url.of(options.url), results, options.clients))
    found = summary(results, time.monotonic() - began)
    for name, value in found.items():
        print(f"{name.replace('_', ' '):<18} {value}")
    for each in results:
        if each.trouble:
            print(f"request {each.number}: {each.trouble}")
    if options.json:
        Path(options.json).write_text(json.dumps({**found, "results": [asdict(each) for each in results]}))
    if options.record:
        lines = [
            {"monotonic_ns": at, "request": each.number, "index": index}
            for each in results
            for index, at in enumerate(each.times_ns)
        ]
        lines.sort(key=lambda line: line["monotonic_ns"])
        Path(options.record).write_text("".join(json.dumps(line) + "\n" for line in lines))
    raise SystemExit(1 if found["dropped"] or found["wrong"] else 0)


if __name__ == "__main__":
    main()
