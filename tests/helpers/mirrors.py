"""Real HTTP servers on the loopback that give files out, rightly and in every wrong way."""

from __future__ import annotations

import gzip
import hashlib
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Manner = Literal["whole", "cut", "cut without a length"]


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Mirror:
    """A server's address, and the names it was asked for so far."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}/"
        self.asked: list[str] = []


@contextmanager
def mirror(files: Mapping[str, bytes], manner: Manner = "whole") -> Iterator[Mirror]:
    """Give `files` out by their names; `cut` breaks off in the middle of each.

    To a client that takes it, a file goes out packed once more, as servers may do.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            found.asked.append(name)
            if name not in files:
                self.send_error(404)
                return
            content = files[name]
            self.send_response(200)
            if "gzip" in self.headers.get("Accept-Encoding", ""):
                content = gzip.compress(content)
                self.send_header("Content-Encoding", "gzip")
            if manner != "cut without a length":
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content if manner == "whole" else content[: len(content) // 2])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Mirror(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def nobody() -> str:
    """An address at which nothing answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/"
