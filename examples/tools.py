"""Tools to try Dragoman with: `make run`, or `dragoman serve examples/tools.py`."""

import asyncio
import io
import math
import random
import struct
import time
import wave
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal

from msgspec import Meta, Struct

from dragoman import Ask, Audio, Image, Text, ToolContext, tool
from dragoman.errors import InvalidArgument


@tool(title="Add two numbers", read_only=True, idempotent=True, open_world=False)
async def add(a: float, b: float) -> float:
    """Adds two numbers."""
    return a + b


@dataclass
class Roll:
    dice: list[int]
    total: int


@tool(title="Roll dice", read_only=True, open_world=False)
async def roll_dice(
    count: Annotated[int, Meta(ge=1, le=100, description="how many dice")] = 2,
    sides: Annotated[int, Meta(ge=2, le=1000, description="sides of each")] = 6,
) -> Roll:
    """Rolls dice, and adds them up."""
    dice = [random.randint(1, sides) for _ in range(count)]
    return Roll(dice, sum(dice))


@tool(title="Divide", read_only=True, idempotent=True, open_world=False)
async def divide(dividend: float, divisor: float) -> float:
    """Divides one number by another; tells the client what is wrong when that cannot be done."""
    if divisor == 0:
        raise InvalidArgument("Nothing can be divided by zero", {"field": "divisor"})
    return dividend / divisor


@tool(title="Count words", read_only=True, idempotent=True, open_world=False)
def count_words(text: str, most: Annotated[int, Meta(ge=1, le=1000)] = 10) -> dict[str, int]:
    """Counts the words of a text. A plain function: it runs on a thread, so it may take its time."""
    return dict(Counter(text.lower().split()).most_common(most))


@tool(title="Count down", timeout_ms=8_000, read_only=True, open_world=False)
async def count_down(start: Annotated[int, Meta(ge=1, le=60)], ctx: ToolContext) -> str:
    """Counts down by the tenth of a second, reports its progress, and stops when nobody waits any longer."""
    for left in range(start, 0, -1):
        ctx.cancellation.raise_if_set()
        ctx.progress(start - left, start, f"{left} to go")
        await asyncio.sleep(0.1)
    return "lift-off"


@tool(title="Sleep", timeout_ms=500, read_only=True, open_world=False)
def oversleep(seconds: Annotated[float, Meta(ge=0, le=30)]) -> str:
    """Sleeps, deaf to everything. Its caller is answered after half a second all the same."""
    time.sleep(seconds)
    return "awake"


# A picture.

PALETTES = {
    "lagoon": ((6, 26, 38), (12, 107, 99), (127, 224, 213), (250, 244, 220)),
    "saffron": ((43, 16, 12), (160, 44, 24), (240, 150, 40), (255, 238, 190)),
    "iznik": ((15, 25, 70), (30, 80, 170), (120, 190, 220), (245, 250, 250)),
    "dusk": ((20, 12, 40), (90, 40, 120), (220, 100, 130), (255, 220, 180)),
}


@tool(title="Draw a mandala", read_only=True, idempotent=True, open_world=False)
def draw_mandala(
    petals: Annotated[int, Meta(ge=2, le=24)] = 9,
    rings: Annotated[int, Meta(ge=1, le=12)] = 4,
    twist: Annotated[float, Meta(ge=-3, le=3)] = 0.8,
    palette: Literal["lagoon", "saffron", "iznik", "dusk"] = "iznik",
) -> Image:
    """Draws a picture of waves that meet: more petals, more rings, a twist, and four palettes to see them in."""
    size, colours = 240, PALETTES[palette]
    middle = (size - 1) / 2
    rows = []
    for y in range(size):
        row = bytearray(b"\0")
        for x in range(size):
            dx, dy = (x - middle) / middle, (y - middle) / middle
            far, angle = math.hypot(dx, dy), math.atan2(dy, dx)
            wave_at = math.sin(far * rings * math.tau + math.cos(angle * petals + twist * far * math.tau) * 2)
            bright = (wave_at * 0.5 + 0.5) * max(0.0, 1 - far * 0.72)
            row += bytes(_blend(colours, bright))
        rows.append(bytes(row))
    return Image(_png(size, b"".join(rows)))


def _blend(colours: tuple[tuple[int, int, int], ...], where: float) -> list[int]:
    """The colour at a place between 0 and 1."""
    at = min(where, 0.9999) * (len(colours) - 1)
    low, part = int(at), at % 1
    return [round(a + (b - a) * part) for a, b in zip(colours[low], colours[low + 1], strict=True)]


