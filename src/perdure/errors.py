"""Errors that Perdure raises, in one tree.

    PerdureError
    ├── Conflict            another writer changed the thread first
    │   ├── HeadConflict    a run lost the race for the head of its thread
    │   ├── Fenced          the writer's lease is over, or a run is open and the writer holds no lease
    │   ├── Contention      a commit lost every one of its bounded retries
    │   ├── Forgotten       what was to be remembered was forgotten after its source was written
    │   ├── CannotTakeBack  a rollback needs a checkpoint that is not stored any more
    │   ├── RunInProgress   a run is open or messages wait, and the strategy is to reject
    │   ├── NotWaiting      an answer to a thread that does not wait for it
    │   └── OtherGraph      the thread's state belongs to another graph
    ├── NotFound            the named checkpoint, thread or tag is not stored
    │   └── MissingStart    the checkpoint from which a run was to start is not stored
    ├── NotAllowed          the call needs a right that was not requested by name
    ├── Corrupt             stored bytes do not match their name
    │   └── DecryptionError stored bytes cannot be decrypted with the given keys, or are not encrypted
    │       └── KeyMissing  stored bytes are encrypted with a key that this process does not have
    ├── Unreadable          stored values are intact, but this program does not build them
    │   ├── TypeNotAllowed  the checkpointer does not build this type
    │   ├── TypeNotFound    the type is missing under its name: renamed, removed, not imported
    │   ├── SchemaTooNew    a newer version of the application has stored the thread
    │   ├── ThreadPinned    the thread is kept at an older schema version than the application's
    │   └── MigrationFailed a declared step cannot be applied to the thread
    ├── UndeclaredKey       an input or an update has a key that the graph's state does not declare
    ├── UnrecordedCall      a replay met a call that the thread has no record of
    ├── StatementRefused    the database refused a statement: the application's, or one of Perdure
    ├── Unserialisable      a value cannot be written so that it can be read back
    ├── TooLarge            a value exceeds the backend's limit
    │   └── OverMaximum     a value or a name exceeds a limit that is the same on all backends
    ├── EmbeddingFailed     the embedding model raised an error
    ├── BadEmbedding        the embedding function did not return a vector for each text
    ├── ReindexRequired     items were indexed by another embedding model
    ├── NoWindow            no valid list of messages can be sent to the model
    │   └── MessageTooLong  a message that has to be sent exceeds the limit
    ├── SummaryRefused      what was made as a summary of a conversation is none, or has no room
    ├── ExtractionRefused   what an extractor found is not a list of facts
    ├── QuestionExpired     a question, or a wait for a signal, ended without an answer
    ├── QueueFull           a queue is full
    ├── LimitReached        a limit over all processes leaves no room for a call or a run
    │   └── LimitPending    the run that makes the call is put off until there may be room
    ├── SubscriberTooSlow   a run emits more events than its subscriber takes
    ├── Unavailable         the database does not answer or takes no writes
    │   └── DatabaseReplaced  the database is not the one that was opened
    ├── MigrationRequired   the database's schema is absent, older or newer than this release
    ├── BadUrl              the database URL cannot be used
    ├── BadArchive          a file to import is not an export, or is incomplete
    ├── BadSetting          a setting cannot work
    ├── GraphLoadError      the name cannot be loaded, or is not a graph
    └── MissingExtra        an optional dependency is not installed

A message states what happened, to which thread, and the fix; the client library's own exception is kept as
``__cause__``.
"""

from __future__ import annotations


class PerdureError(Exception):
    """Base class of all errors of Perdure."""


class Conflict(PerdureError):
    """Another writer changed the thread first; nothing of this write was stored."""


class HeadConflict(Conflict):
    """A run lost the race for the head of its thread: load the thread again and repeat the call."""


class Fenced(Conflict):
    """The writer may not write: its lease is over, or a run is open and it holds no lease."""


class Contention(Conflict):
    """A commit lost every one of its bounded retries to other writers: try again later."""


class Forgotten(Conflict):
    """The source of a text is older than the time at which the text, or the user, was forgotten: the text is
    not remembered again from that source."""


class CannotTakeBack(Conflict):
    """A rollback is impossible: the latest checkpoint before the run was pruned since. Nothing was
    removed."""


class RunInProgress(Conflict):
    """A run is open on the thread or messages wait for one, and the message's strategy is ``reject``: send it
    again when they are done, or choose another strategy."""


class NotWaiting(Conflict):
    """The thread waits for no answer, or for the answer to another question: look at its state."""


class QuestionExpired(PerdureError):
    """The deadline of a question or of a wait for a signal passed: handle it in the node, or give
    the wait a default."""


class OtherGraph(Conflict):
    """The thread's state belongs to another graph, which ran on it first: use another thread, or let graphs
    share threads with ``Settings(shared_threads=True)``."""


class NotFound(PerdureError):
    """The named checkpoint, thread or tag is not stored."""


