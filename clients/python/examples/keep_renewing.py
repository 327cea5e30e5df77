"""With trio: hold a lease that ends soon after its holder does, and hear of faults meanwhile.

    python keep_renewing.py --seconds 30

The program renews a lease with a short time to live, so that the lease ends soon even if the program is killed.
"""

import argparse

import trio
from mpsd_client import AsyncClient, Lease, Lost, Selector, calls

TTL_SECONDS = 30.0


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seconds", type=float, default=30.0)
    asked = options.parse_args()
    async with AsyncClient(program="keep_renewing") as mpsd:
        made = calls.lease_create("held", Selector.of_self(), sm_percent=10, ttl_seconds=TTL_SECONDS, wait_seconds=60)
        lease = await mpsd.ask(made)
        print(f"lease {lease.id} is {lease.state}")
        with trio.move_on_after(asked.seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(renew, mpsd, lease)
                nursery.start_soon(tell_faults, mpsd)
        await mpsd.ask(calls.lease_release(lease.id))
        print(f"lease {lease.id} is given back")


async def renew(mpsd: AsyncClient, lease: Lease) -> None:
    while True:
        await mpsd.ask(calls.lease_renew(lease.id))
        await trio.sleep(TTL_SECONDS / 3)


async def tell_faults(mpsd: AsyncClient) -> None:
    await mpsd.subscribe("fault.*")
    async for event in mpsd.events():
        print("events are missing" if isinstance(event, Lost) else f"{event.topic}: {event.facts}")


if __name__ == "__main__":
    trio.run(main)
