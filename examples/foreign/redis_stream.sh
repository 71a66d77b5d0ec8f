#!/bin/sh
# The same if Redis is only the transport and another server is the store.
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
