"""Every error that Perdure raises, in one tree.

    PerdureError
    ├── Conflict            somebody else changed the thread first
    │   ├── HeadConflict    a run lost the race for the head of its thread
    │   ├── Fenced          the writer's lease is over, or a run is open and the writer holds no lease
    │   ├── Contention      a commit lost every one of its bounded retries
    │   ├── CannotTakeBack  what was there before a run is not stored any more
    │   ├── RunInProgress   a run is open or messages wait, and the caller did not want to
    │   └── NotWaiting      an answer to a thread that waits for none, or no more
    ├── NotFound            the named checkpoint, thread or tag is not stored
    ├── NotAllowed          the caller did not ask for this right by name
    ├── Corrupt             stored bytes are not what their name says
    │   └── DecryptionError stored bytes do not open with the keys at hand, or ought to be encrypted
    ├── Unreadable          stored values are whole, and this program does not build them
    │   ├── TypeNotAllowed  a value's type is none that this checkpointer builds
    │   └── TypeNotFound    a stored value's type is not here, under its name: renamed, removed, not imported
    ├── Unserialisable      a value cannot be written so that it comes back
    ├── TooLarge            a value passes what the backend takes
    ├── QueueFull           a queue is full
    ├── SubscriberTooSlow   a run tells more than its follower takes
    ├── Unavailable         the database does not answer or takes no writes
    │   └── DatabaseReplaced  the database is no more what was opened
    ├── MigrationRequired   the database's schema is absent, older or newer than this release
    ├── BadUrl              the database URL cannot be used
    ├── BadArchive          a file to import is no export, or not a whole one
    ├── BadSetting          a setting cannot work
    ├── GraphLoadError      what was named cannot be loaded, or is no graph
    └── MissingExtra        an optional dependency is not installed

A message says what happened, to which thread, and what to do; the client library's own exception is kept
as ``__cause__``.
"""

from __future__ import annotations


class PerdureError(Exception):
    """The root of the tree."""


class Conflict(PerdureError):
    """Somebody else changed the thread first; nothing of this write was stored."""


class HeadConflict(Conflict):
    """A run lost the race for the head of its thread: load the thread again and repeat the call."""


class Fenced(Conflict):
    """The writer may not write: its lease epoch is over, or a run is open and it holds no lease."""


class Contention(Conflict):
    """A commit lost every one of its bounded retries to other writers: try again later."""


class CannotTakeBack(Conflict):
    """A run cannot be taken back: the latest checkpoint before it was pruned since. Nothing was removed."""


class RunInProgress(Conflict):
    """A run is open on the thread or messages wait for one, and the message was to be rejected then: send it
    again when they are done, or choose another strategy."""


class NotWaiting(Conflict):
    """The thread waits for no answer, no more, or for the answer to another question: look at its state."""


class NotFound(PerdureError):
    """The named checkpoint, thread or tag is not stored."""


class NotAllowed(PerdureError):
    """The call needs a right that its caller did not ask for by name."""


class Corrupt(PerdureError):
    """Stored bytes are missing or are not what their name says: run ``perdure fsck``."""


class DecryptionError(Corrupt):
    """Stored bytes do not open with the keys at hand, or are in the clear although a key is set."""


class Unreadable(PerdureError):
    """Stored values are whole, and this program does not build them; the thread can be read when it does."""


class TypeNotAllowed(Unreadable):
    """A value's type is none that this checkpointer builds: name it in ``checkpointer(allow=[...])``.

    ``types`` has the module and name of each type that was refused."""

    types: tuple[tuple[str, ...], ...] = ()


class TypeNotFound(Unreadable):
    """A stored value's type is not in this program: it was renamed, removed, or its module not imported."""


class Unserialisable(PerdureError):
    """A value cannot be written in a form that comes back."""


class TooLarge(PerdureError):
    """A value passes what the backend takes."""


class QueueFull(PerdureError):
    """A queue is full; nothing of the message was stored. Send it again later."""


class SubscriberTooSlow(PerdureError):
    """A run told more than its follower took, and what it told is not kept: read the thread's state."""


class Unavailable(PerdureError):
    """The database does not answer or takes no writes. Nothing of the failed write was stored, unless the
    message says that its answer was lost: then repeat the call by its run id."""


class DatabaseReplaced(Unavailable):
    """The open database is not what its URL names any more: it was removed, replaced, or brought back to an
    older state. Nothing is read or acknowledged until it is opened again."""


class MigrationRequired(PerdureError):
    """The database's schema is absent, older or newer than this release."""


class BadUrl(PerdureError):
    """The database URL cannot be used."""


class BadArchive(PerdureError):
    """A file to import is no export of threads, is damaged, cut short, or newer than this release."""


class BadSetting(PerdureError):
    """A setting that cannot work; the message has its name and the mend."""


class GraphLoadError(PerdureError):
    """What was named cannot be loaded, or is not what a runtime needs."""


class MissingExtra(PerdureError):
    """An optional dependency is not installed; the message has the install command."""
