"""Which service a client asks, with which key, and what it says when that key is refused."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from testbed import Server, eventually

from leasehold import AsyncClient, Client, LeaseLost, Refused, Unavailable

WRONG = "wrong-key-0123456789abcdef"


def count(server: Server, method: str) -> int:
    return [request["method"] for request in server.requests("a")].count(method)


def test_a_key_file_is_read_for_each_request(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(WRONG)
    monkeypatch.setenv("LEASEHOLD_API_KEY_FILE", str(file))
    # The file comes first, as with the commands.
    monkeypatch.setenv("LEASEHOLD_API_KEY", WRONG)
    with Client(server.url) as client:
        with pytest.raises(Refused):
            client.acquire("a")
        file.write_text(f"{server.api_key}\n")
        with client.lock("a", ttl=2) as lease:
            # Such a file is replaced now and then, and the key of before is good meanwhile.
            file.unlink()
            eventually(lambda: count(server, "PUT") >= 2)
            assert lease.held


def test_a_key_file_of_asyncio_is_read_for_each_request(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with AsyncClient(server.url) as client:
            with pytest.raises(Refused):
                await client.acquire("a")
            file.write_text(server.api_key)
            assert await (await client.acquire("a")).release()

    file = tmp_path / "token"
    file.write_text(WRONG)
    monkeypatch.setenv("LEASEHOLD_API_KEY_FILE", str(file))
    asyncio.run(run())


@pytest.mark.parametrize("text", [None, "", "\n", f"{WRONG}\n\n"], ids=["missing", "empty", "a line", "two lines"])
def test_a_key_file_that_cannot_be_used_is_named(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("LEASEHOLD_API_KEY_FILE", str(file))
    with pytest.raises(ValueError, match="token") as problem:
        Client()
    assert WRONG not in str(problem.value)


def test_a_key_may_come_from_a_function(server: Server) -> None:
    keys = [server.api_key, server.api_key]
    with Client(server.url, lambda: keys.pop() if keys else server.api_key) as client, client.lock("a"):
        assert not keys


def test_what_a_function_raises_ends_the_acquire_and_no_lease(server: Server) -> None:
    keys: list[str] = []

    def key() -> str:
        if not keys:
            raise PermissionError("the vault is sealed")
        return keys[0]

    with Client(server.url, key) as client:
        with pytest.raises(PermissionError, match="sealed"):
            client.acquire("a")
        assert not server.requests("a")
        keys.append(server.api_key)
        with client.lock("a", ttl=2) as lease:
            keys.clear()
            eventually(lambda: count(server, "PUT") >= 2)
            assert lease.held


def test_a_key_loses_one_newline_and_is_never_shown(server: Server) -> None:
    with Client(server.url, f"{server.api_key}\r\n") as client:
        assert client.acquire("a").release()
    for key in (f"{WRONG}\n\n", f"{WRONG} x", f"{WRONG}é"):
        for kind in (Client, AsyncClient):
            with pytest.raises(ValueError, match="visible ASCII") as problem:
                kind("http://127.0.0.1:9", key)
            assert WRONG not in str(problem.value)
    with Client(server.url, server.api_key) as client, pytest.raises(ValueError, match="the token"):
        client.acquire("a", token=f"{WRONG}\nx")


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_refused_renewal_is_logged_once_and_named_by_the_loss(
    server: Server, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def lose() -> LeaseLost:
        async with AsyncClient(server.url, server.api_key) as client:
            lease = await client.acquire("a", ttl=1)
            await lease.lost.wait()
            with pytest.raises(LeaseLost) as loss:
                await lease.release()
            return loss.value

    caplog.set_level(logging.WARNING, "leasehold")
    body = '{"code":"unauthorized","detail":"the key is unknown"}'
    server.fault("answer", "PUT", times=100, status=401, body=body)
    if kind == "asyncio":
        loss = asyncio.run(lose())
    else:
        with Client(server.url, server.api_key) as client:
            lease = client.acquire("a", ttl=1)
            assert lease.lost.wait(30)
            with pytest.raises(LeaseLost) as error:
                lease.release()
            loss = error.value
    assert loss.code == "lease_expired"
    assert "401" in str(loss)
    assert "the key is unknown" in str(loss)
    refusals = [record.getMessage() for record in caplog.records if "401" in record.getMessage()]
    assert len(refusals) == 1
    assert "the key is unknown" in refusals[0]


def test_a_url_needs_no_scheme(server: Server) -> None:
    with Client(server.url.removeprefix("http://"), server.api_key) as client:
        assert client.acquire("a").release()
    port = server.url.rpartition(":")[2]
    with Client(f":{port}", server.api_key) as client:
        assert client.acquire("a").release()


@pytest.mark.parametrize("url", ["ftp://a", "localhost", "http://", "http://a:x", "unix:/run/leasehold.sock"])
def test_what_is_no_url_of_a_service_is_a_value_error(url: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match="write one like" if not url.startswith("unix:") else "uds="):
            kind(url)


def test_a_duration_is_a_number(server: Server) -> None:
    options: list[dict[str, Any]] = [{"ttl": "30s"}, {"wait": "1"}, {"min_hold": "1m"}]
    with Client(server.url, server.api_key) as client:
        for option in options:
            with pytest.raises(TypeError, match=f"{next(iter(option))} is in seconds"):
                client.acquire("a", **option)
        with pytest.raises(Unavailable):
            Client("http://127.0.0.1:9", retry_for=0.1).acquire("a", wait=0, ttl=1.5)
