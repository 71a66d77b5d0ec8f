#!/bin/sh
# Publish a task with redis-cli, and wait for the result.
set -eu
url=${REDIS_URL:-redis://localhost}
namespace=${NAMESPACE:-umbel}

job=$(cat /proc/sys/kernel/random/uuid)
redis-cli -u "$url" rpush "umbel:{$namespace}:inbox" '{
  "specversion": "1.0",
  "id": "'"$job"'",
  "type": "umbel.command",
  "source": "/shop/checkout",
  "subject": "hello.add",
  "replyto": "reply:'"$job"'",
  "data": {"args": [20, 22]}
}' >/dev/null
redis-cli -u "$url" blpop "reply:$job" 30 | tail -n 1
