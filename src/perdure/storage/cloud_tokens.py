"""Tokens of clouds as passwords: AWS IAM, Microsoft Entra and Google, by their own libraries, and functions
that a URL names.

The libraries find the identity of the process by themselves: environment, instance, workload or command line.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from perdure.errors import BadUrl, MissingExtra
from perdure.storage.credentials import Answer, Endpoint, Password, PasswordSource, source_of

Provider = Callable[[], Answer | Awaitable[Answer]]

_AWS_LIFE_S = 900
_AWS_SERVICES = {"postgresql": ("rds-db", "DBUser"), "redis": ("elasticache", "User")}
"""The name of the service, and that of the parameter with the user."""
_AZURE_SCOPES = {
    "postgresql": "https://ossrdbms-aad.database.windows.net/.default",
    "redis": "https://redis.azure.com/.default",
}
_GOOGLE_SCOPES = {
    "postgresql": "https://www.googleapis.com/auth/sqlservice.login",
    "redis": "https://www.googleapis.com/auth/cloud-platform",
}
PARAMETERS = ("credentials", "region", "cache")
"""The parameters of a URL that are read here."""
FORMS = "aws-iam, azure, google, or module:function"


def choose_source(
    kind: str,
    parameters: dict[str, str],
    endpoint: Endpoint,
    password: Password | None,
    *,
    has_password: bool,
) -> PasswordSource | None:
    """Return the source of a URL's password, ``None`` if the URL itself has it, or none is needed.

    Args:
        kind: ``postgresql`` or ``redis``.
        parameters: The URL's parameters.
        endpoint: The server and the user that the password is for.
        password: The password that the caller passed beside the URL.
        has_password: True if the URL has one.

    Raises:
        BadUrl: A parameter cannot be used, alone or with the others.
        MissingExtra: The provider's library is not installed.
    """
    named = parameters.get("credentials")
    for parameter, meaning in (("region", "AWS"), ("cache", "ElastiCache")):
        if parameter in parameters and named != "aws-iam":
            raise BadUrl(f"{endpoint.shown}: {parameter}= is for {meaning}; it needs credentials=aws-iam")
    if password is not None and named is not None:
        raise BadUrl(f"{endpoint.shown}: both password= and credentials= are given; take one out")
    if has_password and (password is not None or named is not None):
        other = "password=" if named is None else "credentials="
        raise BadUrl(f"{endpoint.shown}: the URL has a password, and {other} is given; take one out")
    if named is None:
        return source_of(password, endpoint)
    if named in _BUILDERS:
        if not endpoint.user:
            raise BadUrl(f"{endpoint.shown}: credentials={named} needs the user's name in the URL")
        if not endpoint.host or "," in endpoint.host or endpoint.host.startswith("/"):
            raise BadUrl(f"{endpoint.shown}: credentials={named} needs one host in the URL")
        provider, remedy = _BUILDERS[named](kind, parameters, endpoint)
        return PasswordSource(provider, named, endpoint, remedy)
    module, colon, name = named.partition(":")
    if not colon or not module or not name:
        raise BadUrl(f"{endpoint.shown}: credentials={named!r} is not known; use {FORMS}")
    try:
        provided: Any = import_module(module)
        for part in name.split("."):
            provided = getattr(provided, part)
    except (ImportError, AttributeError) as error:
        raise BadUrl(
            f"{endpoint.shown}: credentials={named} cannot be imported ({error}); see that the module is on "
            "Python's path and has the function"
        ) from error
    if isinstance(provided, str) or not callable(getattr(provided, "get_credentials", provided)):
        raise BadUrl(f"{endpoint.shown}: credentials={named} is not a function")
    return source_of(provided, endpoint)


def _make_aws_provider(kind: str, parameters: dict[str, str], endpoint: Endpoint) -> tuple[Provider, str]:
    try:
        from botocore.auth import SigV4QueryAuth
        from botocore.awsrequest import AWSRequest
        from botocore.session import Session
    except ImportError as error:
        raise MissingExtra('credentials=aws-iam needs an extra: pip install "perdure[dynamodb]"') from error
    # One session: it renews the credentials of a role by itself.
    session: Any = Session()
    region = parameters.get("region") or session.get_config_variable("region")
    if not region:
        raise BadUrl(f"{endpoint.shown}: credentials=aws-iam needs a region: add region=, or set AWS_REGION")
    service, user = _AWS_SERVICES[kind]
    host = parameters.get("cache", "")
    if kind == "postgresql":
        host = f"{endpoint.host}:{endpoint.port}"
    if not host:
        raise BadUrl(
            f"{endpoint.shown}: credentials=aws-iam needs the name of the cache or replication group: add "
            "cache=, e.g. cache=my-group, or cache=serverless:my-cache"
        )
    query = {"Action": "connect", user: endpoint.user}
    if host.startswith("serverless:"):
        host = host.removeprefix("serverless:")
        query["ResourceType"] = "ServerlessCache"

    def make_token() -> Answer:
        found = session.get_credentials()
        if found is None:
            raise LookupError("no credentials of AWS")
        signed_at = time.time()
        # ElastiCache demands the name in lower case.
        request = AWSRequest("GET", f"https://{host.lower()}/", params=query)
        SigV4QueryAuth(found.get_frozen_credentials(), service, region, _AWS_LIFE_S).add_auth(request)
        return str(request.url).partition("://")[2], signed_at + _AWS_LIFE_S

    return make_token, "see that the process has credentials of AWS (a role, a profile or AWS_ACCESS_KEY_ID)"


def _make_azure_provider(kind: str, parameters: dict[str, str], endpoint: Endpoint) -> tuple[Provider, str]:
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as error:
        raise MissingExtra('credentials=azure needs an extra: pip install "perdure[azure]"') from error
    credential: Any = DefaultAzureCredential()

    def make_token() -> Answer:
        found = credential.get_token(_AZURE_SCOPES[kind])
        return found.token, float(found.expires_on)

    return (
        make_token,
        "see that the process has an identity of Microsoft Entra (managed, workload, or `az login`)",
    )


def _make_google_provider(kind: str, parameters: dict[str, str], endpoint: Endpoint) -> tuple[Provider, str]:
    try:
        import google.auth
        from google.auth.transport.requests import Request
    except ImportError as error:
        raise MissingExtra('credentials=google needs an extra: pip install "perdure[google]"') from error
    default: Any = google.auth.default
    new_request: Any = Request
    credentials: list[Any] = []

    def make_token() -> Answer:
        if not credentials:
            credentials.append(default(scopes=[_GOOGLE_SCOPES[kind]])[0])
        credentials[0].refresh(new_request())
        end: datetime = credentials[0].expiry
        return credentials[0].token, end.replace(tzinfo=UTC)

    return make_token, (
        "see that the process has credentials of Google (a service account, or "
        "`gcloud auth application-default login`)"
    )


_BUILDERS: dict[str, Callable[[str, dict[str, str], Endpoint], tuple[Provider, str]]] = {
    "aws-iam": _make_aws_provider,
    "azure": _make_azure_provider,
    "google": _make_google_provider,
}
