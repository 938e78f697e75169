"""What apcore's executor would work out anew for every call, worked out once.

Three steps of its pipeline have Pydantic generate a module's JSON Schema each time that they need it, which takes
longer than all the rest of a call. Here it is kept until modules are registered or unregistered. That changes nothing
in what apcore answers, and no step of its pipeline is left out.

The functions of apcore are compared with the ones that this module was written for, not the number of the release. If
one differs, nothing is changed: calls are slower, their answers are the same, and the log says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, TypeAlias
from weakref import finalize

import apcore

from dragoman.schemas.quick_copies import QuickCopies, first_unread

logger = logging.getLogger(__name__)

Execute: TypeAlias = "Callable[[apcore.PipelineContext], Awaitable[apcore.StepResult]]"

_READ = {
    "BuiltinModuleLookup.execute": "4d4682a52ea2ee22",
    "BuiltinInputValidation.execute": "2f154aa5d1a1a720",
    "BuiltinOutputValidation.execute": "30a2a984c425ccc5",
    "redact_sensitive": "47d1c8fab905af14",
    "utils.redaction._redact_by_keys_and_regex": "eb61d395d9ea556e",
    "utils.redaction._redact_in_list": "d90a16c0adf03615",
}
"""The functions that this module relies on, and the fingerprints of their sources."""


def quicken(executor: Any) -> bool:
    """Make redacted copies quicker in the three steps that make them; False, and a warning, where that cannot be done.

    Looking a module up, validating its inputs and validating its output each leave a copy without secrets in the
    context, for middleware that logs. Each step still runs: the original one, and all of it but for that copy, which is
    made here, by apcore's own function from a schema that is kept, or as a plain copy where no name and no schema
    calls for more. Steps that are not apcore's own, and whatever else the pipeline holds, stay as they are.
    """
    if not isinstance(executor, apcore.Executor):
        return _is_off(f"{type(executor).__name__} is not apcore's Executor")
    if unread := first_unread(apcore, _READ):
        return _is_off(f"{unread} of apcore {apcore.__version__} is not the function that was checked")
    steps = [step for step in executor.current_strategy.steps if _quicker(step) and getattr(step, "_redaction", None)]
    for step in steps:
        if "execute" not in vars(step):  # a strategy may serve several executors
            vars(step)["execute"] = _quicker(step)(step.execute, _copies(step, executor.registry))
    return bool(steps) or _is_off("the pipeline of the executor has none of apcore's own steps")


@cache
def _is_off(reason: str) -> bool:
    logger.warning("Calls of modules are slower than they could be: %s", reason)
    return False


def _copies(step: Any, registry: apcore.Registry) -> QuickCopies:
    rules = step._redaction
    names, patterns, token = rules.sensitive_keys, rules.compiled_regex_patterns, rules.replacement
    redact = partial(apcore.redact_sensitive, sensitive_keys=names, regex_patterns=patterns, replacement=token)
    copies = QuickCopies(redact, looks_at_values=bool(patterns))
    for event in ("register", "unregister"):
        registry.on(event, copies.forget)
        finalize(step, registry.off, event, copies.forget).atexit = False  # Registries outlive executors.
    return copies


class _Unredacted:
    """A model that validates as it does but shows no JSON Schema, so that a step has nothing to redact by."""

    model_json_schema = None

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _quicker_lookup(execute: Execute, redacted: QuickCopies) -> Execute:
    async def quicker(ctx: apcore.PipelineContext) -> apcore.StepResult:
        context = ctx.context
        if not hasattr(context, "redacted_inputs") or not isinstance(ctx.inputs, dict):
            return await execute(ctx)
        ctx.context = None  # the step redacts for a context only
        try:
            result = await execute(ctx)
        finally:
            ctx.context = context
        model = getattr(ctx.module, "input_schema", None)
        has_schema = model and callable(getattr(model, "model_json_schema", None))
        context.redacted_inputs = redacted(ctx.inputs, model) if has_schema else dict(ctx.inputs)
        return result

    return quicker


def _quicker_validation(side: str, schema: str, execute: Execute, redacted: QuickCopies) -> Execute:
    async def quicker(ctx: apcore.PipelineContext) -> apcore.StepResult:
        module, data = ctx.module, getattr(ctx, side)
        model = getattr(module, schema, None)
        if not isinstance(data, dict) or not callable(getattr(model, "model_json_schema", None)):
            return await execute(ctx)
        ctx.module = SimpleNamespace(**{schema: _Unredacted(model)})
        try:
            result = await execute(ctx)
        finally:
            ctx.module = module
        if hasattr(ctx.context, f"redacted_{side}"):
            setattr(ctx.context, f"redacted_{side}", redacted(data, model))
        return result

    return quicker


def _quicker(step: Any) -> Any:
    """The function that makes the `execute` of one of apcore's own steps quicker; None for any other step."""
    return _QUICKER.get(type(step).__name__) if type(step) is getattr(apcore, type(step).__name__, None) else None


_QUICKER: dict[str, Callable[[Execute, QuickCopies], Execute]] = {
    "BuiltinModuleLookup": _quicker_lookup,
    "BuiltinInputValidation": partial(_quicker_validation, "inputs", "input_schema"),
    "BuiltinOutputValidation": partial(_quicker_validation, "output", "output_schema"),
}
