"""The scenarios that every client runs, with threads and with asyncio."""

from __future__ import annotations

import asyncio
from typing import Any, Union

import pytest
from testbed import SCENARIOS, Server, eventually

from leasehold import AsyncClient, AsyncLease, Client, Lease, LeaseholdError

AnyLease = Union[Lease, AsyncLease]


class Driver:
    """Carries out the steps of a scenario, with the methods of one of the clients."""

    def __init__(self, server: Server, client: Client | AsyncClient):
        self.server, self.client = server, client
        self.leases: dict[str, AnyLease] = {}
        self.tasks: dict[str, asyncio.Task[AnyLease]] = {}

    async def acquire(self, step: dict[str, Any]) -> AnyLease:
        options: dict[str, Any] = {"ttl": step["ttl_ms"] / 1000, "wait": step["wait_ms"] / 1000}
        options.update({name: step[name] for name in ("mode", "limit", "permits", "hold_count") if name in step})
        if "token_of" in step:
            options["token"] = self.leases[step["token_of"]].token
        if isinstance(self.client, Client):
            return await asyncio.to_thread(self.client.acquire, *step["names"], **options)
        return await self.client.acquire(*step["names"], **options)

    async def release(self, lease: AnyLease) -> bool:
        if isinstance(lease, Lease):
            return await asyncio.to_thread(lease.release)
        return await lease.release()

    async def wait_until_lost(self, lease: AnyLease) -> bool:
        if isinstance(lease, Lease):
            return await asyncio.to_thread(lease.lost.wait, 30)
        return await asyncio.wait_for(lease.lost.wait(), 30)

    async def expect(self, step: dict[str, Any], outcome: Any) -> Any:
        if "refused" not in step:
            return await outcome
        with pytest.raises(LeaseholdError) as refusal:
            await outcome
        assert refusal.value.status == step["refused"]["status"]
        assert refusal.value.code == step["refused"].get("code", refusal.value.code)
        return None

    async def carry_out(self, step: dict[str, Any]) -> None:
        kind, subject = next(iter(step.items()))
        if kind == "acquire":
            self.leases[subject] = await self.expect(step, self.acquire(step))
        elif kind == "begin":
            self.tasks[subject] = asyncio.ensure_future(self.acquire(step))
        elif kind == "finish":
            self.leases[subject] = await self.tasks[subject]
        elif kind == "release":
            released = await self.expect(step, self.release(self.leases[subject]))
            assert released or "refused" in step
        elif kind == "held":
            assert self.leases[subject].held is step["is"]
            assert (self.leases[subject].remaining() > 0) is step["is"]
        elif kind == "until_lost":
            assert await self.wait_until_lost(self.leases[subject])
            with pytest.raises(LeaseholdError) as loss:
                self.leases[subject].raise_if_lost()
            assert loss.value.code == step["code"]
        elif kind == "fencing_token_of":
            assert self.leases[subject].fencing_token > self.leases[step["is_larger_than_of"]].fencing_token
        elif kind == "restart":
            await asyncio.to_thread(self.server.restart)
        elif kind == "evict":
            self.server.evict(subject)
        elif kind == "lock":
            assert self.server.lock(subject)["state"] == step["state"]
        elif kind == "until_queued":
            await self.eventually(lambda: self.server.lock(subject)["queue_length"] == step["length"])
        elif kind == "until_renewed":
            name = self.leases[subject].names[0]
            for _ in range(step["times"]):
                before = self.server.lock(name)["holders"][0]["expires_at"]
                await self.eventually(lambda: self.server.lock(name)["holders"][0]["expires_at"] != before)
        else:
            raise AssertionError(f"unknown step {kind}")

    async def eventually(self, what: Any) -> None:
        await asyncio.to_thread(eventually, what)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: str(scenario["name"]))
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_scenario(scenario: dict[str, Any], kind: str, server: Server) -> None:
    async def run(driver: Driver) -> None:
        for step in scenario["steps"]:
            await driver.carry_out(step)

    async def run_async() -> None:
        async with AsyncClient(server.url, server.api_key) as client:
            await run(Driver(server, client))

    if kind == "asyncio":
        asyncio.run(run_async())
    else:
        with Client(server.url, server.api_key) as client:
            asyncio.run(run(Driver(server, client)))
