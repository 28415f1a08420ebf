"""`python -m benchmarks [NAME]`: run all benchmarks, or those whose name begins with NAME.

Exits with 1 if one of them misses its target, after all of them have run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from benchmarks import dashboard, history, monitor, sizing, store, store_mariadb, telemetry, write
from benchmarks.brokers import hot as broker_hot
from benchmarks.brokers.kafka import kafka
from benchmarks.brokers.nats import nats
from benchmarks.brokers.rabbitmq import rabbitmq
from benchmarks.brokers.redis import redis
from benchmarks.comparison import log, missed
from benchmarks.consumer.nats import nats as consumer_nats
from benchmarks.consumer.rabbitmq import rabbitmq as consumer_rabbitmq
from benchmarks.django_models import django_models
from benchmarks.domain_events import domain_events
from benchmarks.relay import (
    churn,
    cold,
    drain,
    hot,
    idle,
    latency,
    membership,
    memory,
    processes,
    throughput,
    waiting,
    write_impact,
)
from benchmarks.scale import relays as scale_relays
from benchmarks.scale import tenants as scale_tenants

BENCHMARKS: Final[dict[str, Callable[[], Awaitable[None]]]] = {
    "store.drain": store.drain,
    "store.drain_mariadb": store_mariadb.drain,
    "store.wal": history.wal,
    "store.purge": history.purge,
    "relay.drain": drain.drain,
    "relay.drain_sqlite": drain.drain_sqlite,
    "relay.drain_mariadb": drain.drain_mariadb,
    "relay.redrive": waiting.redrive,
    "relay.redrive_sqlite": waiting.redrive_sqlite,
    "relay.redrive_mariadb": waiting.redrive_mariadb,
    "relay.due": waiting.due,
    "relay.due_sqlite": waiting.due_sqlite,
    "relay.due_mariadb": waiting.due_mariadb,
    "relay.poisoned_key": throughput.poisoned_key,
    "relay.backlog": throughput.backlog,
    "relay.history": throughput.history,
    "relay.hot_key": throughput.hot_key,
    "hot.handlers": hot.handlers,
    "hot.redis": broker_hot.hot_redis,
    "hot.kafka": broker_hot.hot_kafka,
    "hot.nats": broker_hot.hot_nats,
    "hot.http": broker_hot.hot_http,
    "relay.churn": churn.churn,
    "relay.pinned": churn.pinned,
    "relay.pinned_writer": churn.pinned_writer,
    "relay.registry": membership.registry,
    "relay.processes": processes.processes,
    "relay.idle": idle.idle,
    "relay.cold": cold.cold,
    "relay.outage": throughput.outage,
    "relay.wakeup": write_impact.wakeup,
    "relay.latency": latency.latency,
    "relay.memory": memory.memory,
    "relay.write_isolation": write_impact.write_isolation,
    "sizing.postgres": sizing.postgres,
    "sizing.sqlite": sizing.sqlite,
    "scale.tenants": scale_tenants.tenants,
    "scale.relays": scale_relays.relays,
    "scale.relays_rabbitmq": scale_relays.relays_rabbitmq,
    "monitor.status": monitor.status,
    "dashboard.pages": dashboard.pages,
    "telemetry.metrics": telemetry.metrics,
    "rabbitmq": rabbitmq,
    "nats": nats,
    "redis": redis,
    "kafka": kafka,
    "consumer.rabbitmq": consumer_rabbitmq,
    "consumer.nats": consumer_nats,
    "write.asyncpg": write.with_asyncpg,
    "write.psycopg": write.with_psycopg,
    "write.sqlalchemy": write.with_sqlalchemy,
    "write.bulk": write.in_bulk,
    "write.domain_events": domain_events,
    "write.django": django_models,
}


def select(prefix: str) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return the benchmark of that name, or else all whose name begins with it."""
    if prefix in BENCHMARKS:
        return {prefix: BENCHMARKS[prefix]}
    return {name: run for name, run in BENCHMARKS.items() if name.startswith(prefix)}


async def run_all(prefix: str) -> int:
    """Run the benchmarks that begin so; return the exit code."""
    if not (benchmarks := select(prefix)):
        log(f"No benchmark begins with {prefix!r}; there are {', '.join(BENCHMARKS)}.")
        return 2
    missed.clear()
    for run in benchmarks.values():
        await run()
    if missed:
        log(f"Missed what is wanted: {', '.join(missed)}.")
    return 1 if missed else 0


def _main() -> int:
    prefix = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run(run_all(prefix))
    return uvloop.run(run_all(prefix))


if __name__ == "__main__":
    sys.exit(_main())
