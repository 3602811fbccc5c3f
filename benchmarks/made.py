"""Rows with a number, and rows with several labels, written by a seed: for tasks that no data set here covers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

# What a guest may say of a stay, and what it adds to the mark.
REMARKS = {
    2.0: (
        "the breakfast was the best we ever had",
        "the view over the bay took our breath",
        "they upgraded us for free",
    ),
    1.0: ("the staff was kind", "the room was spotless", "the bed was soft and wide", "check-in took a minute"),
    0.5: ("the lift works well", "towels were plenty", "the lobby smells of flowers"),
    -0.5: ("the curtains are thin", "the soap ran out once", "the lamp flickers"),
    -1.0: ("the street is loud at night", "the shower was lukewarm", "parking costs extra", "the carpet had stains"),
    -2.0: ("we found bugs in the bath", "someone had smoked in our room", "they lost our booking"),
}
FRAMES = ("{}", "sadly or not, {}", "to be fair, {}", "I must say {}", "on the second day {}")
# What a ticket may be about.
TOPICS = {
    "billing": ("the invoice shows the wrong sum", "I was charged twice", "please refund the last payment"),
    "delivery": ("the parcel has not arrived", "the courier left it with a stranger", "the box was crushed"),
    "account": ("I can't sign in", "the reset mail never comes", "my name is spelt wrong in the profile"),
    "product": ("the zip broke after a week", "the colour differs from the picture", "one screw is missing"),
    "praise": ("thanks for the quick help", "your team is great", "I am happy with the service otherwise"),
}


def stays(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows {"text", "mark"}: two to six remarks and the sum of what they add."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        marks = [draw.choice(list(REMARKS)) for _ in range(draw.randint(2, 6))]
        said = [draw.choice(FRAMES).format(draw.choice(REMARKS[mark])) for mark in marks]
        rows.append({"text": "; ".join(said) + ".", "mark": sum(marks)})
    return rows


def tickets(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows {"text", one column of 0 or 1 a topic}: none to three topics in any order, with small talk between."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        topics = draw.sample(list(TOPICS), draw.choice((0, 1, 1, 2, 2, 3)))
        said = ["hello", *(draw.choice(TOPICS[topic]) for topic in topics), "best regards"]
        rows.append({"text": ", ".join(said), **{topic: int(topic in topics) for topic in TOPICS}})
    return rows


def write(rows: list[dict[str, Any]], path: Path) -> Path:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
