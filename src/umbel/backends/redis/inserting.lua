-- Functions that add jobs, and that queue jobs again whose deaths are taken back. Included after ending.lua; write
-- what a publish writes, and buried, deaths.

-- Return the id of the live job that holds a unique key, and its state.
local function find_unique_holder(unique)
  local id = redis.call('HGET', root .. ':unique', unique)
  local job = id and read_job(id)
  if job and not FINAL[job[1]] then return id, job[1] end
  return nil
end

-- Add a job that does not exist. A row: id, queue, kind, priority, not-before time, unique key, what to do if that
-- key is taken, fields, gates; the delay and the time to live in seconds, if they are not given as times; when the
-- message was created; when it expires; the beginning of the reason if it is cancelled because its key is taken. With
-- a join, the job is blocked; its delay and time to live count from when the join is complete.
local function add_job(row, number, now, idle, join)
  local id, queue, kind, priority, not_before, _, _, fields, gates = unpack(row, 1, 9)
  local delay, expires_in, created, expires = unpack(row, 10, 13)
  local sequence = string.format('%016d', number)
  local state = idle
  local function set(field, value)
    fields[#fields + 1], fields[#fields + 2] = field, value
  end
  if gates then
    state = 'waiting'
    set('gates', gates)
  end
  if join then
    set('join', join)
    if delay then set('delay', format_number(delay)) end
    if expires_in then set('expires_in', format_number(expires_in)) end
  else
    if delay then
      not_before = now + delay
      set('not_before', format_number(not_before))
    end
    if expires_in then
      expires = now + expires_in
      set('expires', format_number(expires))
    end
  end
  if not_before and not_before > now then state = 'scheduled' end
  if join then state = 'blocked' end
  set('created', format_number(created or now))
  set('state', state)
  set('sequence', sequence)
  redis.call('HSET', root .. ':job:' .. id, unpack(fields))
  register_queue(queue)
  add_later(root .. ':live', sequence, id)
  if expires then add_later(root .. ':expiring', expires, id) end
  if state == 'blocked' then
    block_job(id, queue, sequence, join)
  elseif state == 'scheduled' then
    schedule(id, queue, not_before)
  elseif state == 'sent' then
    add_later(root .. ':sent:' .. normalize_kind(kind) .. ':' .. queue, -priority, sequence .. id)
  elseif state == 'waiting' then
    wait_at_gate(id, next_gate(gates), queue, kind, priority, sequence)
  else
    enqueue(id, queue, kind, priority, sequence)
  end
end

-- Add a job of a publish, or return the id of the job that existed before. A running job keeps its unique key.
local function insert(row, number, now, idle)
  local id, unique, on_conflict = row[1], row[6], row[7]
  if redis.call('EXISTS', root .. ':job:' .. id) == 1 then return id end
  if unique then
    local holder, state = find_unique_holder(unique)
    if holder and (on_conflict == 'return' or state == 'running') then return holder end
    if holder then cancel_idle(holder, 'replaced by ' .. id, now) end
    redis.call('HSET', root .. ':unique', unique, id)
  end
  add_job(row, number, now, idle)
  return nil
end

-- Store a job that cannot run, because another job holds its unique key. With a join, it waits for that join if it is
-- replayed.
local function add_cancelled(row, number, now, holder, join)
  local id, fields, delay, expires_in = row[1], row[8], row[10], row[11]
  local function set(field, value)
    fields[#fields + 1], fields[#fields + 2] = field, value
  end
  set('created', format_number(row[12] or now))
  set('sequence', string.format('%016d', number))
  set('reason', (row[14] or '') .. holder)
  if join then set('join', join) end
  if join and delay then set('delay', format_number(delay)) end
  if join and expires_in then set('expires_in', format_number(expires_in)) end
  finish(id, 'cancelled', now, fields)
end

-- Add a job together with other changes, which must not fail because of it: if its unique key is taken, it becomes a
-- cancelled record. Only a holder that does not run can be replaced. With a join, the job is blocked. Return its state,
-- which is only exact if it is final; nil if the job existed before.
local function insert_or_cancel(row, number, now, join)
  local id, unique, on_conflict = row[1], row[6], row[7]
  if redis.call('EXISTS', root .. ':job:' .. id) == 1 then return nil end
  local holder, state
  if unique then holder, state = find_unique_holder(unique) end
  if holder and (on_conflict ~= 'replace' or state == 'running') then
    add_cancelled(row, number, now, holder, join)
    return 'cancelled'
  end
  if holder then cancel_idle(holder, 'replaced by ' .. id, now) end
  if unique then redis.call('HSET', root .. ':unique', unique, id) end
  add_job(row, number, now, 'queued', join)
  return 'queued'
end

-- Add the jobs of a commit or the follow-ups of a settlement.
local function insert_all(rows)
  if #rows == 0 then return end
  local sequence = redis.call('INCRBY', root .. ':sequence', #rows) - #rows
  for index, row in ipairs(rows) do insert_or_cancel(row, sequence + index, now) end
end

-- Queue a finished job again, with the same id and history and with changed fields; from scratch: without its steps. If
-- the join that it waits for is not complete, it is blocked.
local function restart_job(id, state, number, changes, from_scratch)
  local key = root .. ':job:' .. id
  redis.call('HDEL', key, 'not_before', 'expires', 'attempt', 'deaths', 'blame', 'lapses', 'sections', 'unique',
             'finished', 'result', 'result_type', 'failure', 'reason', 'done', 'of', 'cancel',
             'claimed', 'worker', 'awaited', 'aside', 'gates', 'slots')
  if from_scratch then redis.call('DEL', root .. ':steps:' .. id) end
  redis.call('HSET', key, 'state', 'queued', 'sequence', string.format('%016d', number), unpack(changes))
  remove_later(root .. (state == 'buried' and ':buried' or ':done'), id)
  remove_later(root .. ':keep_until', id)
  add_later(root .. ':live', number, id)
  local job = read_job(id, 'queue', 'kind', 'priority', 'sequence', 'join')
  local queue, join = job[2] or '', job[6]
  register_queue(queue)
  if join and is_blocking(join) then
    redis.call('HSET', key, 'state', 'blocked')
    block_job(id, queue, job[5], join)
  else
    enqueue(id, queue, job[3], job[4], job[5])
  end
end

-- Count deaths of an incarnation as lapses, because its process has turned out to be alive. A job that was
-- buried only because of this death is queued again. A job that may die only once stays buried, because it has
-- started. A requeued job loses its unique key if another job holds that key now.
local DAY_SECONDS = 86400
local function requeue_buried(id, key, queue, kind, priority, sequence, gates, unique, expires)
  redis.call('HDEL', key, 'finished', 'reason', 'done', 'of', 'worker', 'slots', 'awaited', 'aside', 'cancel')
  if unique and find_unique_holder(unique) then
    redis.call('HDEL', key, 'unique')
  elseif unique then
    redis.call('HSET', root .. ':unique', unique, id)
  end
  remove_later(root .. ':buried', id)
  add_later(root .. ':live', to_number(sequence, 0), id)
  if expires then add_later(root .. ':expiring', to_number(expires, MAX_NUMBER), id) end
  register_queue(queue)
  return enqueue_or_wait(id, queue, kind, priority, sequence, gates)
end
local function take_back_deaths(owner)
  local counted = redis.call('HGETALL', root .. ':deaths:' .. owner)
  for at = 1, #counted, 2 do
    local id, blamed = counted[at], to_number(counted[at + 1], 0)
    local key = root .. ':job:' .. id
    local job = read_job(id, 'deaths', 'blame', 'lapses', 'max_deaths', 'reason', 'queue', 'kind', 'priority',
                         'sequence', 'gates', 'unique', 'expires')
    if job then
      local fields = {'deaths', math.max(to_number(job[2], 0) - 1, 0), 'lapses', to_number(job[4], 0) + 1}
      local poison = job[1] == 'buried' and string.sub(job[6] or '', 1, 8) == 'poison: '
      if poison and blamed > 0 and to_number(job[5], 3) > 1 then
        fields[5], fields[6] = requeue_buried(id, key, job[7] or '', unpack(job, 8, 13))
      end
      if not FINAL[job[1]] or fields[5] then
        local size = #fields
        fields[size + 1], fields[size + 2] = 'blame', math.max(to_number(job[3], 0) - blamed, 0)
      end
      redis.call('HSET', key, unpack(fields))
    end
  end
  redis.call('DEL', root .. ':deaths:' .. owner)
end
