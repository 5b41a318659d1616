"""Webhooks: notices of a run's end, their content, delivery and retries.

A notice is a reply like any other, stored with the run's end in one commit and delivered by the outbox: at
least once, each time with the same ``Idempotency-Key``. The run's values are read when the notice is sent.
The URL may contain a secret: it is never in a log or an error.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx

from perdure.config.settings import SETTINGS
from perdure.config.sources import read_environment, value_of
from perdure.model.records import Partition
from perdure.model.runs.messages import FAILED, INTERRUPTED, READY, SENDING, Reply
from perdure.runtime import Channel, NotSent, Runtime, Settings, Undeliverable
from perdure.runtime.json_encoding import to_json
from perdure.runtime.options import CLOSED, WEBHOOK
from perdure.server import responses
from perdure.server.config import Http
from perdure.server.resources import Caller
from perdure.server.runs.outbound_policy import OutboundPolicy, Unreachable
from perdure.server.runs.run_values import values_of
from perdure.server.runs.webhook_signature import sign

IDEMPOTENCY_KEY = "Idempotency-Key"

_ATTEMPTS = 40
"""Maximum number of attempts; with the runtime's default backoff about half an hour."""
_TIMEOUT_S = 15.0
_CONNECT_S = 5.0
_RETRIED_STATUSES = (408, 429)
_PAUSE_S = (0.1, 5.0)

TASK = "perdure:task"
"""Value in place of the URL of a run of the A2A protocol: the notice goes to the receivers of its task."""


class Webhooks:
    """Sends the notices of one runtime's database, each to addresses that ``reach`` permits. The runtime
    is created with its ``channels`` and then passed to ``serve``."""

    def __init__(self, reach: OutboundPolicy, secrets: Sequence[str] = ()) -> None:
        self.reach = reach
        self._secrets = tuple(secrets)
        self._runtime: Runtime | None = None

    def channels(self, settings: Settings) -> dict[str, Channel]:
        """Return the channel of notices, for a runtime with these settings."""
        timeout = min(_TIMEOUT_S, settings.lease / 2)
        return {WEBHOOK: Channel(send_in=self._send, attempts=_ATTEMPTS, timeout=timeout)}

    def serve(self, runtime: Runtime) -> None:
        """Set the runtime from which the runs of notices are read."""
        self._runtime = runtime

    async def _send(self, partition: Partition, reply: Reply) -> None:
        if reply.payload["url"] == TASK:
            await self._send_task(partition, reply)
            return
        url, addresses = await self._find_addresses(reply.payload["url"])
        body = to_json(await self._make_notice(partition, reply)).encode()
        await self._deliver(url, addresses, body, reply.id, {})

    async def _send_task(self, partition: Partition, reply: Reply) -> None:
        """Send a task of the A2A protocol to all its receivers that do not have this notice yet,
        concurrently, so that an unresponsive receiver does not delay the others."""
        try:
            from perdure.server.a2a import push
        except ModuleNotFoundError as error:
            raise NotSent("push notifications of tasks need an extra: pip install 'perdure[a2a]'") from error
        if self._runtime is None:
            raise NotSent("this process is still starting")
        threads, thread_id = self._runtime.for_tenant(partition.tenant), partition.thread
        is_closed = reply.payload["state"] == CLOSED
        unsent = await push.find_unsent(threads, thread_id, reply, is_closed=is_closed)

        async def send_notice(notice: push.TaskNotice) -> None:
            refusal: Undeliverable | None = None
            try:
                url, addresses = await self._find_addresses(notice.url)
                await self._deliver(url, addresses, notice.body, reply.id, notice.headers)
            except Undeliverable as error:
                refusal = error
            if unsent.receivers > 1:
                is_refused = refusal is not None
                await push.note_outcome(threads, thread_id, reply, notice.receiver, is_refused=is_refused)
            if refusal is not None:
                raise refusal

        outcomes = await asyncio.gather(*map(send_notice, unsent.notices), return_exceptions=True)
        failed = [outcome for outcome in outcomes if outcome is not None]
        # If one receiver may still succeed, the notice is tried again; those that have it, or have refused it
        # for good, are not called again.
        retryable = next((outcome for outcome in failed if not isinstance(outcome, Undeliverable)), None)
        if retryable is not None:
            raise retryable
        if failed:
            raise failed[0]
        if unsent.was_refused:
            raise Undeliverable("another receiver of this task refused the notice for good")
        await push.forget_ended(threads, thread_id, reply.payload["run_id"])

    async def _find_addresses(self, given: str) -> tuple[httpx.URL, list[str]]:
        """Return a URL that may be called, and the addresses of its host."""
        try:
            url = self.reach.check_url(given)
            return url, await self.reach.resolve_addresses(url)
        except Unreachable as error:
            raise Undeliverable(f"the webhook's URL may not be called: {error}") from error
        except OSError as error:
            raise NotSent(f"the webhook's host is not known ({type(error).__name__})") from error

    async def _deliver(
        self,
        url: httpx.URL,
        addresses: list[str],
        body: bytes,
        notice_id: str,
        headers: Mapping[str, str],
    ) -> None:
        # The receiver compares the time of the signature with its own clock: take this host's, not the
        # database's.
        signature = sign(self._secrets, notice_id, round(time.time()), body)
        status = await self._post(url, addresses, body, {**headers, **signature, IDEMPOTENCY_KEY: notice_id})
        if 200 <= status < 300:
            return
        if 400 <= status < 500 and status not in _RETRIED_STATUSES:
            raise Undeliverable(f"the webhook answered {status}")
        raise NotSent(f"the webhook answered {status}")

    async def _make_notice(self, partition: Partition, reply: Reply) -> dict[str, Any]:
        """Return the notice: the run as its client knows it, with its values."""
        runtime = self._runtime
        if runtime is None:
            raise NotSent("this process is still starting")
        thread_id, threads = partition.thread, runtime.for_tenant(partition.tenant)
        standing = await threads.find(thread_id, reply.payload["run_id"])
        if standing is None or standing.run is None:
            raise Undeliverable("its run was deleted before it was sent")
        state = reply.payload["state"]
        run = replace(standing.run, state=INTERRUPTED if state == CLOSED else state)
        if run.graph not in runtime.graphs:
            raise NotSent(f"this process does not serve the graph {run.graph!r}, another one may")
        notice = responses.run(standing._replace(run=run), thread_id)
        notice["status"] = notice["status"] or "rollback"
        notice["run_started_at"] = responses.format_time(run.started_at)
        notice["run_ended_at"] = responses.format_time(run.updated_at)
        if run.state == FAILED:
            notice["error"] = responses.run_error(run)["message"]
        notice["values"] = await values_of(threads, thread_id, run)
        notice["webhook_sent_at"] = responses.format_time(await runtime.now())
        return notice

    async def _post(
        self, url: httpx.URL, addresses: list[str], body: bytes, headers: Mapping[str, str]
    ) -> int:
        """Send a notice and return the response's status. Nothing else of the response is read, no
        redirect is followed, and no proxy is used: it would resolve the name again."""
        refused: Exception | None = None
        for address in addresses:
            try:
                return await self._post_to(address, url, body, headers)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                refused = error
            except httpx.HTTPError as error:
                raise NotSent(f"the webhook did not answer ({type(error).__name__})") from error
        raise NotSent("no connection to the webhook's host") from refused

    async def _post_to(self, address: str, url: httpx.URL, body: bytes, headers: Mapping[str, str]) -> int:
        request = httpx.Request(
            "POST",
            url.copy_with(host=address),
            headers={
                "Host": url.netloc.decode("ascii"),
                "User-Agent": f"perdure/{version('perdure')}",
                "Content-Type": "application/json",
                "Accept": "*/*",
                **headers,
            },
            content=body,
            extensions={
                "timeout": httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S).as_dict(),
                "sni_hostname": url.raw_host.decode("ascii").removesuffix("."),
            },
        )
        # A new connection each time: a pooled one might belong to the previous host at this address. No
        # httpx client, as that logs URLs.
        async with httpx.AsyncHTTPTransport(verify=self._trust, trust_env=False) as transport:
            answer = await transport.handle_async_request(request)
            await answer.aclose()
            return answer.status_code

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        return httpx.create_ssl_context()


