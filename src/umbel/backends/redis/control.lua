-- Cancellations and burials. Keys: see keys.lua; writes section_revisions, revision; for a cancelled job job, live,
-- lane, aside, sent, due, done, unique; of gates waiting, waiting_list, waiting_lists, gates, aside_waiting,
-- aside_counts, holders, member, free; for parts of joins what counting.lua writes.
-- Guarantees: a job that waits is cancelled at once, and a running job is asked to stop, always one of the two; a
-- request to stop changes the revision of the section of cancellations in the same step.

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
if asked then change_section(CANCELLATIONS, next_revision()) end
write_pending()
return answer

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
