"""Messages that no producer of ours would send: broken attributes, names, encodings, times, types and documents."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

__all__ = ["Raw", "draw_messages", "is_good"]


class Raw(NamedTuple):
    """A message on the wire, before a broker's own form. Names of attributes have no prefix."""

    attributes: dict[str, bytes]
    headers: dict[str, bytes]
    body: bytes
    is_structured: bool = False


STRUCTURED: Final = b"application/cloudevents+json"
_NAMES: Final = ("specversion", "id", "source", "type", "topic", "partitionkey", "correlationid", "time", "subject")
_CONTROLS: Final = ("\0", "\x01", "\x1b[2J", "\x7f", "\x85", "\u2028", "\ufeff", "\ufffe", "\U000e0001")
_BYTES: Final = (b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", bytes(range(256)))
_TIMES: Final = (
    "99999-01-01T00:00:00Z", "0000-00-00T00:00:00Z", "-1", "1e400", "2024-02-30T00:00:00Z", "now", "9" * 400,
    "2024-01-01T00:00:00", "2024-01-01T00:00:00+99:99", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00",
)  # fmt: skip
_IDS: Final = (
    "",
    " ",
    "x" * 1_025,
    "é" * 513,
    "../../etc",
    "%00",
    "%",
    "%zz",
    "%ff%fe",
    '"',
    '"\\',
    "a/b/c",
    "💥" * 400,
)
_TYPES: Final = ("", "unknown", "TICK", "tick ", "tick\0", "t" * 5_000, "*", "tick.*", "__import__")
_BODIES: Final = (
    b"", b"{", b'{"number": 1', b"null", b"[]", b"[1]", b'"x"', b'{"number": "x"}', b'{"number": null}',
    b'{"number": 1e999}', b'{"number": NaN}', b'{"number": %d}' % 10**400, b'{"number": true}', b'{"numbe\\u0000r": 1}',
    b'{"number": 1, "key": {"a": []}}', b'{"number": "\\ud800"}', b"[" * 50_000, b'{"a":' * 20_000, b"\xff\xfe{\0}\0",
    b"\0" * 100, b"<xml/>", b"x" * 300_000,
)  # fmt: skip
_CONTENT_TYPES: Final = (
    b"", b"application/cloudevents", b"application/cloudevents-batch+json", b"application/cloudevents+avro",
    b"application/json; charset=utf-16", b"text/plain; charset=\xff", b"application/octet-stream", b"json", b";;;=",
    b"a" * 3_000,
)  # fmt: skip


def draw_messages(seed: int, count: int) -> Iterator[Raw]:
    """Yield `count` spoiled messages and half as many good ones between them, the same for the same seed."""
    dice = random.Random(seed)
    for number in range(count):
        yield _spoil(number, dice)
        if number % 2:
            yield _build(f"good-{number}", number)


def is_good(message_id: str) -> bool:
    """Return True for the id of a message that nobody has spoiled."""
    return message_id.startswith("good-")


def _build(message_id: str, number: int) -> Raw:
    attributes = {
        "specversion": "1.0", "id": message_id, "source": "/clock", "type": "tick", "topic": "ticks",
        "partitionkey": f"k{number % 7}", "correlationid": "c", "time": "2026-01-31T10:00:00Z",
    }  # fmt: skip
    return Raw(
        {name: value.encode() for name, value in attributes.items()},
        {"content-type": b"application/json", "tenant": b"a"},
        b'{"number": %d}' % number,
    )


def _spoil(number: int, dice: random.Random) -> Raw:
    raw = _build(f"bad-{number}", number)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        raw = dice.choice(_WAYS)(raw, dice)
    return raw


def _drop_attribute(raw: Raw, dice: random.Random) -> Raw:
    raw.attributes.pop(dice.choice(_NAMES), None)
    return raw


def _set_control(raw: Raw, dice: random.Random) -> Raw:
    raw.attributes[dice.choice(_NAMES)] = f"a{dice.choice(_CONTROLS)}b".encode("utf-8", "surrogatepass")
    return raw


def _set_bytes(raw: Raw, dice: random.Random) -> Raw:
    raw.attributes[dice.choice(_NAMES)] = dice.choice(_BYTES)
    return raw


def _name_oddly(raw: Raw, dice: random.Random) -> Raw:
    names = ("a\0b", "", " ", "é", "A" * 300, "data", "data_base64", "id ", "ID", "time\x1b", "__class__", "x-y")
    raw.attributes[dice.choice(names)] = b"1"
    return raw


def _set_id(raw: Raw, dice: random.Random) -> Raw:
    raw.attributes[dice.choice(("id", "source", "partitionkey"))] = dice.choice(_IDS).encode()
    return raw


def _set_time(raw: Raw, dice: random.Random) -> Raw:
    raw.attributes["time"] = dice.choice(_TIMES).encode()
    return raw


def _set_type(raw: Raw, dice: random.Random) -> Raw:
    raw.attributes[dice.choice(("type", "topic"))] = dice.choice(_TYPES).encode()
    return raw


def _set_version(raw: Raw, dice: random.Random) -> Raw:
    raw.attributes["specversion"] = dice.choice((b"2.0", b"1", b"", b"1.0\0", b"0.3", b"one"))
    return raw


def _set_body(raw: Raw, dice: random.Random) -> Raw:
    return raw._replace(body=dice.choice(_BODIES))


def _set_content_type(raw: Raw, dice: random.Random) -> Raw:
    raw.headers["content-type"] = dice.choice(_CONTENT_TYPES)
    return raw


def _add_header(raw: Raw, dice: random.Random) -> Raw:
    size = dice.choice((10, 1_000, 3_000))
    raw.headers[f"x-{dice.randrange(1_000)}"] = dice.choice((dice.randbytes(size), b"y" * size, b"\0" * size))
    return raw


def _forget_that_it_is_an_event(raw: Raw, dice: random.Random) -> Raw:
    return Raw({}, dict(raw.headers), dice.choice((raw.body, dice.randbytes(50), dice.choice(_BODIES))))


def _write_structured(raw: Raw, dice: random.Random) -> Raw:
    document: dict[str, object] = {name: value.decode("latin-1") for name, value in raw.attributes.items()}
    document["data"] = {"number": 1}
    for _ in range(dice.choice((0, 1, 2))):
        odd: tuple[object, ...] = ({}, [], 1.5, -1, 10**30, True, None, "a\0b", "\ud800", "x" * 2_000, [[[]]] * 5)
        document[dice.choice((*_NAMES, "data", "data_base64", "a\0b", "headers", "pillarboxheaders", ""))] = (
            dice.choice(odd)
        )
    body = json.dumps(document).encode()
    if dice.random() < 0.3:
        body = body[: dice.randrange(len(body))]
    elif dice.random() < 0.2:
        body = dice.choice(_BODIES)
    return Raw({}, {"content-type": STRUCTURED}, body, is_structured=True)


_WAYS: Final[tuple[Callable[[Raw, random.Random], Raw], ...]] = (
    _drop_attribute, _set_control, _set_bytes, _name_oddly, _set_id, _set_time, _set_type, _set_version, _set_body,
    _set_content_type, _add_header, _forget_that_it_is_an_event, _write_structured, _write_structured,
)  # fmt: skip
