"""What a message that another program sent is called."""

from __future__ import annotations

from umbel.backends.foreign_messages import id_of
from umbel.backends.transport import Arrival, Lane, MessageHeaders
from umbel.messages import fresh_id


def arrival(glance: str | None, **attributes: str) -> Arrival:
    return Arrival(
        Lane("q", "io"), None, b"no event", glance, lambda: MessageHeaders(attributes, "")
    )


def test_an_id_found_by_the_fast_path_is_not_parsed() -> None:
    job = fresh_id()
    assert id_of(arrival(job, id=fresh_id()), "n") == job


def test_an_id_that_takes_reading_is_read_also_of_what_is_no_event() -> None:
    first, second = fresh_id(), fresh_id()
    assert [id_of(arrival(None, id=job), "n") for job in (first, second)] == [first, second]


def test_a_message_without_an_id_is_called_the_same_each_time() -> None:
    assert id_of(arrival(None), "n") == id_of(arrival(None), "n") != id_of(arrival(None), "m")
