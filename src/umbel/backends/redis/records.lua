-- Job records. Keys: see keys.lua; touches job, live, done, buried, lane, queues, sequence; reads line.
-- Guarantees: a job is one hash, live or finished, so nobody ever sees it twice or not at all; what is
-- buried is forgotten only by name.

-- name: find
-- {id, fields}: of a job that has to pass gates its fields, the gate where it waits, its slots part by part, and
-- how many stand before it; nothing for an unknown one.
local id, fields = unpack(cmsgpack.unpack(ARGV[1]))
local job = read(id)
if not job then return {} end
local gate, slots = gates_of(id, job[1])
return {redis.call('HMGET', root .. ':job:' .. id, unpack(fields)), gate, slots, gate and ahead_of(id, gate)}

-- name: list
-- {index, from, states, task, queue, worker, before, limit, fields}: of a portion of an index, newest first, the
-- jobs that match. Gives {where to go on or 0, {id, score, fields, gate, slots} ...}; empty filters are false.
local index, from, states, task, queue, worker, before, limit, fields = unpack(cmsgpack.unpack(ARGV[1]), 1, 9)
local key = root .. ':' .. index
local found = redis.call('ZREVRANGE', key, from, from + PORTION - 1, 'WITHSCORES')
local wanted = states and {}
for _, state in ipairs(states or {}) do wanted[state] = true end
local answer = {#found == 2 * PORTION and from + PORTION or 0}
for at = 1, #found, 2 do
  local job = read(found[at], 'task', 'queue', 'worker', 'created')
  if job and (not wanted or wanted[job[1]]) and (not task or job[2] == task)
     and (not queue or job[3] == queue) and (not worker or job[4] == worker)
     and (not before or number(job[5], 0) < before or number(job[5], 0) > now) then
    local all = redis.call('HMGET', root .. ':job:' .. found[at], unpack(fields))
    answer[#answer + 1] = {found[at], found[at + 1], all, gates_of(found[at], job[1])}
    if #answer > limit then
      answer[1] = 0
      break
    end
  end
end
return answer

-- name: await
-- {id, fields}: the fields of a job that is final; 0 for one that lives, which will say when it ends; nothing
-- for an unknown one.
local id, fields = unpack(cmsgpack.unpack(ARGV[1]))
local job = read(id)
if not job then return nil end
if FINAL[job[1]] then return redis.call('HMGET', root .. ':job:' .. id, unpack(fields)) end
redis.call('HSET', root .. ':job:' .. id, 'awaited', 1)
return 0

-- name: progress
-- {id, fence, done, of, ...}: notes progress under the lease that is held now; an older one changes nothing.
local notes = cmsgpack.unpack(ARGV[1])
for at = 1, #notes, 4 do
  local job = read(notes[at], 'fence')
  if job and job[1] == 'running' and number(job[2], -1) == notes[at + 1] then
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
-- {ids, fields, scratch}: queues finished jobs that gave no result anew, with their id and story, changed
-- where asked; from scratch: without their steps. Gives the ids.
local ids, changes, scratch = unpack(cmsgpack.unpack(ARGV[1]))
local sequence = redis.call('INCRBY', root .. ':sequence', #ids) - #ids
local replayed = {}
for place, id in ipairs(ids) do
  local job = read(id)
  if job and FINAL[job[1]] and job[1] ~= 'succeeded' then
    local key = root .. ':job:' .. id
    redis.call('HDEL', key, 'not_before', 'expires', 'attempt', 'deaths', 'blame', 'lapses', 'sections', 'unique',
               'finished', 'result', 'result_type', 'failure', 'reason', 'done', 'of', 'cancel',
               'claimed', 'worker', 'awaited', 'aside', 'gates', 'slots')
    if scratch then redis.call('DEL', root .. ':steps:' .. id) end
    redis.call('HSET', key, 'state', 'queued', 'place', string.format('%016d', sequence + place),
               unpack(changes))
    drop(root .. (job[1] == 'buried' and ':buried' or ':done'), id)
    add(root .. ':live', sequence + place, id)
    job = read(id, 'queue', 'kind', 'priority', 'place')
    know(job[2] or '')
    enter(id, job[2] or '', job[3], job[4], job[5])
    replayed[#replayed + 1] = id
  end
end
write_all()
return replayed

-- name: prune
-- {age, keep, limit}: forgets jobs that finished so many seconds ago or before, then the oldest beyond a count; buried
-- ones stay and do not count. Gives how many.
local age, keep, limit = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':done'
even_if_full()
local function forget(ids)
  for _, id in ipairs(ids) do
    redis.call('DEL', root .. ':job:' .. id, root .. ':steps:' .. id)
    drop(key, id)
  end
  write_all()
  return #ids
end
local pruned = forget(redis.call('ZRANGEBYSCORE', key, '-inf', written(now - age), 'LIMIT', 0, limit))
local beyond = math.min(redis.call('ZCARD', key) - keep, limit - pruned)
if beyond > 0 then pruned = pruned + forget(redis.call('ZRANGE', key, 0, beyond - 1)) end
return pruned

-- name: remove
-- {ids}: forgets these finished jobs, buried ones included. Gives how many.
even_if_full()
local removed = 0
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do
  local job = read(id)
  if job and FINAL[job[1]] then
    redis.call('DEL', root .. ':job:' .. id, root .. ':steps:' .. id)
    redis.call('ZREM', root .. ':done', id)
    redis.call('ZREM', root .. ':buried', id)
    removed = removed + 1
  end
end
return removed
