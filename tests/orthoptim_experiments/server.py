"""A web server on this machine, and small data sets for it to serve."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from orthoptim_experiments.problems.datasets.sources import Source

CONTENT = {"one.bin": bytes(range(256)) * 400, "two.bin": b"two" * 5000}


def packed(content: dict[str, bytes] = CONTENT) -> bytes:
    """A .tar.gz with a folder of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in content.items():
            member = tarfile.TarInfo(f"toy-files/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tar_source(archive: bytes, content: dict[str, bytes] = CONTENT) -> Source:
    """A data set that is published as this archive."""
    files = {name: sha256(data) for name, data in content.items()}
    return Source("toy", "Toy", "toy-files", "http://127.0.0.1:9/", {"toy.tar.gz": sha256(archive)}, files)


def gz_source() -> tuple[Source, dict[str, bytes]]:
    """A data set that is published file by file, and its archives."""
    archives = {f"{name}.gz": gzip.compress(data) for name, data in CONTENT.items()}
    return replace(tar_source(b""), archives={name: sha256(data) for name, data in archives.items()}), archives


@contextmanager
def serving(files: dict[str, bytes], *, missing_bytes: int = 0, refusals: int = 0) -> Iterator[str]:
    """Serve files; the address. The first requests are refused; of each file, so many bytes are never sent."""
    left = [None] * refusals

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            data = files.get(self.path.lstrip("/"))
            if data is None or left:
                self.send_error(503 if left else 404)
                del left[:1]
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) - missing_bytes])

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
