"""A server that answers requests for TinyStories as the hub does: `fake_hub.py LOG` prints its address."""

import hashlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FILES = {
    "TinyStories-train.txt": b"One.\n<|endoftext|>\nTwo.\n<|endoftext|>\nThree.\n<|endoftext|>\n",
    "TinyStories-valid.txt": b"Four.\n<|endoftext|>\nFive.\n<|endoftext|>\n",
}


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        name = self.path.split("?")[0].rpartition("/")[2]
        with open(sys.argv[1], "a") as log:
            log.write(f"{self.command} {name}\n")
        content = FILES.get(name)
        self.send_response(404 if content is None else 200)
        if content is not None:
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if body and content:
            self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