def _png(size: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


# Sound.

CODES = (
    ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --.. "
    "----- .---- ..--- ...-- ....- ..... -.... --... ---.. ----."
)
MORSE = dict(zip("abcdefghijklmnopqrstuvwxyz0123456789", CODES.split(), strict=True))


@tool(title="Tap in Morse code", read_only=True, idempotent=True, open_world=False)
def tap_morse(
    text: Annotated[str, Meta(min_length=1, max_length=40, examples=["hello dragoman"])],
    words_a_minute: Annotated[int, Meta(ge=5, le=40)] = 20,
    pitch: Annotated[int, Meta(ge=300, le=1200, description="in hertz")] = 600,
) -> list[Text | Audio]:
    """Taps a text in Morse code: to read, and to listen to."""
    code = " / ".join(" ".join(MORSE.get(letter, "") for letter in word) for word in text.lower().split())
    rate, unit = 8000, 1.2 / words_a_minute
    on = {".": 1, "-": 3}
    sound = bytearray()
    for sign in code:
        for step in range(int(rate * unit * on.get(sign, 0))):
            sound.append(128 + int(90 * math.sin(math.tau * pitch * step / rate)))
        sound += b"\x80" * int(rate * unit * (1 if sign in on else 2))
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(1)
        out.setframerate(rate)
        out.writeframes(sound)
    return [Text(code), Audio(file.getvalue())]


# Input with a shape.


@dataclass
class Stop:
    city: str
    nights: Annotated[int, Meta(ge=1, le=30)] = 1


class Train(Struct, tag="train", tag_field="by"):
    """Fast, and with a view."""

    travel_class: Literal["first", "second"] = "second"


class Ship(Struct, tag="ship", tag_field="by"):
    """Slow, and with a sea."""

    cabin: Literal["inside", "window"] = "window"
    seasick: bool = False


class OnFoot(Struct, tag="foot", tag_field="by"):
    """Slower."""

    km_a_day: Annotated[int, Meta(ge=5, le=40)] = 20


class Traveller(Struct, frozen=True):
    name: str = "Evliya"
    budget: Annotated[float, Meta(ge=0, description="for each day")] = 60.0
    likes: tuple[str, ...] = ("bazaars", "libraries")


SOMEBODY = Traveller()


@dataclass
class Day:
    day: int
    place: str
    plan: str
    spent: float


@tool(title="Plan a journey", read_only=True, idempotent=True, open_world=False)
async def plan_journey(
    stops: Annotated[list[Stop], Meta(min_length=1, max_length=8, description="in order")],
    travel: Annotated[Train | Ship | OnFoot, Meta(description="from stop to stop")],
    traveller: Traveller = SOMEBODY,
) -> list[Day]:
    """Plans a journey day by day: several stops, one way to travel, and somebody with a budget."""
    match travel:
        case Train():
            way, days, fare = f"by train, {travel.travel_class} class", 1, 90 if travel.travel_class == "first" else 45
        case Ship():
            way, days, fare = (
                f"at sea{', being sick' if travel.seasick else ''}",
                2,
                55 if travel.cabin == "window" else 35,
            )
        case OnFoot():
            way, days, fare = f"walking {travel.km_a_day} km", max(1, 120 // travel.km_a_day), 5
    likes = traveller.likes or ("sun",)
    plan: list[Day] = []
    for number, stop in enumerate(stops):
        if number:
            plan += [Day(0, f"to {stop.city}", way, fare) for _ in range(days)]
        plan += [
            Day(0, stop.city, f"see the {likes[night % len(likes)]}", traveller.budget) for night in range(stop.nights)
        ]
    return [Day(number, each.place, each.plan, each.spent) for number, each in enumerate(plan, 1)]


class Caesar(Struct, tag="caesar"):
    """Moves every letter."""

    shift: Annotated[int, Meta(ge=-25, le=25)] = 3


class Vigenere(Struct, tag="vigenere"):
    """Moves each letter by another of a key."""

    key: Annotated[str, Meta(pattern="^[A-Za-z]+$", examples=["lemon"])]


class Atbash(Struct, tag="atbash"):
    """Turns the alphabet round."""


@tool(title="Encipher", read_only=True, idempotent=True, open_world=False)
async def encipher(text: str, cipher: Caesar | Vigenere | Atbash) -> str:
    """Writes a text in secret, with one of three old ciphers."""
    match cipher:
        case Caesar():
            return _shifted(text, lambda _: cipher.shift)
        case Vigenere():
            return _shifted(text, lambda at: ord(cipher.key.lower()[at % len(cipher.key)]) - ord("a"))
        case Atbash():
            alphabet = "abcdefghijklmnopqrstuvwxyz"
            return text.translate(str.maketrans(alphabet + alphabet.upper(), alphabet[::-1] + alphabet.upper()[::-1]))


def _shifted(text: str, shift: Callable[[int], int]) -> str:
    done, letters = [], 0
    for sign in text:
        if sign.isascii() and sign.isalpha():
            first = ord("a") if sign.islower() else ord("A")
            sign = chr((ord(sign) - first + shift(letters)) % 26 + first)
            letters += 1
        done.append(sign)
    return "".join(done)


@tool(title="Look at the moon", read_only=True, idempotent=True, open_world=False)
async def look_at_moon(day: date) -> str:
    """Says how the moon looks on a day, near enough."""
    age = (day - date(2000, 1, 6)).days % 29.530588
    names = ("new", "waxing crescent", "first quarter", "waxing gibbous", "full", "waning gibbous", "last quarter")
    phase = int(age / 29.530588 * 8 + 0.5) % 8
    return f"{'🌑🌒🌓🌔🌕🌖🌗🌘'[phase]}  {(*names, 'waning crescent')[phase]} moon, {age:.0f} days old"


# A question, which a person answers and no model.


class Tea(Struct):
    kind: Literal["black", "green", "mint", "rose hip"]
    sugar: Annotated[int, Meta(ge=0, le=5, description="lumps")] = 1


@tool(title="Pour tea", destructive=False, idempotent=False, open_world=False)
async def pour_tea(
    guest: str, tea: Annotated[Tea, Ask("What would you like to drink, {guest}?")], ctx: ToolContext
) -> str:
    """Pours tea, once the guest has said which; the model is not asked."""
    for step in ("warms the pot", "lets it draw", "pours from a height"):
        ctx.log("info", step)
        await asyncio.sleep(0.2)
    sugar = {0: "without sugar", 1: "with one lump of sugar"}.get(tea.sugar, f"with {tea.sugar} lumps of sugar")
    return f"{tea.kind.capitalize()} tea for {guest}, {sugar}. Afiyet olsun!"
