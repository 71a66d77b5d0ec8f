-- The worker registry. Keys: see keys.lua; touches worker, workers, owners, standby, seats, seat, sitting, heard,
-- lapsed; for deaths that are taken back deaths, job, live, buried, lane, queues, unique, of gates waiting and line;
-- for who waits for a worker awake, looks, waking; reads held.
-- Guarantees: removing a worker's hash is what ends every lease of its incarnation; no script writes into
-- a hash that is gone, so a life never begins twice; no two living workers of different names share a seat. A
-- full server goes on hearing hearts.

-- name: enlist
-- {incarnation, entry, name, lease, index, fields, former}: a life begins; repeating it changes nothing. The
-- process was alive after the former ones: what was counted as their death is taken back. Gives
-- {its index}: the one it asks for, else the one that its name had, else the lowest free one; or {-1, name} of
-- who has the one that it asks for. Fields say what it serves and knows.
local incarnation, entry, name, lease, wanted, fields, former = unpack(cmsgpack.unpack(ARGV[1]), 1, 7)
local key, routes = root .. ':worker:' .. incarnation, routing(now)
even_if_full()
for _, owner in ipairs(former) do
  redis.call('SET', root .. ':lapsed:' .. owner, '', 'EX', DAY)
  take_back_deaths(owner)
  write_all()
end

-- The seat that a worker of this name had and nobody has now; one that is kept for it first.
local function former_seat()
  local found
  for _, index in ipairs(redis.call('ZRANGE', root .. ':seats', 0, -1)) do
    local seat = redis.call('HMGET', root .. ':seat:' .. index, 'name', 'kept')
    if seat[1] == name and not routes.sits(index) then
      if number(seat[2], 0) > now then return index end
      found = found or index
    end
  end
  return found
end

local function free_seat()
  local index = 0
  while routes.occupied(index) do index = index + 1 end
  return index
end

local index = tonumber(redis.call('HGET', key, 'index') or nil)
if index then return {index} end
if wanted then
  local taken = routes.sits(wanted, name)
  if taken then return {-1, taken} end
end
index = tonumber(wanted or former_seat() or free_seat())
local had = redis.call('HGET', root .. ':seat:' .. index, 'name')
if had and had ~= name then  -- its routes were another worker's, and that is gone
  for _, way in ipairs(redis.call('ZRANGE', root .. ':seated:' .. index, 0, PORTION - 1)) do
    if not routes.lose(way) then return {-2} end
  end
  if redis.call('EXISTS', root .. ':seated:' .. index) == 1 then return {-2} end
end
if redis.call('EXISTS', key) == 0 then
  redis.call('HSET', key, 'entry', entry, 'name', name, 'started', written(now), 'beaten', written(now),
             'beat', 0)
end
redis.call('HSET', key, 'index', index, 'lease', lease)
write('HSET', {[key] = fields})
redis.call('SADD', root .. ':workers', incarnation)
redis.call('ZADD', root .. ':seats', index, index)
redis.call('HSET', root .. ':seat:' .. index, 'name', name)
redis.call('HDEL', root .. ':seat:' .. index, 'kept', 'retiring')
redis.call('SADD', root .. ':sitting:' .. index, incarnation)
wake_rule(ROUTE, '')  -- it may be given routes that nobody could have, or come back to those it had
return {index}

-- name: beat
-- {incarnation, running, epoch, stopping}: one heartbeat of a worker that is still enlisted.
local incarnation, running, epoch, stopping = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':worker:' .. incarnation
if redis.call('EXISTS', key) == 0 then return 0 end
even_if_full()
local beat = number(redis.call('HGET', key, 'beat'), 0) + 1
redis.call('HSET', key, 'beat', beat, 'beaten', written(now), 'running', running, 'epoch', epoch,
           'stopping', stopping)
return 1

-- name: members
-- All living workers, after the time: {now, row ...}. Forgets the names of those that are gone.
local rows = {written(now)}
for _, incarnation in ipairs(redis.call('SMEMBERS', root .. ':workers')) do
  local key = root .. ':worker:' .. incarnation
  local found = redis.pcall('HMGET', key, 'entry', 'beat', 'started', 'beaten', 'running', 'epoch',
                            'stopping', 'index')
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
local found = redis.call('HMGET', key, 'beat', 'index')
if number(found[1], 0) ~= beat then return 0 end
redis.call('DEL', key)
redis.call('HDEL', root .. ':standby', incarnation)
redis.call('SREM', root .. ':workers', incarnation)
if found[2] then redis.call('SREM', root .. ':sitting:' .. found[2], incarnation) end
return 1

-- name: leave
-- {incarnation}: ends one's own life; the seat is kept for as long as it might have been silent. Who
-- holds nothing leaves nothing else behind.
local incarnation = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':worker:' .. incarnation
local found = redis.call('HMGET', key, 'index', 'lease')
redis.call('DEL', key)
redis.call('HDEL', root .. ':standby', incarnation)
redis.call('SREM', root .. ':workers', incarnation)
if found[1] then
  redis.call('SREM', root .. ':sitting:' .. found[1], incarnation)
  redis.call('HSET', root .. ':seat:' .. found[1], 'kept', written(now + number(found[2], 0)))
end
if redis.call('EXISTS', root .. ':held:' .. incarnation) == 0 then
  redis.call('SREM', root .. ':owners', incarnation)
end
return 1

-- name: hear
-- {longer, job, until, job, until ...}: messages to one worker are heard until a moment, and known for so many
-- seconds longer. Gives a word for each: first, again (this very job was heard), copy (another of its id was), late.
local lives, words = cmsgpack.unpack(ARGV[1]), {}
for at = 2, #lives, 2 do
  local id, seconds = lives[at], math.ceil(lives[at + 1] - now)
  local key, word = root .. ':job:' .. id, 'copy'
  if redis.call('HGET', key, 'heard') then
    word = 'again'
  elseif lives[at + 1] < now then
    word = 'late'
  elseif redis.call('SET', root .. ':heard:' .. id, '', 'NX', 'EX', seconds + lives[1]) then
    word = 'first'
    if redis.call('EXISTS', key) == 1 then redis.call('HSET', key, 'heard', 1) end
  end
  words[#words + 1] = word
end
return words
