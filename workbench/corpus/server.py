"""Responses from a server that speaks the OpenAI protocol (vLLM, SGLang): many requests at once, with retries.

Prompts go out as token ids, rendered here, so that the server's own chat template cannot differ from the pinned one.
"""

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from workbench.errors import WorkbenchError
from workbench.recipe import CorpusOptions

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable with the server's key, if it wants one."""
RETRY_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Waits before the second to sixth try of a request."""
_TIMEOUT_S = 600.0  # a long response on a busy server
_WORTH_RETRYING = {408, 409, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Server:
    """A server and the model that it serves."""

    url: str
    """Base URL, ends with /v1."""
    model: str
    """Name under which the server knows the model."""
    encode: Callable[[str], list[int]]
    """Tokenizes a response, for servers that send no token ids."""
    stop_ids: frozenset[int]
    eos_id: int
    """Ends a response that the server says has stopped."""

    def respond(
        self,
        prompt_ids: Sequence[Sequence[int]],
        options: CorpusOptions,
        seed: int,
        on_finished: Callable[[int, int], None],
    ) -> list[list[int]]:
        """Responses to prompts in their order; `corpus.batch_size` requests run at once.

        Raises:
            WorkbenchError: the server refuses a request, or does not answer after all retries.
        """
        responses: list[list[int]] = [[] for _ in prompt_ids]
        with ThreadPoolExecutor(options.batch_size) as executor:
            futures = {
                executor.submit(self._respond, ids, options, seed + index): index
                for index, ids in enumerate(prompt_ids)
            }
            try:
                for future in as_completed(futures):
                    response = future.result()
                    responses[futures[future]] = response
                    on_finished(1, len(response))
            except BaseException:
                executor.shutdown(wait=False, cancel_futures=True)
                raise
        return responses

    def _respond(self, prompt_ids: Sequence[int], options: CorpusOptions, seed: int) -> list[int]:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(prompt_ids),
            "max_tokens": options.max_new_tokens,
            "temperature": options.temperature,
            "top_p": float(options.top_p),
            "seed": seed,
            "return_token_ids": True,  # vLLM sends them then; others ignore it
        }
        if options.top_k:
            body["top_k"] = options.top_k
        answer = _request(f"{self.url}/completions", body, RETRY_PAUSES_S)
        try:
            choice = answer["choices"][0]
            token_ids = list(choice.get("token_ids") or self.encode(choice["text"]))
            has_stopped = choice["finish_reason"] == "stop"
        except (KeyError, IndexError, TypeError) as error:
            raise WorkbenchError(f"corpus.server {self.url} sent no completion: {json.dumps(answer)[:200]}") from error
        return finish(token_ids, has_stopped, options.max_new_tokens, self.stop_ids, self.eos_id)


def connect(url: str, name: str, **tokenizer: Any) -> Server:
    """Asks a server what it serves.

    Args:
        url: Base URL, with or without /v1.
        name: Of the target; the server must know it unless it serves a single model.
        tokenizer: The other fields of `Server`.

    Raises:
        WorkbenchError: it cannot be reached, or serves other models.
    """
    base = url.rstrip("/")
    base = base if base.endswith("/v1") else f"{base}/v1"
    served = [entry["id"] for entry in _request(f"{base}/models", None, RETRY_PAUSES_S[:1]).get("data", [])]
    if name not in served and len(served) != 1:
        raise WorkbenchError(f"corpus.server {url} serves {', '.join(served) or 'nothing'}, not target.model {name}")
    return Server(base, name if name in served else served[0], **tokenizer)


def finish(
    token_ids: list[int], has_stopped: bool, max_new_tokens: int, stop_ids: frozenset[int], eos_id: int
) -> list[int]:
    """A response as the local target would have written it: up to its first stop token, or cut."""
    for place, token_id in enumerate(token_ids):
        if token_id in stop_ids:
            return token_ids[: place + 1][:max_new_tokens]
    return ([*token_ids, eos_id] if has_stopped else token_ids)[:max_new_tokens]


def _request(url: str, body: dict[str, Any] | None, pauses_s: Sequence[float]) -> Any:
    """JSON from a server; tries again after each of the pauses where that may help."""
    headers = {"Content-Type": "application/json"}
    if os.environ.get(KEY_VARIABLE):
        headers["Authorization"] = f"Bearer {os.environ[KEY_VARIABLE]}"
    data = None if body is None else json.dumps(body).encode()
    reason = ""
    for pause_s in (*pauses_s, None):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=_TIMEOUT_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code}: {' '.join(error.read(300).decode(errors='replace').split())}"
            if error.code not in _WORTH_RETRYING:
                raise WorkbenchError(f"corpus.server {url} refuses the request: {reason}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        except ValueError as error:
            raise WorkbenchError(f"corpus.server {url} does not speak the OpenAI protocol: {error}") from error
        if pause_s is not None:
            time.sleep(pause_s)
    raise WorkbenchError(
        f"corpus.server {url} does not answer ({reason}); what is written is kept, the same command continues"
    )
