"""Settings of the gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Final

from msgspec import Meta

from dragoman.access.settings import is_secure_url
from dragoman.sections import Bytes, Count, Milliseconds, Problem, Section, about

MIME_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,62}/[a-z0-9][a-z0-9!#$&^_.+-]{0,62}")
_WORD = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
BUCKET_URL: Final = re.compile(
    rf"(s3|gs)://(?=[^/]{{3,63}}(?:/|$))({_WORD}-agent-data-{_WORD}-[a-z0-9]+)((?:/[A-Za-z0-9._-]*[A-Za-z0-9_-])*)"
)
"""The scheme, the bucket and the prefix of `artifact_store`."""
_VERSIONED: Final = re.compile(r"[a-z][a-z0-9_.]*@[0-9]+\.[0-9]+\.[0-9]+")


class GatewayConfig(Section, frozen=True):
    """Signed actions on documents, beside MCP over HTTP; see the guide to the gateway."""

    enabled: Annotated[bool, about("Whether actions are served, and are there as tools.")] = False
    audience: Annotated[Annotated[str, Meta(min_length=1)], about("What signed requests must name as `aud`.")] = (
        "dragoman"
    )
    public_url: Annotated[
        str | None,
        about(
            "How clients reach the server, without a path: signed requests name it in `htu`, and documents have their "
            "pages there. Unset, what the `Host` header says."
        ),
    ] = None
    tenant_claim: Annotated[
        Annotated[str, Meta(min_length=1)],
        about("The claim of an issuer's token that holds the tenant, or a list of them; `a.b` is b within a."),
    ] = "tenant"
    requests_per_minute_per_tenant: Annotated[
        Count, about("How many requests a minute one tenant may send.", is_limit=True)
    ] = 600
    requests_per_minute_per_principal: Annotated[
        Count, about("How many of them may be one principal's.", is_limit=True)
    ] = 120

    max_in_flight_per_tenant: Annotated[
        Count, about("How many accepted requests of one tenant are carried out at a time.", is_limit=True)
    ] = 10
    ack_deadline_ms: Annotated[
        Milliseconds,
        about("When a request is carried out again whose process has stopped without a word."),
    ] = 30_000
    max_attempts: Annotated[
        Count, about("How often an accepted request is tried before it is a dead letter.", is_limit=True)
    ] = 5
    retry_delay_ms: Annotated[
        Milliseconds, about("The delay before the second attempt; it doubles with each one after it.")
    ] = 1_000
    max_retry_delay_ms: Annotated[Milliseconds, about("The longest delay between two attempts.")] = 60_000

    deprecations: Annotated[
        tuple[str, ...],
        about(
            "Versions of actions and when they end, as `knowledge.move_document@1.0.0 2030-01-31T12:00:00Z`. Tenants "
            "are told on the bus, and in the audit."
        ),
    ] = ()

    strict_args: Annotated[
        bool,
        about(
            "Whether arguments of signed requests with members that the schema does not name are refused with 422. "
            "Otherwise such members have no effect, and the answer names them in `usage.ignored`."
        ),
    ] = False

    mime_types: Annotated[
        tuple[str, ...],
        about(
            "The types that artifacts may have. Content of text and JSON types is checked; that of others cannot be."
        ),
    ] = ("text/plain", "text/markdown", "application/json")
    max_artifact_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=67_108_864)],
        about("The most that an artifact may weigh, and arguments that are sent as one.", is_limit=True),
    ] = 67_108_864
    artifact_bytes_per_tenant: Annotated[
        Bytes, about("The most that the artifacts of one tenant may weigh together.", is_limit=True)
    ] = 1_073_741_824
    artifact_store: Annotated[
        str | None,
        about(
            "`s3://bucket/prefix` or `gs://bucket/prefix`, with credentials from the environment; the bucket is called "
            "`<prefix>-agent-data-<purpose>-<env>`. Unset, files in the data directory."
        ),
    ] = None

    def conflicts(self) -> Iterator[Problem]:
        url = self.public_url
        if url is not None and (not is_secure_url(url) or url.count("/") != 2 or "?" in url or "#" in url):
            yield "public_url", "must be a URL without a path, with https, or with http on this machine"
        for each in self.deprecations:
            name, _, moment = each.partition(" ")
            if not (_VERSIONED.fullmatch(name) and _is_moment(moment)):
                example = "knowledge.move_document@1.0.0 2030-01-31T12:00:00Z"
                yield "deprecations", f"{each!r:.100} is not an action with version and moment, as {example}"
        if self.retry_delay_ms > self.max_retry_delay_ms:
            yield "retry_delay_ms", "must not be longer than max_retry_delay_ms"
        for mime in self.mime_types:
            if not MIME_TYPE.fullmatch(mime):
                yield "mime_types", f"{mime!r:.100} is no MIME type in small letters, without parameters"
        if self.artifact_store is not None and not BUCKET_URL.fullmatch(self.artifact_store):
            yield "artifact_store", "must be s3:// or gs:// with a bucket <prefix>-agent-data-<purpose>-<env>"


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
