"""As much of a W&B server as its client needs to start a run online; `close` takes it away for good."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUCKET = {
    "id": "bucket", "name": "name", "displayName": "name", "description": "", "config": "{}", "sweepName": None,
    "project": {"id": "project", "name": "project", "entity": {"id": "entity", "name": "entity"}},
    "historyLineCount": 0,
}  # fmt: skip
ANSWERS = {
    "RunResumeStatus": {"model": None},
    "UpsertBucket": {"upsertBucket": {"bucket": BUCKET, "inserted": True}},
    "CreateRunFiles": {"createRunFiles": {"runID": "bucket", "uploadHeaders": [], "files": []}},
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer: dict[str, Any] = {}
        if self.path == "/graphql":
            name = re.search(r"(?:query|mutation)\s+(\w+)", json.loads(body)["query"])
            self.server.asked.append(name[1] if name else "")
            answer = {"data": ANSWERS.get(self.server.asked[-1], {})}
        elif self.path.endswith("/file_stream"):
            self.server.streamed.append(body.decode())
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class WandbServer(ThreadingHTTPServer):
    """Listens on a free loopback port from the start; `asked` holds GraphQL operations, `streamed` rows as sent."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.streamed: list[str] = []
        self.connections: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a connection that is cut is what this server is for."""

    def close(self) -> None:
        """Refuse whatever comes from now on, and cut the connections that are open."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
