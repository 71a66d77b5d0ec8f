"""Ids that are derived from the id of another job."""

from __future__ import annotations

from uuid import UUID, uuid5

from hypothesis import given
from hypothesis import strategies as st

from umbel.messages import derived_id


@given(st.uuids(), st.integers(0, 2**40), st.integers(0, 250_000))
def test_a_derived_id_is_the_uuid_of_its_name(job: UUID, step: int, index: int) -> None:
    assert derived_id(str(job), step, index) == str(uuid5(job, f"step {step}: {index}"))
