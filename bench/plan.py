"""How much is measured: the full plan, and a quick one that shows the shape of the result in a minute."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Sizes are turns. A window is `rounds` visits of `turns_a_round` turns, centred on its size."""

    mode: str
    sizes: tuple[int, ...]
    rounds: int
    turns_a_round: int
    shape_turns: int
    repeats: int
    threads: int
    turns_a_thread: int
    pairs: int
    pause_s: float
    cold_starts: int
    cold_sizes: tuple[int, ...]
    cold_rounds: int
    call_budget_s: float
    trip_rounds: int
    trip_turns: int
    near_repeats: int
    far_repeats: int
    far_turns_a_thread: int
    runtime_repeats: int
    lone_messages: int
    server_repeats: int
    idle_repeats: int
    lone_requests: int
    requests_a_client: int
    requests_budget_s: float
    stream_levels: tuple[int, ...]
    least_streams: int
    streams_a_client: int
    idle_streams: int
    server_patience_s: float
    crowd_levels: tuple[int, ...]
    crowd_repeats: int
    crowd_patience_s: float
    memory_requests: int
    memory_patience_s: float
    store_items: int
    store_operations: int
    store_searches: int
    store_repeats: int
    search_items: int
    search_dims: int
    searches: int
    search_puts: int
    history_turns: int
    history_repeats: int
    scale_messages: int
    scale_turns: int
    scale_sends: int
    scale_threads: int
    scale_tenants: int

    @property
    def window(self) -> int:
        return self.rounds * self.turns_a_round

    def before(self, size: int) -> int:
        return size - self.window // 2


FULL = Plan(
    mode="full",
    sizes=(50, 200, 500, 1000),
    rounds=4,
    turns_a_round=10,
    shape_turns=300,
    repeats=3,
    threads=64,
    turns_a_thread=20,
    pairs=20,
    pause_s=0.05,
    cold_starts=3,
    cold_sizes=(100, 400, 1000),
    cold_rounds=5,
    call_budget_s=4.0,
    trip_rounds=6,
    trip_turns=10,
    near_repeats=7,
    far_repeats=2,
    far_turns_a_thread=10,
    runtime_repeats=5,
    lone_messages=200,
    server_repeats=3,
    idle_repeats=2,
    lone_requests=60,
    requests_a_client=20,
    requests_budget_s=8.0,
    stream_levels=(1, 2, 4, 8, 16, 32, 64, 128),
    least_streams=12,
    streams_a_client=2,
    idle_streams=200,
    server_patience_s=60.0,
    crowd_levels=(16, 32, 64, 128, 256, 500, 800),
    crowd_repeats=3,
    crowd_patience_s=60.0,
    memory_requests=40_000,
    memory_patience_s=600.0,
    store_items=10_000,
    store_operations=60_000,
    store_searches=20,
    store_repeats=5,
    search_items=100_000,
    search_dims=256,
    searches=100,
    search_puts=300,
    history_turns=300,
    history_repeats=5,
    scale_messages=20_000,
    scale_turns=20_000,
    scale_sends=1000,
    scale_threads=50_000,
    scale_tenants=1000,
)

QUICK = Plan(
    mode="quick",
    sizes=(50, 200),
    rounds=4,
    turns_a_round=5,
    shape_turns=60,
    repeats=1,
    threads=64,
    turns_a_thread=5,
    pairs=5,
    pause_s=0.05,
    cold_starts=1,
    cold_sizes=(20, 60),
    cold_rounds=1,
    call_budget_s=1.0,
    trip_rounds=2,
    trip_turns=3,
    near_repeats=1,
    far_repeats=1,
    far_turns_a_thread=2,
    runtime_repeats=1,
    lone_messages=20,
    server_repeats=1,
    idle_repeats=1,
    lone_requests=15,
    requests_a_client=5,
    requests_budget_s=2.0,
    stream_levels=(1, 16),
    least_streams=4,
    streams_a_client=1,
    idle_streams=50,
    server_patience_s=60.0,
    crowd_levels=(4, 16),
    crowd_repeats=1,
    crowd_patience_s=30.0,
    memory_requests=320,
    memory_patience_s=60.0,
    store_items=2000,
    store_operations=5000,
    store_searches=5,
    store_repeats=1,
    search_items=3000,
    search_dims=256,
    searches=20,
    search_puts=40,
    history_turns=60,
    history_repeats=1,
    scale_messages=640,
    scale_turns=500,
    scale_sends=100,
    scale_threads=1000,
    scale_tenants=20,
)
