"""What once broke a decoder, or leads deep into one, is tried again in every run of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
INPUTS = sorted(CORPUS.glob("*/*"))


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_input_of_the_corpus_is_read_or_refused(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_every_target_has_inputs_that_lead_into_it() -> None:
    assert {path.parent.name for path in INPUTS} == {*TARGETS}
