#!/bin/sh
# Publish a task with the sqlite3 shell, and poll for the result.
set -eu
file=${FILE:-umbel.db}

ask() { sqlite3 -cmd '.timeout 5000' "$file" "$1"; }

job=$(cat /proc/sys/kernel/random/uuid)
ask "insert into publish (id, task, args) values ('$job', 'hello.add', '[20, 22]')"
document=
while [ -z "$document" ]; do
  sleep 0.1
  document=$(ask "select event from document where id = '$job'")
done
echo "$document"
