"""AACP, the protocol by which agents talk to each other: reliable, ordered and resumable.

**Purpose.** A message that was recorded arrives, in order and once, although links lose, repeat and reorder
transmissions and processes restart. A request is executed once, and every repetition of it gets the same answer.

**Integration with the coordinator.** The coordinator of a server keeps all messages of its agents in one ledger
(`dragoman.agents.ledger`). To be accepted there is to be received, so the `ack` of a pair is its last sequence number,
and it needs no endpoints. `AACPEndpoint` carries the same envelopes between ledgers that are apart, each side with
records of its own. `send_reliable_message` corresponds to `AACPEndpoint.send_event`, `send_request` to
`AACPEndpoint.send_request`, and the coordinator's hooks on messages received, completed and failed to `AACPHooks`.

**Meaning of `ack`.** `ack` is cumulative and means receipt, not commitment: every message up to that number has been
received and recorded. It never skips a gap. Whether a request was carried out is the status of its `requestId` in the
ledger. (The protocol's list of invariants first said "received and processed"; its later clarification, which is
followed here, limits `ack` to receipt.) Transport acknowledgement, the receipt, keys on `messageId`; semantic
acknowledgement, the response, on `requestId`.

**Meaning of deduplication.** It keys on `requestId`, within the agent that made the request. A transmission whose
`messageId` was seen is ignored. The same `requestId` with another body is refused.

**Processing order.** 1. Duplicate check by `requestId`. 2. If it is a duplicate, answer with the recorded response if
there is one. 3. Execute the handler only if it is neither a duplicate nor completed. 4. After a failure, ask the retry
policy. 5. If it allows another attempt, schedule it with exponential backoff and jitter.

**Outcomes.** COMPLETED, FAILED, or UNKNOWN: not observed, which is not a failure. A caller's timeout leaves UNKNOWN. A
durable completion signal settles it: the ledger's status, a RESPONSE, or a status query.

**Limits of v0.1.** Records are in memory unless an endpoint is given others: best effort for one process lifetime, not
durable across restarts. Durable ones are in the storage of a server with agents, for one endpoint at a time:
`storage.port(AACPRecords).for_agent(agent_id)`. Nothing runs in the background: the owner of an endpoint calls
`process_retries_once`. Handlers of an endpoint must be idempotent, because work that was interrupted by the end of its
process is done again. A handler that waits for a response from the agent whose message it handles should pass a
timeout: that agent's messages wait for the handler.

**Roadmap, v0.2.** Durable adapters for other engines (the contract suite for them exists), leases instead of one owner
for each endpoint's records, a link between machines.

**Migration.** The coordinator's `send_message` stays as it is, in memory and without AACP. Using the ledger is opt-in,
call by call: replace `send_message` by `send_reliable_message` where a message must arrive, and by `send_request` where
an answer is needed.
"""

from dragoman.agents.aacp.codec import AACPEncoder
from dragoman.agents.aacp.endpoint import AACPEndpoint
from dragoman.agents.aacp.envelope import (
    AACPEnvelope,
    AACPMessageStatus,
    AACPMessageType,
    AACPOutcome,
    AACPReceipt,
    AACPResponse,
)
from dragoman.agents.aacp.handling import AACPHandler, AACPHandling
from dragoman.agents.aacp.hooks import AACPHooks
from dragoman.agents.aacp.inbox import AACPAdmitted, AACPInbox
from dragoman.agents.aacp.ledger import AACPLedger, Appended
from dragoman.agents.aacp.link import AACPLink, DirectLink, Receiver
from dragoman.agents.aacp.memory import InMemoryAACPPersistenceAdapter
from dragoman.agents.aacp.outbox import AACPOutbox
from dragoman.agents.aacp.records import (
    AACPMessageRecord,
    AACPPersistenceAdapter,
    AACPRecords,
    AACPRequestRecord,
)
from dragoman.agents.aacp.retries import AACPRetransmitter, AACPRetryPolicy, Retried
from dragoman.agents.aacp.sessions import AACPSession, AACPSessionManager

__all__ = [
    "AACPAdmitted",
    "AACPEncoder",
    "AACPEndpoint",
    "AACPEnvelope",
    "AACPHandler",
    "AACPHandling",
    "AACPHooks",
    "AACPInbox",
    "AACPLedger",
    "AACPLink",
    "AACPMessageRecord",
    "AACPMessageStatus",
    "AACPMessageType",
    "AACPOutbox",
    "AACPOutcome",
    "AACPPersistenceAdapter",
    "AACPReceipt",
    "AACPRecords",
    "AACPRequestRecord",
    "AACPResponse",
    "AACPRetransmitter",
    "AACPRetryPolicy",
    "AACPSession",
    "AACPSessionManager",
    "Appended",
    "DirectLink",
    "InMemoryAACPPersistenceAdapter",
    "Receiver",
    "Retried",
]
