"""Request headers that a run can read in ``config.configurable``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SECRET = frozenset(
    ("authorization", "proxy-authorization", "cookie", "x-api-key", "x-service-key", "x-tenant-id")
)
"""Header names that no pattern matches: configurable values are stored with the run."""


@dataclass(frozen=True)
class Headers:
    """Patterns of header names to include, and to exclude from these; ``*`` is any text."""

    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    def of(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers that a run can read, with names in lower case. Credentials are never among
        them."""
        return {
            name.lower(): value
            for name, value in headers.items()
            if name.lower() not in _SECRET
            and _matches(name.lower(), self.includes)
            and not _matches(name.lower(), self.excludes)
        }


NO_HEADERS = Headers()


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(
        re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None for pattern in patterns
    )
