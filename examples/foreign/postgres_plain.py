"""Publish a task and receive its result with only psycopg."""

import json
import os
import time

import psycopg

URL = os.environ.get("DATABASE_URL", "postgresql://localhost/shop")
SCHEMA = os.environ.get("SCHEMA", "umbel")

event = {
    "specversion": "1.0",
    "type": "umbel.command",
    "source": "/shop/checkout",
    "subject": "hello.add",
    "data": {"args": [20, 22]},
}

with psycopg.connect(URL, autocommit=True) as connection:
    query = f"select {SCHEMA}.publish_event(%s)"
    (job,) = connection.execute(query, [json.dumps(event)]).fetchone()
    document = None
    while document is None:
        time.sleep(0.05)
        (document,) = connection.execute(f"select {SCHEMA}.document(%s)", [job]).fetchone()

print(json.dumps(document))
