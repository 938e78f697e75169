"""When there are spans, what stands in their way, and which trace a request belongs to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, get_current_span

from dragoman.extras import install_command
from dragoman.telemetry.spans import NoSpans, join_trace, make_tracer, remote_context, set_up_spans
from tests.support.waiting import PATIENCE

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def trace_in(context: Any) -> str:
    return f"{get_current_span(context).get_span_context().trace_id:032x}"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "tools"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"},
        {"OTEL_SDK_DISABLED": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "zipkin"},
    ],
)
def test_nothing_is_set_up_unless_the_variables_ask_for_it(environ: Mapping[str, str]) -> None:
    assert set_up_spans(environ, "dragoman") is False


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER is 'zipkin'; otlp, console and none are known"),
        ({"OTEL_TRACES_EXPORTER": "console, jaeger"}, "OTEL_TRACES_EXPORTER is 'jaeger'"),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'; only http/protobuf is spoken",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"},
            "'http/json'; only http/protobuf is spoken",
        ),
    ],
)
def test_what_cannot_be_set_up_says_why(environ: Mapping[str, str], reason: str) -> None:
    with pytest.raises(NoSpans) as refused:
        set_up_spans(environ, "dragoman")
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "missing", ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"]
)
def test_a_package_that_is_not_installed_is_named_with_what_installs_it(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(NoSpans, match=re.escape(f"not installed: {install_command('otel')}")):
        set_up_spans({"OTEL_TRACES_EXPORTER": "otlp"}, "dragoman")


def test_a_library_that_another_thread_is_importing_makes_no_spans_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", ModuleType("opentelemetry.trace"))
    assert make_tracer() is None


def test_a_provider_that_makes_nothing_is_none() -> None:
    assert make_tracer(NoOpTracerProvider()) is None
    assert make_tracer(ProxyTracerProvider()) is None
    assert make_tracer(TracerProvider()) is not None


def test_a_disabled_sdk_makes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert make_tracer(TracerProvider()) is None


def loaded(code: str) -> list[str]:
    """Which modules of OpenTelemetry a fresh process has loaded after `code`."""
    script = f"import sys, json\n{code}\nprint(json.dumps([name for name in sys.modules if 'opentelemetry' in name]))"
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=PATIENCE).stdout
    found: list[str] = json.loads(output)
    return found


MAKES_A_RUNTIME = "import dragoman\nruntime = dragoman.create_server(dragoman.ServerOptions())"


@pytest.mark.slow
def test_without_spans_opentelemetry_is_not_even_imported() -> None:
    assert loaded(f"{MAKES_A_RUNTIME}\nassert 'OpenSpan' not in repr(runtime.stages)") == []


@pytest.mark.slow
def test_the_provider_that_an_application_has_set_is_used() -> None:
    sets = "from opentelemetry import trace\nfrom opentelemetry.sdk.trace import TracerProvider\n"
    sets += "trace.set_tracer_provider(TracerProvider())"
    assert loaded(f"{sets}\n{MAKES_A_RUNTIME}\nassert 'OpenSpan' in repr(runtime.stages)")


@pytest.mark.parametrize(
    "carrier",
    [
        {},
        {"traceparent": 5},
        {"traceparent": ["00"]},
        {"traceparent": {"a": 1}, "tracestate": None},
        {"traceparent": "nonsense"},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"traceparent": PARENT.upper()[:-5]},
        {"traceparent": "00-" + "z" * 100_000},
        {"baggage": "x" * 100_000},
    ],
)
def test_what_names_no_trace_is_ignored(carrier: Mapping[str, Any]) -> None:
    assert remote_context(carrier) is None


def test_the_trace_and_its_state_are_read() -> None:
    context = remote_context({"traceparent": PARENT, "tracestate": "rojo=1", "progressToken": 7})
    found = get_current_span(context).get_span_context()
    assert (f"{found.trace_id:032x}", f"{found.span_id:016x}", found.is_remote) == (
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "00f067aa0ba902b7",
        True,
    )
    assert dict(found.trace_state) == {"rojo": "1"}


def test_headers_name_a_trace_only_where_none_is_going_on() -> None:
    headers = [(b"traceparent", PARENT.encode()), (b"x-name", b"\xff\xfe")]
    leave = join_trace(headers)
    assert trace_in(None) == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert leave is not None
    leave()
    assert trace_in(None) == "0" * 32
    assert join_trace([(b"traceparent", b"\xff")]) is None
    with TracerProvider().get_tracer("host").start_as_current_span("GET /mcp"):
        assert join_trace(headers) is None
