-- Job records. Keys: see keys.lua; writes job, live, done, buried, lane, queues, sequence; reads waiting_list.
-- Guarantees: a job is one hash, live or finished, so a reader always sees it exactly once; a buried job is deleted
-- only by its id.

-- name: find
-- {id, fields}: returns the fields of a job with gates, the gate at which it waits, the parts of its slots, and how
-- many jobs wait before it; {} for an unknown job.
local id, fields = unpack(cmsgpack.unpack(ARGV[1]))
local job = read_job(id)
if not job then return {} end
local gate, slots = gate_and_slots(id, job[1])
return {redis.call('HMGET', root .. ':job:' .. id, unpack(fields)), gate, slots, gate and ahead_of(id, gate)}

-- name: list
-- {index, from, states, task, queue, worker, before, limit, fields}: returns the jobs that match, newest first, of a
-- portion of an index: {where to continue or 0, {id, score, fields, gate, slots} ...}; empty filters are false.
local index, from, states, task, queue, worker, before, limit, fields = unpack(cmsgpack.unpack(ARGV[1]), 1, 9)
local key = root .. ':' .. index
local found = redis.call('ZREVRANGE', key, from, from + PORTION - 1, 'WITHSCORES')
local wanted = states and {}
for _, state in ipairs(states or {}) do wanted[state] = true end
local answer = {#found == 2 * PORTION and from + PORTION or 0}
for at = 1, #found, 2 do
  local job = read_job(found[at], 'task', 'queue', 'worker', 'created')
  if job and (not wanted or wanted[job[1]]) and (not task or job[2] == task)
     and (not queue or job[3] == queue) and (not worker or job[4] == worker)
     and (not before or to_number(job[5], 0) < before or to_number(job[5], 0) > now) then
    local all = redis.call('HMGET', root .. ':job:' .. found[at], unpack(fields))
    answer[#answer + 1] = {found[at], found[at + 1], all, gate_and_slots(found[at], job[1])}
    if #answer > limit then
      answer[1] = 0
      break
    end
  end
end
return answer

-- name: find_finished
-- {id, fields}: returns the fields of a finished job; 0 for a live job, whose end will publish a wake-up; nil for an
-- unknown job.
local id, fields = unpack(cmsgpack.unpack(ARGV[1]))
local job = read_job(id)
if not job then return nil end
if FINAL[job[1]] then return redis.call('HMGET', root .. ':job:' .. id, unpack(fields)) end
redis.call('HSET', root .. ':job:' .. id, 'awaited', 1)
return 0

-- name: record_progress
-- {id, fence, done, of, ...}: stores progress under the current lease; an older fence changes nothing.
local notes = cmsgpack.unpack(ARGV[1])
for at = 1, #notes, 4 do
  local job = read_job(notes[at], 'fence')
  if job and job[1] == 'running' and to_number(job[2], -1) == notes[at + 1] then
    local key = root .. ':job:' .. notes[at]
    redis.call('HSET', key, 'done', notes[at + 2])
    if notes[at + 3] then
      redis.call('HSET', key, 'of', notes[at + 3])
    else
      redis.call('HDEL', key, 'of')
    end
  end
end
return 0

-- name: replay
-- {ids, fields, from_scratch}: queues finished jobs without a result again, with the same id and history and with
-- changed fields; from scratch: without their steps. Returns the ids.
local ids, changes, from_scratch = unpack(cmsgpack.unpack(ARGV[1]))
local sequence = redis.call('INCRBY', root .. ':sequence', #ids) - #ids
local replayed = {}
for index, id in ipairs(ids) do
  local job = read_job(id)
  if job and FINAL[job[1]] and job[1] ~= 'succeeded' then
    local key = root .. ':job:' .. id
    redis.call('HDEL', key, 'not_before', 'expires', 'attempt', 'deaths', 'blame', 'lapses', 'sections', 'unique',
               'finished', 'result', 'result_type', 'failure', 'reason', 'done', 'of', 'cancel',
               'claimed', 'worker', 'awaited', 'aside', 'gates', 'slots')
    if from_scratch then redis.call('DEL', root .. ':steps:' .. id) end
    redis.call('HSET', key, 'state', 'queued', 'sequence', string.format('%016d', sequence + index),
               unpack(changes))
    remove_later(root .. (job[1] == 'buried' and ':buried' or ':done'), id)
    add_later(root .. ':live', sequence + index, id)
    job = read_job(id, 'queue', 'kind', 'priority', 'sequence')
    register_queue(job[2] or '')
    enqueue(id, job[2] or '', job[3], job[4], job[5])
    replayed[#replayed + 1] = id
  end
end
write_pending()
return replayed

-- name: prune
-- {age, keep, limit}: deletes jobs that finished so many seconds ago or earlier, then the oldest beyond a count;
-- buried jobs stay and do not count. Returns how many.
local age, keep, limit = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':done'
allow_when_full()
local function forget(ids)
  for _, id in ipairs(ids) do
    redis.call('DEL', root .. ':job:' .. id, root .. ':steps:' .. id)
    remove_later(key, id)
  end
  write_pending()
  return #ids
end
local pruned = forget(redis.call('ZRANGEBYSCORE', key, '-inf', format_number(now - age), 'LIMIT', 0, limit))
local beyond = math.min(redis.call('ZCARD', key) - keep, limit - pruned)
if beyond > 0 then pruned = pruned + forget(redis.call('ZRANGE', key, 0, beyond - 1)) end
return pruned

-- name: remove
-- {ids}: deletes these finished jobs, buried ones included. Returns how many.
allow_when_full()
local removed = 0
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do
  local job = read_job(id)
  if job and FINAL[job[1]] then
    redis.call('DEL', root .. ':job:' .. id, root .. ':steps:' .. id)
    redis.call('ZREM', root .. ':done', id)
    redis.call('ZREM', root .. ':buried', id)
    removed = removed + 1
  end
end
return removed
