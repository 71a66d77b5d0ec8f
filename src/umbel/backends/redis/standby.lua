-- Standby: a waiting worker is handed a job by the process that publishes it. See standby.py for the whole
-- procedure and publish_one.lua for the handover. Included after lanes.lua; writes standby, owners; reads job,
-- leases, worker.
-- Guarantees: a job that was handed over is leased like any other; when standby ends, the same process gets the
-- job that it was handed and has not received.

-- Return an incarnation's ticket, the time when its standby began, its worker's name, and the id of the job that
-- it was handed ('' if none); nil if it is not on standby.
local function read_standby(owner)
  local entry = redis.call('HGET', root .. ':standby', owner)
  if not entry then return nil end
  return string.match(entry, '^([^\n]*)\n([^\n]*)\n(.*)\n([^\n]*)$')
end

-- End the standby of an incarnation. Return the row of the job that it was handed. Return nil if it has received
-- the job of this ticket, if another process was on standby, or if the job is paused now: then the job is put back.
-- The caller runs write_pending afterwards.
local function end_standby(owner, listener, received, now)
  local ticket, _, _, id = read_standby(owner)
  if not ticket then return nil end
  redis.call('HDEL', root .. ':standby', owner)
  if id == '' or ticket == received or string.match(ticket, '^[^.]*') ~= listener then return nil end
  local job, sequence = read_delivery(id)
  local fence = redis.call('HGET', root .. ':leases:' .. owner, id)
  if not job or job[1] ~= 'running' or to_number(job[2], -1) ~= to_number(fence, -2) then return nil end
  local paused = read_pauses()
  if paused.all or paused.queue[job[4] or ''] or paused.task[job[TASK] or ''] then
    redis.call('HDEL', root .. ':leases:' .. owner, id)
    put_back(id, {job[4], job[KIND], job[6], sequence, job[GATES], job[SLOTS], job[EXPIRES]}, 0, 0, {})
    return nil
  end
  redis.call('HSET', root .. ':job:' .. id, 'claimed', format_number(now))
  job[1], job[2] = id, to_number(fence, 0)
  return job
end

-- Begin the standby of a caller that waits for jobs of these queues. A publish notifies it, or hands it the job if
-- it has a ticket. A caller with a ticket becomes an owner at once, so that a handover need not add it.
local function begin_standby(owner, queues, now, ticket, worker)
  local long_ago = now - 600  -- a live worker has renewed its standby since
  if ticket then
    local entry = table.concat({ticket, format_number(now), worker, ''}, '\n')
    redis.call('HSET', root .. ':standby', owner, entry)
    redis.call('SADD', root .. ':owners', owner)
  end
  for _, queue in ipairs(queues) do
    redis.call('ZREMRANGEBYSCORE', root .. ':standby:' .. queue, '-inf', format_number(long_ago))
    redis.call('ZADD', root .. ':standby:' .. queue, format_number(now), owner)
  end
end
