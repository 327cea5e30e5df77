"""Who uses the GPUs: a line for each client that you may see, with its share and where it runs."""

from mpsd_client import Client, calls

LINE = "{:>8}  {:>6}  {:<8}  {:<10}  {:>6}  {:>7}"


def main() -> None:
    with Client(program="who") as mpsd:
        print(LINE.format("PID", "UID", "STATE", "DOMAIN", "LEASE", "SM %"))
        for client in mpsd.pages(calls.client_list()):
            cells = (client.pid, client.uid, client.state, client.domain, client.lease_id, client.sm_percent)
            print(LINE.format(*("-" if cell is None else cell for cell in cells)))
        for waiting in mpsd.pages(calls.queue_list()):
            print(f"waits, number {waiting.position}: {waiting.pid or f'lease {waiting.lease_id}'}: {waiting.reason}")


if __name__ == "__main__":
    main()
