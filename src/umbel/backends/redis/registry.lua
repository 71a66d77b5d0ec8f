-- The worker registry. Keys: see keys.lua; writes worker, workers, owners, standby, indexes, index, incarnations,
-- received, lapsed; for deaths that are taken back deaths, job, live, buried, lane, queues, unique, waiting and
-- waiting_list; for jobs that wait for a worker check_now, check_later, rules_to_check; reads leases.
-- Guarantees: removing a worker's hash ends every lease of its incarnation; no script writes into a hash that was
-- removed, so an incarnation never begins twice; no two registered workers of different names share an index.
-- Heartbeats work even if the server is out of memory.

-- name: register
-- {incarnation, entry, name, lease, index, fields, former}: registers a worker; repeating it changes nothing. The
-- process was alive after its former incarnations lapsed, so the deaths that were counted for them are taken back.
-- Returns {index}: the requested one, else the previous one of its name, else the lowest free one; {-1, name} if
-- another worker has the requested index; {-2} if the routes of the index are to be released first: repeat the call.
-- Fields are the queues that it serves and the tasks that it knows.
local incarnation, entry, name, lease, wanted, fields, former = unpack(cmsgpack.unpack(ARGV[1]), 1, 7)
local key, routes = root .. ':worker:' .. incarnation, open_routes(now)
allow_when_full()
for _, owner in ipairs(former) do
  redis.call('SET', root .. ':lapsed:' .. owner, '', 'EX', DAY_SECONDS)
  take_back_deaths(owner)
  write_pending()
end

-- Return an index that a worker of this name had and that is free now, preferably one that is kept for it.
local function previous_index()
  local found
  for _, index in ipairs(redis.call('ZRANGE', root .. ':indexes', 0, -1)) do
    local stored = redis.call('HMGET', root .. ':index:' .. index, 'name', 'kept_until')
    if stored[1] == name and not routes.registered_name(index) then
      if to_number(stored[2], 0) > now then return index end
      found = found or index
    end
  end
  return found
end

local function free_index()
  local index = 0
  while routes.is_taken(index) do index = index + 1 end
  return index
end

local index = tonumber(redis.call('HGET', key, 'index') or nil)
if index then return {index} end
if wanted then
  local other_name = routes.registered_name(wanted, name)
  if other_name then return {-1, other_name} end
end
index = tonumber(wanted or previous_index() or free_index())
local previous_name = redis.call('HGET', root .. ':index:' .. index, 'name')
if previous_name and previous_name ~= name then  -- its routes led to another worker, which is gone
  for _, route_number in ipairs(redis.call('ZRANGE', root .. ':routes_to:' .. index, 0, PORTION - 1)) do
    if not routes.close_lost(route_number) then return {-2} end
  end
  if redis.call('EXISTS', root .. ':routes_to:' .. index) == 1 then return {-2} end
end
if redis.call('EXISTS', key) == 0 then
  redis.call('HSET', key, 'entry', entry, 'name', name, 'started', format_number(now), 'heartbeat_at',
             format_number(now), 'heartbeats', 0)
end
redis.call('HSET', key, 'index', index, 'lease', lease)
write_lists('HSET', {[key] = fields})
redis.call('SADD', root .. ':workers', incarnation)
redis.call('ZADD', root .. ':indexes', index, index)
redis.call('HSET', root .. ':index:' .. index, 'name', name)
redis.call('HDEL', root .. ':index:' .. index, 'kept_until', 'retiring')
redis.call('SADD', root .. ':incarnations:' .. index, incarnation)
request_rule_checks(ROUTE_RULE, '')  -- this worker may get routes for waiting jobs, or have its previous routes again
return {index}

-- name: heartbeat
-- {incarnation, running, epoch, stopping}: stores one heartbeat. Returns 0 if the worker is not registered any more.
local incarnation, running, epoch, stopping = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':worker:' .. incarnation
if redis.call('EXISTS', key) == 0 then return 0 end
allow_when_full()
local heartbeats = to_number(redis.call('HGET', key, 'heartbeats'), 0) + 1
redis.call('HSET', key, 'heartbeats', heartbeats, 'heartbeat_at', format_number(now), 'running', running,
           'epoch', epoch, 'stopping', stopping)
return 1

-- name: workers
-- Returns all registered workers: {now, row ...}. Removes incarnations without a hash from the set.
local rows = {format_number(now)}
for _, incarnation in ipairs(redis.call('SMEMBERS', root .. ':workers')) do
  local key = root .. ':worker:' .. incarnation
  local found = redis.pcall('HMGET', key, 'entry', 'heartbeats', 'started', 'heartbeat_at', 'running', 'epoch',
                            'stopping', 'index')
  if found.err or not found[1] then
    if redis.call('EXISTS', key) == 0 then redis.call('SREM', root .. ':workers', incarnation) end
  else
    rows[#rows + 1] = found
  end
end
return rows

-- name: remove_worker
-- {incarnation, heartbeats}: unregisters a worker whose heartbeats have stopped. Returns 0 if it sent one since, or is
-- gone.
local incarnation, heartbeats = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':worker:' .. incarnation
if redis.call('EXISTS', key) == 0 then return 0 end
local found = redis.call('HMGET', key, 'heartbeats', 'index')
if to_number(found[1], 0) ~= heartbeats then return 0 end
redis.call('DEL', key)
redis.call('HDEL', root .. ':standby', incarnation)
redis.call('SREM', root .. ':workers', incarnation)
if found[2] then redis.call('SREM', root .. ':incarnations:' .. found[2], incarnation) end
return 1

-- name: unregister
-- {incarnation}: unregisters a worker that stops; its index is kept for the time of a lease. An incarnation without
-- leases leaves nothing else behind.
local incarnation = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':worker:' .. incarnation
local found = redis.call('HMGET', key, 'index', 'lease')
redis.call('DEL', key)
redis.call('HDEL', root .. ':standby', incarnation)
redis.call('SREM', root .. ':workers', incarnation)
if found[1] then
  redis.call('SREM', root .. ':incarnations:' .. found[1], incarnation)
  redis.call('HSET', root .. ':index:' .. found[1], 'kept_until', format_number(now + to_number(found[2], 0)))
end
if redis.call('EXISTS', root .. ':leases:' .. incarnation) == 0 then
  redis.call('SREM', root .. ':owners', incarnation)
end
return 1

-- name: record_inbox_receipts
-- {longer, job, until, job, until ...}: records that messages to one worker were received. A message can be received
-- until a time, and is remembered for so many seconds longer. Returns for each: first; again (this job was received
-- before), copy (another job with its id was), or late.
local messages, answers = cmsgpack.unpack(ARGV[1]), {}
for at = 2, #messages, 2 do
  local id, seconds = messages[at], math.ceil(messages[at + 1] - now)
  local key, answer = root .. ':job:' .. id, 'copy'
  if redis.call('HGET', key, 'received') then
    answer = 'again'
  elseif messages[at + 1] < now then
    answer = 'late'
  elseif redis.call('SET', root .. ':received:' .. id, '', 'NX', 'EX', seconds + messages[1]) then
    answer = 'first'
    if redis.call('EXISTS', key) == 1 then redis.call('HSET', key, 'received', 1) end
  end
  answers[#answers + 1] = answer
end
return answers
