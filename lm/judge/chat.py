"""Ask any server that speaks the OpenAI chat protocol; limits, outages and timeouts are retried.

The server is not trusted: the key goes to no other host and into no message, and an answer has a limit in
time and in size.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import random
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqrtvocab.atomic import parse_json
from sqrtvocab.training import UserError

Message = Mapping[str, str]

_RETRIED = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_LONGEST_WAIT = 60.0  # seconds
_LONGEST_TIMEOUT = 1e6  # seconds; what the system's clocks can hold
_LARGEST_ANSWER = 4 << 20  # bytes; a long one has some thousands
_SHORTEST_SECRET = 6  # characters of a key that is one: any server at home takes "x"


class ChatError(Exception):
    """The server gave no usable answer, however often it was asked."""


@dataclass(frozen=True)
class ChatServer:
    """Where to ask, and as whom.

    Args:
        base_url: such as https://api.openai.com/v1.
        key: sent as the bearer token.
        model: the name by which the server knows the model.
        timeout: seconds to wait for an answer, to its last byte.
        attempts: how often to ask before giving up.
        first_wait: seconds before the second attempt; doubled for each further one.
    """

    base_url: str
    key: str = field(repr=False)
    model: str
    timeout: float = 60.0
    attempts: int = 6
    first_wait: float = 1.0

    def ask(self, messages: Sequence[Message]) -> str:
        """The server's answer to a conversation.

        Raises:
            ChatError: no answer after all attempts.
            UserError: the server refuses the key, the model or the address: asking again would not help.
        """
        body = json.dumps({"model": self.model, "messages": list(messages)}).encode()
        request = urllib.request.Request(
            f"{self.base_url.rstrip('/')}/chat/completions",
            body,
            {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"},
        )
        timeout = min(self.timeout, _LONGEST_TIMEOUT)
        problem = ""
        for attempt in range(self.attempts):
            wait = min(_LONGEST_WAIT, self.first_wait * 2**attempt) * random.uniform(0.5, 1.0)
            try:
                reply = _within(timeout, lambda: _exchange(request, timeout))
                if reply.code in range(300, 400):
                    raise UserError(
                        f"{self._place} sends us elsewhere (HTTP {reply.code}), where the key must not go; "
                        "set OPENAI_BASE_URL to the address itself"
                    )
                if reply.code in range(200, 300):
                    return self._masked(_content(parse_json(reply.body)))
                if reply.code not in _RETRIED:
                    detail = " ".join(reply.body.decode("utf-8", "replace").split())
                    raise UserError(
                        f"{self._place} refuses (HTTP {reply.code}) model {self.model!r}: "
                        f"{self._masked(detail)[:200]}; check OPENAI_BASE_URL, OPENAI_API_KEY and --model"
                    )
                problem = f"HTTP {reply.code}"
                wait = _seconds(reply.retry_after) or wait
            except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
                problem = f"{getattr(error, 'reason', None) or error or type(error).__name__}"
            except ValueError as error:  # no JSON, or not the protocol's
                problem = f"an answer that is not the protocol's ({error})"
            if attempt + 1 < self.attempts:
                time.sleep(min(wait, _LONGEST_WAIT))
        raise ChatError(f"{self._place}: {self._masked(problem)} after {self.attempts} attempts")

    @property
    def _place(self) -> str:
        """The address as it may be shown: one may hold a password."""
        scheme, _, rest = self._masked(self.base_url).partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"

    def _masked(self, text: str) -> str:
        """What the server says, without the key: it may be repeated in what is printed or kept."""
        return text.replace(self.key, "***") if len(self.key) >= _SHORTEST_SECRET else text


class _Reply(NamedTuple):
    code: int
    body: bytes
    retry_after: str | None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """urllib takes the Authorization header along to wherever it is sent."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _exchange(request: urllib.request.Request, timeout: float) -> _Reply:
    """Send the request and read the answer; `timeout` is for each silence of the server."""
    deadline = time.monotonic() + timeout
    try:
        response = urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        response = error
    with response:
        body = bytearray()
        while chunk := response.read1(1 << 16):
            body += chunk
            if len(body) > _LARGEST_ANSWER:
                raise ValueError(f"more than {_LARGEST_ANSWER:,} bytes")
            if time.monotonic() > deadline:  # nobody waits for it any more
                raise TimeoutError
        return _Reply(response.status, bytes(body), response.headers.get("Retry-After"))


def _within(seconds: float, work: Callable[[], _Reply]) -> _Reply:
    """What `work` returns or raises.

    Raises:
        TimeoutError: it takes longer. A server that sends a byte now and then outlasts every timeout of a
            socket, so the work is done by a thread that can be left to itself.
    """
    outcome: queue.SimpleQueue[_Reply | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put(work())
        except Exception as error:  # given to the thread that waits
            outcome.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        result = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no whole answer within {seconds:g} s") from None
    if isinstance(result, Exception):
        raise result
    return result


def server_from_environment(model: str, timeout: float) -> ChatServer:
    """The server that `OPENAI_BASE_URL` and `OPENAI_API_KEY` name.

    Raises:
        UserError: if there is no key, or if one of them cannot be sent.
    """
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not key:
        raise UserError(
            "OPENAI_API_KEY is not set; export it, and OPENAI_BASE_URL for a server other than OpenAI's "
            "(a local server takes any key)"
        )
    if not (key.isascii() and key.isprintable()):  # a header could not hold it
        raise UserError("OPENAI_API_KEY: expected one line of plain ASCII characters")
    base_url = os.environ.get("OPENAI_BASE_URL", "").strip() or "https://api.openai.com/v1"
    if not _is_address(base_url):
        raise UserError(f"OPENAI_BASE_URL {base_url!r}: expected an address such as http://localhost:8000/v1")
    return ChatServer(base_url, key, model, timeout)


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # raises if it is no port
    except ValueError:
        return False
    sendable = url.isascii() and url.isprintable() and " " not in url
    return sendable and parts.scheme in ("http", "https") and bool(parts.hostname)


def _content(reply: Any) -> str:
    try:
        content = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ValueError("no choices[0].message.content") from None
    if not isinstance(content, str):
        raise ValueError("its content is no text")
    return content


def _seconds(header: str | None) -> float | None:
    try:
        return max(0.0, float(header or ""))
    except ValueError:  # none, or a date, for which our own wait serves
        return None
