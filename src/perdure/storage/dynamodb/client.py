"""Calls to DynamoDB: the table of a URL, the retries, and the meaning of each failure.

Every request that can be repeated without harm is repeated: after throttling, conflicts between transactions
and missing answers. Pauses are random below a doubling bound. The client's exceptions are translated here
only.
"""

from __future__ import annotations

import random
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from boto3.session import Session
from botocore import exceptions as aws
from botocore.config import Config
from botocore.parsers import ResponseParserError
from botocore.session import Session as Core

from perdure.errors import BadUrl, MigrationRequired, PerdureError, TooLarge, Unavailable
from perdure.storage.dynamodb.clock import ServiceClock
from perdure.storage.outage import PATIENCE_S, Outage, patience_of
from perdure.storage.url import redact

PATIENCE = 30.0
"""Seconds after which a request that the service refused for a while, as throttled or in conflict, is given
up. A transaction's token is valid for ten minutes, so a transaction that is repeated is applied once."""

_WRITES = {"transact_write_items", "batch_write_item", "put_item", "update_item", "delete_item"}
_FIRST_WAIT = 0.02
_LONGEST_WAIT = 2.0
_CONNECTIONS = 64
_CONNECT_S = 3
_ANSWER_MOST_S = 15
"""Maximum seconds for which an answer is waited for, even if the URL's patience is longer."""
_FORM = "dynamodb://table?region=eu-central-1, with &endpoint=http://127.0.0.1:8000 for an emulator"
_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")

_REPEATABLE = frozenset(
    "InternalServerError InternalFailure LimitExceededException ProvisionedThroughputExceededException"
    " ReplicatedWriteConflictException RequestLimitExceeded RequestTimeout RequestTimeoutException"
    " ServiceUnavailable ThrottledException Throttling ThrottlingException TransactionConflictException"
    " TransactionInProgressException".split()
)
_REPEATABLE_REASONS = frozenset(
    "TransactionConflict ThrottlingError ProvisionedThroughputExceeded RequestLimitExceeded None".split()
)
_REFUSED_KEYS = frozenset(
    "AccessDeniedException ExpiredToken ExpiredTokenException IncompleteSignatureException"
    " InvalidClientTokenId InvalidSignatureException MissingAuthenticationTokenException"
    " SignatureDoesNotMatch UnrecognizedClientException".split()
)
_NO_ANSWER = (aws.ConnectionError, aws.HTTPClientError, aws.IncompleteReadError, ResponseParserError)


@dataclass(frozen=True, slots=True)
class DynamoUrl:
    """The table of a URL."""

    url: str
    table: str
    region: str | None
    endpoint: str | None
    patience: float = PATIENCE_S

    def __str__(self) -> str:
        return f"the DynamoDB table {self.table!r}" + (f" in {self.region}" if self.region else "")


class ConditionFailed(Exception):
    """A condition did not hold, or something that was to be created exists already. For a transaction,
    ``reasons`` has one entry for each action."""

    def __init__(self, reasons: Sequence[Any] = ()) -> None:
        super().__init__("a condition did not hold")
        self.reasons = reasons


class Unanswered(Unavailable):
    """A request was given up, and an attempt at it may have been carried out."""


class Malformed(Unavailable):
    """The service rejected the form of a request: the table differs from the expected one."""


