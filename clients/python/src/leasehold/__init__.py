"""Client of Leasehold, distributed locks over HTTP.

    import leasehold

    with leasehold.Client() as client:
        with client.lock("backup") as lease:
            back_up(fencing_token=lease.fencing_token)

`Client` is for threads, `AsyncClient` for asyncio; both have the same methods and options (`LockOptions`).
"""

from ._async import AsyncClient, AsyncLease, AsyncLost
from ._errors import (
    LeaseholdError,
    LeaseLost,
    LockHeld,
    Refused,
    Unavailable,
)
from ._options import LockOptions
from ._sync import Client, Lease, Lost

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "AsyncLost",
    "Client",
    "Lease",
    "LeaseLost",
    "LeaseholdError",
    "LockHeld",
    "LockOptions",
    "Lost",
    "Refused",
    "Unavailable",
]
