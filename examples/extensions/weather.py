"""Functions as modules: as many to a file as you like. Schemas come from type hints, descriptions from docstrings."""

from __future__ import annotations

import math

from apcore.decorator import module


@module(id="weather.windchill", tags=["weather"], annotations={"readonly": True, "open_world": False})
def windchill(celsius: float, wind_kmh: float) -> float:
    """How cold it feels in the wind.

    The formula is the one that Canada and the United States have used since 2001. It holds from 10 °C down and for
    wind from 5 km/h up; elsewhere the temperature is given back as it is.

    Args:
        celsius: The temperature of the air.
        wind_kmh: The speed of the wind, ten metres above the ground.
    """
    if celsius > 10 or wind_kmh < 5:
        return celsius
    factor = wind_kmh**0.16
    return round(13.12 + 0.6215 * celsius - 11.37 * factor + 0.3965 * celsius * factor, 1)


@module(tags=["weather"], annotations={"readonly": True, "open_world": False})
async def dew_point(celsius: float, humidity: float) -> dict[str, float]:
    """The temperature at which dew forms.

    Args:
        celsius: The temperature of the air.
        humidity: The relative humidity in per cent.
    """
    gamma = math.log(humidity / 100) + 17.62 * celsius / (243.12 + celsius)
    return {"celsius": round(243.12 * gamma / (17.62 - gamma), 1)}
