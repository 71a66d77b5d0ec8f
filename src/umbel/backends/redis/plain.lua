-- Publishing what most callers publish, without the moves of jobs.lua. Keys: see keys.lua; touches job,
-- sequence, live, lane, sent, queues; for one that is handed over standby, held; reads pauses.
-- Guarantees: what publish does to one row that has no unique key, no delay and no gates; or, if somebody
-- stands by and nothing is paused or comes before, what publish and a claim of that one do.

-- name: publish_plain
-- id, queue, kind, priority turned round, idle, task, body, created, field, value ...: adds the job in
-- the idle state, queued or sent, or hands it over. Gives {1}; {2} when somebody has it; or {1, 1, id} when it
-- was there before.
local id, queue, kind, score, idle, task, body, created = unpack(ARGV, 1, 8)
local here = string.format('%.6f', now)
if created == '' then created = here end
local key, standby = root .. ':job:' .. id, root .. ':standby:' .. queue
local lane = root .. (idle == 'sent' and ':sent:' or ':lane:') .. kind .. ':' .. queue
-- One call for three answers: it counts a key as often as it is named.
local there = redis.call('EXISTS', key, lane, lane, standby, standby, standby, standby)
if there % 2 == 1 then return {1, 1, id} end
local is_first, is_awaited = there % 4 < 2, there >= 4
local sequence = redis.call('INCR', root .. ':sequence')
local place = string.format('%016d', sequence)
redis.call('ZADD', root .. ':live', place, id)  -- as text: to write a number takes the server longer
if is_first then redis.call('SADD', root .. ':queues', queue) end

local function fields()
  return 'task', task, 'queue', queue, 'body', body, 'created', created, 'kind', kind, unpack(ARGV, 9)
end

-- Whether something comes before it, or a pause may be meant for it.
local function has_to_wait()
  local keys = {root .. ':pauses', root .. ':holds', root .. ':missing'}
  for _, other in ipairs({':' .. queue, 'io:' .. queue, 'cpu:' .. queue}) do
    keys[#keys + 1], keys[#keys + 2] = root .. ':lane:' .. other, root .. ':sent:' .. other
  end
  return redis.call('EXISTS', unpack(keys)) > 0
end

-- Tells who has this ticket that it holds the job: ticket, id, fields. Whether anybody hears it.
local function tell(ticket)
  local said = {ticket, id, 'claimed', here, fields()}
  for at, part in ipairs(said) do said[at] = '$' .. #part .. '\r\n' .. part .. '\r\n' end
  local channel = root .. ':hands:' .. string.match(ticket, '^[^.]*')
  local heard = redis.pcall('PUBLISH', channel, '*' .. #said .. '\r\n' .. table.concat(said))
  return type(heard) == 'number' and heard > 0
end

-- Says that this queue is worth a look: see tell in jobs.lua.
local function hint()
  redis.pcall('PUBLISH', root .. ':hints', 'r:' .. root .. ':' .. queue)
end

-- The incarnation that has the job now, and its worker's name. Who came last comes first: it is awake. Others
-- that could not be told so look for themselves.
local function hand_over()
  local owner = redis.call('ZPOPMAX', standby)[1]
  while owner do
    local entry = redis.call('HGET', root .. ':standby', owner)
    local ticket, worker = string.match(entry or '', '^([^\n]*)\n[^\n]*\n(.*)\n$')  -- and no job since
    if ticket and tell(ticket) then
      redis.call('HSET', root .. ':standby', owner, entry .. id)
      return owner, worker
    end
    hint()
    owner = redis.call('ZPOPMAX', standby)[1]
  end
  return nil
end

if is_awaited and not has_to_wait() then
  local owner, worker = hand_over()
  if owner then
    redis.call('HSET', key, 'state', 'running', 'place', place, 'fence', 1, 'worker', worker, 'claimed', here,
               fields())
    redis.call('HSET', root .. ':held:' .. owner, id, 1)
    return {2}
  end
end
redis.call('HSET', key, 'state', idle, 'place', place, fields())
redis.call('ZADD', lane, score, place .. id)
if is_awaited and idle ~= 'sent' then hint() end
return {1}
