#!/bin/sh
# The same where Redis only carries the messages, and another store keeps the books.
set -eu
url=${REDIS_URL:-redis://localhost}
namespace=${NAMESPACE:-umbel}

job=$(cat /proc/sys/kernel/random/uuid)
redis-cli -u "$url" xadd "umbel:{$namespace}:stream::default" '*' data '{
  "specversion": "1.0",
  "id": "'"$job"'",
  "type": "umbel.command",
  "source": "/shop/checkout",
  "subject": "hello.add",
  "replyto": "reply:'"$job"'",
  "data": {"args": [20, 22]}
}' >/dev/null
redis-cli -u "$url" blpop "reply:$job" 30 | tail -n 1
