"""Stages around a service, outermost first."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.calls.call import Service, Stage


def build(stages: Sequence[Stage], service: Service) -> Service:
    """The service that runs each stage around the next, and `service` in the middle."""
    for stage in reversed(stages):
        service = stage(service)
    return service
