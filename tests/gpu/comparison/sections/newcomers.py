"""Clients without a lease after rounds of leased ones in the same domain: the server must still make contexts for them.

For comparison the vendor's daemon with the same shares and memory limits, set by hand for one client after the other.
"""

from tests.gpu.comparison import figures
from tests.gpu.comparison.clients import Client
from tests.gpu.comparison.sections.limits import CLIENT_SECONDS, ROOMY, Share, start_by_hand, start_leased
from tests.gpu.comparison.stage import Stage

ROUNDS = 20
NEWCOMERS = 20
SHARES = (Share(7, 3072), Share(13, 5120), Share(29, 7168), Share(47, 9216), Share(4, 2048))


def run(stage: Stage) -> None:
    rounds = stage.trials(ROUNDS)
    stage.mpsd.quit()
    mpsd = stage.another("newcomers", stage.mpsd.control, stage.mpsd, config=ROOMY)
    cells, raw, lost = {}, {}, {}
    for name, system, start in (("vendor", stage.vendor, start_by_hand), ("mpsd", mpsd, start_leased)):
        system.renew()
        system.warm(CLIENT_SECONDS)
        lost[name] = sum(not _ran(client) for _ in range(rounds) for client in start(system, SHARES))
        newcomers = [system.client("counter", "--seconds", "0.1") for _ in range(NEWCOMERS)]
        for client in newcomers:
            client.wait(CLIENT_SECONDS)
        raw[name] = [client.fate for client in newcomers]
        well = raw[name].count("done")
        cells[name] = figures.of(well, NEWCOMERS)
        system.clients.clear()
    mpsd.quit()
    stage.keep("newcomers", raw)
    what = f"clients without a lease after {rounds} rounds of 5 with 7, 13, 29, 47, 4 % and 3, 5, 7, 9, 2 GiB: run"
    remark = f"of the {rounds * len(SHARES)} before them failed: vendor {lost['vendor']}, mpsd {lost['mpsd']}"
    stage.add(what, **cells, goal="all", met=set(raw["mpsd"]) == {"done"} and not lost["mpsd"], remark=remark)


def _ran(client: Client) -> bool:
    client.wait(CLIENT_SECONDS)
    return bool(client.events("quota"))
