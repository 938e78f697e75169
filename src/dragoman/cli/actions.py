"""`dragoman actions`: signs an envelope, sends it to a gateway, and prints the answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urljoin

import msgspec
import typer
from msgspec import Raw, Struct

from dragoman.cli.ledger_access import note, print_shown
from dragoman.cli.options import AsJson
from dragoman.cli.output import complain, refuse
from dragoman.cli.signing import ACTIONS_URL, Audience, KeyFile, RequestSigner, SignedUrl, check_url, read_body
from dragoman.cli.words import Commands
from dragoman.process.exit_codes import FAILED, INTERRUPTED
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from httpx2 import Client, Response

_CONNECT_SECONDS, _ANSWER_SECONDS = 5.0, 300.0
_TTL_SEC = 300
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_MOST_FAILURES = 10
"""How often in a row nobody may answer while a request is waited for."""
_OPEN = ("accepted", "retrying")
_BUSY = (429, 503)
_LONGEST_REASON = 200

app = Commands()


@app.callback()
def _actions() -> None:
    """A group, although it has one command."""


@app.command()
def send(
    file: Annotated[str, typer.Argument(help="The file with the envelope, as JSON, or - for stdin.")],
    key: KeyFile,
    sub: Annotated[
        str | None, typer.Option("--sub", help="The sender, if the envelope names none. Without it, the key's name.")
    ] = None,
    url: SignedUrl = ACTIONS_URL,
    audience: Audience = "dragoman",
    is_async: Annotated[
        bool, typer.Option("--async", help="Have it carried out later; print where its answer will be.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="With --async: wait, and print the final answer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Sign an envelope, send it, and print the answer.

    These fields are filled in if they are missing: envelope_version, request_id, correlation_id, trace_id, timestamp,
    ttl_sec (300), tenant_id (the key's) and principal.sub. All others are sent as they are. Exit code 1 when the
    request is refused or fails, 130 when the wait is interrupted: the request goes on.
    """
    if wait and not is_async:
        refuse("--wait goes with --async: without it, the answer is waited for anyway")
    check_url(url)
    signer = RequestSigner(key, audience)
    envelope, sent = completed(read_body(file), sub, signer.key.kid, signer.key.tenant)
    with _talking(url) as client:
        gateway = _Gateway(client, signer, sent, url)
        answer = gateway.post(envelope, is_async=is_async)
        if answer.status_code != 202:
            _print_final(answer)
            return
        place = _place_of(answer, url)
        if not wait:
            _print_accepted(answer, place, sent, as_json)
            return
        note(f"accepted: {sanitize(place)}")
        _print_final(gateway.wait_for(place))


class Sender(Struct, frozen=True):
    """The ids that an envelope is sent with."""

    sub: str
    request_id: str
    trace_id: str


def completed(body: bytes, sub: str | None, kid: str, tenant: str) -> tuple[bytes, Sender]:
    """An envelope with its missing fields filled in, and who sends it; or the end of the command."""
    import secrets
    import uuid
    from datetime import UTC, datetime

    from dragoman.clock import iso_milliseconds
    from dragoman.gateway.envelope import VERSIONS

    # Raw: a value that is there goes out byte for byte.
    try:
        given = msgspec.json.decode(body, type=dict[str, Raw])
        principal = msgspec.json.decode(given.get("principal", b"{}"), type=dict[str, Raw])
        named = msgspec.json.decode(principal["sub"], type=str) if "sub" in principal else None
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        refuse("the envelope has to be a JSON object, with a principal that is an object")
    if sub is not None and named is not None and sub != named:
        refuse(f"--sub is {sanitize(sub)}, and the envelope is of {sanitize(named)}: leave one of them out")
    sender = named if named is not None else sub or kid
    defaults = {
        "envelope_version": VERSIONS[-1],
        "request_id": str(uuid.uuid4()),
        "correlation_id": str(uuid.uuid4()),
        "trace_id": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
        "tenant_id": tenant,
        "timestamp": iso_milliseconds(datetime.now(UTC)),
        "ttl_sec": _TTL_SEC,
    }
    filled: dict[str, Any] = {**defaults, **given, "principal": {**principal, "sub": sender}}
    sent = msgspec.json.encode(filled)
    ids = msgspec.json.decode(sent, type=_Ids)
    return sent, Sender(sender, str(ids.request_id), str(ids.trace_id))


