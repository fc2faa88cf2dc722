"""Carries out clients/scenarios.json with the client that openapi-python-client generated. The test checks the types first.

That client neither repeats a request nor renews by itself, so the driver does.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid4

import httpx
from leasehold_api import AuthenticatedClient
from leasehold_api.api.locks import acquire, acquire_several, inspect, release, release_several, renew
from leasehold_api.models import AcquireRequest, AcquireSeveralRequest, Grant, Grants, Lock, Mode, Problem
from testbed import SCENARIOS, Server, Testbed, eventually

#: The longest wait of one request, in seconds. The time-out of the client has to be longer; by default it is 5 s.
POLL = 25.0


@dataclass
class Lease:
    names: list[str]
    token: UUID
    hold_count: int
    fencing_tokens: list[int]


class Refused(Exception):
    def __init__(self, problem: Problem):
        super().__init__(problem.code)
        self.problem = problem


class Driver:
    def __init__(self, server: Server, threads: ThreadPoolExecutor):
        self.server, self.threads = server, threads
        self.client = AuthenticatedClient(server.url, server.api_key, timeout=httpx.Timeout(POLL + 10))
        self.leases: dict[str, Lease] = {}
        self.tasks: dict[str, Future[Lease]] = {}

    def acquire(self, step: dict[str, Any]) -> Lease:
        token = self.leases[step["token_of"]].token if "token_of" in step else uuid4()
        fields: dict[str, Any] = {name: step[name] for name in ("limit", "permits", "hold_count") if name in step}
        fields["ttl"] = f"{step['ttl_ms']}ms"
        if "mode" in step:
            fields["mode"] = Mode(step["mode"])
        give_up_at = time.monotonic() + step["wait_ms"] / 1000
        while True:
            left = min(give_up_at - time.monotonic(), POLL)
            if left > 0:
                fields["wait"] = f"{max(round(left * 1000), 1)}ms"
            answer = self.ask(step["names"], token, fields)
            if isinstance(answer, Grant):
                return Lease(step["names"], token, step.get("hold_count", 1), [answer.fencing_token])
            if isinstance(answer, Grants):
                return Lease(step["names"], token, 1, [grant.fencing_token for grant in answer.locks])
            may_pass = answer is None or answer.status in (HTTPStatus.LOCKED, HTTPStatus.SERVICE_UNAVAILABLE)
            if answer is not None and (not may_pass or time.monotonic() >= give_up_at):
                if step["wait_ms"] > 0:
                    self.release(Lease(step["names"], token, 1, []))
                raise Refused(answer)
            time.sleep(0.05)

    def ask(self, names: list[str], token: UUID, fields: dict[str, Any]) -> Grant | Grants | Problem | None:
        """None without an answer."""
        try:
            if len(names) == 1:
                body = AcquireRequest(**fields)
                return acquire.sync(names[0], client=self.client, body=body, lock_token=str(token))
            several = AcquireSeveralRequest(names=names, **fields)
            return acquire_several.sync(client=self.client, body=several, lock_token=str(token))
        except httpx.TransportError:
            return None

    def release(self, lease: Lease) -> None:
        token = str(lease.token)
        if lease.hold_count > 1:
            depth = lease.hold_count - 1
            stepped_back = release.sync(lease.names[0], client=self.client, lock_token=token, hold_count=depth)
            assert isinstance(stepped_back, Grant) and stepped_back.hold_count == depth
            return
        # The names of several locks are in the query string, which takes no commas.
        if len(lease.names) > 1 and not any("," in name for name in lease.names):
            all_released = release_several.sync_detailed(client=self.client, names=lease.names, lock_token=token)
            self.expect_released(all_released.status_code, all_released.parsed)
            return
        for name in lease.names:
            released = release.sync_detailed(name, client=self.client, lock_token=token)
            self.expect_released(released.status_code, released.parsed)

    def expect_released(self, status: HTTPStatus, parsed: object) -> None:
        if isinstance(parsed, Problem):
            raise Refused(parsed)
        assert status == HTTPStatus.NO_CONTENT

    def renew(self, lease: Lease) -> None:
        renewed = renew.sync(lease.names[0], client=self.client, lock_token=str(lease.token))
        if isinstance(renewed, Problem):
            raise Refused(renewed)
        assert isinstance(renewed, Grant) and renewed.fencing_token == lease.fencing_tokens[0]

    def is_held(self, lease: Lease) -> bool:
        lock = inspect.sync(lease.names[0], client=self.client)
        assert isinstance(lock, Lock)
        return lease.fencing_tokens[0] in [holder.fencing_token for holder in lock.holders]

    def expires_at(self, lease: Lease) -> str:
        text: str = self.server.lock(lease.names[0])["holders"][0]["expires_at"]
        return text

    def is_renewed(self, lease: Lease, before: str) -> bool:
        self.renew(lease)
        return self.expires_at(lease) != before

    def is_lost(self, lease: Lease, code: str) -> bool:
        try:
            self.renew(lease)
        except Refused as refused:
            return (refused.problem.status, refused.problem.code) == (HTTPStatus.PRECONDITION_FAILED, code)
        return False

    def carry_out(self, step: dict[str, Any]) -> None:
        kind, subject = next(iter(step.items()))
        if kind == "acquire":
            self.leases[subject] = self.acquire(step)
        elif kind == "begin":
            self.tasks[subject] = self.threads.submit(self.acquire, step)
        elif kind == "finish":
            self.leases[subject] = self.tasks[subject].result()
        elif kind == "release":
            self.release(self.leases[subject])
        elif kind == "held":
            assert self.is_held(self.leases[subject]) is step["is"]
        elif kind == "until_lost":
            eventually(lambda: self.is_lost(self.leases[subject], step["code"]))
        elif kind == "until_renewed":
            lease = self.leases[subject]
            for _ in range(step["times"]):
                before = self.expires_at(lease)
                eventually(lambda: self.is_renewed(lease, before))
        elif kind == "fencing_token_of":
            larger, smaller = self.leases[subject], self.leases[step["is_larger_than_of"]]
            assert larger.fencing_tokens[0] > smaller.fencing_tokens[0]
        elif kind == "restart":
            self.server.restart()
        elif kind == "evict":
            self.server.evict(subject)
        elif kind == "lock":
            assert self.server.lock(subject)["state"] == step["state"]
        elif kind == "until_queued":
            eventually(lambda: bool(self.server.lock(subject)["queue_length"] == step["length"]))
        else:
            raise AssertionError(f"unknown step {kind}")

    def run(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            expected = step.get("refused")
            try:
                self.carry_out(step)
            except Refused as refused:
                assert expected is not None, f"{step}: {refused}"
                assert refused.problem.status == expected["status"], step
                assert refused.problem.code == expected.get("code", refused.problem.code), step
            else:
                assert expected is None, step


with Testbed() as testbed, ThreadPoolExecutor() as threads:
    for scenario in SCENARIOS:
        Driver(testbed.server(), threads).run(scenario["steps"])
        print(scenario["name"])
