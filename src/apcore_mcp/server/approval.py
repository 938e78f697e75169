"""Modules that a person has to approve: the client's, where there is one that can be asked, and otherwise nobody's.

apcore lets such calls pass where no approval handler is set. Here the person behind the client decides instead:

1. A module that is known to need approval asks before the call takes a slot, in both eras of the protocol.
2. A module that turns out to need it on the way (another module calls it, or an access rule says so) asks then, which
   needs a client of the handshake era.
3. Where nobody can be asked, or nobody answers, the answer is no.
4. An executor that has a handler of its own keeps it, and is not asked twice.
5. The question shows the module and all of its arguments, and nothing in them is invisible. A call whose arguments are
   too long for that is refused.
6. A yes is valid for one run.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from apcore import ApprovalDeniedError, ApprovalRequest, ApprovalResult
from apcore.utils.redaction import redact_sensitive

from apcore_mcp.helpers import MCP_ELICIT_KEY
from apcore_mcp.server.calls import way_back
from dragoman.errors import InvalidArgument
from dragoman.schemas.forms import form_of
from dragoman.telemetry.clean import show_all
from dragoman.tools.questions import FormKind, Question

if TYPE_CHECKING:
    from collections.abc import Mapping

    from apcore import Context, Executor, ModuleDescriptor

ANSWER = "apcore/approval"
"""What the question is known by; no module can have such an argument."""
_DECIDED = "_mcp_approved"
_FORM = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Approve"}},
    "required": ["approve"],
}
_LONGEST, _LONGEST_DESCRIPTION = 8000, 500


class ClientApproval:
    """An approval handler of apcore's that asks whoever made the call. Calls that did not come over MCP are not its
    business: for them it decides as if it were not there. But while calls over MCP are under way, one that does not say
    whose it is may come from one of them, by way of a thread, and is refused."""

    def __init__(self, *, is_strict: bool) -> None:
        self.under_way: set[str] = set()
        self._elsewhere = _rejected("no approval handler is configured") if is_strict else ApprovalResult("approved")

    async def request_approval(self, request: ApprovalRequest) -> ApprovalResult:
        """The person's decision."""
        context = request.context
        ask = context.data.get(MCP_ELICIT_KEY) or way_back.get()
        if ask is None:
            return _rejected("it cannot be told whose call it is") if self.under_way else self._elsewhere
        if len(context.call_chain) == 1 and context.data.get(_DECIDED) == request.module_id:
            return ApprovalResult("approved", approved_by="client")
        described = context.executor.registry.get_definition(request.module_id)
        schema = {} if described is None else described.input_schema
        try:
            question = _wording(request.module_id, request.description, schema, request.arguments)
        except InvalidArgument as error:
            return _rejected(error.message)
        answer = await ask(question, _FORM)
        return ApprovalResult("approved", approved_by="client") if _is_yes(answer) else _rejected()

    async def check_approval(self, approval_id: str) -> ApprovalResult:
        """Nothing is ever pending."""
        return _rejected()


def let_clients_approve(executor: Executor) -> bool:
    """Have clients asked by an executor that asks nobody else; whether they are."""
    look = getattr(executor, "governance_state", None)
    if look is None:
        return True  # Not quite an executor: what is known beforehand is asked all the same.
    state, is_ours = look(), isinstance(getattr(executor, "_approval_handler", None), ClientApproval)
    if state.approval_handler_configured and not is_ours:
        return not state.builtin_approval_gate_wired  # A handler that no step consults decides nothing.
    if not is_ours:
        executor.set_approval_handler(ClientApproval(is_strict=state.policy_strict))
    return True


def calls_under_way(executor: Executor) -> set[str]:
    """Where the ids of calls over MCP are kept while they are under way, for who has to know that there are some."""
    handler = getattr(executor, "_approval_handler", None)
    return handler.under_way if isinstance(handler, ClientApproval) else set()


def approval_question(descriptor: ModuleDescriptor) -> Question:
    """What is asked before a module runs that needs approval."""
    word = partial(_wording, descriptor.module_id, descriptor.description, descriptor.input_schema)
    return Question(ANSWER, FormKind(form_of(_FORM)), frozenset(), None, False, word, is_approval=True)


def take_decision(arguments: dict[str, Any], context: Context[Any], module_id: str) -> None:
    """Take the answer from among the arguments, for the executor to find; raises `ApprovalDeniedError` for a no."""
    if not _is_yes(arguments.pop(ANSWER, None)):
        raise ApprovalDeniedError(result=_rejected(), module_id=module_id)
    context.data[_DECIDED] = module_id


def _is_yes(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("approve") is True


def _rejected(reason: str = "the person behind the client has not approved") -> ApprovalResult:
    return ApprovalResult("rejected", reason=reason)


def _wording(module_id: str, description: str | None, schema: dict[str, Any], arguments: Mapping[str, Any]) -> str:
    """The question for a person; raises `InvalidArgument` if it would not show everything."""
    shown = show_all(json.dumps(redact_sensitive(dict(arguments), schema or {}), default=str, ensure_ascii=False))
    if len(shown) > _LONGEST:
        reason = f"The arguments are too long to be shown for approval: {len(shown)} characters, at most {_LONGEST}"
        raise InvalidArgument(reason, {"reason": "too_long_for_approval", "limit": _LONGEST, "actual": len(shown)})
    about = show_all((description or "").strip().partition("\n")[0])[:_LONGEST_DESCRIPTION]
    return f"May {show_all(module_id)} run? {about}\n\n{shown}"
