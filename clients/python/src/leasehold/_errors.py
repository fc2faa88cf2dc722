"""What can go wrong. Each error has the service's `code`, which is never renamed, and the whole problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class LeaseholdError(Exception):
    """The base of all errors of this package."""

    def __init__(self, message: str, *, code: str = "", status: int = 0, problem: Mapping[str, Any] | None = None):
        super().__init__(message)
        #: What happened, for programs, such as `lock_held`. Empty if the service did not say.
        self.code = code
        #: The HTTP status, 0 if there was no answer.
        self.status = status
        #: All members of the service's answer, such as `holders` of a lock that is held.
        self.problem: Mapping[str, Any] = problem or {}


class LockHeld(LeaseholdError):
    """Somebody else has the lock, and the wait is over."""


class LeaseLost(LeaseholdError):
    """The lease is not ours any more: stop working.

    `code` is the service's, such as `lease_evicted`; or `lease_expired` if it could not be renewed in time.
    """


class Unavailable(LeaseholdError):
    """No useful answer for as long as the client retries. What was granted meanwhile is released, or expires."""


class Refused(LeaseholdError):
    """The request is wrong or not allowed, so that a retry cannot help. `code` says why."""
