"""What apcore's executor would work out anew for every call, worked out once.

Three steps of its pipeline have Pydantic generate a module's JSON Schema each time that they need it, which takes
longer than all the rest of a call. Here it is kept until modules are registered or unregistered. That changes nothing
in what apcore answers, and no step of its pipeline is left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from copy import deepcopy
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, TypeAlias
from weakref import finalize

import apcore
from apcore import redact_sensitive
from apcore.observability import RedactionConfig

Data: TypeAlias = dict[str, Any]
Execute: TypeAlias = Callable[[apcore.PipelineContext], Awaitable[apcore.StepResult]]
Redact: TypeAlias = Callable[[Data, Any], Data]

# The releases whose steps were read. Another one runs as it is: slower, and right.
_KNOWN_RELEASES = {"0.32.2"}
_EVENTS = ("register", "unregister")
_ATOMS = {str, int, float, bool, type(None)}
_MOST_KEPT = 4096


def quicken(executor: apcore.Executor) -> bool:
    """Make redacted copies quicker in the three steps that make them; False where there are none that can be.

    Looking a module up, validating its inputs and validating its output each leave a copy without secrets in the
    context, for middleware that logs. Each step still runs: the original one, and all of it but for that copy, which is
    made here, by apcore's own function from a schema that is kept, or as a plain copy where no name and no schema
    calls for more. Steps that are not apcore's own, and whatever else the pipeline holds, stay as they are.
    """
    is_known = isinstance(executor, apcore.Executor) and apcore.__version__ in _KNOWN_RELEASES
    steps = executor.current_strategy.steps if is_known else []
    ours = [step for step in steps if type(step) in _QUICKER and isinstance(_rules(step), RedactionConfig)]
    for step in ours:
        if "execute" not in vars(step):  # a strategy may serve several executors
            vars(step)["execute"] = _QUICKER[type(step)](step.execute, _redactor(step, executor.registry))
    return bool(ours)


def _rules(step: apcore.Step) -> Any:
    return getattr(step, "_redaction", None)


def _redactor(step: apcore.Step, registry: apcore.Registry) -> Redact:
    """Copies data without its secrets, exactly as `apcore.redact_sensitive` does by the schema of a model."""
    rules = _rules(step)
    names, patterns = rules.sensitive_keys, rules.compiled_regex_patterns
    redact = partial(redact_sensitive, sensitive_keys=names, regex_patterns=patterns, replacement=rules.replacement)

    @lru_cache(_MOST_KEPT)
    def is_secret(name: str) -> bool:
        return redact({name: 0}, {}) != {name: 0}

    @lru_cache(_MOST_KEPT)
    def marks_of(model: Any) -> Data:
        """The model's schema, or an empty one: without a mark in it, it makes no difference."""
        schema: Data = model.model_json_schema()
        return schema if "x-sensitive" in repr(schema) else {}

    def plain_copy(value: Any) -> Any:
        """Raises `LookupError` where there is, or may be, something to redact."""
        if type(value) in _ATOMS:
            return value
        if type(value) is list:
            return [plain_copy(each) for each in value]
        if type(value) is dict and not any(map(is_secret, value)):
            return {name: plain_copy(each) for name, each in value.items()}
        if isinstance(value, dict | list):
            raise LookupError
        return deepcopy(value)

    def redacted(data: Data, model: Any) -> Data:
        marks = marks_of(model) if isinstance(model, Hashable) else model.model_json_schema()
        try:
            return redact(data, marks) if marks or patterns else plain_copy(data)
        except LookupError:
            return redact(data, marks)

    def forget(*_: Any) -> None:
        marks_of.cache_clear()

    for event in _EVENTS:
        registry.on(event, forget)
        finalize(step, registry.off, event, forget).atexit = False  # Registries outlive executors.
    return redacted


class _Unredacted:
    """A model that validates as it does but shows no JSON Schema, so that a step has nothing to redact by."""

    model_json_schema = None

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _quicker_lookup(execute: Execute, redacted: Redact) -> Execute:
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


def _quicker_validation(side: str, schema: str, execute: Execute, redacted: Redact) -> Execute:
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


_QUICKER: dict[type, Callable[[Execute, Redact], Execute]] = {
    apcore.BuiltinModuleLookup: _quicker_lookup,
    apcore.BuiltinInputValidation: partial(_quicker_validation, "inputs", "input_schema"),
    apcore.BuiltinOutputValidation: partial(_quicker_validation, "output", "output_schema"),
}