def target_of(url: str) -> DynamoUrl:
    """Return the table of a URL; raise ``BadUrl`` if it names none."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise BadUrl(
            f"{redact(url)}: a DynamoDB URL holds no keys; remove what stands before the @ and put them "
            "where the AWS tools look: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
        )
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(given) - {"region", "endpoint", "patience"}):
        raise BadUrl(f"{redact(url)}: unknown parameter {', '.join(unknown)}; write {_FORM}")
    if not _NAME.fullmatch(parts.netloc) or parts.path.strip("/"):
        raise BadUrl(
            f"{redact(url)}: a table's name has 3 to 255 letters, digits, '_', '-' or '.'; write {_FORM}"
        )
    endpoint = given.get("endpoint")
    if endpoint is not None and not _is_http(endpoint):
        raise BadUrl(f"{redact(url)}: the endpoint has to start with http:// or https://; write {_FORM}")
    patience = patience_of(redact(url), given.get("patience"))
    return DynamoUrl(url, parts.netloc, given.get("region") or None, endpoint, patience)


def _is_http(endpoint: str) -> bool:
    try:
        return urlsplit(endpoint).scheme in ("http", "https")
    except ValueError:
        return False


class Client:
    """A table behind the low-level client. Calls may come from many OS threads."""

    def __init__(self, target: DynamoUrl) -> None:
        self.target = target
        self.patience = PATIENCE
        self.outage = Outage(target.patience)
        self.clock = ServiceClock()
        config = Config(
            # All names and values are built by this package, and are valid.
            parameter_validation=False,
            connect_timeout=_CONNECT_S,
            read_timeout=min(_ANSWER_MOST_S, self.outage.silence_s),
            max_pool_connections=_CONNECTIONS,
            retries={"total_max_attempts": 1, "mode": "standard"},
            user_agent_extra="perdure",
        )
        try:
            core = Core()
            core.register_component("data_loader", _load_models())
            session = Session(region_name=target.region, botocore_session=core)
            self.boto: Any = session.client("dynamodb", endpoint_url=target.endpoint, config=config)
        except (aws.BotoCoreError, ValueError) as error:
            raise self._translate(error) from error

    @property
    def table(self) -> str:
        return self.target.table

    def call(self, operation: str, *, patience: float | None = None, **parameters: Any) -> dict[str, Any]:
        """Make a request and return its answer, with retries where they help. A service that does not answer
        is waited for no longer than the patience of the URL.

        Args:
            operation: The client's method.
            patience: Maximum seconds for retries of requests that the service refuses for a while, by default
                the client's.
            **parameters: The parameters of the operation.

        Raises:
            ConditionFailed: A condition did not hold.
            Unanswered: A write may have been carried out.
            PerdureError: Any other failure.
        """
        if (failure := self.outage.get_current_failure()) is not None:
            raise self._translate(failure) from failure
        method = getattr(self.boto, operation)
        end = time.monotonic() + (patience or self.patience)
        bound = _FIRST_WAIT
        lost = False
        while True:
            began, asked = time.monotonic(), self.clock.start_request()
            try:
                answer: dict[str, Any] = method(**parameters)
            except (aws.ClientError, aws.BotoCoreError, ResponseParserError) as error:
                if (
                    isinstance(error, aws.ClientError)
                    and (failed := _find_failed_condition(error)) is not None
                ):
                    raise failed from error
                lost = lost or _is_lost(error)
                if isinstance(error, _NO_ANSWER):
                    end = min(end, self.outage.note(error, began))
                pause = random.uniform(bound / 4, bound)  # noqa: S311 - spreads repetitions
                if not _is_repeatable(error) or time.monotonic() + pause > end:
                    raised = self._translate(error, lost=lost)
                    if lost and operation in _WRITES and not isinstance(raised, Unanswered):
                        # An earlier attempt may have been carried out, even if this one was refused.
                        raised = Unanswered(f"{raised}. Whether the last write was stored is not known")
                    raise raised from error
                time.sleep(pause)
                bound = min(2 * bound, _LONGEST_WAIT)
            else:
                self.outage.end()
                self.clock.note_answer(asked, answer["ResponseMetadata"]["HTTPHeaders"].get("date"))
                return answer

    def request_batch(self, operation: str, requests: Any, field: str) -> list[dict[str, Any]]:
        """Make a batch request and return its items; repeat it for requests that were not processed.

        Args:
            operation: The client's method.
            requests: The requests for the table.
            field: The answer's field of unprocessed requests.
        """
        out: list[dict[str, Any]] = []
        end = time.monotonic() + self.patience
        bound = _FIRST_WAIT
        parameters: Any = {self.table: requests}
        while parameters:
            answer = self.call(operation, RequestItems=parameters)
            found = answer.get("Responses", {}).get(self.table, ())
            out.extend(found)
            left = answer.get(field) or {}
            if left and _count(left[self.table]) == _count(parameters[self.table]):
                if time.monotonic() > end:
                    raise Unavailable(f"{self.target} is throttled; try again later or raise its capacity")
                time.sleep(random.uniform(0, bound))  # noqa: S311 - spreads repetitions
                bound = min(2 * bound, _LONGEST_WAIT)
            parameters = left
        return out

    def _translate(self, error: Exception, *, lost: bool = False) -> PerdureError:
        where = self.target
        if isinstance(error, aws.NoRegionError):
            return BadUrl(
                f"{redact(where.url)}: no AWS region is known; add ?region=eu-central-1 or the like, or "
                "set AWS_REGION"
            )
        if isinstance(
            error, aws.NoCredentialsError | aws.PartialCredentialsError | aws.CredentialRetrievalError
        ):
            return Unavailable(
                f"{where}: no AWS credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "configure a profile, or run where a role is attached"
            )
        if isinstance(error, aws.ProfileNotFound):
            return Unavailable(
                f"{where}: AWS_PROFILE names a profile that does not exist; correct or unset it"
            )
        if isinstance(error, aws.ClientError):
            return self._to_error(error, lost=lost)
        if isinstance(error, _NO_ANSWER):
            at = "its public endpoint"
            if where.endpoint:
                at = redact(where.endpoint)
            return _give_up_error(
                f"{where} does not answer at {at}; check the region, the endpoint and the network", lost=lost
            )
        return BadUrl(f"{redact(where.url)} cannot be used ({type(error).__name__}); write {_FORM}")

    def _to_error(self, error: aws.ClientError, *, lost: bool) -> PerdureError:
        where = self.target
        code = str(error.response.get("Error", {}).get("Code", ""))
        message = str(error.response.get("Error", {}).get("Message", ""))
        cancelled = error.response.get("CancellationReasons") or ()
        reasons = [str(r.get("Code")) for r in cancelled]
        message += " ".join(str(r.get("Message") or "") for r in cancelled)
        if code == "ResourceNotFoundException":
            return MigrationRequired(
                f"{where} does not exist; check its name and region, or create it: "
                f"perdure migrate --db {shlex.quote(redact_target(where))}"
            )
        if code in _REFUSED_KEYS:
            return Unavailable(
                f"{where}: AWS refused the credentials or what they may do ({code}); check the keys, the "
                "role and its policy"
            )
        if "ItemCollectionSizeLimitExceeded" in code or "ItemCollectionSizeLimitExceeded" in reasons:
            return TooLarge(f"{where}: a thread passes 10 GB; prune it")
        if code == "ValidationException" or "ValidationError" in reasons:
            if re.search(r"(?i)size|exceed|limit|number|magnitude", message + str(reasons)):
                return TooLarge(
                    f"{where}: a value passes what DynamoDB takes in one item or transaction; nothing of "
                    "this write was stored"
                )
            return Malformed(
                f"{where} refused a request as malformed; compare the table with what is needed: "
                f"perdure migrate --check --db {shlex.quote(redact_target(where))}"
            )
        if code in _REPEATABLE or reasons:
            what = ", ".join(sorted({code, *reasons} - {"None"}))
            return _give_up_error(f"{where} is throttled or contended ({what}); try again later", lost=lost)
        return _give_up_error(f"{where}: DynamoDB failed with {code}; try again later", lost=lost)


def _give_up_error(message: str, *, lost: bool) -> Unavailable:
    if lost:
        return Unanswered(f"{message}. Whether the last write was stored is not known")
    return Unavailable(f"{message}. Nothing of this write was stored")


def redact_target(target: DynamoUrl) -> str:
    """Return the URL, rebuilt from those of its parts that hold no secret."""
    endpoint = redact(target.endpoint) if target.endpoint else None
    given = (("region", target.region), ("endpoint", endpoint))
    query = [f"{k}={v}" for k, v in given if v]
    return f"dynamodb://{target.table}" + ("?" + "&".join(query) if query else "")


@cache
def _load_models() -> Any:
    """Return the descriptions of the service, read from disk once a process; credentials are not cached."""
    return Core().get_component("data_loader")


def _count(requests: Any) -> int:
    return len(requests["Keys"] if isinstance(requests, dict) else requests)


def _find_failed_condition(error: aws.ClientError) -> ConditionFailed | None:
    code = error.response.get("Error", {}).get("Code")
    if code in ("ConditionalCheckFailedException", "ResourceInUseException"):
        return ConditionFailed()
    reasons = error.response.get("CancellationReasons") or ()
    if any(reason.get("Code") == "ConditionalCheckFailed" for reason in reasons):
        return ConditionFailed(reasons)
    return None


def _read_status(error: aws.ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _is_repeatable(error: Exception) -> bool:
    if not isinstance(error, aws.ClientError):
        return isinstance(error, _NO_ANSWER) and not isinstance(error, aws.SSLError)
    if error.response.get("Error", {}).get("Code") == "TransactionCanceledException":
        reasons = error.response.get("CancellationReasons") or ()
        return all(reason.get("Code", "None") in _REPEATABLE_REASONS for reason in reasons)
    return error.response.get("Error", {}).get("Code") in _REPEATABLE or _read_status(error) >= 500


def _is_lost(error: Exception) -> bool:
    """Return True if the request may have been carried out although it failed."""
    if isinstance(error, aws.ClientError):
        return _read_status(error) >= 500
    # TLS can also fail while an answer is read.
    return isinstance(error, aws.SSLError) or not isinstance(error, aws.ConnectionError)
