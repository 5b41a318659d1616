"""Limits over all processes that use a database: concurrency, rates, tokens and money.

``SharedLimit`` declares one, for ``Settings(limits=…)``. ``RateLimiter`` is a rate limiter for LangChain's
models, outside of runs as well.
"""

from perdure.errors import LimitReached
from perdure.model.limits import SharedLimit
from perdure.runtime.limits.rate_limiter import RateLimiter

__all__ = ["LimitReached", "RateLimiter", "SharedLimit"]
