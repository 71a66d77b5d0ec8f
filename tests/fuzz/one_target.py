"""One target under libFuzzer: ``python one_target.py NAME [libFuzzer options]``."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

sys.path.insert(0, str(Path(__file__).parent))

with atheris.instrument_imports(include=["umbel", "hostile", "zoo"]):
    from targets import TARGETS

from mutation import mutate_json

CHOOSING = ("body", "call")
"""Targets whose first byte is a choice, and no part of the JSON."""


def main() -> None:
    name = sys.argv.pop(1)
    head = int(name in CHOOSING)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        changed = mutate_json(data[head:], random) if random.random() < 0.7 else None
        if changed is None or len(changed) + head > max_size:
            mutated: bytes = atheris.Mutate(data, max_size)
            return mutated
        return data[:head] + changed

    atheris.Setup(sys.argv, TARGETS[name], custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
