-- The job store for messages that a transport carries. Keys: see keys.lua; writes job, lane, sent, aside, due,
-- leases, owners, standby; at gates all that granting.lua writes; reads worker, entries.
-- Guarantees: a sent job is queued for readers but is in no lane; a message gives its job to the first worker that
-- takes it; a job that goes back to its queue is sent again.

-- name: find_unsent
-- {limit, queues, waiter}: returns the first queued jobs of each lane: {more, in how many seconds the next job is due,
-- rows}; claims nothing. Before that, jobs that are due, resumed or can pass their gates go to the lanes. If there is
-- no job and the caller has a name to wait under, it is notified of the next publish.
local limit, queues, waiter = unpack(cmsgpack.unpack(ARGV[1]))
local paused = read_pauses()
local open = unpaused_queues(queues, paused)
allow_when_full()
local more, due = fill_lanes(open, paused, now)
due = paused.lapse and math.min(due or paused.lapse, paused.lapse) or due
local gates, rules_to_check = prepare_gates()
more = more or rules_to_check
local rows = {}
for _, queue in ipairs(open) do
  for _, kind in ipairs(KINDS) do
    local found, unfinished = lane_front(queue, kind, limit, paused)
    more = more or unfinished
    if gates then
      found, unfinished = gates.grant(queue, kind, limit, found, paused, now)
      more, due = more or unfinished, gates.next_check(queue, kind, due)
      gates.enqueue_granted()
    end
    for at = 1, #found, 2 do
      local id = id_of(found[at])
      local job = read_delivery(id)
      if job and job[1] == 'queued' then
        job[1], job[2] = id, to_number(job[2], 0)
        rows[#rows + 1] = job
      else
        remove_later(root .. ':lane:' .. kind .. ':' .. queue, found[at])
      end
    end
  end
end
for queue in pairs(gates and gates.worker_queues or {}) do more = more or open[queue] end
write_pending()
if #rows == 0 and not more and waiter ~= '' then begin_standby(waiter, open, now) end
return {more and 1 or 0, due and format_number(due - now), rows}

-- name: mark_sent
-- {id, fence, queue, id, fence, queue ...}: marks queued jobs as sent, if their fence and queue are unchanged.
local offers = cmsgpack.unpack(ARGV[1])
for at = 1, #offers, 3 do
  local id = offers[at]
  local job = read_job(id, 'queue', 'kind', 'priority', 'sequence', 'aside', 'fence')
  if job and job[1] == 'queued' and to_number(job[7], 0) == offers[at + 1]
     and (job[2] or '') == offers[at + 2] then
    remove_from_index(id, job[1], job[2] or '', job[3], job[5], job[6])
    redis.call('HDEL', root .. ':job:' .. id, 'aside')
    redis.call('HSET', root .. ':job:' .. id, 'state', 'sent')
    redis.call('ZADD', root .. ':sent:' .. normalize_kind(job[3]) .. ':' .. (job[2] or ''), -to_number(job[4], 0),
               (job[5] or NO_SEQUENCE) .. id)
  end
end
return 0

-- name: claim_jobs
-- {owner, id, queue, id, queue ...}: claims these jobs in the queues from which their messages came. Returns {0} if the
-- owner is not registered, else {1, rows, unknown, now}. A paused job is not claimed and is to be sent again.
local asked = cmsgpack.unpack(ARGV[1])
local owner = asked[1]
local worker = redis.call('HGET', root .. ':worker:' .. owner, 'name')
if not worker then return {0} end
allow_when_full()
local paused = read_pauses()
local rows, unknown = {}, {}
for at = 2, #asked, 2 do
  local id, queue = asked[at], asked[at + 1]
  local job, sequence, aside = read_delivery(id)
  if not job then
    unknown[#unknown + 1] = id
  elseif (job[1] == 'queued' or job[1] == 'sent') and job[4] == queue then
    local state, kind = job[1], job[KIND]
    if paused.all or paused.queue[queue] or paused.task[job[TASK] or ''] then
      redis.call('HSET', root .. ':job:' .. id, 'fence', next_fence(job[2]))
      if state == 'sent' then
        remove_from_index(id, 'sent', queue, kind, sequence)
        redis.call('HSET', root .. ':job:' .. id, 'state', 'queued')
        enqueue(id, queue, kind, job[6], sequence)
      end
    else
      if state == 'sent' then
        remove_later(root .. ':sent:' .. normalize_kind(kind) .. ':' .. queue, (sequence or NO_SEQUENCE) .. id)
      else
        remove_from_index(id, state, queue, kind, sequence, aside)
        redis.call('HDEL', root .. ':job:' .. id, 'aside')
      end
      rows[#rows + 1] = lease(id, job, owner, worker, now)
    end
  end
end
write_pending()
write_leases(owner)
return {1, rows, unknown, format_number(now)}

-- name: mark_lane_unsent
-- {queue, kind}: queues a portion of the sent jobs of a lane again. Returns how many, and how many were checked.
local queue, kind = unpack(cmsgpack.unpack(ARGV[1]))
local recalled, checked = 0, 0
local key = root .. ':sent:' .. kind .. ':' .. queue
for _, position in ipairs(redis.call('ZRANGE', key, 0, PORTION - 1)) do
  local id = id_of(position)
  local job = read_job(id, 'kind', 'priority', 'sequence', 'fence')
  remove_later(key, position)
  checked = checked + 1
  if job and job[1] == 'sent' then
    redis.call('HSET', root .. ':job:' .. id, 'state', 'queued', 'fence', next_fence(job[5]))
    enqueue(id, queue, job[2], job[3], job[4])
    recalled = recalled + 1
  end
end
write_pending()
return {recalled, checked}
