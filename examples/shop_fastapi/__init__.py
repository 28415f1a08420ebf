"""Two services that never call each other: orders and shipping, on PostgreSQL and RabbitMQ."""
