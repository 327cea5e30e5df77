"""Tokens over time, as records and as a picture.

A record is a file of JSON lines: what the front end wrote down of each token it passed on ("monotonic_ns", "request", "index"),
and a mark of who disturbed it ("monotonic_ns", "mark": "fault", "text").

    python clients/demo/throughput.py mpsd=RECORD stock=RECORD --out failover.png       needs matplotlib
"""

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BIN_SECONDS = 0.05
BEFORE_SECONDS = 5.0  # of the fault, at most


@dataclass(frozen=True, slots=True)
class Record:
    """One act. of: the service's kind. tokens_ns: when each token was passed on, in order. fault: the injected fault, at
    fault_ns (CLOCK_MONOTONIC)."""

    of: str
    tokens_ns: tuple[int, ...]
    fault_ns: int
    fault: str

    @property
    def silence_seconds(self) -> float:
        """The longest time without any token that ended after the fault; until the record's end where none came any more."""
        after = [at for at in self.tokens_ns if at >= self.fault_ns]
        before = [at for at in self.tokens_ns if at < self.fault_ns]
        times = [before[-1] if before else self.fault_ns, *after]
        return max((later - at for at, later in itertools.pairwise(times)), default=0) / 1e9

    def rates(self, bin_seconds: float = BIN_SECONDS) -> tuple[list[float], list[float]]:
        """Seconds from the fault, at the middle of each bin, and tokens a second in it."""
        if not self.tokens_ns:
            return [], []
        step = int(bin_seconds * 1e9)
        first = max(self.tokens_ns[0], self.fault_ns - int(BEFORE_SECONDS * 1e9))
        begin = self.fault_ns + (first - self.fault_ns) // step * step  # a bin begins with the fault
        counts = [0] * ((self.tokens_ns[-1] - begin) // step + 1)
        for at in self.tokens_ns:
            if at >= begin:
                counts[(at - begin) // step] += 1
        middles = [(begin + (number + 0.5) * step - self.fault_ns) / 1e9 for number in range(len(counts))]
        return middles[:-1], [count / bin_seconds for count in counts[:-1]]  # the last bin is cut off


def read(of: str, path: Path) -> Record:
    """Raises ValueError for a record without a fault."""
    tokens, fault = [], None
    for line in path.read_text().splitlines():
        found = json.loads(line)
        if found.get("mark") == "fault":
            fault = found
        elif "index" in found:
            tokens.append(int(found["monotonic_ns"]))
    if fault is None:
        raise ValueError(f"{path} has no mark of a fault")
    return Record(of, tuple(sorted(tokens)), int(fault["monotonic_ns"]), str(fault.get("text", "fault")))


def plot(records: Sequence[Record], out: Path, title: str) -> None:
    """One panel a record, below each other, on one scale.  The format is that of the file's name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(records), 1, sharex=True, sharey=True, squeeze=False, figsize=(9, 1.2 + 2.3 * len(records)), layout="constrained"
    )
    drawn = [record.rates() for record in records]
    highest = max([1.0, *(rate for _, rates in drawn for rate in rates)])
    for record, (seconds, rates), panel in zip(records, drawn, panels[:, 0], strict=True):
        panel.fill_between(seconds, rates, step="mid", alpha=0.35, linewidth=0)
        panel.step(seconds, rates, where="mid", linewidth=1)
        panel.axvline(0.0, color="tab:red", linewidth=1.2)
        panel.annotate(record.fault, (0.0, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -12),
                       textcoords="offset points", color="tab:red", fontsize=8)  # fmt: skip
        panel.set_title(f"{record.of}: longest silence {told(record.silence_seconds)}", loc="left", fontsize=10)
        panel.set_ylabel("tokens / s")
        panel.set_ylim(0, 1.25 * highest)
        panel.grid(alpha=0.3)
    panels[-1, 0].set_xlabel("seconds from the fault")
    figure.suptitle(title, fontsize=11)
    figure.savefig(out, dpi=150, metadata={"Date": None} if out.suffix == ".svg" else None)
    pyplot.close(figure)


def told(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--out", type=Path, default=Path("failover.png"))
    parser.add_argument("--title", default="Tokens over time")
    asked = parser.parse_args()
    pairs = [each.partition("=") for each in asked.records]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        parser.error(f"{wrong[0]!r} is not NAME=FILE")
    plot([read(name, Path(path)) for name, _, path in pairs], asked.out, asked.title)
    print(asked.out)


if __name__ == "__main__":
    main()
