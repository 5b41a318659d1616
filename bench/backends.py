"""The backends behind a network: which server, which candidates, and what is worth measuring there."""

from __future__ import annotations

from dataclasses import dataclass

from bench import servers
from bench.remote import POOL, REMOTE
from bench.servers import Starter


@dataclass(frozen=True)
class Backend:
    """`turns` are the sizes of the growing conversation in a full run and in a quick one. `far_s` are the
    round-trip times at which a lone turn is timed; `crowd_far_s` that of the crowd, 0 for none.

    `counts` is what stands for the cost of a turn: "round_trips" of connections, or "requests" of HTTP.
    """

    name: str
    title: str
    start: Starter
    stock: str | None
    sizes: tuple[int, ...]
    quick_sizes: tuple[int, ...]
    counts: str
    far_s: tuple[float, ...] = (0.002, 0.010)
    crowd_far_s: float = 0.0
    threads: int = 64
    variants: int = 1
    remark: str = ""

    @property
    def candidates(self) -> list[str]:
        return [candidate.name for candidate in REMOTE if candidate.backend == self.name]

    @property
    def ours(self) -> str:
        return f"{self.name}-perdure"


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend(
            "postgres",
            "PostgreSQL",
            servers.postgres,
            "postgres-stock",
            (50, 200, 500, 1000),
            (20, 40),
            "round_trips",
            crowd_far_s=0.002,
            remark=f"The stock saver has a pool of {POOL} connections, opened before the clock starts.",
        ),
        Backend(
            "redis",
            "Redis and Valkey",
            servers.redis,
            "redis-stock",
            (50, 200, 500, 1000),
            (20, 40),
            "round_trips",
            crowd_far_s=0.002,
            variants=2,
            remark="The plain Redis saver has a pool of 64 connections that waits instead of raising.",
        ),
        Backend(
            "dynamodb",
            "DynamoDB",
            servers.dynamodb,
            "dynamodb-stock",
            (50, 200, 500),
            (20, 40),
            "requests",
            far_s=(0.010,),
            threads=16,
            remark="The server is an emulator: its times say nothing about the service, the counts do.",
        ),
        Backend(
            "d1",
            "Cloudflare D1",
            servers.d1,
            None,
            (50, 200, 500),
            (20, 40),
            "requests",
            far_s=(0.010,),
            threads=16,
            remark="There is no other saver on the package index that works over D1's REST interface, so "
            "Perdure is measured alone.",
        ),
    )
}