async def wait_for_delivery(caller: Caller, thread_id: str, run_id: str) -> bool:
    """Wait until a run's notice was sent or given up.

    Args:
        caller: the authenticated user of the request.
        thread_id: the thread.
        run_id: the run.

    Returns:
        True if the notice is no longer pending, False if the server stopped first.
    """
    pause, longest = _PAUSE_S
    closing = caller.host.closing
    while not closing.is_set():
        replies = await caller.runtime.replies(thread_id)
        notices = [reply for reply in replies if reply.run_id == run_id]
        # A run cancelled before it began has no notice yet; it gets one when its turn comes.
        is_coming = notices or await caller.runtime.find(thread_id, run_id)
        if not is_coming or (notices and all(notice.state not in (READY, SENDING) for notice in notices)):
            return True
        try:
            async with asyncio.timeout(pause):
                await closing.wait()
        except TimeoutError:
            pause = min(longest, pause * 1.5)
    return False


def webhooks(http: Http, *, development: bool) -> Webhooks | None:
    """Return the webhooks of a configuration, None if they are disabled."""
    if http.disable_webhooks:
        return None
    return Webhooks(OutboundPolicy.of(http.webhook_hosts, loopback=development), http.webhook_secrets)


def of_variables(environ: Mapping[str, str]) -> Webhooks | None:
    """Return the webhooks of a process that is configured by environment variables alone. ``BadSetting``
    if one of them cannot be used."""
    values = read_environment(environ, {}, Path()).entries
    keys = ("http.webhook_hosts", "http.webhook_secrets", "http.disable_webhooks", "development")
    allowed, secrets, is_disabled, is_development = (
        value_of(SETTINGS[key], values[key]) if key in values else SETTINGS[key].default for key in keys
    )
    http = Http(webhook_hosts=allowed, webhook_secrets=secrets, disable_webhooks=is_disabled)
    return webhooks(http, development=is_development)
