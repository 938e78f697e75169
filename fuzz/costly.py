"""Messages that are cheap, and expensive once a piece of them is repeated: seeds for `fuzz.amplify`."""

from __future__ import annotations

_CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%b","arguments":%b}}'
_INITIALIZE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{%b},'
    b'"clientInfo":{"name":"f","version":"1"}}}'
)
_MARKS = "\u0301\u0323".encode()

CALLS = {
    # The innermost are one level deeper than the shipped limit allows, under a key that is in the path of each.
    "deep-pointers": _CALL % (b"nest", b'{"value":{"%b":[[[[[[[[[],[],[]]]]]]]]]}}' % (b"k" * 500)),
    "nested": _CALL % (b"nest", b'{"value":{"a":[[[1]]],"b":{"a":{"a":null}}}}'),
    "small-containers": _CALL % (b"nest", b'{"value":{"a":[[],[],[{},{},1]]}}'),
    "equal-keys": _CALL % (b"nest", b'{"value":{"a":{},"a":{},"a":[],"a":1}}'),
    "long-keys": _CALL % (b"nest", b'{"value":{"%b":1,"~1~1":2}}' % (b"k" * 200)),
    "violations": _CALL % (b"add", b'{"a":"x","names":[1,1,null,null,1],"c":1}'),
    "numbers": _CALL % (b"add", b'{"a":99999999999999999999,"b":9.9999999999999999e99}'),
    "combining-marks": _CALL % (b"memory_store", b'{"key":"k","value":"a%b"}' % (_MARKS * 20)),
    "search-marks": _CALL % (b"memory_search", b'{"query":"a%b"}' % (_MARKS * 20)),
    "progress-token": _CALL[:-2] % (b"nest", b'{"value":{}}') + b',"_meta":{"progressToken":"kkkk"}}}',
    "list-parameters": b'{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{"cursor":"kk","a":[[],[],1]}}',
}
"""For a connection or a session that is open."""

CAPABILITIES = _INITIALIZE % b'"a":{},"experimental":{"a":{},"b":{"c":[[],[]]}},"elicitation":{}'
"""For one that is not."""
