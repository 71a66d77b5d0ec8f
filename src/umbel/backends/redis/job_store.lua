-- The books of jobs whose messages another broker carries. Keys: see keys.lua; touches job, lane, sent,
-- aside, due, held, owners, standby; at gates all that granting.lua does; reads worker, pauses.
-- Guarantees: a job that is sent is queued for everybody but in no lane; a message gives its job to the
-- first who comes with it; whatever puts a job back into its queue makes it one to be sent again.

-- name: unsent
-- {limit, queues, waiter}: the first queued jobs of each lane. Gives {more, in how many seconds
-- something falls due, rows}; takes nothing.
-- What is due or resumed goes to its lane before, and so does who can pass the gates. Where there is nothing,
-- who waits, and has a name for that, stands by.
local limit, queues, waiter = unpack(cmsgpack.unpack(ARGV[1]))
local paused = read_pauses()
local open = open_queues(queues, paused)
even_if_full()
local more, due = fill(open, paused, now)
local gates, waking = see_to_gates()
more = more or waking
local rows = {}
for _, queue in ipairs(open) do
  for _, kind in ipairs(KINDS) do
    local found, unfinished = front(queue, kind, limit, paused)
    more = more or unfinished
    if gates then
      found, unfinished = gates.grant(queue, kind, limit, found, paused, now)
      more, due = more or unfinished, gates.next_look(queue, kind, due)
      gates.queue_granted()
    end
    for at = 1, #found, 2 do
      local id = id_of(found[at])
      local job = message(id)
      if job and job[1] == 'queued' then
        job[1], job[2] = id, number(job[2], 0)
        rows[#rows + 1] = job
      else
        drop(root .. ':lane:' .. kind .. ':' .. queue, found[at])
      end
    end
  end
end
for queue in pairs(gates and gates.sent_to or {}) do more = more or open[queue] end
write_all()
if #rows == 0 and not more and waiter ~= '' then stand_by(waiter, open, now) end
return {more and 1 or 0, due and written(due - now), rows}

-- name: sent
-- {id, fence, queue, id, fence, queue ...}: queued jobs of these are in another broker now, if they are
-- what they were when they were given out.
local offers = cmsgpack.unpack(ARGV[1])
for at = 1, #offers, 3 do
  local id = offers[at]
  local job = read(id, 'queue', 'kind', 'priority', 'place', 'aside', 'fence')
  if job and job[1] == 'queued' and number(job[7], 0) == offers[at + 1]
     and (job[2] or '') == offers[at + 2] then
    leave(id, job[1], job[2] or '', job[3], job[5], job[6])
    redis.call('HDEL', root .. ':job:' .. id, 'aside')
    redis.call('HSET', root .. ':job:' .. id, 'state', 'sent')
    redis.call('ZADD', root .. ':sent:' .. known_kind(job[3]) .. ':' .. (job[2] or ''), -number(job[4], 0),
               (job[5] or NOWHERE) .. id)
  end
end
return 0

-- name: take
-- {owner, id, queue, id, queue ...}: claims these very jobs in the queues their messages came from.
-- Gives {0} when the owner is not enlisted, else {1, rows, unknown, now}. One that is paused is not given, and
-- has to be sent again.
local asked = cmsgpack.unpack(ARGV[1])
local owner = asked[1]
local worker = redis.call('HGET', root .. ':worker:' .. owner, 'name')
if not worker then return {0} end
even_if_full()
local paused = read_pauses()
local rows, unknown = {}, {}
for at = 2, #asked, 2 do
  local id, queue = asked[at], asked[at + 1]
  local job, place, aside = message(id)
  if not job then
    unknown[#unknown + 1] = id
  elseif (job[1] == 'queued' or job[1] == 'sent') and job[4] == queue then
    local state, kind = job[1], job[KIND]
    if paused.all or paused.queue[queue] or paused.task[job[TASK] or ''] then
      redis.call('HSET', root .. ':job:' .. id, 'fence', raised(job[2]))
      if state == 'sent' then
        leave(id, 'sent', queue, kind, place)
        redis.call('HSET', root .. ':job:' .. id, 'state', 'queued')
        enter(id, queue, kind, job[6], place)
      end
    else
      if state == 'sent' then
        drop(root .. ':sent:' .. known_kind(kind) .. ':' .. queue, (place or NOWHERE) .. id)
      else
        leave(id, state, queue, kind, place, aside)
        redis.call('HDEL', root .. ':job:' .. id, 'aside')
      end
      rows[#rows + 1] = lease(id, job, owner, worker, now)
    end
  end
end
write_all()
write_leases(owner)
return {1, rows, unknown, written(now)}

-- name: stand_by
-- {owner, queues, listener, heard, ticket}: the owner may be handed what is noted in one of these queues
-- from now on. Gives {0} when the owner is not enlisted; {1}; or {1, now, the row} of what it was handed before and
-- has not heard of: then it does not stand by.
local owner, queues, listener, heard, ticket = unpack(cmsgpack.unpack(ARGV[1]))
local worker = redis.call('HGET', root .. ':worker:' .. owner, 'name')
if not worker then return {0} end
even_if_full()
local row = stand_down(owner, listener, heard, now)
write_all()
if not row then stand_by(owner, open_queues(queues, read_pauses()), now, ticket, worker) end
return row and {1, written(now), row} or {1}

-- name: unsend
-- {id, id ...}: these were noted as sent and may not have been.
even_if_full()
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do
  local job = read(id, 'queue', 'kind', 'priority', 'place', 'fence')
  if job and job[1] == 'sent' then
    leave(id, 'sent', job[2] or '', job[3], job[5])
    redis.call('HSET', root .. ':job:' .. id, 'state', 'queued', 'fence', raised(job[6]))
    enter(id, job[2] or '', job[3], job[4], job[5])
  end
end
write_all()
return 0

-- name: recall
-- {queue, kind}: a portion of what was sent there is to be sent again. Gives how many, and how many were looked at.
local queue, kind = unpack(cmsgpack.unpack(ARGV[1]))
local recalled, looked = 0, 0
local key = root .. ':sent:' .. kind .. ':' .. queue
for _, place in ipairs(redis.call('ZRANGE', key, 0, PORTION - 1)) do
  local id = id_of(place)
  local job = read(id, 'kind', 'priority', 'place', 'fence')
  drop(key, place)
  looked = looked + 1
  if job and job[1] == 'sent' then
    redis.call('HSET', root .. ':job:' .. id, 'state', 'queued', 'fence', raised(job[5]))
    enter(id, queue, job[2], job[3], job[4])
    recalled = recalled + 1
  end
end
write_all()
return {recalled, looked}
