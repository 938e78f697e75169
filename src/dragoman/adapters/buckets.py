"""The bucket that `gateway.artifact_store` names; without one, its library is not loaded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dragoman.clock import Clock
from dragoman.errors import ConfigError
from dragoman.extras import install_command
from dragoman.findings import Finding
from dragoman.gateway.keeping import ArtifactBucket
from dragoman.gateway.settings import BUCKET_URL, GatewayConfig

_CHECK: Final = "artifacts"
_CREDENTIALS: Final = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    "gs": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
}
_COMMANDS: Final = {
    "s3": "aws s3api get-bucket-ownership-controls --bucket NAME",
    "gs": "gcloud storage buckets describe gs://NAME",
}
"""They show what no request for an object can."""


def find_bucket(settings: GatewayConfig, folder: Path, clock: Clock) -> ArtifactBucket | None:
    """None if artifacts are kept by the storage. Unfinished uploads are in the data directory `folder`.

    Raises `ConfigError` for a bucket that cannot be used here.
    """
    if settings.artifact_store is None:
        return None
    try:
        from dragoman.adapters.obstore_objects import ObstoreLinks, ObstoreObjects, open_bucket
    except ImportError:
        missing = f"buckets need the extra `s3`: {install_command('s3')}"
        raise ConfigError([("gateway.artifact_store", missing)]) from None
    try:
        bucket = open_bucket(settings.artifact_store)
    except Exception as error:  # Credentials, or a variable of the environment, that cannot be used.
        raise ConfigError([("gateway.artifact_store", f"cannot be used: {type(error).__name__}")]) from None
    examine = partial(asyncio.to_thread, _rules_of, settings.artifact_store, os.environ)
    return ArtifactBucket(ObstoreObjects(bucket, folder / "artifacts"), ObstoreLinks(bucket, clock), examine)


def examine_bucket(settings: GatewayConfig, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What `dragoman doctor` finds out about the bucket; nothing without one. It writes nothing."""
    url = settings.artifact_store
    if url is None:
        return
    if find_spec("obstore") is None:
        yield Finding(_CHECK, "problem", "obstore is not installed", f"Install it: {install_command('s3')}")
        return
    if not any(environ.get(name) for name in _CREDENTIALS[url[:2]]):
        said = f"{url}: there are no credentials in the environment, so nothing about the bucket was checked"
        yield Finding(_CHECK, "warning", said, f"Set {' or '.join(_CREDENTIALS[url[:2]])}.")
        return
    from dragoman.adapters.obstore_objects import look_at_bucket

    yield from (Finding(_CHECK, *each) for each in look_at_bucket(url))
    yield from _rules_of(url, environ)


def _rules_of(url: str, environ: Mapping[str, str]) -> list[Finding]:
    """Whether the bucket's rules are those of artifacts, as far as its metadata can be read. Customer keys are not."""
    found = BUCKET_URL.fullmatch(url)
    assert found is not None, "the settings were checked"
    advice = f"See what `{_COMMANDS[url[:2]]}` says."
    if found[1] != "gs":
        return [Finding(_CHECK, "warning", f"{url}: uniform access and public listing were not checked", advice)]
    from dragoman.adapters.google_bucket import read_rules

    rules, findings = read_rules(found[2], environ), []
    if rules.is_listed:
        findings.append(Finding(_CHECK, "problem", f"{url} can be listed by everybody", "Prevent public access."))
    if rules.is_uniform is False:
        said = f"{url} has no uniform bucket-level access"
        findings.append(
            Finding(
                _CHECK, "problem", said, "Turn it on: `gcloud storage buckets update --uniform-bucket-level-access`."
            )
        )
    missing = [
        what
        for what, known in (("uniform access", rules.is_uniform), ("public listing", rules.is_listed))
        if known is None
    ]
    if missing:
        said = f"{url}: {' and '.join(missing)} {'was' if len(missing) == 1 else 'were'} not checked: {rules.why_not}"
        findings.append(Finding(_CHECK, "warning", said, advice))
    return findings or [Finding(_CHECK, "ok", f"{url} has uniform access, and cannot be listed by everybody")]
