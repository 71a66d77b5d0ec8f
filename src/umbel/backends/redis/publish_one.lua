-- Publishing one job without a unique key, a delay or gates: the most frequent case, without the functions of
-- jobs.lua. Keys: see keys.lua; writes job, sequence, live, lane, sent, queues, expiring; for a handover standby,
-- leases; reads entries.
-- Guarantees: the same result as publish; or, if a worker is on standby, nothing is paused and no job comes
-- before this one, the same result as publish and a claim by that worker.

-- name: publish_one
-- id, queue, kind, negated priority, idle state, task, body, created, expires, field, value ...: adds the job in the
-- idle state, queued or sent, or hands it over. Returns {1}; {2} if it was handed over; {1, 1, id} if it existed
-- before.
local id, queue, kind, score, idle, task, body, created, expires = unpack(ARGV, 1, 9)
local now_text = string.format('%.6f', now)
if created == '' then created = now_text end
local key, standby_key = root .. ':job:' .. id, root .. ':standby:' .. queue
local lane = root .. (idle == 'sent' and ':sent:' or ':lane:') .. kind .. ':' .. queue
-- One command answers three questions, because EXISTS counts a key as often as it is named: the job counts 1,
-- the lane 2, the standby set 4.
local found = redis.call('EXISTS', key, lane, lane, standby_key, standby_key, standby_key, standby_key)
if found % 2 == 1 then return {1, 1, id} end
-- The worker of a sent job claims it when the message arrives: such a job is never handed over.
local is_first, has_waiting_worker = found % 4 < 2, found >= 4 and idle ~= 'sent'
local number = redis.call('INCR', root .. ':sequence')
local sequence = string.format('%016d', number)
redis.call('ZADD', root .. ':live', sequence, id)  -- as text: the server formats a number more slowly
if is_first then redis.call('SADD', root .. ':queues', queue) end

local function fields()
  return 'task', task, 'queue', queue, 'body', body, 'created', created, 'kind', kind, unpack(ARGV, 10)
end

-- Return whether a job comes before this one, or a pause may apply to it.
local function has_to_wait()
  if #redis.call('ZRANGEBYLEX', root .. ':entries', '[pauses/', '(pauses0', 'LIMIT', 0, 1) > 0 then return true end
  local keys = {}
  for _, lane in ipairs({$kinds}) do
    local other = lane .. ':' .. queue
    keys[#keys + 1], keys[#keys + 2] = root .. ':lane:' .. other, root .. ':sent:' .. other
  end
  return redis.call('EXISTS', unpack(keys)) > 0
end

-- Send the job to the holder of this ticket: ticket, id, fields. Return whether a process received it.
local function send_handover(ticket)
  local parts = {ticket, id, 'claimed', now_text, fields()}
  for at, part in ipairs(parts) do parts[at] = '$' .. #part .. '\r\n' .. part .. '\r\n' end
  local channel = root .. ':handovers:' .. string.match(ticket, '^[^.]*')
  local receivers = redis.pcall('PUBLISH', channel, '*' .. #parts .. '\r\n' .. table.concat(parts))
  return type(receivers) == 'number' and receivers > 0
end

-- Notify the workers of this queue; see notify in jobs.lua.
local function notify_queue()
  redis.pcall('PUBLISH', root .. ':wake_ups', 'r:' .. root .. ':' .. queue)
end

-- Hand the job over. Return the incarnation and its worker's name, or nil. The incarnation that came last is
-- chosen, because its process is awake. Incarnations that could not be reached are notified to fetch instead.
local function hand_over()
  local owner = redis.call('ZPOPMAX', standby_key)[1]
  while owner do
    local entry = redis.call('HGET', root .. ':standby', owner)
    local ticket, worker = string.match(entry or '', '^([^\n]*)\n[^\n]*\n(.*)\n$')  -- no job was handed over before
    if ticket and send_handover(ticket) then
      redis.call('HSET', root .. ':standby', owner, entry .. id)
      return owner, worker
    end
    notify_queue()
    owner = redis.call('ZPOPMAX', standby_key)[1]
  end
  return nil
end

if has_waiting_worker and not has_to_wait() then
  local owner, worker = hand_over()
  if owner then
    redis.call('HSET', key, 'state', 'running', 'sequence', sequence, 'fence', 1, 'worker', worker,
               'claimed', now_text, fields())
    redis.call('HSET', root .. ':leases:' .. owner, id, 1)
    return {2}
  end
end
redis.call('HSET', key, 'state', idle, 'sequence', sequence, fields())
redis.call('ZADD', lane, score, sequence .. id)
if expires ~= '' then redis.call('ZADD', root .. ':expiring', expires, id) end  -- one that runs may be missing there
if has_waiting_worker then notify_queue() end
return {1}
