"""The servers that backends are measured on: private ones, set up as real ones are."""

from bench.servers.cloudflare import d1
from bench.servers.dynamodb import dynamodb
from bench.servers.machine import Missing, Server, Starter
from bench.servers.postgres import postgres
from bench.servers.redis import redis

__all__ = ["Missing", "Server", "Starter", "d1", "dynamodb", "postgres", "redis"]
