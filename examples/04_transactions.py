"""Publish inside your own transaction: the job exists if and only if your data does.

Needs PostgreSQL:  export UMBEL_URL=postgresql://user@host/database
                   umbel -A 04_transactions db migrate
In one terminal:   umbel -A 04_transactions worker
In another:        python 04_transactions.py
"""

import os
from urllib.parse import urlsplit, urlunsplit

import psycopg

from umbel import Umbel
from umbel.errors import UnknownJob

app = Umbel()


@app.task
def confirm(order: str) -> str:
    with connect() as connection:
        row = connection.execute("select item from example_order where id = %s", [order]).fetchone()
    return f"confirmed {order}: {row[0] if row else 'NOT FOUND'}"


def connect() -> psycopg.Connection:
    """Return a connection of the application. libpq does not know Umbel's URL options."""
    url = urlsplit(os.environ["UMBEL_URL"])
    return psycopg.connect(urlunsplit(url._replace(query="")))


def main() -> None:
    with connect() as connection:
        connection.execute("drop table if exists example_order")
        connection.execute("create table example_order (id text primary key, item text)")

    with connect() as connection:  # commits at the end of the block
        connection.execute("insert into example_order values ('A-1', 'a house plant')")
        handle = confirm.options(connection=connection).delay("A-1")
    print(handle.get(timeout=30))

    with connect() as connection:
        connection.execute("insert into example_order values ('A-2', 'a regret')")
        handle = confirm.options(connection=connection).delay("A-2")
        connection.rollback()
    try:
        handle.get(timeout=30)
    except UnknownJob:
        print("A-2 was rolled back, and its job with it")

    with connect() as connection:
        connection.execute("drop table example_order")


if __name__ == "__main__":
    main()
