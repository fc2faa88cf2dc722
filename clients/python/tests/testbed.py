"""The control of clients/testbed.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Callable
from urllib.parse import urlencode

CLIENTS = Path(__file__).parents[2]
SCENARIOS: list[dict[str, Any]] = json.loads((CLIENTS / "scenarios.json").read_text())


class Testbed:
    __test__ = False

    def __enter__(self) -> Testbed:
        command = [sys.executable, str(CLIENTS / "testbed.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def call(self, verb: str, path: str, **query: object) -> Any:
        request = urllib.request.Request(f"{self.url}{path}?{urlencode(query)}", method=verb)
        # Not through a proxy that the environment may name.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as response:
            return json.load(response)

    def server(self) -> Server:
        return Server(self, **self.call("POST", "/servers"))

    def pause_this_process(self, seconds: float) -> None:
        self.call("POST", "/pause", pid=os.getpid(), seconds=seconds)


class Server:
    def __init__(self, testbed: Testbed, id: int, url: str, api_key: str):
        self._testbed, self._id, self.url, self.api_key = testbed, id, url, api_key

    def _call(self, verb: str, action: str, **query: object) -> Any:
        return self._testbed.call(verb, f"/servers/{self._id}/{action}", **query)

    def restart(self) -> None:
        self._call("POST", "restart")

    def evict(self, name: str) -> None:
        assert self._call("POST", "evict", name=name)["status"] == 200

    def fault(self, kind: str, method: str, times: int = 1, **more: object) -> None:
        self._call("POST", "fault", kind=kind, method=method, times=times, **more)

    def lock(self, name: str) -> dict[str, Any]:
        lock: dict[str, Any] = self._call("GET", "lock", name=name)
        return lock

    def requests(self, name: str) -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = self._call("GET", "requests", name=name)
        return requests


def eventually(what: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 30
    while not what():
        assert time.monotonic() < give_up_at, "it never happened"
        time.sleep(0.02)
