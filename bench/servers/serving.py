"""One worker on 127.0.0.1, the port being the last argument: the same for everybody who is measured over HTTP."""

import sys
from typing import Any

import uvicorn


def serve(app: Any) -> None:
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[-1]),
        http="httptools",
        loop="uvloop",
        ws="none",
        access_log=False,
        log_level="warning",
    )
