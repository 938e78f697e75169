"""Rules of a bucket of Google Cloud Storage that its metadata tells: uniform access, and who may list it.

1. The metadata is read with the credentials of the environment, in a token for reading. They are a service account, a
   person's refresh token, or those that the machine is lent by its own metadata server.
2. A request without credentials asks whether everybody may list the bucket. Where the credentials may read the
   bucket's policy, that tells of holders of any Google account, too.
3. A fact that cannot be found out is None, and never raises.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from dragoman.access.settings import is_secure_url

if TYPE_CHECKING:
    import httpx2

_STORAGE: Final = "https://storage.googleapis.com"
_TOKENS: Final = "https://oauth2.googleapis.com/token"
_LENT: Final = "http://{}/computeMetadata/v1/instance/service-accounts/default/token"
_READING: Final = "https://www.googleapis.com/auth/devstorage.read_only"
_TIMEOUT: Final = 5.0
_EVERYBODY: Final = frozenset(("allUsers", "allAuthenticatedUsers"))
_CANNOT_LIST: Final = frozenset(("roles/storage.legacyObjectReader", "roles/storage.objectCreator"))
"""Of the roles that buckets are shared with."""


class BucketRules(Struct, frozen=True):
    """The known facts about a bucket."""

    is_uniform: bool | None = None
    """Whether access is the same for all objects."""
    is_listed: bool | None = None
    """Whether everybody may list it."""
    why_not: str = ""
    """The reason for which something was not found out."""


def read_rules(bucket: str, environ: Mapping[str, str]) -> BucketRules:
    """Ask Google about a bucket; blocks for a few seconds at most."""
    import httpx2

    account: Mapping[str, Any] = {}
    try:
        account = _account(environ)
        base = f"{_secure(account.get('gcs_base_url', _STORAGE))}/storage/v1/b/{bucket}"
        # Without TLS there are no certificates to verify: loading those of the authorities takes its time.
        is_local = all(url.startswith("http:") for url in (base, account.get("token_uri", _TOKENS)))
        with httpx2.Client(timeout=_TIMEOUT, verify=not is_local, trust_env=not is_local) as client:
            is_listed = _may_list(client.get(f"{base}/o", params={"maxResults": 1, "fields": "kind"}))
            try:
                own = {"authorization": f"Bearer {_token(account, environ, client)}"}
                said = client.get(base, params={"fields": "iamConfiguration"}, headers=own)
                if said.status_code != 200:
                    return BucketRules(None, is_listed, f"its metadata cannot be read: status {said.status_code}")
                found = said.json().get("iamConfiguration", {})
                policy = client.get(f"{base}/iam", headers=own)
                if policy.status_code == 200:
                    is_listed = is_listed or any(map(_lets_everybody_list, policy.json().get("bindings", ())))
                return BucketRules(bool(found.get("uniformBucketLevelAccess", {}).get("enabled")), is_listed)
            except Exception as error:  # Whatever it is, there are no credentials that say anything about the bucket.
                return BucketRules(None, is_listed, f"its metadata cannot be read: {type(error).__name__}")
    except Exception as error:
        return BucketRules(why_not=f"Google cannot be asked: {type(error).__name__}")


def _account(environ: Mapping[str, str]) -> Mapping[str, Any]:
    """The credentials as a file of Google's has them; empty where the machine is to lend some."""
    written = environ.get("GOOGLE_SERVICE_ACCOUNT_KEY")
    if written is None:
        names = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS")
        path = next((environ[name] for name in names if environ.get(name)), None)
        written = None if path is None else Path(path).read_text("utf-8")
    found: Mapping[str, Any] = {} if written is None else json.loads(written)
    return found


def _token(account: Mapping[str, Any], environ: Mapping[str, str], client: httpx2.Client) -> str:
    if account.get("disable_oauth"):
        return "none"
    if not account:
        url = _LENT.format(environ.get("GCE_METADATA_HOST", "metadata.google.internal"))
        answer = client.get(url, headers={"metadata-flavor": "Google"}, timeout=1.0)
    else:
        if "refresh_token" in account:
            names = ("client_id", "client_secret", "refresh_token")
            asked = {"grant_type": "refresh_token", **{name: account[name] for name in names}}
        else:
            asked = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": _assertion(account)}
        answer = client.post(_secure(account.get("token_uri", _TOKENS)), data=asked)
    answer.raise_for_status()
    return str(answer.json()["access_token"])


def _assertion(account: Mapping[str, Any]) -> str:
    """The claims that a service account signs to get a token."""
    from joserfc import jwt
    from joserfc.jwk import RSAKey

    now = int(time.time())
    claims = {
        "iss": account["client_email"],
        "scope": _READING,
        "aud": account.get("token_uri", _TOKENS),
        "iat": now,
        "exp": now + 600,
    }
    header = {"alg": "RS256", "typ": "JWT", "kid": account.get("private_key_id", "")}
    return jwt.encode(header, claims, RSAKey.import_key(account["private_key"]))


def _may_list(answer: httpx2.Response) -> bool | None:
    if answer.status_code in (401, 403):
        return False
    return True if answer.status_code == 200 else None


def _lets_everybody_list(binding: Mapping[str, Any]) -> bool:
    return bool(_EVERYBODY.intersection(binding.get("members", ()))) and binding.get("role") not in _CANNOT_LIST


def _secure(url: str) -> str:
    if not is_secure_url(url):
        raise ValueError("neither https nor on this machine")
    return url.rstrip("/")
