#!/bin/sh
# Publish a task with psql, and poll for the result.
set -eu
url=${DATABASE_URL:-postgresql://localhost/shop}
schema=${SCHEMA:-umbel}

ask() { psql --no-psqlrc -qtA "$url" -c "$1"; }

job=$(ask "select $schema.publish('hello.add', '[20, 22]')")
document=
while [ -z "$document" ]; do
  sleep 0.1
  document=$(ask "select $schema.document('$job')")
done
echo "$document"
