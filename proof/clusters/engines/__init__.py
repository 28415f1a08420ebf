"""The clusters, a file per engine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from proof.clusters.cluster import Cluster
from proof.clusters.engines.galera import GaleraCluster
from proof.clusters.engines.kafka import TansuCluster
from proof.clusters.engines.mysql import GroupReplicationCluster
from proof.clusters.engines.nats import NatsCluster
from proof.clusters.engines.postgres import AsynchronousPostgresCluster, PostgresCluster
from proof.clusters.engines.rabbitmq import RabbitmqCluster
from proof.clusters.engines.redis import RedisCluster, WaitingRedisCluster

__all__ = ["CLUSTERS"]

CLUSTERS: Final[Mapping[str, type[Cluster]]] = MappingProxyType(
    {
        "postgres-sync": PostgresCluster,
        "postgres-async": AsynchronousPostgresCluster,
        "galera": GaleraCluster,
        "mysql-group": GroupReplicationCluster,
        "rabbitmq": RabbitmqCluster,
        "nats": NatsCluster,
        "redis": RedisCluster,
        "redis-wait": WaitingRedisCluster,
        "tansu": TansuCluster,
    }
)
"""By the name that `--clusters` takes."""
