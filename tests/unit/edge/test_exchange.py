"""One request and its one answer: as JSON, or as a stream where there is something to say before it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dragoman.access.callers import ANONYMOUS
from dragoman.clock import SystemClock
from dragoman.edge.asgi import AsgiPost
from dragoman.edge.http import exchange as module
from dragoman.edge.http.exchange import MOST_QUEUED, Exchange, Watch
from tests.support.asgi import Asked
from tests.support.waiting import PATIENCE, until

ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'


@pytest.fixture(autouse=True)
def _is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_AFTER", 0.01)


class Scene:
    """An exchange under way, and its client."""

    def __init__(self, *, streams: bool = True) -> None:
        self.watch = Watch(SystemClock())
        self.client = Asked()
        post = AsgiPost(self.client.receive)
        self.exchange = Exchange(post, ANONYMOUS, self.watch, streams)
        self.left = 0
        self.exchange.on_gone = self._gone
        self.running = asyncio.create_task(post.run({}, self.client.send))

    def _gone(self, reason: str) -> None:
        self.left += 1

    async def end(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.running

    def methods(self) -> list[str]:
        return [message.get("method", "answer") for message in self.client.response.messages]


async def test_an_answer_is_json_with_its_status_and_length() -> None:
    scene = Scene()
    await asyncio.sleep(0)
    scene.exchange.finish(ANSWER, 404)
    scene.exchange.finish(b"another", 200)
    await scene.end()
    assert (scene.client.response.status, scene.client.response.body) == (404, ANSWER)
    assert scene.client.response.headers == {"content-type": "application/json", "content-length": str(len(ANSWER))}
    assert (scene.client.is_complete, scene.left) == (True, 0)


async def test_an_answer_that_is_there_before_anybody_asks_is_json_too() -> None:
    scene = Scene()
    scene.exchange.finish(ANSWER)
    await scene.end()
    assert (scene.client.response.status, scene.client.response.body) == (200, ANSWER)


async def test_what_comes_before_the_answer_makes_it_a_stream() -> None:
    scene = Scene()
    scene.exchange.notify("one", {"n": 1})
    await scene.client.wait_for(2)
    scene.exchange.notify("two")
    scene.exchange.notify("three")
    await until(lambda: "three" in scene.methods())
    scene.exchange.finish(ANSWER, 400)
    scene.exchange.notify("too late")
    await scene.end()
    response = scene.client.response
    assert (response.status, response.headers["content-type"]) == (200, "text/event-stream")
    assert scene.methods() == ["one", "two", "three", "answer"]
    assert "content-length" not in response.headers
    assert (scene.client.is_complete, scene.left) == (True, 0)


async def test_a_notification_and_the_answer_at_once_are_a_stream_in_order() -> None:
    scene = Scene()
    scene.exchange.notify("one")
    scene.exchange.finish(ANSWER)
    await scene.end()
    assert scene.methods() == ["one", "answer"]


async def test_a_client_that_takes_no_streams_gets_the_answer_alone() -> None:
    scene = Scene(streams=False)
    scene.exchange.notify("one")
    await until(lambda: not scene.watch._ticking)
    scene.exchange.finish(ANSWER)
    await scene.end()
    assert (scene.client.response.body, scene.client.response.headers["content-type"]) == (ANSWER, "application/json")


async def test_silence_is_broken_before_a_proxy_loses_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PING_EVERY", 0.03)
    scene = Scene()
    await scene.client.wait_for(4)
    scene.exchange.finish(ANSWER)
    await scene.end()
    body = scene.client.response.body
    assert body.startswith(b": ping\n\n: ping\n\n")
    assert scene.methods() == ["answer"]


async def test_a_client_that_takes_no_streams_is_not_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PING_EVERY", 0.02)
    scene = Scene(streams=False)
    await asyncio.sleep(0.08)
    assert scene.client.sent == []
    scene.exchange.finish(ANSWER)
    await scene.end()
    assert scene.client.response.body == ANSWER


@pytest.mark.parametrize("is_watched", [False, True], ids=["before anybody watches", "while somebody watches"])
async def test_a_client_that_leaves_takes_the_call_along_once(is_watched: bool) -> None:
    scene = Scene()
    await until(lambda: scene.watch._ticking is not is_watched)
    scene.client.leave()
    await scene.end()
    assert (scene.left, scene.client.sent) == (1, [])
    scene.exchange.finish(ANSWER)
    scene.exchange.notify("nobody hears this")
    assert scene.exchange.on_gone is None


async def test_a_client_that_leaves_its_stream_takes_the_call_along() -> None:
    scene = Scene()
    scene.exchange.notify("one")
    await scene.client.wait_for(2)
    scene.client.leave()
    await scene.end()
    assert scene.left == 1


async def test_a_client_that_leaves_after_its_answer_takes_nothing_along() -> None:
    scene = Scene()
    scene.exchange.finish(ANSWER)
    scene.client.leave()
    await scene.end()
    assert scene.left == 0


async def test_whoever_ends_the_exchange_ends_the_call() -> None:
    scene = Scene()
    await until(lambda: not scene.watch._ticking)
    scene.running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scene.running
    assert scene.left == 1


async def test_notifications_come_from_any_thread_and_each_threads_in_order() -> None:
    scene = Scene()

    def speak(name: str) -> None:
        for number in range(50):
            scene.exchange.notify(f"{name}{number}")

    threads = [threading.Thread(target=speak, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    await asyncio.sleep(0)
    scene.exchange.finish(ANSWER)
    await scene.end()
    methods = scene.methods()
    assert methods.pop() == "answer"
    for name in "abc":
        assert [each for each in methods if each[0] == name] == [f"{name}{number}" for number in range(50)]


async def test_a_slow_reader_is_owed_a_bounded_number_of_notifications_and_the_answer() -> None:
    scene = Scene()
    scene.exchange.notify("first")
    await scene.client.wait_for(2)
    scene.client.reads.clear()
    for number in range(5000):
        scene.exchange.notify(f"n{number}")
        if number % 100 == 0:
            await asyncio.sleep(0)
    scene.exchange.finish(ANSWER)
    await asyncio.sleep(0.01)
    assert not scene.running.done()
    scene.client.reads.set()
    await scene.end()
    methods = scene.methods()
    assert (methods[0], methods[-1]) == ("first", "answer")
    assert len(methods) <= 2 * MOST_QUEUED + 2
    numbers = [int(each[1:]) for each in methods[1:-1]]
    assert numbers == sorted(numbers)


async def test_who_must_not_lose_a_notification_waits_for_the_reader() -> None:
    scene = Scene()
    scene.client.reads.clear()
    for number in range(MOST_QUEUED + 10):
        scene.exchange.notify(f"n{number}")
    waiting = asyncio.create_task(scene.exchange.drained())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    scene.client.reads.set()
    await asyncio.wait_for(waiting, PATIENCE)
    scene.exchange.finish(ANSWER)
    await scene.end()
    assert len(scene.methods()) == MOST_QUEUED + 1


async def test_nobody_waits_for_a_reader_that_has_left() -> None:
    scene = Scene()
    scene.client.reads.clear()
    for number in range(MOST_QUEUED):
        scene.exchange.notify(f"n{number}")
    waiting = asyncio.create_task(scene.exchange.drained())
    await asyncio.sleep(0)
    scene.client.leave()
    await asyncio.wait_for(waiting, PATIENCE)
    await scene.end()


async def test_the_watch_rests_while_there_is_nothing_to_watch() -> None:
    scene = Scene()
    scene.exchange.finish(ANSWER)
    await scene.end()
    await until(lambda: not scene.watch._ticking)
    assert not scene.watch._young
    assert not scene.watch._old
    client = Asked()
    post = AsgiPost(client.receive)
    Exchange(post, ANONYMOUS, scene.watch, True)
    running = asyncio.create_task(post.run({}, client.send))
    await asyncio.sleep(0)
    client.leave()
    await asyncio.wait_for(running, PATIENCE)
