"""The protocol of a claim, without input and output: which request to send when, and what each answer means.

`Acquisition.steps` and `renewals` are generators. They yield what to do, `Send` or `Pause`, and are sent the answer to
each `Send`. So threads and asyncio share every decision.
"""

from __future__ import annotations

import logging
import os
import random
import re
import sys
import time
import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NoReturn, Union

from ._errors import LeaseLost, LockHeld, Refused, Unavailable
from ._options import DURATIONS, OPTIONS, LockOptions
from ._service import sendable

log = logging.getLogger("leasehold")

#: The wait of one request: shorter than what most proxies allow a request to take.
POLL = 25.0
#: How much longer than its wait a request may take.
ANSWER_TIMEOUT = 10.0
RENEWAL_TIMEOUT = 10.0
RELEASE_TIMEOUT = 2.0
RELEASE_ATTEMPTS = 3
BACKOFF_MIN, BACKOFF_MAX = 0.1, 2.0
#: Longer than any lease, and short enough for every timer: 115 days.
LEASE_MAX_MS = 10**10
VALID_NAME = re.compile(r"(?!.*(^|/)\.{0,2}(/|$))[A-Za-z0-9._~:@+,=/-]+")

if sys.platform == "linux":

    def now() -> float:
        """Seconds on a clock that nobody can set and that goes on while the machine is suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":

    def now() -> float:
        """Seconds on a clock that nobody can set and that goes on while the machine is suspended."""
        # `time.monotonic` stops there during sleep; this does not.
        return time.clock_gettime(time.CLOCK_MONOTONIC)

else:

    def now() -> float:
        """Seconds on a clock that nobody can set."""
        return time.monotonic()


@dataclass(frozen=True)
class Send:
    """Send this request, and give up on its answer after `timeout`."""

    method: str
    path: str
    token: str
    fields: Mapping[str, Any]
    timeout: float


@dataclass(frozen=True)
class Pause:
    """Do nothing for a while."""

    seconds: float


@dataclass(frozen=True)
class Answer:
    """What came back. A status of 0 means that nothing did, and `body` has the reason as `detail`."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    retry_after: float | None = None

    @property
    def code(self) -> str:
        return str(self.body.get("code", ""))

    @property
    def detail(self) -> str:
        return str(self.body.get("detail") or f"the service answered {self.status}")

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later although nothing is wrong with it."""
        return self.status in (0, 408, 429) or self.status >= 500

    @property
    def is_refusal(self) -> bool:
        """Whether the request is wrong or not allowed."""
        return 400 <= self.status < 500 and not self.is_temporary

    def error(self, kind: type[LockHeld | LeaseLost | Refused | Unavailable]) -> Any:
        return kind(self.detail, code=self.code, status=self.status, problem=self.body)


Steps = Generator[Union[Send, Pause], Union[Answer, None], Any]


class Claim:
    """One attempt to hold a lock or several. Its token never changes, so each of its requests may be repeated."""

    def __init__(self, names: tuple[str, ...], options: LockOptions):
        unknown = set(options) - OPTIONS
        if unknown:
            raise TypeError(f"unknown option {sorted(unknown)[0]!r}")
        if not names:
            raise TypeError("the name of a lock is missing")
        for name in ("wait", *DURATIONS):
            value: Any = options.get(name)
            if value is not None and not isinstance(value, Real):
                raise TypeError(f"{name} is in seconds: write a number like 30, not {value!r}")
        self.names = names
        self.token = sendable(options.get("token") or str(uuid.uuid4()), "the token")
        self.hold_count = options.get("hold_count", 1)
        self.wait = options.get("wait")
        self._fields = {name: value for name, value in options.items() if name not in ("token", "wait")}
        for name in DURATIONS:
            if name in self._fields:
                self._fields[name] = duration(options[name])  # type: ignore[literal-required]

    def acquire(self, wait: float) -> Send:
        fields = {**self._fields, "wait": duration(wait)} if wait > 0 else self._fields
        return self._send("POST", fields, wait + ANSWER_TIMEOUT)

    def renew(self, timeout: float) -> Send:
        return self._send("PUT", {}, timeout)

    def release(self) -> Send:
        fields = {"hold_count": self.hold_count - 1} if self.hold_count > 1 else {}
        return self._send("DELETE", fields, RELEASE_TIMEOUT)

    def _send(self, method: str, fields: Mapping[str, Any], timeout: float) -> Send:
        path = f"/locks/{self.names[0]}"
        # In a path, "a/../b" would become another name. The service refuses it, if it gets to see it.
        if len(self.names) != 1 or not VALID_NAME.fullmatch(self.names[0]):
            path, fields = "/locks", {**fields, "names": list(self.names)}
        return Send(method, path, self.token, fields, timeout)


@dataclass(frozen=True)
class Grant:
    """What an answer says about a lease. Of several locks, the one that ends first counts."""

    fencing_tokens: Mapping[str, int]
    ttl: float
    #: How long the lease lasts, counted from before the request was sent.
    valid_for: float

    @classmethod
    def read(cls, body: Mapping[str, Any], names: tuple[str, ...]) -> Grant | None:
        """None if the answer is not a grant of these locks."""
        try:
            grants = body["locks"] if "locks" in body else [body]
            # The lease lasts for `expires_in_ms` from the answer, which came no sooner than after the wait.
            first = min(grants, key=lambda grant: grant["waited_ms"] + grant["expires_in_ms"])
            fencing_tokens = {grant["name"]: int(grant["fencing_token"]) for grant in grants}
            ttl_ms, valid_ms = first["ttl_ms"], first["waited_ms"] + first["expires_in_ms"]
            if not (set(names) <= set(fencing_tokens) and 0 < ttl_ms <= LEASE_MAX_MS and 0 <= valid_ms <= LEASE_MAX_MS):
                return None
            return cls(fencing_tokens, ttl_ms / 1000, valid_ms / 1000)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


class Validity:
    """How long the lease is certainly ours. Once over, it stays over."""

    def __init__(self, grant: Grant, sent_at: float):
        # In one attribute, so that other threads never see half of a renewal.
        self._confirmed = (grant, sent_at)
        self._process = os.getpid()
        #: What the service last refused a renewal with.
        self.refusal: Answer | None = None
        self.end: LeaseLost | None = None
        self.is_released = False

    @property
    def grant(self) -> Grant:
        return self._confirmed[0]

    @property
    def confirmed_at(self) -> float:
        return self._confirmed[1]

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the one that acquired. The lease is that one's, and only it renews."""
        return self._process != os.getpid()

    def remaining(self) -> float:
        """Seconds until the lease is over, 0 if it is."""
        grant, confirmed_at = self._confirmed
        left = confirmed_at + grant.valid_for - now()
        if self.is_forked and not self.is_released:
            self.lose(LeaseLost("the lease belongs to the process that acquired it", code="forked"))
        elif left <= 0 and not self.is_released:
            reason = "the lease was not renewed in time"
            if self.refusal:
                reason += f", because the service answered {self.refusal.status}: {self.refusal.detail}"
            self.lose(LeaseLost(reason, code="lease_expired"))
        return 0.0 if self.end or self.is_released else left

    def is_lost(self) -> bool:
        self.remaining()
        return self.end is not None

    def renew(self, grant: Grant, sent_at: float) -> None:
        # An answer that comes when the lease is over changes nothing: the lease was reported as lost.
        if self.remaining() > 0:
            self._confirmed = (grant, sent_at)
            self.refusal = None

    def lose(self, error: LeaseLost) -> None:
        # The first reason stays. A release that found the lease gone is a loss, too.
        self.end = self.end or error


