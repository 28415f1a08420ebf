"""What is set on the broker that could lose messages, each with why and what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pillarbox.protocols import Finding, Severity
from pillarbox.transports.rabbitmq.management import Binding, Exchange, Node, Queue
from pillarbox.transports.redaction import one_line

__all__ = [
    "exchange_missing",
    "leads_to",
    "not_seen",
    "of_exchange",
    "of_nodes",
    "of_queue",
    "queue_missing",
    "unroutable",
]


def exchange_missing(name: str) -> Finding:
    """Nothing can be published to it."""
    return _finding(
        "exchange-missing", Severity.CRITICAL, f"There is no exchange {_quoted(name)}.",
        "Publishing to it is an outage: messages wait until it is there.",
        "Declare it, or set declare=true on the destination.",
    )  # fmt: skip


def queue_missing(name: str) -> Finding:
    """The default exchange leads to a queue by its name."""
    return _finding(
        "queue-missing", Severity.CRITICAL, f"There is no queue {_quoted(name)}.",
        "The default exchange has nowhere to put these messages: they come back, and fail.",
        "Declare the queue, durable, or correct the destination's routing_key.",
    )  # fmt: skip


def unroutable(topic: str, exchange: str, routing_key: str) -> Finding:
    """No binding matches."""
    return _finding(
        "unroutable", Severity.CRITICAL,
        f"No queue is bound to the exchange {_quoted(exchange)} for the routing key {_quoted(routing_key)} "
        f"of the topic {_quoted(topic)}.",
        "Its messages come back, and fail.",
        "Bind a durable queue, or correct the destination's routing_key.",
    )  # fmt: skip


def not_seen(what: str, *, fix: str) -> Finding:
    """What this login, or AMQP, does not show."""
    return _finding(
        "not-inspected", Severity.INFO, what,
        "A queue that is not durable, drops its oldest messages when full, or lets them expire would not be noticed.",
        fix,
    )  # fmt: skip


def of_exchange(exchange: Exchange) -> Sequence[Finding]:
    """What an exchange can do to messages."""
    alternate = exchange.alternate
    name, found = _quoted(exchange.name), []
    if not exchange.durable:
        found.append(_finding(
            "exchange-not-durable", Severity.WARNING, f"The exchange {name} is not durable.",
            "It is gone after a restart of the broker, with all its bindings: messages wait, or come back and fail.",
            "Delete it and declare it durable.",
        ))  # fmt: skip
    if exchange.auto_delete:
        found.append(_finding(
            "exchange-auto-delete", Severity.WARNING, f"The exchange {name} deletes itself with its last binding.",
            "Messages wait until somebody declares it again.",
            "Delete it and declare it without auto-delete.",
        ))  # fmt: skip
    if alternate is not None:
        found.append(_finding(
            "alternate-exchange", Severity.WARNING,
            f"The exchange {name} has an alternate exchange, {_quoted(alternate)}.",
            "What no queue is bound for goes there and counts as delivered, instead of coming back.",
            "Make sure that a durable queue behind it is read, or remove the argument alternate-exchange.",
        ))  # fmt: skip
    return found


def of_queue(queue: Queue) -> Sequence[Finding]:
    """What a queue can do to messages that it was given."""
    return [*_of_existence(queue), *_of_limits(queue), *_of_dead_letters(queue)]


def _of_existence(queue: Queue) -> Sequence[Finding]:
    name, found = _quoted(queue.name), []
    if not queue.durable or queue.exclusive:
        kind = "exclusive" if queue.exclusive else "not durable"
        found.append(_finding(
            "queue-not-durable", Severity.WARNING, f"The queue {name} is {kind}.",
            "It is gone with all its messages after a restart, though they were confirmed.",
            "Declare it durable, better as a quorum queue (x-queue-type: quorum).",
        ))  # fmt: skip
    if queue.auto_delete or queue.argument("expires") is not None:
        found.append(_finding(
            "queue-deletes-itself", Severity.WARNING, f"The queue {name} deletes itself when nobody uses it.",
            "A consumer that is away for a while loses what it had not read.",
            "Declare it without auto-delete and x-expires.",
        ))  # fmt: skip
    if queue.type == "classic" and queue.durable:
        found.append(_finding(
            "queue-on-one-node", Severity.INFO, f"The queue {name} is a classic queue.",
            "It is on one node: confirmed messages are lost with that node's disk, and out of reach while it is down.",
            "On a cluster, use a quorum queue (x-queue-type: quorum).",
        ))  # fmt: skip
    return found


def _of_limits(queue: Queue) -> Sequence[Finding]:
    name, found = _quoted(queue.name), []
    is_limited = any(queue.argument(limit) is not None for limit in ("max-length", "max-length-bytes"))
    if is_limited and queue.argument("overflow") not in ("reject-publish", "reject-publish-dlx"):
        what = "keeps so many messages and no more" if queue.type == "stream" else "drops its oldest messages when full"
        found.append(_finding(
            "queue-drops", Severity.WARNING, f"The queue {name} {what}.",
            "New messages are confirmed, and others are lost for them.",
            "Set x-overflow to reject-publish: then messages wait in the outbox instead.",
        ))  # fmt: skip
    if queue.argument("message-ttl") is not None:
        found.append(_finding(
            "queue-expires-messages", Severity.WARNING, f"Messages in the queue {name} expire.",
            "What is not read in time is dropped or dead-lettered, though it was confirmed.",
            "Remove x-message-ttl, or make sure that the dead letters are read.",
        ))  # fmt: skip
    return found


def _of_dead_letters(queue: Queue) -> Sequence[Finding]:
    name, target = _quoted(queue.name), queue.argument("dead-letter-exchange")
    if queue.type != "quorum":
        return []
    if target is None:
        return [_finding(
            "queue-delivery-limit", Severity.WARNING,
            f"The quorum queue {name} has no dead-letter exchange.",
            "A message that is returned more often than the delivery limit (from RabbitMQ 4.0 on: 20) is dropped.",
            "Set x-dead-letter-exchange, or x-delivery-limit to -1.",
        )]  # fmt: skip
    if queue.argument("dead-letter-strategy") != "at-least-once":
        return [_finding(
            "dead-letter-at-most-once", Severity.WARNING,
            f"The quorum queue {name} dead-letters at most once.",
            "A dead letter that cannot be put where it should go is lost.",
            "Set x-dead-letter-strategy to at-least-once, and x-overflow to reject-publish, which it needs.",
        )]  # fmt: skip
    return []


def of_nodes(nodes: Sequence[Node]) -> Sequence[Finding]:
    """Alarms."""
    short = {
        node.name: "memory" if node.mem_alarm else "disk" for node in nodes if node.mem_alarm or node.disk_free_alarm
    }
    return [
        _finding(
            "alarm", Severity.CRITICAL, f"The node {_quoted(name)} is short of {what}.",
            "The whole cluster takes no messages until that is over: they wait in the outbox.",
            "Give it memory or disk, or drain its queues.",
        )
        for name, what in short.items()
    ]  # fmt: skip


def leads_to(bindings: Sequence[Binding], routing_key: str, *, kind: str) -> Sequence[Binding] | None:
    """The bindings that a message with this routing key follows; None when only the broker can tell."""
    if kind == "fanout":
        return bindings
    if kind == "direct":
        return [binding for binding in bindings if binding.routing_key == routing_key]
    if kind == "topic":
        return [binding for binding in bindings if _pattern(binding.routing_key).fullmatch(f".{routing_key}")]
    return None


def _pattern(binding: str) -> re.Pattern[str]:
    """`*` is one word, `#` is any number of them; each word has its dot before it."""
    words = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    return re.compile("".join(words.get(word, rf"\.{re.escape(word)}") for word in binding.split(".")), re.DOTALL)


def _finding(slug: str, severity: Severity, what: str, why: str, fix: str) -> Finding:
    return Finding(code=f"rabbitmq.{slug}", severity=severity, what=what, why=why, fix=fix)


def _quoted(name: str) -> str:
    return repr(one_line(name))
