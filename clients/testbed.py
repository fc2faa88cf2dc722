#!/usr/bin/env python3
"""What the tests of every client need: real servers, and a proxy in front of each that fails on request.

A test starts this as a child, reads one line (the URL of the control interface) from its standard output, and closes its
standard input at the end, which stops everything. LEASEHOLD_BINARY names the server's binary, target/debug/leasehold by default.
Only the standard library is used.

    POST /servers                             a new server: {"id", "url" (through the proxy), "api_key"}
    POST /servers/ID/restart                  kills it and starts it again, on the same port and with the same directory
    POST /servers/ID/evict?name=              evicts the holders of a lock
    GET  /servers/ID/lock?name=               the state of a lock, as the server reports it
    POST /servers/ID/fault?kind=&method=&times=
         the next requests with this method fail:
           lose_answer  the server executes the request, and the connection breaks before the answer
           refuse       503 with Retry-After: 1, without asking the server
           hang         no answer at all, without asking the server
           answer       &status=&header=Name:value&body= is the answer, without asking the server
           drip         an answer of which a byte arrives every 50 ms, without asking the server
    GET  /servers/ID/requests?name=           what the proxy received for a lock: [{"method", "token", "at_ms", "failed",
                                              "given_up": whether the client closed the connection without an answer}]
    POST /pause?pid=&seconds=                 stops a process (SIGSTOP) and continues it after this time
"""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

API_KEY = "key-of-the-clients-0123456789abcdef"
ADMIN_KEY = "key-of-the-operator-0123456789abcdef"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("LEASEHOLD_BINARY") or f"{ROOT}/target/debug/leasehold"


class Handler(BaseHTTPRequestHandler):
    """What the control interface and the proxies share."""

    protocol_version = "HTTP/1.1"
    # Otherwise each answer waits for the acknowledgement of its head.
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, body, headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def read_body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    # Tests connect with a hundred waiters at once.
    request_queue_size = 1024


def serve(handler):
    server = Listener(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """One server with the `file:` store, and its proxy."""

    def __init__(self):
        self.port = free_port()
        self.directory = tempfile.mkdtemp(prefix="leasehold-clients-")
        self.process = None
        self.faults = []
        self.requests = []
        self.guard = threading.Lock()
        self.start()
        self.proxy_port = serve(type("Proxy", (Proxy,), {"upstream": self}))

    def start(self):
        environment = {
            "LEASEHOLD_LISTEN": f"127.0.0.1:{self.port}",
            "LEASEHOLD_STORE": f"file:{self.directory}/locks",
            "LEASEHOLD_API_KEY": API_KEY,
            "LEASEHOLD_ADMIN_KEY": ADMIN_KEY,
        }
        with open(f"{self.directory}/log", "ab") as log:
            self.process = subprocess.Popen(
                [BINARY], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        give_up_at = time.monotonic() + 30
        while True:
            try:
                if self.call("GET", "/readyz")[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > give_up_at:
                with open(f"{self.directory}/log") as log:
                    raise RuntimeError(f"the server does not start: {log.read()}")
            time.sleep(0.01)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def call(self, method, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, headers={"Authorization": f"Bearer {ADMIN_KEY}"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def take_fault(self, method):
        with self.guard:
            for fault in self.faults:
                if fault["method"] == method and fault["times"] > 0:
                    fault["times"] -= 1
                    return fault
        return {"kind": None}


class Proxy(Handler):
    """Passes requests on, unless they are to fail."""

    upstream: Server

    def pass_on(self):
        body = self.read_body()
        fault = self.upstream.take_fault(self.command)
        path = urlsplit(self.path).path
        names = [unquote(path).removeprefix("/locks/")]
        if path == "/locks":
            names = json.loads(body or b"{}").get("names", [])
        seen = {
            "names": names,
            "method": self.command,
            "token": self.headers.get("Lock-Token"),
            "at_ms": int(time.monotonic() * 1000),
            "failed": fault["kind"],
            "given_up": False,
        }
        self.upstream.requests.append(seen)
        if fault["kind"] == "answer":
            header = fault.get("header", "X-Nothing:").split(":", 1)
            self.answer(int(fault["status"]), fault.get("body", "").encode("latin-1"), [header])
            return
        if fault["kind"] == "drip":
            self.drip()
            return
        if fault["kind"] == "refuse":
            problem = b'{"code":"store_unavailable","detail":"the proxy refuses","outcome":"nothing_done"}'
            self.answer(503, problem, [("Retry-After", "1"), ("Content-Type", "application/problem+json")])
            return
        if fault["kind"] == "hang":
            # Until the client closes the connection.
            self.rfile.read(1)
            seen["given_up"] = True
            self.close_connection = True
            return
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.upstream.port, timeout=90)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            answer = response.read()
            connection.close()
        except (OSError, http.client.HTTPException):
            self.close_connection = True
            return
        if fault["kind"] == "lose_answer":
            self.close_connection = True
            return
        dropped = ("content-length", "transfer-encoding", "connection", "date", "server")
        kept = [(name, value) for name, value in response.getheaders() if name.lower() not in dropped]
        try:
            self.answer(response.status, answer, kept)
        except OSError:
            self.close_connection = True

    def drip(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.close_connection = True
        for _ in range(999):
            try:
                self.wfile.write(b" ")
            except OSError:
                return
            time.sleep(0.05)

    do_GET = do_POST = do_PUT = do_DELETE = pass_on


class Control(Handler):
    servers = []

    def handle_call(self):
        self.read_body()
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            result = self.execute(parts.path.strip("/").split("/"), query)
        except Exception as error:  # noqa: BLE001 - the test that asked is told
            self.answer(500, repr(error).encode())
            return
        if isinstance(result, bytes):
            self.answer(200, result)
        else:
            self.answer(200, json.dumps(result).encode())

    do_GET = do_POST = handle_call

    def execute(self, path, query):
        if path == ["pause"]:
            threading.Thread(target=pause, args=(int(query["pid"]), float(query["seconds"])), daemon=True).start()
            return {}
        if path == ["servers"]:
            server = Server()
            Control.servers.append(server)
            url = f"http://127.0.0.1:{server.proxy_port}"
            return {"id": len(Control.servers) - 1, "url": url, "api_key": API_KEY}
        server, action = Control.servers[int(path[1])], path[2]
        if action == "restart":
            server.stop()
            server.start()
            return {}
        if action == "evict":
            status, body = server.call("DELETE", f"/locks/{query['name']}?force=true&reason=test")
            return {"status": status, "body": body.decode()}
        if action == "lock":
            return server.call("GET", f"/locks/{query['name']}")[1]
        if action == "fault":
            with server.guard:
                server.faults.append({**query, "times": int(query.get("times", 1))})
            return {}
        if action == "requests":
            return [request for request in server.requests if query["name"] in request["names"]]
        raise ValueError(self.path)


def pause(pid, seconds):
    # The answer to the process that asked for this is on its way first.
    time.sleep(0.1)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def main():
    print(f"http://127.0.0.1:{serve(Control)}", flush=True)
    try:
        sys.stdin.read()
    except KeyboardInterrupt:
        pass
    for server in Control.servers:
        server.stop()
        shutil.rmtree(server.directory, ignore_errors=True)


if __name__ == "__main__":
    main()
