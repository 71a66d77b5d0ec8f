-- Publishing what most callers publish, without the moves of jobs.lua. Keys: see keys.lua; touches job,
-- sequence, live, lane, queues.
-- Guarantees: what publish does to one row that has no unique key, no delay, no gates and no other broker.

-- name: publish_plain
-- id, queue, kind, priority turned round, field, value, field, value ...: adds the job. Gives {1}; or
-- {1, 1, id} when it was there before.
local id, queue, kind, score = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local key = root .. ':job:' .. id
if redis.call('EXISTS', key) == 1 then return {1, 1, id} end
local sequence = redis.call('INCR', root .. ':sequence')
local place = string.format('%016.0f', sequence)
redis.call('HSET', key, 'state', 'queued', 'place', place, unpack(ARGV, 5))
redis.call('SADD', root .. ':queues', queue)
redis.call('ZADD', root .. ':live', sequence, id)
redis.call('ZADD', root .. ':lane:' .. kind .. ':' .. queue, score, place .. id)
redis.pcall('PUBLISH', root .. ':hints', 'r:' .. root .. ':' .. queue)  -- see tell in jobs.lua
return {1}
