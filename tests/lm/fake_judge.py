"""A server that speaks the chat protocol, badly at times: `fake_judge.py LOG` prints its address.

What it does is chosen by words in the story: FLAKY answers 429 and 500 first, GARBAGE never grades in JSON,
ONCE only the second time, RANGE grades out of range, SLOW answers too late, DEAD never, and a wrong key is
refused. Requests about a CROWD are counted while they are in work.
"""

import json
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GRADES = {"grammar": 7, "creativity": 6.5, "consistency": 8, "plot": 5, "age": 6}
seen: Counter = Counter()
busy = 0
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        global busy
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        story = request["messages"][0]["content"]
        grading = len(request["messages"]) == 3
        with lock:
            busy += "CROWD" in story
            seen[story, grading] += 1
            times = seen[story, grading]
            with open(sys.argv[1], "a") as log:
                log.write(json.dumps({"path": self.path, "grading": grading, "busy": busy, **request}) + "\n")
        time.sleep(0.02)
        with lock:
            busy -= "CROWD" in story  # before the answer, which lets the client ask again
        self.react(story, grading, times)

    def react(self, story: str, grading: bool, times: int) -> None:
        if self.headers["Authorization"] != "Bearer right":
            return self.answer(401, {"error": {"message": "wrong key"}})
        if "FLAKY" in story and times == 1:
            return self.answer(429, {"error": {}}, {"Retry-After": "0.01"})
        if "FLAKY" in story and times == 2:
            return self.answer(500, {"error": {}})
        if "SLOW" in story and times == 1:
            time.sleep(1)
        if "DEAD" in story:
            return self.answer(503, {})
        if "PROTOCOL" in story and times == 1:
            return self.answer(200, {"choices": []})
        if not grading:
            return self.say("A fine story, all in all.")
        if "GARBAGE" in story or ("ONCE" in story and times == 1):
            return self.say("I would say seven out of ten.")
        if "RANGE" in story:
            return self.say(json.dumps({**GRADES, "plot": 11}))
        return self.say(json.dumps(GRADES))

    def say(self, text: str) -> None:
        self.answer(200, {"choices": [{"message": {"role": "assistant", "content": text}}]})

    def answer(self, code: int, document: object, headers: dict | None = None) -> None:
        body = json.dumps(document).encode()
        try:
            self.send_response(code)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except BrokenPipeError:
            pass  # the client has lost patience

    def log_message(self, *args: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
server.serve_forever()
