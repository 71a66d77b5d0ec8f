-- Pauses and cancellations. Keys: see keys.lua; touches pauses, epoch, awake, looks, and for a job that is
-- cancelled job, live, lane, aside, sent, due, done, unique; of gates waiting, line, lines, gates, away,
-- absent, holders, member, free.
-- Guarantees: every change raises the epoch in the same step; a pause holds for each claim that starts
-- after it; what waits is cancelled at once and what runs is asked to stop, never neither.

-- name: state
-- The epoch, the server's time, and what operators, a deployment and missing tasks paused:
-- {epoch, time, {name, value ...}, {name, value ...}, {name, value ...}}.
return {redis.call('GET', root .. ':epoch') or '0', written(now), redis.call('HGETALL', root .. ':pauses'),
        redis.call('HGETALL', root .. ':holds'), redis.call('HGETALL', root .. ':missing')}

-- name: pause
-- {name, reason}: pauses; the first reason stays. Gives the epoch.
local name, reason = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
redis.call('HSETNX', root .. ':pauses', name, noted(reason))
tell('c')
return redis.call('INCR', root .. ':epoch')

-- name: resume
-- {name}: resumes. Gives the epoch. Jobs that were put aside come back with the next claims; the lines of
-- a gate are worth a look.
local name = unpack(cmsgpack.unpack(ARGV[1]))
redis.call('HDEL', root .. ':pauses', name)
local gate = string.match(name, '^gate:(.*)$')
if gate then wake(gate) end
tell('c')
return redis.call('INCR', root .. ':epoch')

-- name: cancel
-- {reason, ids}: cancels what waits, asks for what runs to be stopped; the first reason stays. Gives
-- {id, state, id, state ...} of those that are known.
local reason, ids = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
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
  tell('c')
end
write_all()
return answer

-- name: change_missing
-- {missing, found, reason}: lifts the pauses of tasks that a running worker has, and pauses those that none has.
-- Gives the epoch.
local missing, found, reason = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
for _, task in ipairs(found) do redis.call('HDEL', root .. ':missing', 'task:' .. task) end
for _, task in ipairs(missing) do redis.call('HSETNX', root .. ':missing', 'task:' .. task, noted(reason)) end
tell('c')
return redis.call('INCR', root .. ':epoch')

-- name: bury
-- {reason, ids}: buries those that wait. Gives their ids.
local reason, ids = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
local buried = {}
for _, id in ipairs(ids) do
  local job = read(id)
  if job and not FINAL[job[1]] and cancel_idle(id, reason, now, 'buried') == 'buried' then
    buried[#buried + 1] = id
  end
end
write_all()
return buried

-- name: cancellations
-- {ids}: which of these live jobs somebody wants stopped: {id, reason, id, reason ...}.
local answer = {}
for _, id in ipairs(cmsgpack.unpack(ARGV[1])) do
  local job = read(id, 'cancel')
  if job and job[2] and not FINAL[job[1]] then
    answer[#answer + 1] = id
    answer[#answer + 1] = job[2]
  end
end
return answer
