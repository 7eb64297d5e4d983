"""Ask any server that speaks the OpenAI chat protocol; limits, outages and timeouts are retried."""

from __future__ import annotations

import http.client
import json
import os
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqrtvocab.training import UserError

Message = Mapping[str, str]

_RETRIED = {408, 409, 425, 429, 500, 502, 503, 504, 529}
_LONGEST_WAIT = 60.0  # seconds


class ChatError(Exception):
    """The server gave no usable answer, however often it was asked."""


@dataclass(frozen=True)
class ChatServer:
    """Where to ask, and as whom.

    Args:
        base_url: such as https://api.openai.com/v1.
        key: sent as the bearer token.
        model: the name by which the server knows the model.
        timeout: seconds to wait for an answer.
        attempts: how often to ask before giving up.
        first_wait: seconds before the second attempt; doubled for each further one.
    """

    base_url: str
    key: str
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
        problem = ""
        for attempt in range(self.attempts):
            wait = min(_LONGEST_WAIT, self.first_wait * 2**attempt) * random.uniform(0.5, 1.0)
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    return _content(json.loads(response.read()))
            except urllib.error.HTTPError as error:
                with error:
                    detail = " ".join(error.read(500).decode("utf-8", "replace").split())
                if error.code not in _RETRIED:
                    raise UserError(
                        f"{self.base_url} refuses (HTTP {error.code}) model {self.model!r}: {detail[:200]}; "
                        "check OPENAI_BASE_URL, OPENAI_API_KEY and --model"
                    ) from error
                problem = f"HTTP {error.code}"
                wait = _seconds(error.headers.get("Retry-After")) or wait
            except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
                problem = f"{getattr(error, 'reason', None) or error or type(error).__name__}"
            except ValueError as error:  # no JSON, or not the protocol's
                problem = f"an answer that is not the protocol's ({error})"
            if attempt + 1 < self.attempts:
                time.sleep(min(wait, _LONGEST_WAIT))
        raise ChatError(f"{self.base_url}: {problem} after {self.attempts} attempts")


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