class _Ids(Struct):
    """Taken as they are: the server checks them."""

    request_id: Any
    trace_id: Any


class _Gateway:
    """A gateway, as one sender talks to it. Its methods end the command if nobody answers."""

    def __init__(self, client: Client, signer: RequestSigner, sender: Sender, url: str) -> None:
        self._client = client
        self._signer = signer
        self._sender = sender
        self._url = url

    def post(self, envelope: bytes, *, is_async: bool) -> Response:
        headers = {**self._authorization(envelope, "POST", self._url), "content-type": "application/json"}
        if is_async:
            headers["prefer"] = "respond-async"
        return self._client.post(self._url, content=envelope, headers=headers)

    def wait_for(self, place: str) -> Response:
        """The final answer to a request that was accepted. It is asked for with growing pauses."""
        from httpx2 import HTTPError

        failures = 0
        try:
            for pause in pauses():
                time.sleep(pause)
                try:
                    answer = self._client.get(place, headers=self._authorization(b"", "GET", place))
                except HTTPError as error:  # A server that restarts answers soon.
                    failures += 1
                    if failures == _MOST_FAILURES:
                        _nobody(place, error)
                    continue
                failures = 0
                if not self._is_open(answer):
                    return answer
        except KeyboardInterrupt:
            complain("interrupted; the request goes on", f"its answer will be at {sanitize(place)}")
            raise typer.Exit(INTERRUPTED) from None
        raise AssertionError("there is always another pause")

    def _is_open(self, answer: Response) -> bool:
        """Whether this is not the final answer. One has the trace of its request, whatever its status."""
        body = _body_of(answer)
        if answer.status_code in _BUSY:
            return bool(_at(body, "error", "details", "trace_id") != self._sender.trace_id)
        return body.get("ok") is True and _at(body, "data") in [{"status": each} for each in _OPEN]

    def _authorization(self, body: bytes, method: str, url: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self._signer.token(self._sender.sub, body, method, url)}"}


def pauses() -> Iterator[float]:
    """The seconds between looks at a request: short ones first, for requests that are carried out at once."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(1.5 * pause, _LONGEST_PAUSE)


@contextmanager
def _talking(url: str) -> Iterator[Client]:
    """A client; the command ends if nobody answers."""
    import httpx2

    is_local = url.startswith("http:")  # Proxies are for what is elsewhere.
    timeout = httpx2.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
    try:
        with httpx2.Client(timeout=timeout, trust_env=not is_local) as client:
            yield client
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        _nobody(url, error)
    except KeyboardInterrupt:
        complain("interrupted; the request may be carried out nevertheless")
        raise typer.Exit(INTERRUPTED) from None


def _nobody(url: str, error: Exception) -> NoReturn:
    said = sanitize(str(error))[:_LONGEST_REASON] or type(error).__name__
    refuse(f"nobody answers at {sanitize(url)}: {said}", code=FAILED)


def _body_of(answer: Response) -> dict[str, Any]:
    """The body of an answer; or the end of the command if no gateway has sent it."""
    try:
        body = msgspec.json.decode(answer.content, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        body = {}
    if not isinstance(body.get("ok"), bool):
        wrong = f"{sanitize(str(answer.url))} did not answer as a gateway does, with status {answer.status_code}"
        refuse(f"{wrong}: is the address right, and `--gateway` on?", code=FAILED)
    return body


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _place_of(answer: Response, url: str) -> str:
    """The address of a request that was accepted: on the same server, or the end of the command."""
    place = answer.headers.get("location", "")
    if not place.startswith("/") or place.startswith("//") or not place.isprintable():
        refuse("the request was accepted, and the server does not say where its answer will be", code=FAILED)
    return urljoin(url, place)


def _print_accepted(answer: Response, place: str, sent: Sender, as_json: bool) -> None:
    status = str(_at(_body_of(answer), "data", "status"))
    if as_json:
        print_shown({"status": status, "requestId": sent.request_id, "location": place})
    else:
        typer.echo(f"{sanitize(status)}: {sanitize(place)}")


def _print_final(answer: Response) -> None:
    body = _body_of(answer)
    print_shown(body)
    if not body["ok"]:
        raise typer.Exit(FAILED)
