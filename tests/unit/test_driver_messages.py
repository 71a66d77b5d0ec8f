"""Messages of drivers are shortened to what Umbel's own text does not say."""

from __future__ import annotations

import pytest


def test_the_question_of_libpq_is_left_out() -> None:
    psycopg = pytest.importorskip("psycopg")
    from umbel.backends.postgres.errors import translate_error

    said = (
        'connection failed: connection to server at "h", port 1 failed: Connection refused\n'
        "\tIs the server running on that host and accepting TCP/IP connections?"
    )
    text = str(translate_error(psycopg.OperationalError(said), "PostgreSQL"))
    assert text.startswith('PostgreSQL: connection to server at "h", port 1 failed: Connection')
    assert "Connection refused; check that the server runs" in text


def test_a_missing_database_is_answered_with_how_to_create_it() -> None:
    psycopg = pytest.importorskip("psycopg")
    from umbel.backends.postgres.errors import translate_error

    error = psycopg.OperationalError('connection failed: FATAL: database "x" does not exist')
    assert "create it with createdb" in str(translate_error(error, "PostgreSQL"))


@pytest.mark.parametrize(
    "said",
    [
        'FATAL: too many connections for role "x"',
        "FATAL: sorry, too many clients already",
        "FATAL: remaining connection slots are reserved for roles with the SUPERUSER attribute",
    ],
)
def test_a_server_without_free_connections_is_answered_with_how_many_are_needed(said: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    from umbel.backends.postgres.errors import translate_error

    error = psycopg.OperationalError(f"connection failed: {said}")
    assert "an idle worker needs 3 connections" in str(translate_error(error, "PostgreSQL"))


@pytest.mark.parametrize("number", [111, -2])
def test_the_address_of_redis_is_named_once(number: int) -> None:
    redis_errors = pytest.importorskip("redis.exceptions")
    from umbel.backends.redis.errors import translate_error

    error = redis_errors.ConnectionError(f"Error {number} connecting to h:1. It failed.")
    assert str(translate_error(error, "Redis at h:1")).startswith("Redis at h:1: It failed; check")
