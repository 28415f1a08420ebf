"""The partner's side: a tiny web server that believes only what is signed. Any language can do this."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from pillarbox import DecodeError
from pillarbox.brokers.http import signing_key, verify

PORT: Final = int(os.environ.get("PARTNER_PORT", "8003"))
KEY: Final = signing_key(os.environ["PARTNER_SECRET"])

seen: set[str] = set()
"""Ids of what came before. A real partner keeps them in its database, in the transaction that does the work."""


class Hooks(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        """The relay asks whether somebody is there."""
        self.answer(204)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        try:
            message_id = verify([KEY], headers=dict(self.headers), body=body, now=datetime.now(UTC))
        except DecodeError as error:
            print(f"partner: refused. {error}", flush=True)
            self.answer(401)
            return
        if message_id not in seen:
            seen.add(message_id)
            event = json.loads(body)  # the signature covers the body, and no header beside the id and the time
            print(f"partner: {event['type']} {json.dumps(event['data'], separators=(',', ':'))}", flush=True)
        self.answer(204)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """What matters is printed above."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", PORT), Hooks) as server, suppress(KeyboardInterrupt):
        server.serve_forever()
