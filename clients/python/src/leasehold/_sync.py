"""The client for threads."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from ._errors import LeaseLost
from ._options import LockOptions
from ._protocol import (
    Acquisition,
    Answer,
    Claim,
    Send,
    Steps,
    Validity,
    now,
    releases,
    renewals,
    retry_after,
)
from ._service import ApiKey, Key, service_url

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

log = logging.getLogger("leasehold")

#: A waiting claim keeps a connection for as long as it waits. A bound would let waiters delay renewals.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
CONNECT_TIMEOUT = 5.0


class Client:
    """A service and one pool of connections to it. It may be used by several threads.

    `url` is that of LEASEHOLD_URL by default, and `http://127.0.0.1:7625`. `api_key` is a key, or a function that returns
    it and is called for each request. By default the key is that in the file LEASEHOLD_API_KEY_FILE, which is read for
    each request, or else LEASEHOLD_API_KEY.
    `retry_for` is how many seconds an acquire repeats requests that get no useful answer. `transport` is one of httpx,
    for other TLS settings or proxies.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: ApiKey | None = None,
        *,
        retry_for: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ):
        self._retry_for = retry_for
        self._key = Key(api_key)
        self._settings: dict[str, Any] = {
            "base_url": service_url(url), "limits": LIMITS, "transport": transport
        }
        self._http, self._process = httpx.Client(**self._settings), os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections. Leases that were not released end with their TTL."""
        self._http.close()

    def acquire(self, *names: str, **options: Unpack[LockOptions]) -> Lease:
        """Acquires the lock, or all of several. See `LockOptions`; by default it waits for as long as it takes.

        Raises LockHeld when the wait is over, Unavailable without a useful answer, and Refused for a wrong request.
        After any error, KeyboardInterrupt included, the claim is withdrawn.
        """
        claim = Claim(names, options)
        # If there is no key, that is the error, and nothing has to be withdrawn.
        self._key.headers()
        acquisition = Acquisition(claim, self._retry_for)
        try:
            # A lease begins with a thread, and the system may refuse one.
            return Lease(self, claim, self._run(acquisition.steps()))
        except BaseException:
            if acquisition.needs_withdrawal:
                self._send(claim.release())
            raise

    @contextmanager
    def lock(self, *names: str, **options: Unpack[LockOptions]) -> Iterator[Lease]:
        """Holds the lock during a `with` block, or, as a decorator, during each call of a function.

        After a block that ended well it raises LeaseLost if the lease was lost meanwhile.
        """
        with self.acquire(*names, **options) as lease:
            yield lease

    def _run(self, steps: Steps, stopped: threading.Event | None = None) -> Any:
        stopped = stopped or threading.Event()
        answer = None
        try:
            while True:
                step = steps.send(answer)
                answer = None
                if isinstance(step, Send):
                    answer = self._send(step)
                elif stopped.wait(step.seconds):
                    return None
        except StopIteration as end:
            return end.value

    def _send(self, step: Send) -> Answer:
        if self._process != os.getpid():
            # After a fork: on the same connections, parent and child would read each other's answers.
            self._http, self._process = httpx.Client(**self._settings), os.getpid()
        timeout = httpx.Timeout(step.timeout, connect=min(CONNECT_TIMEOUT, step.timeout))
        give_up_at = now() + step.timeout
        content = bytearray()
        try:
            with self._http.stream(step.method, step.path, timeout=timeout, **body_and_headers(step, self._key)) as response:
                # The time-outs of httpx are those of each read. This one is for the whole answer.
                for part in response.iter_bytes():
                    content += part
                    if now() > give_up_at:
                        raise httpx.ReadTimeout("the answer takes too long", request=response.request)
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError):
            raise
        except httpx.RequestError as error:
            return Answer(0, {"detail": f"no answer: {error!r}"})
        return read(response, bytes(content))


class Lost:
    """Whether a lease is lost. It is used like a `threading.Event`, and it is exact also when no thread could run."""

    def __init__(self, validity: Validity):
        self._validity = validity
        self._changed = threading.Event()

    def is_set(self) -> bool:
        """Whether the lease is lost. It is not lost by its own release."""
        return self._validity.is_lost()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the lease is lost, and returns whether it is. Also returns when the lease is released."""
        give_up_at = None if timeout is None else now() + timeout
        while not (self.is_set() or self._validity.is_released):
            left = self._validity.remaining()
            if give_up_at is not None:
                left = min(left, give_up_at - now())
                if left <= 0:
                    break
            self._changed.wait(left)
        return self.is_set()


class Lease:
    """A held lock, or several. A thread renews it until it is released or lost."""

    def __init__(self, client: Client, claim: Claim, validity: Validity):
        self._client, self._claim, self._validity = client, claim, validity
        self._stopped = threading.Event()
        self._is_confirmed = False
        #: Set when the lease is lost.
        self.lost = Lost(validity)
        threading.Thread(target=self._keep, name=f"leasehold {claim.names[0]}", daemon=True).start()

    @property
    def names(self) -> tuple[str, ...]:
        return self._claim.names

    @property
    def token(self) -> str:
        """Proves the claim. It is secret."""
        return self._claim.token

    @property
    def fencing_token(self) -> int:
        """A number that is larger than that of every earlier grant of this lock. Send it with every write."""
        return self.fencing_tokens[self._claim.names[0]]

    @property
    def fencing_tokens(self) -> Mapping[str, int]:
        """The fencing token of each lock, by name."""
        return self._validity.grant.fencing_tokens

    @property
    def held(self) -> bool:
        """Whether the lease is certainly ours at this moment."""
        return self._validity.remaining() > 0

    def remaining(self) -> float:
        """How many seconds the lease certainly lasts without another renewal."""
        return self._validity.remaining()

    def raise_if_lost(self) -> None:
        """Raises LeaseLost, with the reason, if the lease is lost."""
        if self.lost.is_set():
            assert self._validity.end is not None
            raise self._validity.end

    def release(self) -> bool:
        """Releases the lock, and returns whether the service confirmed it; otherwise the lease ends with its TTL.

        Raises LeaseLost if the lease was lost. A second release does nothing, and returns the same.
        """
        if not self._validity.is_released:
            # Before the request, which makes it too late to notice a loss.
            self.lost.is_set()
            self._validity.is_released = True
            self._stopped.set()
            try:
                self._is_confirmed = bool(self._client._run(releases(self._claim, self._validity)))
            finally:
                self.lost._changed.set()
        if self._validity.end:
            raise self._validity.end
        return self._is_confirmed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if not self.release():
                log.warning("the release of %s was not confirmed", " ".join(self.names))
        except LeaseLost:
            # The error of the block is the one to report.
            if kind is None:
                raise

    def _keep(self) -> None:
        try:
            self._client._run(renewals(self._claim, self._validity), self._stopped)
        except Exception:
            # The client was closed, for example. The lease is ours until its validity is over.
            log.warning("%s is not renewed any more", " ".join(self.names), exc_info=True)
        else:
            self.lost._changed.set()


def body_and_headers(step: Send, key: Key) -> dict[str, Any]:
    sent: dict[str, Any] = {"headers": {**key.headers(), "Lock-Token": step.token}}
    if step.fields:
        sent["headers"]["Content-Type"] = "application/json"
        sent["content"] = json.dumps(step.fields)
    return sent


def read(response: httpx.Response, content: bytes) -> Answer:
    try:
        body = json.loads(content) if content else {}
    except (ValueError, RecursionError):
        # Not from the service, but from a proxy.
        body = {}
    return Answer(
        response.status_code, body if isinstance(body, dict) else {}, retry_after(response.headers.get("Retry-After"))
    )
