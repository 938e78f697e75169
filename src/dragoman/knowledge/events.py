"""Events that a tenant is told of on the message bus, as well as in the audit."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from dragoman.knowledge.port import AuditEvent
from dragoman.messaging.bus import BusMessage
from dragoman.messaging.subjects import events_subject

KEPT_SECONDS: Final = 30 * 86_400.0
"""How long an event waits on the bus for somebody who takes it."""


def told(event: AuditEvent) -> BusMessage:
    """The message that goes with an event. An event that is noted once is published once."""
    facts = {
        "event": event.event,
        "tenant_id": event.tenant,
        "subject": event.subject,
        "at": event.at,
        "details": event.details,
    }
    body = msgspec.json.encode(facts)
    digest = hashlib.sha256(body if event.once is None else event.once.encode()).hexdigest()
    return BusMessage(subject=events_subject(event.tenant), id=digest, body=body, expires_at=event.at + KEPT_SECONDS)
