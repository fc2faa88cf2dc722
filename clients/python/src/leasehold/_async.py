"""The client for asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from ._errors import LeaseLost
from ._options import LockOptions
from ._protocol import Acquisition, Answer, Claim, Send, Steps, Validity, releases, renewals
from ._service import ApiKey, Key, service_url
from ._sync import CONNECT_TIMEOUT, LIMITS, body_and_headers, read

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

log = logging.getLogger("leasehold")


class AsyncClient:
    """A service and one pool of connections to it, for one event loop. The parameters are those of `Client`."""

    def __init__(
        self,
        url: str | None = None,
        api_key: ApiKey | None = None,
        *,
        retry_for: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ):
        self._retry_for = retry_for
        self._key = Key(api_key)
        self._http = httpx.AsyncClient(base_url=service_url(url), limits=LIMITS, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes all connections. Leases that were not released end with their TTL."""
        await self._http.aclose()

    async def acquire(self, *names: str, **options: Unpack[LockOptions]) -> AsyncLease:
        """Acquires the lock, or all of several. See `LockOptions`; by default it waits for as long as it takes.

        Raises LockHeld when the wait is over, Unavailable without a useful answer, and Refused for a wrong request.
        After any error, cancellation included, the claim is withdrawn.
        """
        claim = Claim(names, options)
        # If there is no key, that is the error, and nothing has to be withdrawn.
        self._key.headers()
        acquisition = Acquisition(claim, self._retry_for)
        try:
            validity = await self._run(acquisition.steps())
        except BaseException:
            if acquisition.needs_withdrawal:
                # In a task of its own: a second cancellation must not stop it.
                await asyncio.shield(asyncio.ensure_future(self._send(claim.release())))
            raise
        return AsyncLease(self, claim, validity)

    @asynccontextmanager
    async def lock(self, *names: str, **options: Unpack[LockOptions]) -> AsyncIterator[AsyncLease]:
        """Holds the lock during an `async with` block.

        When the lease is lost, the block is cancelled where it awaits, as by `asyncio.timeout`, and LeaseLost is
        raised after it.
        """
        async with await self.acquire(*names, **options) as lease:
            yield lease

    async def _run(self, steps: Steps) -> Any:
        answer = None
        try:
            while True:
                step = steps.send(answer)
                answer = None
                if isinstance(step, Send):
                    answer = await self._send(step)
                else:
                    await asyncio.sleep(step.seconds)
        except StopIteration as end:
            return end.value

    async def _send(self, step: Send) -> Answer:
        timeout = httpx.Timeout(step.timeout, connect=min(CONNECT_TIMEOUT, step.timeout))
        request = self._http.request(step.method, step.path, timeout=timeout, **body_and_headers(step, self._key))
        try:
            # The time-outs of httpx are those of each read. This one is for the whole answer.
            response = await asyncio.wait_for(request, step.timeout)
            return read(response, response.content)
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError):
            raise
        except (httpx.RequestError, asyncio.TimeoutError) as error:
            return Answer(0, {"detail": f"no answer: {error!r}"})


class AsyncLost:
    """Whether a lease is lost. It is used like an `asyncio.Event`."""

    def __init__(self, validity: Validity):
        self._validity = validity
        self._changed = asyncio.Event()

    def is_set(self) -> bool:
        """Whether the lease is lost. It is not lost by its own release."""
        return self._validity.is_lost()

    async def wait(self) -> bool:
        """Waits until the lease is lost, and returns True; or until it is released, and returns False."""
        await self._changed.wait()
        return self.is_set()


class AsyncLease:
    """A held lock, or several. A task renews it until it is released or lost."""

    def __init__(self, client: AsyncClient, claim: Claim, validity: Validity):
        self._client, self._claim, self._validity = client, claim, validity
        #: Set when the lease is lost.
        self.lost = AsyncLost(validity)
        self._block: asyncio.Task[Any] | None = None
        self._has_cancelled_block = False
        self._release: asyncio.Future[Any] | None = None
        self._keeper = asyncio.ensure_future(self._keep())

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

    async def release(self) -> bool:
        """Releases the lock, and returns whether the service confirmed it; otherwise the lease ends with its TTL.

        Raises LeaseLost if the lease was lost. A second release waits for the first, and returns the same. If the caller
        is cancelled, the release goes on.
        """
        if self._release is None:
            # Before the request, which makes it too late to notice a loss.
            self.lost.is_set()
            self._validity.is_released = True
            self._block = None
            self._keeper.cancel()
            self._release = asyncio.ensure_future(self._client._run(releases(self._claim, self._validity)))
            # Also when the caller is cancelled, who therefore cannot do it.
            self._release.add_done_callback(lambda _: self.lost._changed.set())
        confirmed = bool(await asyncio.shield(self._release))
        if self._validity.end:
            raise self._validity.end
        return confirmed

    async def __aenter__(self) -> Self:
        self._block = asyncio.current_task()
        if self.lost.is_set():
            self._cancel_block()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        is_our_cancellation = self._has_cancelled_block and kind is asyncio.CancelledError
        block = asyncio.current_task()
        if self._has_cancelled_block and block is not None and hasattr(block, "uncancel"):
            # Somebody else may have cancelled the block, too: then it stays cancelled.
            is_our_cancellation = block.uncancel() <= 0 and is_our_cancellation
        try:
            if not await self.release():
                log.warning("the release of %s was not confirmed", " ".join(self.names))
        except LeaseLost as lost:
            if kind is None or is_our_cancellation:
                raise lost from None

    def _cancel_block(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            self._has_cancelled_block = True
            block.cancel()

    async def _keep(self) -> None:
        try:
            await self._client._run(renewals(self._claim, self._validity))
        except Exception:
            # The client was closed, for example. The lease is ours until its validity is over.
            log.warning("%s is not renewed any more", " ".join(self.names), exc_info=True)
            while left := self.remaining():
                await asyncio.sleep(left)
        self.lost._changed.set()
        self._cancel_block()
