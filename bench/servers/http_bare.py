"""The limit: reads the request's body to its end, looks at nothing, and gives one and the same answer."""

from typing import Any

# What Dragoman answers to a call of the same tool, byte for byte as long.
ANSWER = (
    b'{"jsonrpc":"2.0","id":1000000,"result":{"content":[{"type":"text","text":"null"}],"isError":false,"_meta":{'
    b'"dragoman/runId":"a01fcedd-53ef-4cc4-a569-07dd97d3714b",'
    b'"dragoman/correlationId":"bef705e0-5d69-49cc-ab92-cf0b00df3633","dragoman/durationMs":0.142,'
    b'"io.modelcontextprotocol/serverInfo":{"name":"dragoman","version":"0.1.0"}},"resultType":"complete"}}'
)
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))],
}
BODY = {"type": "http.response.body", "body": ANSWER}


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await send(START)
        await send(BODY)


if __name__ == "__main__":
    from serving import serve

    serve(app)
