"""Colours that can be told apart: level AA of WCAG 2, in the light and in the dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import celery_throttle

STYLE = Path(celery_throttle.__file__).parent / "web" / "static" / "style.css"

#: What text is written in, and on.
INKS, PAPERS = ("text", "quiet", "accent", "danger"), ("back", "panel", "notice")

#: Bars and lines, on panels.
SHAPES = ("bar", "wait", "mark")


def read_colours(*, dark: bool) -> dict[str, str]:
    light, changed = re.findall(r":root \{(.*?)\}", STYLE.read_text(), re.DOTALL)
    pattern = r"--([a-z-]+): #([0-9a-f]{6})"
    return dict(re.findall(pattern, light)) | (dict(re.findall(pattern, changed)) if dark else {})


def luminance(colour: str) -> float:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4))
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (red, green, blue)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_contrast(*, dark: bool) -> None:
    colours = read_colours(dark=dark)
    pairs = [(ink, paper, 4.5) for ink in INKS for paper in PAPERS]
    pairs += [("mark", "panel", 4.5), *((shape, "panel", 3.0) for shape in SHAPES)]
    for one, other, least in pairs:
        assert contrast(colours[one], colours[other]) >= least, (one, other)
