"""A model hub in miniature: what the hub's client asks when it fetches files, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from tests.assets.fakes import sha256

COMMIT = "c" * 40


class FakeHub:
    """Serves `repos`, {repository: {path: bytes}}, at one commit and counts what it sent."""

    def __init__(self, repos: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repos = repos
        self.sent: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def lookup(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers for a request."""
        path = path.partition("?")[0].strip("/")
        if not path:
            return 200, b"", {}
        for repo, files in self.repos.items():
            if path == f"api/models/{repo}/revision/main":
                return 200, json.dumps({"id": repo, "sha": COMMIT, "siblings": []}).encode(), {}
            if path == f"api/models/{repo}/tree/{COMMIT}":
                return 200, json.dumps([_tree_entry(*item) for item in files.items()]).encode(), {}
            prefix = f"{repo}/resolve/{COMMIT}/"
            if path.startswith(prefix) and path.removeprefix(prefix) in files:
                data = files[path.removeprefix(prefix)]
                return 200, data, {"ETag": f'"{sha256(data)}"', "X-Repo-Commit": COMMIT}
        return 404, b"", {"X-Error-Code": "RepoNotFound"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer(with_body=False)

            def do_GET(self) -> None:
                hub.sent.append(self.path)
                self._answer(with_body=True)

            def _answer(self, with_body: bool) -> None:
                status, body, headers = hub.lookup(self.path)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve until the block ends; afterwards the address refuses connections."""
    thread = Thread(target=hub.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


def _tree_entry(path: str, data: bytes) -> dict[str, str | int]:
    return {"type": "file", "path": path, "size": len(data), "oid": sha256(data)[:40]}
