"""builtin:sms, short messages that are made up on the spot: no download, and the same on every machine.

Both classes draw on one vocabulary: prizes, money, parcels, calls and accounts come up among friends as well, and
spam can sound friendly. A part of the messages (TWIN) has a counterpart of the other class with nearly the same
words in another order, so single words can't tell those apart. NOISE of the labels are wrong: no classifier can be
right about much more than 97 % of the rows.
"""

from __future__ import annotations

import functools
import random
import string
from collections.abc import Sequence

VERSION = 1
"""Part of the data's fingerprint: raise it with any change that changes a row."""

ROWS = {"train": 2000, "validation": 400, "test": 400}
SPAM = 0.45
NOISE = 0.02
TWIN = 0.35
TYPO = 0.05
_SEED = 20_240_601

# (spam, ham): nearly the same words, told apart by their order and company.
TWINS = (
    ("you have won the {prize}, call me now to get it", "have you won the {prize}, call me now to get it"),
    ("i will send you {amount} if you send me the code", "i will send you the code if you send me {amount}"),
    ("your account is closed, open the link now", "the link is closed now, open your account"),
    ("we can pay you {amount} for an hour of work", "can you pay {amount}, we work for an hour"),
    ("i am here, get your {prize} before it is gone", "your {prize} is here, get it before i am gone"),
    ("you need to call the bank, this is the number", "the bank need to call you, is this the number"),
    ("pay {fee} to see your parcel, it is waiting here", "your parcel is waiting here, it is {fee} to pay"),
    ("say yes and the {prize} is yours", "is the {prize} yours, and did you say yes"),
    ("free {prize} for you, no need to pay", "no {prize} for free, you need to pay"),
    ("text me your pin to get the {amount} back", "to get your pin back text me the {amount}"),
)

SPAM_CORES = (
    "claim your {prize} at {site} today",
    "final notice: your {thing} will be stopped, verify at {site}",
    "win {amount} every week, text {word} to {short}",
    "you were chosen for a {prize}, reply {word} now",
    "lowest rates on loans, {amount} in minutes, apply at {site}",
    "your {thing} has a problem, confirm your details at {site}",
    "exclusive offer only today: {prize} for {fee}, order at {site}",
    "hi {name}, long time no see, i earn {amount} a week from home, ask me how",
    "mum, this is my new number, can you send {amount} for the {thing}",
    "congratulations {name}, claim {amount} with the code {word}",
)

HAM_CORES = (
    "did {name} tell you about the {prize} from work",
    "can you pick up the parcel at {time}, i am still at work",
    "i lost my card again, the bank says {time}",
    "dinner at {time}? {name} is coming too",
    "your {thing} is still at my place, shall i bring it",
    "i owe you {amount} for the tickets, cash or card",
    "the kids want a {prize} for christmas, what do you think",
    "running late, call me when you get to the station",
    "we won the quiz last night, {name} got the {prize}",
    "do not forget to pay the rent, {amount} by {time}",
    "my phone died, what was the code for the door",
    "that {thing} email looked like a scam, do not open it",
)

SHARED = (
    "hope you are well",
    "call me when you can",
    "have a nice day",
    "talk soon",
    "thanks",
    "please reply",
    "it is urgent",
    "no worries if not",
    "let me know today",
    "see you at {time}",
    "only a few left",
    "love, {name}",
)

GREETINGS = (
    "hi",
    "hey {name}",
    "hello",
    "dear {name}",
    "good news",
    "ok",
    "sorry",
    "hey you",
    "hi {name}",
    "quick one",
)

SLOTS: dict[str, Sequence[str]] = {
    "prize": ("phone", "holiday", "voucher", "gift card", "tablet", "prize", "bike", "weekend away", "watch", "ticket"),
    "thing": ("account", "parcel", "subscription", "laptop", "card", "delivery", "phone bill", "tax form", "package"),
    "name": ("anna", "ben", "carla", "david", "emma", "farid", "grace", "hugo", "ines", "jon", "mei", "omar", "priya"),
    "word": ("WIN", "YES", "GO", "CASH", "PLAY", "STAR"),
    "time": ("7", "half past 8", "noon", "10.30", "tonight", "friday", "5 pm", "the weekend", "monday"),
    "site": ("example.com/win", "go.example/{short}", "www.example.net", "example.org/pay", "bit.example/a{short}"),
}


class _Writer:
    """Draws with random() alone: the one method whose stream Python promises to keep between versions."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random

    def below(self, limit: int) -> int:
        return int(self.random() * limit)

    def pick(self, choices: Sequence[str]) -> str:
        return choices[self.below(len(choices))]

    def fill(self, text: str) -> str:
        """The text with its {slots} filled in, those within a filling as well."""
        while "{" in text:
            before, _, rest = text.partition("{")
            slot, _, after = rest.partition("}")
            text = before + self.slot(slot) + after
        return text

    def slot(self, name: str) -> str:
        if name == "amount":
            return f"{self.pick(('$', '£', ''))}{self.pick(('20', '50', '100', '250', '500', '1000', '2,000'))}"
        if name == "fee":
            return f"{1 + self.below(9)}.{self.pick(('49', '50', '95', '99'))}"
        if name == "short":
            return str(60_000 + self.below(30_000))
        return self.pick(SLOTS[name])

    def typo(self, text: str) -> str:
        """The text with two neighbouring letters swapped, or one left out."""
        at = self.below(len(text) - 1)
        if not (text[at] in string.ascii_lowercase and text[at + 1] in string.ascii_lowercase):
            return text
        return text[:at] + (text[at + 1] + text[at] if self.random() < 0.5 else "") + text[at + 2 :]

    def message(self, spam: bool) -> str:
        if self.random() < TWIN:
            core = TWINS[self.below(len(TWINS))][0 if spam else 1]
        else:
            core = self.pick(SPAM_CORES if spam else HAM_CORES)
        parts = [core]
        if self.random() < 0.5:
            parts.insert(0, self.pick(GREETINGS))
        while self.random() < 0.4:
            parts.append(self.pick(SHARED))
        joint = self.pick((", ", ". ", "! ", " "))
        text = self.fill(joint.join(parts)) + self.pick(("", "", ".", "!", "!!", " x"))
        while self.random() < TYPO:
            text = self.typo(text)
        style = self.random()
        return text.upper() if style < 0.04 else text[0].upper() + text[1:] if style < 0.5 else text


@functools.cache
def sms(split: str) -> tuple[tuple[str, str], ...]:
    """The rows (text, label) of a split, a key of ROWS; label is "spam" or "ham". The same on every call."""
    writer = _Writer(_SEED + list(ROWS).index(split))
    rows = []
    for _ in range(ROWS[split]):
        spam = writer.random() < SPAM
        text = writer.message(spam)
        if writer.random() < NOISE:
            spam = not spam
        rows.append((text, "spam" if spam else "ham"))
    return tuple(rows)
