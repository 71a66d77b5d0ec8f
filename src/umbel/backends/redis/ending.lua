-- Functions that end jobs and put them back. Included after counting.lua; write what their callers name.

-- End the life of a job in this state: free its unique key, notify the processes that wait for its end, count it in
-- its joins, and remove it from the live jobs. Every job that ends passes here, in the step in which it ends. Unique,
-- awaited, part and expires are fields of the job.
local function end_live_job(id, state, unique, awaited, part, expires)
  if unique and redis.call('HGET', root .. ':unique', unique) == id then
    redis.call('HDEL', root .. ':unique', unique)
  end
  if awaited then notify('d', id) end
  if part then count_end(id, state) end
  if expires then remove_later(root .. ':expiring', id) end
  remove_later(root .. ':live', id)
end

-- Turn a job that is in no lane and under no lease into a finished record.
local function finish(id, state, now, fields)
  redis.call('HSET', root .. ':job:' .. id, 'state', state, 'finished', format_number(now), unpack(fields))
  add_later(root .. (state == 'buried' and ':buried' or ':done'), now, id)
end

-- Remove a job that does not run from where it waits, and free its slots. Job has the fields of IDLE_FIELDS. Return
-- its original queue if a route had moved it into a worker's queue.
local IDLE_FIELDS = {'queue', 'kind', 'sequence', 'aside', 'gates', 'slots', 'unique', 'awaited', 'part', 'expires'}
local function take_idle_job(id, job)
  remove_from_index(id, job[1], job[2] or '', job[3], job[4], job[5], next_gate(job[6], job[7]))
  if not job[7] then return nil end
  redis.call('HDEL', root .. ':job:' .. id, 'slots')
  return free_slots(id, job[7])
end

-- Turn a job that does not run into a record in this final state, with these fields. Return its state then; nil if
-- there is no such job.
local function end_idle(id, final, now, fields)
  local job = read_job(id, unpack(IDLE_FIELDS))
  if not job then return nil end
  if job[1] == 'running' or FINAL[job[1]] then return job[1] end
  local original_queue = take_idle_job(id, job)
  if original_queue then fields[#fields + 1], fields[#fields + 2] = 'queue', original_queue end
  end_live_job(id, final, unpack(job, 8, 11))
  finish(id, final, now, fields)
  return final
end

-- Turn a job that does not run into a record, cancelled unless another final state is given. Return its state then;
-- nil if there is no such job.
local function cancel_idle(id, reason, now, final)
  return end_idle(id, final or 'cancelled', now, {'reason', reason})
end

-- Put a running job whose lease has ended back into its queue, at once or after a delay. A job: queue, kind,
-- priority, sequence, gates, slots, expires.
local function put_back(id, job, now, delay, fields)
  local queue, kind, priority, sequence, gates, slots, expires = unpack(job, 1, 7)
  local key = root .. ':job:' .. id
  redis.call('HDEL', key, 'worker', 'done', 'of', 'slots')
  local original_queue = slots and free_slots(id, slots)
  if original_queue then
    queue = original_queue
    fields[#fields + 1], fields[#fields + 2] = 'queue', original_queue
    register_queue(original_queue)
  end
  if expires then add_later(root .. ':expiring', to_number(expires, MAX_NUMBER), id) end
  local size = #fields
  if delay > 0 then
    fields[size + 1], fields[size + 2] = 'state', 'scheduled'
    fields[size + 3], fields[size + 4] = 'not_before', now + delay
    schedule(id, queue or '', now + delay)
  else
    fields[size + 1], fields[size + 2] = enqueue_or_wait(id, queue or '', kind, priority, sequence, gates)
  end
  redis.call('HSET', key, unpack(fields))
end

-- Return the history with one attempt more: one line each, at most a hundred.
local function append_attempt(history, attempt)
  if not history or history == '' then return attempt end
  local _, breaks = string.gsub(history, '\n', '\n')
  for _ = 99, breaks do
    history = string.sub(history, string.find(history, '\n', 1, true) + 1)
  end
  return history .. '\n' .. attempt
end
