-- Who waits for work stands by, and is handed what others publish: see plain.lua. It stands after lanes.lua;
-- touches standby, owners; reads job, held, worker.
-- Guarantees: a job that was handed over is held like any other; who stands by no more is given what it was
-- handed and has not heard of, if it is the same process that asks.

-- An incarnation's ticket, since when it stands by, its worker's name, and the job that it was handed, if any;
-- nothing: it does not.
local function standby_of(owner)
  local entry = redis.call('HGET', root .. ':standby', owner)
  if not entry then return nil end
  return string.match(entry, '^([^\n]*)\n([^\n]*)\n(.*)\n([^\n]*)$')
end

-- An incarnation stands by no more. Gives the row of what it was handed, unless it has heard of that ticket,
-- another process was told, or it is paused by now: then it goes back. Write_all has to follow.
local function stand_down(owner, listener, heard, now)
  local ticket, _, _, id = standby_of(owner)
  if not ticket then return nil end
  redis.call('HDEL', root .. ':standby', owner)
  if id == '' or ticket == heard or string.match(ticket, '^[^.]*') ~= listener then return nil end
  local job, place = message(id)
  local fence = redis.call('HGET', root .. ':held:' .. owner, id)
  if not job or job[1] ~= 'running' or number(job[2], -1) ~= number(fence, -2) then return nil end
  local paused = read_pauses()
  if paused.all or paused.queue[job[4] or ''] or paused.task[job[TASK] or ''] then
    redis.call('HDEL', root .. ':held:' .. owner, id)
    put_back(id, {job[4], job[KIND], job[6], place, job[GATES], job[SLOTS]}, 0, 0, {})
    return nil
  end
  redis.call('HSET', root .. ':job:' .. id, 'claimed', written(now))
  job[1], job[2] = id, number(fence, 0)
  return job
end

-- Somebody waits for what is published to these queues: who publishes gives a hint; or hands it over, if it
-- is an incarnation that has a ticket. That is as if it held something: whoever hands over need not say so.
local function stand_by(owner, queues, now, ticket, worker)
  local long_ago = now - 600  -- who lives has come again since
  if ticket then
    local entry = table.concat({ticket, written(now), worker, ''}, '\n')
    redis.call('HSET', root .. ':standby', owner, entry)
    redis.call('SADD', root .. ':owners', owner)
  end
  for _, queue in ipairs(queues) do
    redis.call('ZREMRANGEBYSCORE', root .. ':standby:' .. queue, '-inf', written(long_ago))
    redis.call('ZADD', root .. ':standby:' .. queue, written(now), owner)
  end
end
