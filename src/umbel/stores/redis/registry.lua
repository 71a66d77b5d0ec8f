-- The worker registry. Keys: see jobs.lua; touches worker, workers, owners; reads held.
-- Guarantees: removing a worker's hash is what ends every lease of its incarnation; no script writes into
-- a hash that is gone, so a life never begins twice. A full server goes on hearing hearts.

-- name: enlist
-- {incarnation, entry, name, now}: a life begins; repeating it changes nothing.
local incarnation, entry, name, now = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':worker:' .. incarnation
even_if_full()
if redis.call('EXISTS', key) == 0 then
  redis.call('HSET', key, 'entry', entry, 'name', name, 'started', now, 'beaten', now, 'beat', 0)
end
redis.call('SADD', root .. ':workers', incarnation)
return 1

-- name: beat
-- {incarnation, running, epoch, stopping, now}: one heartbeat of a worker that is still enlisted.
local incarnation, running, epoch, stopping, now = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':worker:' .. incarnation
if redis.call('EXISTS', key) == 0 then return 0 end
even_if_full()
local beat = number(redis.call('HGET', key, 'beat'), 0) + 1
redis.call('HSET', key, 'beat', beat, 'beaten', now, 'running', running, 'epoch', epoch, 'stopping', stopping)
return 1

-- name: members
-- All living workers. Forgets the names of those that are gone.
local rows = {}
for _, incarnation in ipairs(redis.call('SMEMBERS', root .. ':workers')) do
  local key = root .. ':worker:' .. incarnation
  local found = redis.pcall('HMGET', key, 'entry', 'beat', 'started', 'beaten', 'running', 'epoch',
                            'stopping', 'name')
  if found.err or not found[1] then
    if redis.call('EXISTS', key) == 0 then redis.call('SREM', root .. ':workers', incarnation) end
  else
    rows[#rows + 1] = found
  end
end
return rows

-- name: remove_member
-- {incarnation, beat}: ends a life that stood still. 0 when it has beaten since, or is gone.
local incarnation, beat = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':worker:' .. incarnation
if redis.call('EXISTS', key) == 0 then return 0 end
if number(redis.call('HGET', key, 'beat'), 0) ~= beat then return 0 end
redis.call('DEL', key)
redis.call('SREM', root .. ':workers', incarnation)
return 1

-- name: leave
-- {incarnation}: ends one's own life. Who holds nothing leaves nothing behind.
local incarnation = unpack(cmsgpack.unpack(ARGV[1]))
redis.call('DEL', root .. ':worker:' .. incarnation)
redis.call('SREM', root .. ':workers', incarnation)
if redis.call('EXISTS', root .. ':held:' .. incarnation) == 0 then
  redis.call('SREM', root .. ':owners', incarnation)
end
return 1
