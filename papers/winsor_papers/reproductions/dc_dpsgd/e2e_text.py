"""E2E restaurant descriptions as tokens: a meaning representation, then the sentence.

    eatType[pub] priceRange[?] ... near[yes] <text> there is a pub called <name> . <end>

Each slot is one token at a fixed place, so that prompts have one length; the restaurant's name and
its neighbour's become <name> and <near> in the sentence, and are put back when it is generated.
The vocabulary comes from the development file, which stands for public text throughout; the
training file, which is private, only looks words up.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from winsor.core.contract import ConfigurationError

SLOTS = ("eatType", "priceRange", "customer rating", "area", "food", "familyFriendly", "near")
PAD, UNKNOWN, TEXT, END, NAME, NEAR = "<pad>", "<unknown>", "<text>", "<end>", "<name>", "<near>"
PROMPT = len(SLOTS) + 1


@dataclass(frozen=True)
class Pair:
    """One row: what to say, and how somebody said it."""

    mr: str
    slots: dict[str, str]
    ref: str


def read_pairs(folder: Path, part: str, rows: int | None = None) -> list[Pair]:
    """``part`` is "train", "dev" or "test_w_refs"."""
    path = folder / f"e2e_{part}.csv.gz"
    if not path.is_file():
        raise ConfigurationError(
            f"data must hold {path.name}, the E2E challenge's file with columns mr and ref, "
            f"gzipped. Got {str(folder)!r} instead, which has no such file."
        )
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))[:rows]
    if not table or not {"mr", "ref"} <= set(table[0]):
        raise ConfigurationError(f"{path.name} must have rows and the columns mr and ref.")
    return [Pair(row["mr"], _slots(row["mr"]), row["ref"]) for row in table]


def _slots(mr: str) -> dict[str, str]:
    return dict(re.findall(r"([A-Za-z][A-Za-z ]*)\[([^\]]*)\]", mr))


def words(sentence: str, slots: dict[str, str]) -> list[str]:
    """Lower-case words and punctuation; the two names as one token each."""
    for token, slot in ((NAME, "name"), (NEAR, "near")):
        if slots.get(slot):
            sentence = sentence.replace(slots[slot], f" {token} ")
    return re.findall(r"<name>|<near>|[a-z0-9£']+|[^\sa-z0-9£']", sentence.lower())


def spoken(tokens: Sequence[str], slots: dict[str, str]) -> list[str]:
    """Tokens with the names put back, as `words` would split them without knowing of names."""
    named = {NAME: slots.get("name", ""), NEAR: slots.get("near", "")}
    return words(" ".join(named.get(token, token) for token in tokens), {})


class Vocabulary:
    """Tokens and their numbers; words seen at least twice in the public pairs."""

    def __init__(self, public: Sequence[Pair], fewest: int = 2) -> None:
        counts = Counter(word for pair in public for word in words(pair.ref, pair.slots))
        known = sorted(word for word, count in counts.items() if count >= fewest)
        values = sorted({token for pair in public for token in _prompt(pair.slots)})
        absent = [f"{slot}[?]" for slot in SLOTS]
        self.tokens = list(
            dict.fromkeys([PAD, UNKNOWN, TEXT, END, NAME, NEAR, *absent, *values, *known])
        )
        self.number = {token: i for i, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def prompt(self, slots: dict[str, str]) -> list[int]:
        """Seven slots and <text>."""
        unknown = (f"{slot}[?]" for slot in SLOTS)
        numbers = [
            self.number.get(token, self.number[other])
            for token, other in zip(_prompt(slots), unknown, strict=True)
        ]
        return [*numbers, self.number[TEXT]]

    def encode(self, pairs: Sequence[Pair], length: int) -> Tensor:
        """(rows, length) numbers: prompt, sentence, <end>, padding; longer sentences are cut."""
        rows = torch.full((len(pairs), length), self.number[PAD])
        for row, pair in zip(rows, pairs, strict=True):
            sentence = [
                self.number.get(w, self.number[UNKNOWN]) for w in words(pair.ref, pair.slots)
            ]
            numbers = [*self.prompt(pair.slots), *sentence, self.number[END]][:length]
            row[: len(numbers)] = torch.tensor(numbers)
        return rows


def _prompt(slots: dict[str, str]) -> list[str]:
    values = {slot: slots.get(slot, "?") for slot in SLOTS}
    if "near" in slots:
        values["near"] = "yes"
    return [f"{slot}[{values[slot]}]" for slot in SLOTS]