class Acquisition:
    """Acquires: repeats the request of one claim until it is granted, refused, or the wait is over."""

    def __init__(self, claim: Claim, retry_for: float):
        self.claim = claim
        self._retry_for = retry_for
        self._failures = 0
        self._failing_since = 0.0
        #: Whether the service may have the claim in a queue, or may have granted it.
        self.needs_withdrawal = False

    def steps(self) -> Steps:
        """Returns the `Validity` of the lease. Raises LockHeld, Refused or Unavailable."""
        begun_at = now()
        while True:
            left = POLL if self.claim.wait is None else begun_at + self.claim.wait - now()
            poll = min(max(left, 0.0), POLL)
            sent_at = now()
            known_before, self.needs_withdrawal = self.needs_withdrawal, True
            answer = yield self.claim.acquire(poll)
            assert answer is not None
            if answer.status in (200, 201):
                grant = Grant.read(answer.body, self.claim.names)
                if grant is None:
                    raise answer.error(Refused)
                validity = Validity(grant, sent_at)
                if validity.remaining() > 0:
                    return validity
                # The answer was too long under way. The next one says what is left.
                yield Pause(self._after_trouble(answer, sent_at))
            elif answer.status == 423:
                self._failures = 0
                self.needs_withdrawal = known_before or poll > 0
                left = POLL if self.claim.wait is None else begun_at + self.claim.wait - now()
                if left <= 0:
                    raise answer.error(LockHeld)
                # After a wait the next request follows at once, so that the claim keeps its turn; otherwise there is a pause.
                pause = max(later(answer.retry_after or 0.0), BACKOFF_MIN - (now() - sent_at))
                yield Pause(min(pause, left))
            elif answer.is_temporary:
                yield Pause(self._after_trouble(answer, sent_at))
            else:
                self.needs_withdrawal = known_before
                self._refuse(answer)

    def _after_trouble(self, answer: Answer, sent_at: float) -> float:
        if self._failures == 0:
            self._failing_since = sent_at
        backoff = min(BACKOFF_MIN * 2.0**self._failures, BACKOFF_MAX) * random.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 16)
        pause = max(backoff, later(answer.retry_after or 0.0))
        if now() + pause > self._failing_since + self._retry_for:
            raise answer.error(Unavailable)
        return pause

    def _refuse(self, answer: Answer) -> NoReturn:
        if answer.status == 409 and answer.code == "claim_ended":
            raise answer.error(LeaseLost)
        raise answer.error(Refused)


