"""A job that all machines start and one of them runs: python nightly.py, with LEASEHOLD_URL and LEASEHOLD_API_KEY_FILE."""

import socket
import sys

import leasehold


def main() -> None:
    with leasehold.Client() as client:
        try:
            # min_hold keeps the lock from machines whose clocks are up to a minute late.
            with client.lock("nightly-report", wait=0, min_hold=60, owner=socket.gethostname()) as lease:
                for page in range(3):
                    # Between steps, stop if the lease is lost.
                    lease.raise_if_lost()
                    print(f"page {page}, written with fencing token {lease.fencing_token}")
        except leasehold.LockHeld as held:
            print(f"another machine runs it: {held}")
        except leasehold.LeaseLost as lost:
            sys.exit(f"stopped: {lost}")


if __name__ == "__main__":
    main()
