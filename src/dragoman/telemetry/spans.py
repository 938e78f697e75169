"""OpenTelemetry: when there are spans, where they go, and which trace a request belongs to.

1. There are spans when the application has set a tracer provider before the runtime was made, or when `dragoman serve`
   has, because the standard `OTEL_*` variables ask for it. Otherwise OpenTelemetry is not even imported.
2. Spans are sent by a thread of the SDK's, in batches: a collector that is slow or gone costs spans, never a call.
3. A request belongs to the trace that its `_meta` names (SEP-414), else to the one that is going on, else to the one
   that its HTTP headers name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dragoman.extras import install_command
from dragoman.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer, TracerProvider

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class NoSpans(Exception):
    """Spans were asked for and cannot be had; says why."""


def make_tracer(provider: TracerProvider | None = None) -> Tracer | None:
    """What makes the spans of calls; None when they would go nowhere."""
    if provider is None:
        # Whoever sets a provider has imported it: there is none while another thread is still importing it.
        get_provider: Any = getattr(sys.modules.get("opentelemetry.trace"), "get_tracer_provider", None)
        if get_provider is None:
            return None
        provider = get_provider()
    from opentelemetry.trace import NoOpTracer, NoOpTracerProvider, ProxyTracerProvider

    if isinstance(provider, NoOpTracerProvider | ProxyTracerProvider):
        return None
    tracer = provider.get_tracer("dragoman", __version__)
    return None if isinstance(tracer, NoOpTracer) else tracer


def set_up_spans(environ: Mapping[str, str], service: str) -> bool:
    """Set the tracer provider that the variables ask for; False when they do not. Raises `NoSpans`.

    `service` is what the server is called where no variable names it. What is not sent when the process exits is sent
    by an exit handler.
    """
    names = _exporters(environ)
    if not names:
        return False
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise NoSpans(f"the OpenTelemetry SDK is not installed: {install_command('otel')}") from None
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: service}))
    provider = TracerProvider(resource=resource)
    for name in names:
        provider.add_span_processor(BatchSpanProcessor(_exporter(name, environ)))
    trace.set_tracer_provider(provider)
    return True


def _exporters(environ: Mapping[str, str]) -> list[str]:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = [name.strip() for name in environ.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()]
    if not named:
        return ["otlp"] if any(environ.get(variable, "").strip() for variable in _ENDPOINTS) else []
    return [name for name in named if name != "none"]


def _exporter(name: str, environ: Mapping[str, str]) -> SpanExporter:
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    if name != "otlp":
        raise NoSpans(f"OTEL_TRACES_EXPORTER is {name!r}; otlp, console and none are known")
    protocol = next((environ[variable] for variable in _PROTOCOLS if environ.get(variable)), "http/protobuf")
    if protocol != "http/protobuf":
        raise NoSpans(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; only http/protobuf is spoken")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise NoSpans(f"OpenTelemetry's OTLP exporter is not installed: {install_command('otel')}") from None
    return OTLPSpanExporter()


def remote_context(carrier: Mapping[str, Any]) -> Context | None:
    """The trace that a request's `_meta` or headers name, as the configured propagators read them."""
    from opentelemetry.propagate import extract
    from opentelemetry.trace import get_current_span

    texts = {key: value for key, value in carrier.items() if type(value) is str}
    context = extract(texts)
    return context if get_current_span(context).get_span_context().is_valid else None


def join_trace(headers: Iterable[tuple[bytes, bytes]]) -> Callable[[], None] | None:
    """Go on with the trace that an HTTP request's headers name, unless one is going on already.

    What is given back ends that; None: there is nothing to end.
    """
    from opentelemetry.context import attach, detach
    from opentelemetry.trace import get_current_span

    if get_current_span().get_span_context().is_valid:
        return None
    context = remote_context({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})
    return None if context is None else partial(detach, attach(context))
