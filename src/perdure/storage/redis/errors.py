"""Translates the Redis client's exceptions to Perdure's, each with its fix; the only place that does so."""

from __future__ import annotations

from redis import exceptions as client

from perdure.errors import BadUrl, PerdureError, TooLarge, Unavailable

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
    passing = (
        client.BusyLoadingError,
        client.ReadOnlyError,
        client.ClusterDownError,
        client.TryAgainError,
    )
    return isinstance(error, passing) or str(error).startswith("BUSY ")


def is_final(error: Exception) -> bool:
    """Return True if connecting again cannot help: the name or the password is wrong."""
    if isinstance(error, client.BusyLoadingError):
        return False
    return isinstance(error, client.ResponseError | client.AuthenticationError | client.AuthorizationError)


def translate(error: Exception, shown: str) -> PerdureError:
    """Return the error to raise for one of the client's; ``shown`` is the URL without its secrets."""
    if isinstance(error, PerdureError):
        return error
    new = _translated(error, shown)
    new.__cause__ = error
    return new


def _translated(error: Exception, shown: str) -> PerdureError:
    if isinstance(error, TypeError):
        return BadUrl(f"{shown}: the URL has a parameter that the Redis client does not know")
    if isinstance(error, client.AuthenticationError | client.AuthenticationWrongNumberOfArgsError):
        return Unavailable(
            f"{shown} refused the user name or password; set them in the URL: "
            "redis://user:password@host:6379/0"
        )
    if isinstance(error, client.NoPermissionError):
        return Unavailable(
            f"{shown}: the user lacks a right there; it needs EVALSHA, SCRIPT LOAD, TIME and the commands of "
            "hashes, sorted sets and keys under the prefix"
        )
    if isinstance(error, client.BusyLoadingError):
        return Unavailable(f"{shown} is still loading its data set; try again when it is ready")
    if isinstance(error, client.OutOfMemoryError):
        return Unavailable(
            f"{shown} is out of memory; nothing of this write was stored. Raise maxmemory or remove threads"
        )
    if isinstance(error, client.ReadOnlyError):
        return Unavailable(f"{shown} is a replica and takes no writes; give the address of the primary")
    if isinstance(error, client.MovedError | client.ClusterCrossSlotError):
        return Unavailable(f"{shown} is a cluster; write redis+cluster:// for redis:// in the URL")
    if isinstance(error, client.AskError) or "non local key" in str(error):
        return Unavailable(
            f"{shown}: the cluster is moving the slot of this thread; try again when it is done"
        )
    if isinstance(error, client.ClusterDownError | client.TryAgainError):
        return Unavailable(f"{shown}: the cluster does not serve all its slots; look at CLUSTER INFO there")
    if isinstance(error, client.TimeoutError | TimeoutError):
        return Unavailable(f"{shown} did not answer in time; see whether the server is overloaded or paused")
    if isinstance(error, client.ConnectionError | OSError):
        return Unavailable(f"{shown} cannot be reached; check host and port, and that the server runs")
    if isinstance(error, client.ResponseError):
        word = str(error).partition(" ")[0]
        if word in _WORDS:
            return Unavailable(f"{shown} {_WORDS[word]}")
        if "string exceeds maximum allowed size" in str(error) or "invalid bulk length" in str(error):
            return TooLarge(f"{shown}: a value passes the server's proto-max-bulk-len; raise it there")
        if "cluster support disabled" in str(error):
            return Unavailable(f"{shown} is no cluster; write redis:// for redis+cluster:// in the URL")
        return Unavailable(f"{shown} refused a request: {str(error)[:120]}")
    return Unavailable(f"{shown}: the Redis client failed: {type(error).__name__}")
