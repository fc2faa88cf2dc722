"""The options of an acquire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class LockOptions(TypedDict, total=False):
    """How to acquire. All durations are in seconds."""

    #: How long the lease lasts without renewal, 30 by default. The client renews it at a third of this.
    ttl: float
    #: How long to wait for the lock: 0 does not wait, None (the default) waits for as long as it takes.
    wait: float | None
    #: "exclusive" (the default), or "shared": held together with other shared claims.
    mode: str
    #: With "shared": how many permits there are in all. Without it, the lock is a read lock.
    limit: int
    #: With `limit`: how many permits this claim takes.
    permits: int
    #: Who holds, for others to read.
    owner: str
    #: For others to read.
    metadata: Mapping[str, Any]
    #: The lock stays taken at least this long, even if it is released earlier.
    min_hold: float
    #: The lease ends after this at the latest, whatever the renewals.
    max_hold: float
    #: The lock stays closed for this long after the lease expired or was evicted.
    lock_delay: float
    #: False takes a free lock ahead of the queue.
    fair: bool
    #: The token of the claim, a new UUID by default. With the token of a held lease and a larger `hold_count`, the
    #: lock is re-entered; releasing such a lease steps back.
    token: str
    #: The depth of re-entry, 1 by default.
    hold_count: int


DURATIONS = ("ttl", "min_hold", "max_hold", "lock_delay")
OPTIONS = frozenset(LockOptions.__annotations__)
