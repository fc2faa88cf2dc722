"""Where the service is, and with which key. Nothing here sends anything."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Callable, Union

import httpx

#: A key, or what returns it.
ApiKey = Union[str, Callable[[], str]]

EXAMPLE = "write one like http://127.0.0.1:7625"


def service_url(url: str | None) -> str:
    """As the commands read it: without a scheme it is `http`, and without a host this machine."""
    text = url or os.environ.get("LEASEHOLD_URL") or "http://127.0.0.1:7625"
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        raise ValueError(
            f"{text!r} is a Unix socket: give Client('http://localhost', transport=httpx.HTTPTransport(uds={path!r})),"
            " or httpx.AsyncHTTPTransport with asyncio"
        )
    complete = text
    if text.startswith(":"):
        complete = f"http://127.0.0.1{text}"
    elif re.match(r"[^:]+:\d", text):
        complete = f"http://{text}"
    try:
        parsed = httpx.URL(complete)
    except httpx.InvalidURL as error:
        raise ValueError(f"{text!r} is no URL of a service: {error}; {EXAMPLE}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{text!r} is no URL of a service; {EXAMPLE}")
    return complete


class Key:
    """The key of the service, which is read again for each request if it comes from a file or a function."""

    def __init__(self, api_key: ApiKey | None):
        self._source: Callable[[], str] | None = None
        self._last: str | None = None
        file = os.environ.get("LEASEHOLD_API_KEY_FILE")
        if callable(api_key):
            # It is not called before the first request.
            self._source = api_key
        elif not api_key and file:
            self._source = partial(read_file, file)
            self._last = self._source()
        else:
            key = api_key or os.environ.get("LEASEHOLD_API_KEY")
            self._last = sendable(key, "the API key") if key else None

    def headers(self) -> dict[str, str]:
        """With the key of now. While that cannot be had it is the one of before, so that no lease is lost meanwhile."""
        if self._source is not None:
            try:
                self._last = sendable(self._source(), "the API key")
            except Exception:
                if self._last is None:
                    raise
        return {"Authorization": f"Bearer {self._last}"} if self._last else {}


def read_file(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{path}: the API key cannot be read: {reason}") from None
    key = sendable(text, f"{path}: the API key")
    if not key:
        raise ValueError(f"{path}: the API key is empty")
    return key


def sendable(text: str, what: str) -> str:
    """Without the end of its line. An error does not show the key, because errors are logged."""
    key = re.sub(r"\r?\n\Z", "", text)
    if not all("!" <= character <= "~" for character in key):
        raise ValueError(f"{what} has a character that is not allowed in a header; use visible ASCII without spaces")
    return key
