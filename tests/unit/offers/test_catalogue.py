"""The catalogue of offers: what comes, goes and is found, and who is told."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dragoman import Offers, Prompt, Resource, prompt, resource, tool
from dragoman.errors import DuplicateOffer, InvalidOffer
from dragoman.offers.catalogue import offered_by
from dragoman.telemetry.log import StructuredLogger
from dragoman.testing import ManualClock
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.settings import TimeoutsConfig, ToolsConfig
from dragoman.tools.tool import tool_of


def at(uri: str, **options: Any) -> Resource:
    names = [part.partition("}")[0].lstrip("+") for part in uri.split("{")[1:]]
    namespace: dict[str, Any] = {}
    exec(f"def read({', '.join(names)}): return ''", namespace)
    (offer,) = offered_by(resource(uri, **options)(namespace["read"]))
    assert isinstance(offer, Resource)
    return offer


def named(name: str, **options: Any) -> Prompt:
    (offer,) = offered_by(prompt(name=name, **options)(lambda: ""))
    assert isinstance(offer, Prompt)
    return offer


def keys(offers: Offers) -> list[str]:
    return [offer.key for offer in offers]


@pytest.mark.parametrize("offer", [at("x:b", description="half \ud83d"), named("b", title="half \ud83d")])
def test_an_offer_whose_words_cannot_be_sent_does_not_spoil_the_list(offer: Resource | Prompt) -> None:
    offers = Offers()
    offers.register(at("x:a"))
    with pytest.raises(InvalidOffer, match="has half of a surrogate pair"):
        offers.register(offer)
    assert keys(offers) == ["x:a"]


def test_each_list_is_sorted_and_has_its_own() -> None:
    offers = Offers()
    for offer in (named("b"), at("x:b"), at("x:{z}"), at("x:a"), at("x:y/{z}"), named("a")):
        offers.register(offer)
    assert [each.key for each in offers.resources()] == ["x:a", "x:b"]
    assert [each.key for each in offers.templates()] == ["x:y/{z}", "x:{z}"]
    assert [each.key for each in offers.prompts()] == ["a", "b"]
    assert (len(offers), offers.kinds) == (6, {"resources", "prompts"})
    assert Offers().kinds == set()


def test_a_tool_and_an_offer_never_share_a_serial() -> None:
    catalogue, offers = Catalogue(ToolsConfig(), StructuredLogger([].append, ManualClock())), Offers()
    catalogue.register(tool_of(tool(name="first")(lambda: "")))
    offers.register(at("x:a"))
    catalogue.register(tool_of(tool(name="second")(lambda: "")))
    first, second, offer = catalogue.get("first"), catalogue.get("second"), offers.get("x:a")
    assert first is not None
    assert second is not None
    assert offer is not None
    assert first.serial < offer.tool.serial < second.serial


@pytest.mark.parametrize("make", [lambda: at("x:a"), lambda: at("x:{a}"), lambda: named("a")])
def test_the_first_registration_stays(make: Any) -> None:
    offers, first = Offers(), make()
    offers.register(first)
    version = offers.version
    with pytest.raises(DuplicateOffer, match="is registered already; the first registration stays"):
        offers.register(make())
    assert list(offers) == [first]
    assert offers.version == version


def test_a_uri_of_its_own_comes_before_templates_and_an_old_template_before_a_new_one() -> None:
    offers = Offers()
    for uri in ("x:{a}", "x:b", "x:{+a}"):
        offers.register(at(uri))

    def found(uri: str) -> tuple[str, dict[str, str]] | None:
        match offers.at(uri):
            case None:
                return None
            case found, _, values:
                return found.key, values

    assert found("x:b") == ("x:b", {})
    assert found("x:c") == ("x:{a}", {"a": "c"})
    assert found("x:c/d") == ("x:{+a}", {"a": "c/d"})
    assert found("y:c") is None


def test_a_prompt_is_not_read_and_a_template_is_no_resource_of_its_own() -> None:
    offers = Offers()
    offers.register(named("a"))
    offers.register(at("x:y/{a}"))
    assert offers.at("a") is None
    assert offers.at("x:y/{a}") is not None  # As what its variable stands for.
    offers.unregister("x:y/{a}")
    assert offers.at("x:y/{a}") is None


def test_what_is_replaced_is_replaced_at_once_or_not_at_all() -> None:
    offers = Offers()
    told: list[tuple[str, list[str]]] = []
    offers.register(at("x:a"))
    offers.register(named("a"))
    offers.on_change(lambda kind: told.append((kind, keys(offers))))
    offers.replace(["x:a", "x:none"], [at("x:b"), named("b")])
    after = ["a", "b", "x:b"]
    assert told == [("prompts", after), ("resources", after)]
    with pytest.raises(DuplicateOffer):
        offers.replace(["x:b"], [at("x:c"), named("a")])
    assert keys(offers) == after
    assert len(told) == 2


def test_only_listeners_of_a_change_are_told_and_only_while_they_listen() -> None:
    offers = Offers()
    told: list[str] = []
    stop = offers.on_change(told.append)
    offers.register(at("x:a"))
    assert not offers.unregister("x:b")
    assert told == ["resources"]
    assert offers.unregister("x:a")
    stop()
    offers.register(named("a"))
    assert told == ["resources", "resources"]


def test_threads_that_register_at_the_same_time_lose_nothing() -> None:
    offers = Offers()
    barrier = threading.Barrier(8)

    def register(number: int) -> None:
        barrier.wait()
        for each in range(20):
            offers.register(at(f"x:{number}/{each}"))

    threads = [threading.Thread(target=register, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(offers), offers.version) == (160, 160)


def test_the_operators_word_on_time_comes_first_then_the_offers_own_then_everybodys() -> None:
    offers = Offers(ToolsConfig(default_timeout_ms=1000), TimeoutsConfig(tool_overrides={"resources/read x:a": 3000}))
    for offer in (at("x:a", timeout_ms=2000), at("x:b", timeout_ms=2000), named("c")):
        offers.register(offer)
    timeouts = [registered.tool.timeout_ms for key in ("x:a", "x:b", "c") if (registered := offers.get(key))]
    assert timeouts == [3000, 2000, 1000]
