"""A server that answers as the hub does: `fake_hub.py LOG` prints its address.

It has TinyStories, and takes and gives back the files of one model, whose names it keeps without folders.
"""

import base64
import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FILES = {
    "TinyStories-train.txt": b"One.\n<|endoftext|>\nTwo.\n<|endoftext|>\nThree.\n<|endoftext|>\n",
    "TinyStories-valid.txt": b"Four.\n<|endoftext|>\nFive.\n<|endoftext|>\n",
}
COMMIT = "0" * 40


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.note()
        action = self.path.split("?")[0].split("/")
        reply: dict[str, object] = {}
        if "create" in action:
            asked = json.loads(sent)
            owner = asked.get("organization") or "me"
            reply = {"url": f"http://127.0.0.1:{server.server_port}/{owner}/{asked['name']}"}
        elif "preupload" in action:  # every file comes with the commit
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(sent)["files"]]
            reply = {"files": [{**file, "shouldIgnore": False, "oid": None} for file in files]}
        elif "commit" in action:
            for line in map(json.loads, sent.splitlines()):
                if line["key"] == "file":
                    name = line["value"]["path"].rpartition("/")[2]
                    FILES[name] = base64.b64decode(line["value"]["content"])
            address = f"http://127.0.0.1:{server.server_port}/commit/{COMMIT}"
            reply = {"commitUrl": address, "commitOid": COMMIT, "hookOutput": "", "success": True}
        self.send(200, json.dumps(reply).encode(), body=True)

    def answer(self, body: bool) -> None:
        self.note()
        path = self.path.split("?")[0]
        name = path.rpartition("/")[2]
        if path.startswith("/api/"):
            files = [{"rfilename": name} for name in FILES]
            self.send(200, json.dumps({"id": "me/model", "sha": COMMIT, "siblings": files}).encode(), body)
        elif name in FILES:
            self.send(200, FILES[name], body)
        else:
            self.send(404, b"", body)

    def send(self, code: int, content: bytes, body: bool) -> None:
        self.send_response(code)
        if code == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
        else:
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Accept-Ranges", "bytes")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def note(self) -> None:
        with open(sys.argv[1], "a") as log:
            log.write(f"{self.command} {self.path.split('?')[0].rpartition('/')[2]}\n")

    def log_message(self, *args: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
