"""The rules of a bucket of Google's, asked of a server on this machine that answers as the storage API does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc import jwt
from joserfc.jwk import RSAKey

from dragoman.adapters.buckets import examine_bucket, find_bucket
from dragoman.adapters.google_bucket import BucketRules, read_rules
from dragoman.clock import SystemClock
from dragoman.errors import ConfigError, PartFailed
from dragoman.findings import Finding
from dragoman.gateway.part import check_findings
from dragoman.gateway.settings import GatewayConfig
from dragoman.telemetry.log import Entry, StructuredLogger
from tests.support.gateway_serving import open_gateway
from tests.support.scripted_http import Asked, Said, scripted_server

NAME = "acme-agent-data-uploads-prod"
URL = f"gs://{NAME}"
KEY = rsa.generate_private_key(65537, 2048)
PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
UNIFORM = {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "inherited"}


class Google:
    """The storage API, and where tokens are made."""

    def __init__(self) -> None:
        self.metadata: Said | dict[str, Any] = UNIFORM
        self.policy: Said | list[dict[str, Any]] = Said(403)
        self.anonymous = 403
        self.asked: list[str] = []
        self.base = ""

    def answer(self, asked: Asked) -> Said:
        path = urlsplit(asked.path).path
        self.asked.append(path)
        if path == "/token":
            return self._token(parse_qs(asked.body.decode()))
        if path.endswith("/default/token"):
            assert asked.headers["metadata-flavor"] == "Google"
            return _json({"access_token": "the-token"})
        if path == f"/storage/v1/b/{NAME}/o":
            assert "authorization" not in asked.headers, "asked as everybody"
            return Said(self.anonymous, b"{}")
        assert asked.headers["authorization"] == "Bearer the-token"
        if path == f"/storage/v1/b/{NAME}/iam":
            return self.policy if isinstance(self.policy, Said) else _json({"bindings": self.policy})
        assert path == f"/storage/v1/b/{NAME}"
        return self.metadata if isinstance(self.metadata, Said) else _json({"iamConfiguration": self.metadata})

    def _token(self, form: dict[str, list[str]]) -> Said:
        if form["grant_type"] == ["refresh_token"]:
            assert (form["client_id"], form["refresh_token"]) == (["id"], ["secret"])
        else:
            claims = jwt.decode(form["assertion"][0], RSAKey.import_key(PEM), algorithms=["RS256"]).claims
            assert (claims["iss"], claims["aud"]) == ("dragoman@example.org", f"{self.base}/token")
            assert claims["scope"].endswith("/devstorage.read_only")
        return _json({"access_token": "the-token"})

    @property
    def account(self) -> str:
        """A file of a service account."""
        facts = {"type": "service_account", "client_email": "dragoman@example.org", "private_key": PEM}
        more = {"private_key_id": "k", "token_uri": f"{self.base}/token", "gcs_base_url": self.base}
        return json.dumps({**facts, **more})


def _json(value: Any) -> Said:
    return Said(200, msgspec.json.encode(value), {"content-type": "application/json"})


@pytest.fixture
def google() -> Iterator[Google]:
    google = Google()
    with scripted_server(google.answer) as google.base:
        yield google


def verdicts(google: Google) -> list[tuple[str, str]]:
    """What `doctor` says of the rules."""
    found = examine_bucket(GatewayConfig(artifact_store=URL), {"GOOGLE_SERVICE_ACCOUNT_KEY": google.account})
    return [(each.verdict, each.message) for each in found][-2:]


@pytest.mark.requirement("MC-ART-02")
@pytest.mark.parametrize(
    ("metadata", "anonymous", "policy", "rules"),
    [
        (UNIFORM, 403, Said(403), BucketRules(True, False)),
        (UNIFORM, 401, [], BucketRules(True, False)),
        ({}, 403, Said(403), BucketRules(False, False)),
        ({"uniformBucketLevelAccess": {"enabled": False}}, 403, [], BucketRules(False, False)),
        (UNIFORM, 200, Said(403), BucketRules(True, True)),
        (UNIFORM, 403, [{"role": "roles/storage.objectViewer", "members": ["allAuthenticatedUsers"]}],
         BucketRules(True, True)),
        (UNIFORM, 403, [{"role": "roles/storage.legacyObjectReader", "members": ["allUsers"]}],
         BucketRules(True, False)),
        (UNIFORM, 403, [{"role": "roles/storage.objectViewer", "members": ["user:ada@example.org"]}],
         BucketRules(True, False)),
        (UNIFORM, 500, Said(403), BucketRules(True, None)),
        (Said(403), 403, Said(403), BucketRules(None, False, "its metadata cannot be read: status 403")),
        (Said(200, b"<html>"), 200, Said(403), BucketRules(None, True, "its metadata cannot be read: JSONDecodeError")),
    ],
)  # fmt: skip
def test_uniform_access_and_public_listing_are_found_out(
    google: Google, metadata: Any, anonymous: int, policy: Any, rules: BucketRules
) -> None:
    google.metadata, google.anonymous, google.policy = metadata, anonymous, policy
    assert read_rules(NAME, {"GOOGLE_SERVICE_ACCOUNT_KEY": google.account}) == rules


@pytest.mark.requirement("MC-ART-02")
@pytest.mark.parametrize("kind", ["file", "person", "lent"])
def test_every_kind_of_credentials_gets_a_token(google: Google, kind: str, tmp_path: Any) -> None:
    file = tmp_path / "key.json"
    person = {"type": "authorized_user", "client_id": "id", "client_secret": "s", "refresh_token": "secret"}
    written = {"file": google.account, "person": json.dumps({**json.loads(google.account), **person}), "lent": ""}[kind]
    file.write_text(written)
    environ = {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}
    if kind == "lent":
        host = google.base.removeprefix("http://")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dragoman.adapters.google_bucket._STORAGE", google.base)
            assert read_rules(NAME, {"GCE_METADATA_HOST": host}) == BucketRules(True, False)
    else:
        assert read_rules(NAME, environ) == BucketRules(True, False)


@pytest.mark.requirement("MC-ART-02")
def test_what_cannot_be_found_out_is_said_and_does_not_raise(google: Google) -> None:
    elsewhere = json.dumps({**json.loads(google.account), "gcs_base_url": "http://storage.example.org"})
    for environ in ({"GOOGLE_SERVICE_ACCOUNT_KEY": "no JSON"}, {"GOOGLE_SERVICE_ACCOUNT_KEY": elsewhere},
                    {"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere"}):  # fmt: skip
        rules = read_rules(NAME, environ)
        assert (rules.is_uniform, rules.is_listed) == (None, None)
        assert rules.why_not.startswith("Google cannot be asked: ")
    assert google.asked == []


@pytest.mark.requirement("MC-ART-02")
@pytest.mark.slow
async def test_a_bucket_that_breaks_a_rule_stops_the_start_by_its_name(
    google: Google, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", google.account)
    log: list[Entry] = []

    async def start() -> None:
        bucket = find_bucket(GatewayConfig(artifact_store=URL), tmp_path, SystemClock())
        assert bucket is not None
        assert bucket.examine is not None
        check_findings(await bucket.examine(), StructuredLogger(log.append))

    await start()
    assert log == []
    google.metadata, google.anonymous = {}, 200
    with pytest.raises(ConfigError) as refused:
        await start()
    assert refused.value.problems == (
        ("gateway.artifact_store", f"{URL} can be listed by everybody"),
        ("gateway.artifact_store", f"{URL} has no uniform bucket-level access"),
    )
    with pytest.raises(PartFailed, match=rf"{URL} has no uniform"):
        async with open_gateway({"gateway": {"enabled": True, "artifact_store": URL}}):
            pass
    google.metadata, google.anonymous = Said(403), 403
    await start()
    (entry,) = log
    assert isinstance(entry, dict)
    reason = f"{URL}: uniform access was not checked: its metadata cannot be read: status 403"
    assert (entry["message"], entry["reason"]) == ("the bucket of artifacts was not checked", reason)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    s3 = find_bucket(GatewayConfig(artifact_store=f"s3://{NAME}"), tmp_path, SystemClock())
    assert s3 is not None
    assert s3.examine is not None
    (finding,) = await s3.examine()
    assert (finding.verdict, finding.message) == (
        "warning",
        f"s3://{NAME}: uniform access and public listing were not checked",
    )


@pytest.mark.requirement("MC-ART-02")
@pytest.mark.slow
def test_doctor_says_what_the_metadata_tells(google: Google) -> None:
    assert verdicts(google)[-1] == ("ok", f"{URL} has uniform access, and cannot be listed by everybody")
    google.metadata = {}
    assert verdicts(google)[-1] == ("problem", f"{URL} has no uniform bucket-level access")
    google.metadata = Said(404)
    said = f"{URL}: uniform access was not checked: its metadata cannot be read: status 404"
    assert verdicts(google)[-1] == ("warning", said)
    assert all(isinstance(each, Finding) for each in examine_bucket(GatewayConfig(artifact_store=URL), {}))
