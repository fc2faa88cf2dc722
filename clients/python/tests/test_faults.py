"""What a client does when answers are lost, the service is busy, or its own process does not run."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from testbed import Server, Testbed, eventually

from leasehold import AsyncClient, Client, LeaseLost, LockHeld, Unavailable


@pytest.mark.parametrize("kind", ["lose_answer", "refuse"])
def test_an_acquire_is_repeated_with_the_same_token(server: Server, kind: str) -> None:
    server.fault(kind, "POST", times=2)
    with Client(server.url, server.api_key) as client, client.lock("a", wait=0) as lease:
        posts = [request for request in server.requests("a") if request["method"] == "POST"]
        assert [request["failed"] for request in posts] == [kind, kind, None]
        assert {request["token"] for request in posts} == {lease.token}
        assert server.lock("a")["holders_total"] == 1


def test_retry_after_is_honoured(server: Server) -> None:
    server.fault("refuse", "POST")
    with Client(server.url, server.api_key) as client, client.lock("a"):
        first, second = server.requests("a")
        assert second["at_ms"] - first["at_ms"] >= 1000


def test_retries_have_a_bound_and_the_claim_is_withdrawn(server: Server) -> None:
    server.fault("refuse", "POST", times=100)
    with Client(server.url, server.api_key, retry_for=2) as client:
        with pytest.raises(Unavailable) as error:
            client.acquire("a")
    assert error.value.code == "store_unavailable"
    assert server.requests("a")[-1]["method"] == "DELETE"


def test_nobody_listening_is_unavailable() -> None:
    with Client("http://127.0.0.1:9", retry_for=0.2) as client, pytest.raises(Unavailable) as error:
        client.acquire("a", wait=0)
    assert error.value.status == 0


def test_a_lost_answer_to_a_renewal_or_release_does_no_harm(server: Server) -> None:
    with Client(server.url, server.api_key) as client:
        lease = client.acquire("a", ttl=2)
        server.fault("lose_answer", "PUT")
        server.fault("lose_answer", "DELETE")
        eventually(lambda: [request["method"] for request in server.requests("a")].count("PUT") >= 2)
        assert lease.held
        assert lease.release()
    assert server.lock("a")["state"] == "free"


def test_a_lease_whose_renewals_hang_is_lost_in_time(server: Server) -> None:
    with Client(server.url, server.api_key) as client:
        server.fault("hang", "PUT", times=100)
        lease = client.acquire("a", ttl=1)
        assert lease.lost.wait(30)
        assert not lease.held
        # The client gave up no later than the service did.
        assert client.acquire("a", wait=5).fencing_token > lease.fencing_token
        with pytest.raises(LeaseLost) as loss:
            lease.release()
        assert loss.value.code == "lease_expired"


def test_a_lease_is_not_held_right_after_a_pause_beyond_its_ttl(server: Server, testbed: Testbed) -> None:
    with Client(server.url, server.api_key) as client:
        lease = client.acquire("a", ttl=1)
        testbed.pause_this_process(2)
        before = time.monotonic()
        while (now := time.monotonic()) - before < 1:
            before = now
        # The process was stopped between the last two readings of the clock.
        assert not lease.held
        assert lease.lost.is_set()
        with pytest.raises(LeaseLost):
            lease.release()


def test_a_block_whose_lease_was_lost_raises(server: Server) -> None:
    with Client(server.url, server.api_key) as client:
        with pytest.raises(LeaseLost), client.lock("a", ttl=1) as lease:
            server.evict("a")
            lease.lost.wait()
        with pytest.raises(ZeroDivisionError), client.lock("a", ttl=1) as lease:
            server.evict("a")
            lease.lost.wait()
            1 / 0  # noqa: B018


def test_an_interrupted_wait_is_withdrawn(server: Server) -> None:
    class Interrupted(BaseException):
        pass

    with Client(server.url, server.api_key) as client, client.lock("a") as held:
        send: Any = client._send

        def interrupted(step: Any) -> Any:
            if step.method == "POST":
                step = type(step)(step.method, step.path, step.token, {**step.fields, "wait": "100ms"}, step.timeout)
                send(step)
                raise Interrupted
            return send(step)

        client._send = interrupted  # type: ignore[method-assign]
        with pytest.raises(Interrupted):
            client.acquire("a")
        client._send = send  # type: ignore[method-assign]
        last = server.requests("a")[-1]
        assert last["method"] == "DELETE"
        assert last["token"] != held.token


def test_a_cancelled_wait_leaves_the_queue(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.url, server.api_key) as client:
            async with client.lock("a"):
                waiting = asyncio.ensure_future(client.acquire("a"))
                await asyncio.to_thread(eventually, lambda: server.lock("a")["queue_length"] == 1)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                last = server.requests("a")[-1]
                assert last["method"] == "DELETE"
                assert server.lock("a")["queue_length"] == 0
        assert server.lock("a")["state"] == "free"

    asyncio.run(run())


def test_a_block_of_asyncio_is_cancelled_when_its_lease_is_lost(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.url, server.api_key) as client:
            with pytest.raises(LeaseLost) as loss:
                async with client.lock("a", ttl=1):
                    server.evict("a")
                    await asyncio.Event().wait()
            assert loss.value.code == "lease_evicted"
            # The task itself is not cancelled.
            await asyncio.sleep(0)

    asyncio.run(run())


def test_a_hanging_renewal_of_asyncio_is_lost_in_time(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.url, server.api_key) as client:
            server.fault("hang", "PUT", times=100)
            lease = await client.acquire("a", ttl=1)
            assert await asyncio.wait_for(lease.lost.wait(), 30)
            assert not lease.held
            with pytest.raises(LeaseLost):
                await lease.release()

    asyncio.run(run())


def test_many_waiters_do_not_delay_a_renewal(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.url, server.api_key) as client:
            async with client.lock("a", ttl=6) as lease:
                waiting = [asyncio.ensure_future(client.acquire("a", wait=30)) for _ in range(120)]
                await asyncio.to_thread(eventually, lambda: server.lock("a")["queue_length"] == 120)
                before = len([1 for request in server.requests("a") if request["method"] == "PUT"])
                await asyncio.to_thread(
                    eventually,
                    lambda: len([1 for request in server.requests("a") if request["method"] == "PUT"]) > before + 1,
                )
                assert lease.held
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(run())


def test_an_unknown_option_is_a_type_error(server: Server) -> None:
    with Client(server.url, server.api_key) as client:
        with pytest.raises(TypeError, match="tll"):
            client.acquire("a", tll=3)  # type: ignore[call-arg]


def test_a_wrong_key_is_refused(server: Server) -> None:
    with Client(server.url, "wrong" * 8) as client, pytest.raises(Exception) as refusal:
        client.acquire("a")
    assert getattr(refusal.value, "code", "") == "unauthorized"


def test_a_held_lock_says_who_holds_it(server: Server) -> None:
    with Client(server.url, server.api_key) as client, client.lock("a", owner="pod-1"):
        with pytest.raises(LockHeld) as held:
            client.acquire("a", wait=0)
        assert held.value.problem["holders"][0]["owner"] == "pod-1"
