"""What a client does when the answers are garbage, and when its own process is forked, interrupted or out of threads."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

import pytest
from testbed import Server, eventually

from leasehold import AsyncClient, Client, LeaseLost, LockHeld, Refused
from leasehold._protocol import Grant, Validity, now

GRANT = {"name": "a", "fencing_token": 7, "ttl_ms": 60000, "waited_ms": 0, "expires_in_ms": 60000}
GARBAGE: dict[str, dict[str, Any]] = {
    "broken compression": {"status": 200, "header": "Content-Encoding:gzip", "body": "x"},
    "a number that is none": {"status": 503, "header": "Retry-After:²"},
    "an hour": {"status": 429, "header": "Retry-After:3600"},
    "a century": {"status": 503, "header": "Retry-After:99999999999999999999"},
    "depth": {"status": 200, "body": "[" * 20000},
    "no lease": {"status": 200, "body": '{"locks": [null]}'},
    "an infinite number": {"status": 200, "body": json.dumps({**GRANT, "fencing_token": "@"}).replace('"@"', "1e999")},
    "a huge number": {"status": 200, "body": json.dumps({**GRANT, "expires_in_ms": 10**30})},
    "another lock": {"status": 200, "body": json.dumps({**GRANT, "name": "b"})},
    "no duration": {"status": 200, "body": json.dumps({**GRANT, "ttl_ms": 0})},
    "a redirect": {"status": 302, "header": "Location:/locks/b"},
}


def count(server: Server, method: str) -> int:
    return [request["method"] for request in server.requests("a")].count(method)


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_does_not_stop_the_renewals(server: Server, garbage: dict[str, Any]) -> None:
    server.fault("answer", "PUT", **garbage)
    with Client(server.url, server.api_key) as client, client.lock("a", ttl=3) as lease:
        eventually(lambda: count(server, "PUT") >= 2)
        assert lease.held
        assert lease.fencing_token > 7


def test_garbage_does_not_stop_the_renewals_of_asyncio(server: Server) -> None:
    async def run() -> None:
        server.fault("answer", "PUT", **GARBAGE["broken compression"])
        async with AsyncClient(server.url, server.api_key) as client:
            async with client.lock("a", ttl=3) as lease:
                await asyncio.to_thread(eventually, lambda: count(server, "PUT") >= 2)
                assert lease.held

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["another lock", "an infinite number", "no duration"])
def test_a_grant_that_is_none_is_refused_and_withdrawn(server: Server, kind: str) -> None:
    server.fault("answer", "POST", **GARBAGE[kind])
    with Client(server.url, server.api_key) as client, pytest.raises(Refused):
        client.acquire("a")
    assert count(server, "DELETE") == 1


def test_an_answer_that_drips_is_given_up(server: Server) -> None:
    server.fault("drip", "PUT")
    server.fault("drip", "DELETE")
    with Client(server.url, server.api_key) as client:
        lease = client.acquire("a", ttl=3)
        eventually(lambda: count(server, "PUT") >= 2)
        assert lease.held
        assert lease.release()


@pytest.mark.parametrize(
    "answer",
    [{"status": 423}, {"status": 201, "body": json.dumps({**GRANT, "expires_in_ms": 0})}],
    ids=["a refusal", "a lease that is over"],
)
def test_an_answer_that_comes_at_once_is_not_asked_for_without_a_pause(server: Server, answer: dict[str, Any]) -> None:
    server.fault("answer", "POST", times=100_000, **answer)
    with Client(server.url, server.api_key, retry_for=1) as client, pytest.raises(Exception):
        client.acquire("a", wait=1)
    assert count(server, "POST") <= 12


def test_a_release_that_was_not_confirmed_stays_so(server: Server) -> None:
    server.fault("refuse", "DELETE", times=3)
    with Client(server.url, server.api_key) as client:
        lease = client.acquire("a")
        assert [lease.release(), lease.release()] == [False, False]
        assert count(server, "DELETE") == 3


def test_a_cancelled_release_goes_on_and_wakes_who_waits_for_the_loss(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.url, server.api_key) as client:
            lease = await client.acquire("a")
            waiting = asyncio.ensure_future(lease.lost.wait())
            server.fault("hang", "DELETE")
            releasing = asyncio.ensure_future(lease.release())
            await asyncio.to_thread(eventually, lambda: count(server, "DELETE") == 1)
            releasing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await releasing
            # The second call waits for what the first began.
            assert await lease.release()
            assert not await asyncio.wait_for(waiting, 30)
            assert server.lock("a")["state"] == "free"

    asyncio.run(run())


def test_a_lock_is_given_back_if_no_thread_can_be_started(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with Client(server.url, server.api_key) as client:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError):
                client.acquire("a")
        assert server.lock("a")["state"] == "free"


def test_a_renewal_is_never_seen_in_part() -> None:
    class Watched(Validity):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if self.is_complete and name != "end":
                self.remaining()

        is_complete = False

    # A grant after a long wait lasts longer from its request than the renewal that follows.
    validity = Watched(Grant({"a": 1}, 10, 35), now() - 25)
    validity.is_complete = True
    validity.renew(Grant({"a": 1}, 10, 10), now())
    assert not validity.is_lost()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_child_neither_holds_nor_releases_the_lock_of_its_parent(server: Server) -> None:
    with Client(server.url, server.api_key) as client, client.lock("a") as lease:
        child = os.fork()
        if child == 0:
            failed = True
            try:
                assert not lease.held
                with pytest.raises(LeaseLost) as loss:
                    lease.release()
                assert loss.value.code == "forked"
                with pytest.raises(LockHeld):
                    client.acquire("a", wait=0)
                with client.lock("b"):
                    failed = False
            finally:
                os._exit(1 if failed else 0)
        assert os.waitpid(child, 0)[1] == 0
        assert lease.held
        assert count(server, "DELETE") == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_child_has_connections_of_its_own(server: Server) -> None:
    with Client(server.url, server.api_key) as client:
        client.acquire("a").release()
        pool = client._http
        child = os.fork()
        if child == 0:
            try:
                client.acquire("b").release()
            finally:
                os._exit(0 if client._http is not pool else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert client._http is pool