class MissingStart(NotFound):
    """The checkpoint from which a run was to start was pruned, or never existed: start from one that is
    listed. The thread is unchanged."""


class NotAllowed(PerdureError):
    """The call needs a right that its caller did not request by name."""


class Corrupt(PerdureError):
    """Stored bytes are missing or do not match their name: run ``perdure fsck``."""


class DecryptionError(Corrupt):
    """Stored bytes cannot be decrypted with the given keys, or are not encrypted although a key is set."""


class KeyMissing(DecryptionError):
    """Stored bytes are encrypted with a key that this process, or its provider of keys, does not have. They
    may be sound: give the provider the key that the message names."""


class Unreadable(PerdureError):
    """Stored values are intact, but this program does not build them; see the subclasses."""


class TypeNotAllowed(Unreadable):
    """The checkpointer does not build the type of a value: name it in ``checkpointer(allow=[...])``.

    ``types`` has the module and name of each refused type."""

    types: tuple[tuple[str, ...], ...] = ()


class TypeNotFound(Unreadable):
    """The type of a stored value is not in this program: renamed, removed, or its module not imported."""


class SchemaTooNew(Unreadable):
    """A newer version of the application has stored this thread: its schema version is above the
    checkpointer's. Nothing was read or changed; deploy the newer version."""


class ThreadPinned(Unreadable):
    """The thread is pinned to an older schema version than the application's: serve it by that version, or
    remove the pin."""


class MigrationFailed(Unreadable):
    """A declared step cannot be applied to what a thread holds; the message names the step. The thread is
    unchanged."""


class UnrecordedCall(PerdureError, RuntimeError):
    """A replay met a call that the thread has no record of; it was not made. The message names the call."""


class StatementRefused(PerdureError):
    """The database refused a statement that a node gave for its step's commit, and nothing of that step was
    stored; or one of Perdure's own, because of what was added to its tables, such as a trigger. The driver's
    own error is the cause."""


class Unserialisable(PerdureError):
    """A value cannot be written in a form that can be read back."""


class TooLarge(PerdureError):
    """A value exceeds the backend's limit, or a search compares more vectors than it may."""


class OverMaximum(TooLarge):
    """A value or a name exceeds a limit that is the same on all backends; the message has the limit."""


class EmbeddingFailed(PerdureError):
    """The embedding model of the store's index raised an error, which is the cause of this one; nothing was
    stored."""


class BadEmbedding(PerdureError):
    """The embedding function of the store's index returned something other than a vector for each text;
    nothing was stored."""


class ReindexRequired(PerdureError):
    """Items were indexed by another embedding model: run ``perdure store reindex``."""


class NoWindow(PerdureError):
    """No valid list of messages can be sent to the model; it was not called."""


class MessageTooLong(NoWindow):
    """A message that has to be sent exceeds the model's limit together with the system messages and tools;
    the model was not called. ``message_id`` is its id, ``tokens`` the size of all that has to be sent,
    ``limit`` the allowed size."""

    message_id: str | None = None
    tokens: int = 0
    limit: int = 0


class SummaryRefused(PerdureError):
    """The result of summarising a conversation is not text, or is empty, or the limit leaves no room for a
    summary. The conversation is left as it was."""


class ExtractionRefused(PerdureError):
    """The answer of a model or function that extracts facts is not of the requested form. Nothing of it was
    remembered."""


class QueueFull(PerdureError):
    """A queue is full; nothing of the message was stored. Send it again later."""


class LimitReached(PerdureError):
    """A limit leaves no room for a call or a run now.

    Attributes:
        limit: Name of the limit.
        retry_after: Seconds after which there may be room.
    """

    def __init__(self, message: str, limit: str = "", retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after = retry_after


class LimitPending(LimitReached):
    """A limit leaves no room for a call now. The run that makes it is put off, and goes on from its last
    step."""


class SubscriberTooSlow(PerdureError):
    """A run emitted more events than its subscriber took, and they are not kept: read the thread's state."""


class Unavailable(PerdureError):
    """The database does not answer or takes no writes. Nothing of the failed write was stored, unless the
    message states that its answer was lost: then repeat the call with its run id."""


class DatabaseReplaced(Unavailable):
    """The open database is not the one that its URL names any more: it was removed, replaced, or restored to
    an older state. Nothing is read or acknowledged until it is opened again."""


class MigrationRequired(PerdureError):
    """The database's schema is absent, older or newer than this release."""


class BadUrl(PerdureError):
    """The database URL cannot be used."""


class BadArchive(PerdureError):
    """A file to import is not an export of threads, is damaged, incomplete, or of another release's
    format."""


class BadSetting(PerdureError):
    """A setting that cannot work; the message has its name and the fix."""


class UndeclaredKey(PerdureError):
    """An input or an update of a node has a key that the graph's state does not declare; nothing of it was
    stored."""


class GraphLoadError(PerdureError):
    """The name cannot be loaded, or is not what a runtime needs."""


class MissingExtra(PerdureError):
    """An optional dependency is not installed; the message has the install command."""
