"""What is needed to test tools and servers: a clock and ids that do as they are told, and a connection in memory."""

from dragoman.testing.clock import ManualClock
from dragoman.testing.connection import MemoryClient, TestServer, open_server
from dragoman.testing.ids import SequentialIds
from dragoman.testing.wire import is_json_rpc

__all__ = ["ManualClock", "MemoryClient", "SequentialIds", "TestServer", "is_json_rpc", "open_server"]
