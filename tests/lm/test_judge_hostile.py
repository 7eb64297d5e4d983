"""The judge's server is not trusted: where it leads, what it repeats, how much and how slowly it answers."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lm.judge import chat
from lm.judge.chat import ChatError, ChatServer
from lm.judge.grade import Journal, judge_all, parse, summarise
from sqrtvocab.training import UserError

KEY = "sk-a-secret-that-stays-here"
ANSWER = json.dumps({"choices": [{"message": {"content": "A fine story."}}]}).encode()


@pytest.fixture
def serve():
    """`serve(answer)` starts a server whose every POST is answered by `answer(handler)`; returns its address
    and the list of requests' headers."""
    servers = []

    def start(answer):
        seen = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                seen.append(dict(self.headers))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client lost patience
                    answer(self)

            do_GET = do_POST  # noqa: N815  (what a redirected POST becomes)

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/v1", seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def send(code, body=b"", **headers):
    def answer(handler):
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def ask(address, **options):
    return ChatServer(
        address, KEY, "m", **{"timeout": 5.0, "attempts": 2, "first_wait": 0.01, **options}
    ).ask([])


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_the_key_goes_to_no_other_host(serve, code):
    other, seen_by_other = serve(send(200, ANSWER))
    address, seen = serve(send(code, Location=f"{other}/chat/completions"))
    with pytest.raises(UserError, match=rf"sends us elsewhere \(HTTP {code}\).*OPENAI_BASE_URL"):
        ask(address)
    assert [headers["Authorization"] for headers in seen] == [f"Bearer {KEY}"]
    assert seen_by_other == []


@pytest.mark.parametrize("before", ["", "x" * 190])  # a message is cut at 200 characters
def test_a_key_that_is_repeated_is_not_printed(serve, before):
    address, _ = serve(send(401, json.dumps({"error": f"{before} wrong key: {KEY}!"}).encode()))
    with pytest.raises(UserError, match=r"refuses \(HTTP 401\)") as error:
        ask(address)
    assert KEY[:8] not in str(error.value)
    assert before or "wrong key: ***!" in str(error.value)


def test_a_key_that_is_repeated_is_not_kept(serve, tmp_path):
    content = f"I was asked by {KEY}."
    address, _ = serve(send(200, json.dumps({"choices": [{"message": {"content": content}}]}).encode()))
    assert ask(address) == "I was asked by ***."
    journal = Journal(tmp_path / "j.jsonl", {"run": "r"})
    journal.add({"number": 0, "opening": "", "continuation": "x"})
    judge_all(ChatServer(address, KEY, "m", first_wait=0.01), journal, 1)
    journal.close()
    assert "***" in (tmp_path / "j.jsonl").read_text()
    assert KEY not in (tmp_path / "j.jsonl").read_text()


def test_a_password_in_the_address_is_not_printed():
    with pytest.raises(ChatError) as error:
        ask("http://me:password@127.0.0.1:9/v1")
    assert "password" not in str(error.value)
    assert "http://127.0.0.1:9/v1" in str(error.value)
    assert KEY not in repr(ChatServer("http://a", KEY, "m"))


def drip_body(handler):
    handler.send_response(200)
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b" ")
        time.sleep(0.1)


def drip_headers(handler):
    handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Slow: ")
    for _ in range(200):
        handler.wfile.write(b"x")
        time.sleep(0.1)


def drip_error(handler):
    handler.send_response(500)
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b" ")
        time.sleep(0.1)


@pytest.mark.parametrize("drip", [drip_body, drip_headers, drip_error])
def test_the_timeout_is_for_the_whole_answer(serve, drip):
    address, seen = serve(drip)
    began = time.monotonic()
    with pytest.raises(ChatError, match=r"no whole answer within 0\.5 s after 2 attempts"):
        ask(address, timeout=0.5)
    assert time.monotonic() - began < 5  # two attempts of half a second each; a drop falls every 0.1 s
    assert len(seen) == 2


def test_a_timeout_beyond_all_clocks(serve):
    address, _ = serve(send(200, ANSWER))
    assert ask(address, timeout=1e300) == "A fine story."


def test_an_endless_answer_is_cut(serve, monkeypatch):
    sent = []

    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1000):
            sent.append(handler.wfile.write(b"x" * 65536))

    monkeypatch.setattr(chat, "_LARGEST_ANSWER", 1 << 20)
    address, _ = serve(endless)
    with pytest.raises(ChatError, match=r"not the protocol's \(more than 1,048,576 bytes\)"):
        ask(address, attempts=1)
    time.sleep(0.2)
    assert sum(sent) < 32 << 20  # what the sockets hold besides


DEEP = "[" * 100_000


def test_deep_json_is_no_answer(serve):
    address, _ = serve(send(200, DEEP.encode()))
    with pytest.raises(ChatError, match=r"not the protocol's \(nested too deeply\)"):
        ask(address, attempts=1)


def test_deep_json_in_an_answer_is_kept_and_breaks_nothing(serve, tmp_path):
    address, _ = serve(send(200, json.dumps({"choices": [{"message": {"content": DEEP}}]}).encode()))
    assert parse(DEEP) is None
    for _ in range(2):  # the first call keeps it, the second reads it
        journal = Journal(tmp_path / "j.jsonl", {"run": "r"})
        journal.add({"number": 0, "opening": "", "continuation": "x"})
        assert judge_all(ChatServer(address, KEY, "m", first_wait=0.01), journal, 1) == []
        assert summarise(list(journal.items.values())).valid == 0
        journal.close()


# ---- the journal


def test_two_judges_do_not_share_a_file(tmp_path, forked):
    journal = Journal(tmp_path / "j.jsonl", {"run": "r"})

    def main() -> int:
        Journal(tmp_path / "j.jsonl", {"run": "r"})
        return 0

    result = forked(main, [], tmp_path, {}).wait()
    assert "j.jsonl: another judge_lm is writing to it; wait for it" in result.err
    journal.close()
    assert forked(main, [], tmp_path, {}).wait().code == 0


def test_a_changed_answer_is_named_and_asked_for_again(tmp_path, capsys):
    path = tmp_path / "j.jsonl"
    journal = Journal(path, {"run": "r"})
    journal.add({"number": 0, "opening": "", "continuation": "x"})
    journal.add({"number": 0, "assessment": "Fine."})
    journal.add({"number": 0, "grade": '{"plot": 7}'})
    journal.close()
    path.write_bytes(path.read_bytes().replace(b": 7}", b": 8}"))
    (item,) = Journal(path, {"run": "r"}).items.values()
    assert (item.assessment, item.grades) == ("Fine.", [])
    assert f"WARNING: {path}: damaged and asked for again: line 4" in capsys.readouterr().err
    path.write_bytes(path.read_bytes().replace(b'"run": "r"', b'"run": "q"'))
    with pytest.raises(UserError, match=r"line 1, the settings, is damaged; name another file"):
        Journal(path, {"run": "r"})
