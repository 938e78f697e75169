"""Lines about calls in Python's own log, for a framework whose users are promised them there."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dragoman.calls.call import Call, Outcome
from dragoman.telemetry.clean import sanitize
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.tool import MOST_NAME


def call_log(catalogue: Catalogue, logger: logging.Logger, package: str) -> Callable[[Call], None]:
    """For `on_submit`: logs calls of unknown tools and of those whose handlers are in `package`.

    Each call has a line, and each error that answers one. An error with words of its own (`ToolError.plain`) has been
    logged where these words were found.
    """

    def begin(call: Call) -> None:
        tool = catalogue.get(call.name)
        if call.method != "tools/call" or (tool is not None and not _is_in(tool.handler, package)):
            return
        name, reply = sanitize(call.name[:MOST_NAME]), call.reply
        logger.debug("Tool call: %s", name)

        def answer(call: Call, outcome: Outcome) -> None:
            reply(call, outcome)
            error = outcome.error
            if error is not None and getattr(error, "plain", None) is None:
                logger.error("Tool call error: %s - %s: %s", name, type(error).__name__, sanitize(error.message))

        call.reply = answer

    return begin


def _is_in(handler: object, package: str) -> bool:
    return f"{getattr(handler, '__module__', '')}.".startswith(f"{package}.")
