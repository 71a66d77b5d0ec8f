-- Pauses and cancellations. Keys: see keys.lua; writes pauses, epoch, check_now, check_later; for a cancelled job
-- job, live, lane, aside, sent, due, done, unique; of gates waiting, waiting_list, waiting_lists, gates,
-- aside_waiting, aside_counts, holders, member, free.
-- Guarantees: every change raises the epoch in the same step; a pause holds for each claim that starts after it; a
-- job that waits is cancelled at once, and a running job is asked to stop, always one of the two.

-- name: state
-- Returns the epoch, the server's time, and the pauses of operators, of a deployment and of missing tasks:
-- {epoch, time, {name, value ...}, {name, value ...}, {name, value ...}}.
return {redis.call('GET', root .. ':epoch') or '0', format_number(now), redis.call('HGETALL', root .. ':pauses'),
        redis.call('HGETALL', root .. ':deployment_pauses'), redis.call('HGETALL', root .. ':missing_tasks')}

-- name: pause
-- {name, reason}: pauses; the first reason stays. Returns the epoch.
local name, reason = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
redis.call('HSETNX', root .. ':pauses', name, encode_pause(reason))
notify('c')
return redis.call('INCR', root .. ':epoch')

-- name: resume
-- {name}: resumes. Returns the epoch. Jobs that were set aside return with the next claims; the waiting lists of a
-- resumed gate are checked.
local name = unpack(cmsgpack.unpack(ARGV[1]))
redis.call('HDEL', root .. ':pauses', name)
local gate = string.match(name, '^gate:(.*)$')
if gate then request_check(gate) end
notify('c')
return redis.call('INCR', root .. ':epoch')

-- name: cancel
-- {reason, ids}: cancels jobs that wait, and requests the stop of jobs that run; the first reason stays. Returns
-- {id, state, id, state ...} of the jobs that exist.
local reason, ids = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
local answer, asked = {}, false
for _, id in ipairs(ids) do
  local state = cancel_idle(id, reason, now)
  if state == 'running' then
    redis.call('HSETNX', root .. ':job:' .. id, 'cancel', reason)
    asked = true
  end
  if state then
    answer[#answer + 1] = id
    answer[#answer + 1] = state
  end
end
if asked then
  redis.call('INCR', root .. ':epoch')
  notify('c')
end
write_pending()
return answer

-- name: change_missing
-- {missing, found, reason}: resumes the tasks that a running worker has, and pauses those that no worker has.
-- Returns the epoch.
local missing, found, reason = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
for _, task in ipairs(found) do redis.call('HDEL', root .. ':missing_tasks', 'task:' .. task) end
for _, task in ipairs(missing) do
  redis.call('HSETNX', root .. ':missing_tasks', 'task:' .. task, encode_pause(reason))
end
notify('c')
return redis.call('INCR', root .. ':epoch')

-- name: bury
-- {reason, ids}: buries jobs that wait. Returns their ids.
local reason, ids = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
local buried = {}
for _, id in ipairs(ids) do
  local job = read_job(id)
  if job and not FINAL[job[1]] and cancel_idle(id, reason, now, 'buried') == 'buried' then
    buried[#buried + 1] = id
  end
end
write_pending()
return buried

-- name: cancellations
-- {ids}: returns those of these live jobs that are to be stopped: {id, reason, id, reason ...}.
local answer = {}
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do
  local job = read_job(id, 'cancel')
  if job and job[2] and not FINAL[job[1]] then
    answer[#answer + 1] = id
    answer[#answer + 1] = job[2]
  end
end
return answer