def renewals(claim: Claim, validity: Validity) -> Steps:
    """Renews at a third of the TTL, and repeats what gets no useful answer. Returns when the lease is lost."""
    renew_at = validity.confirmed_at + validity.grant.ttl / 3
    while True:
        pause = min(renew_at - now(), validity.remaining())
        yield Pause(max(pause, 0.0))
        ttl, left = validity.grant.ttl, validity.remaining()
        if left <= 0:
            return
        sent_at = now()
        answer = yield claim.renew(min(ttl / 4, RENEWAL_TIMEOUT, left))
        assert answer is not None
        grant = Grant.read(answer.body, claim.names)
        if answer.status == 200 and grant is not None:
            validity.renew(grant, sent_at)
            renew_at = sent_at + grant.ttl / 3
        elif answer.status in (409, 412):
            # A release may have been faster than this renewal.
            if not validity.is_released:
                validity.lose(answer.error(LeaseLost))
            return
        else:
            if answer.is_refusal:
                # The key is wrong now, for example. Somebody may correct that in time.
                if validity.refusal is None:
                    text = "%s is not renewed, because the service answered %d: %s"
                    log.warning(text, " ".join(claim.names), answer.status, answer.detail)
                validity.refusal = answer
            asked = min(later(answer.retry_after or 0.0), ttl / 6)
            renew_at = now() + max(asked, ttl / 10 * random.uniform(0.5, 1.0))


def releases(claim: Claim, validity: Validity) -> Steps:
    """Releases, and returns whether the service confirmed it. Without confirmation, the lease ends with its TTL."""
    if validity.is_forked or validity.end and validity.end.status:
        # The lease is the parent's, or the service itself said that it is gone.
        return False
    # A lease whose time is over here may still keep others waiting, but it is not worth more than one attempt.
    for attempt in range(1 if validity.end else RELEASE_ATTEMPTS):
        if attempt > 0:
            yield Pause(random.uniform(0.2, 0.4))
        answer = yield claim.release()
        assert answer is not None
        if answer.status in (200, 204):
            return True
        if answer.status == 412:
            validity.lose(answer.error(LeaseLost))
            return False
        if not answer.is_temporary:
            return False
    return False


def later(seconds: float) -> float:
    """The same or up to a quarter more, so that many clients do not act at the same moment."""
    return seconds * random.uniform(1.0, 1.25)


def duration(seconds: float) -> str:
    return f"{max(round(seconds * 1000), 1)}ms"


def retry_after(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdecimal() else None
