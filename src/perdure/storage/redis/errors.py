"""Translates the Redis client's exceptions to Perdure's, each with its fix; the only place that does so."""

from __future__ import annotations

from redis import exceptions as client

from perdure.errors import BadUrl, MigrationRequired, PerdureError, TooLarge, Unavailable

_MOVING = ": the cluster is moving the slot of this thread; try again when it is done"
_TEXTS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    (
        (client.AuthenticationError, client.AuthenticationWrongNumberOfArgsError),
        " refused the user name or password; set them in the URL: redis://user:password@host:6379/0",
    ),
    (
        (client.NoPermissionError,),
        ": the user lacks a right there; it needs EVALSHA, SCRIPT LOAD, TIME and the commands of "
        "hashes, sorted sets and keys under the prefix",
    ),
    ((client.BusyLoadingError,), " is still loading its data set; try again when it is ready"),
    (
        (client.OutOfMemoryError,),
        " is out of memory; nothing of this write was stored. Raise maxmemory or remove threads",
    ),
    ((client.ReadOnlyError,), " is a replica and takes no writes; give the address of the primary"),
    (
        (client.MovedError, client.ClusterCrossSlotError),
        " is a cluster; write redis+cluster:// for redis:// in the URL",
    ),
    ((client.AskError,), _MOVING),
    (
        (client.ClusterDownError, client.TryAgainError),
        ": the cluster does not serve all its slots; look at CLUSTER INFO there",
    ),
    (
        (client.TimeoutError, TimeoutError),
        " did not answer in time; see whether the server is overloaded or paused",
    ),
    ((client.ConnectionError, OSError), " cannot be reached; check host and port, and that the server runs"),
)
"""The texts for exceptions of the client. The first that fits is used: some exceptions derive from others."""

CLIENT_ERRORS = (client.RedisError, client.RedisClusterException, OSError)
"""All exceptions that the client may raise."""

_WORDS = {
    "MISCONF": "refuses writes because its last save to disk failed; free space there and look at its log",
    "NOREPLICAS": "has too few replicas in step to take a write (min-replicas-to-write); bring them back",
    "BUSY": "is busy with a script of another client; end it with SCRIPT KILL",
    "WRONGTYPE": "holds a key of another program under this prefix; choose another with ?prefix=…",
}


def is_refusal(error: Exception) -> bool:
    """Return True if the server did not execute the request but may do so soon: it is loading, changing
    roles, or moving slots."""
    temporary = (
        client.BusyLoadingError,
        client.ReadOnlyError,
        client.ClusterDownError,
        client.TryAgainError,
    )
    return isinstance(error, temporary) or str(error).startswith("BUSY ")


def is_final(error: Exception) -> bool:
    """Return True if connecting again cannot help: the name or the password is wrong."""
    if isinstance(error, client.BusyLoadingError):
        return False
    return isinstance(error, client.ResponseError | client.AuthenticationError | client.AuthorizationError)


def translate(error: Exception, shown: str) -> PerdureError:
    """Return Perdure's error for one of the client's; ``shown`` is the URL without its secrets."""
    if isinstance(error, PerdureError):
        return error
    new = _translate_other(error, shown)
    new.__cause__ = error
    return new


def _translate_other(error: Exception, shown: str) -> PerdureError:
    if isinstance(error, TypeError):
        return BadUrl(f"{shown}: the URL has a parameter that the Redis client does not know")
    if "non local key" in str(error):
        return Unavailable(f"{shown}{_MOVING}")
    for kinds, text in _TEXTS:
        if isinstance(error, kinds):
            return Unavailable(f"{shown}{text}")
    if isinstance(error, client.ResponseError):
        return _refused_error(str(error), shown)
    return Unavailable(f"{shown}: the Redis client failed: {type(error).__name__}")


def _refused_error(text: str, shown: str) -> PerdureError:
    """Return the error for an error of the server for which the client has no class."""
    word = text.partition(" ")[0]
    if word == "MIGRATED":
        return MigrationRequired(
            f"{shown} was migrated by a newer release since this process opened it ({text}); nothing of this "
            "request was done. The process needs that release"
        )
    if word in _WORDS:
        return Unavailable(f"{shown} {_WORDS[word]}")
    if "string exceeds maximum allowed size" in text or "invalid bulk length" in text:
        return TooLarge(f"{shown}: a value passes the server's proto-max-bulk-len; raise it there")
    if "cluster support disabled" in text:
        return Unavailable(f"{shown} is not a cluster; write redis:// for redis+cluster:// in the URL")
    return Unavailable(f"{shown} refused a request: {text[:120]}")
