-- Finding jobs that can start; shared by claims, the job store and the scripts of queues. Included after keys.lua
-- and jobs.lua; writes job, lane, aside, aside_names, due, leases, owners; for jobs at gates waiting, waiting_list,
-- waiting_lists, gates, check_now, aside_waiting, aside_counts.
-- Guarantees: a call touches at most a portion of the jobs that are due, resumed or set aside, so that no script
-- keeps the server busy for long.

local budget = PORTION
local excluded_tasks, has_excluded = {}, false
local skips_left = 10 * PORTION  -- the maximum of jobs of excluded tasks that a script skips

-- Return the queues that are not paused, each once: as a list and as a set.
local function unpaused_queues(queues, paused)
  local open = {}
  for _, queue in ipairs(queues) do
    if not paused.all and not paused.queue[queue] and not open[queue] then
      open[queue] = true
      open[#open + 1] = queue
    end
  end
  return open
end

-- Move due jobs to their lane or waiting list. Return when the next job is due; false if there is none.
local function move_due_jobs(queue, now)
  local key = root .. ':due:' .. queue
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if first and tonumber(first) <= now then
    local ids = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, budget)
    budget = budget - #ids
    for _, id in ipairs(ids) do
      local job = read_job(id, 'kind', 'priority', 'sequence', 'gates')
      if job and job[1] == 'scheduled' then
        redis.call('HSET', root .. ':job:' .. id, enqueue_or_wait(id, queue, unpack(job, 2, 5)))
      end
      remove_later(key, id)
    end
    write_pending()
    first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  end
  return first and tonumber(first)
end

-- Move jobs whose task is no longer paused back to their lane or waiting list. Return whether some are left.
local function resume_jobs(name, queue)
  local aside, away = root .. ':aside:' .. name, root .. ':aside_waiting:' .. name
  for _, key in ipairs({aside, away}) do
    local positions = budget > 0 and redis.call('ZRANGE', key, 0, budget - 1) or {}
    budget = budget - #positions
    for _, position in ipairs(positions) do
      local id = id_of(position)
      local job = read_job(id, 'kind', 'priority', 'sequence', 'gates', 'slots')
      local gate = job and job[1] == 'waiting' and next_gate(job[5], job[6])
      if job then redis.call('HDEL', root .. ':job:' .. id, 'aside') end
      if gate then
        join_waiting_list(gate, normalize_kind(job[2]) .. ':' .. queue, -to_number(job[3], 0), position)
        redis.call('HINCRBY', root .. ':aside_counts', gate, -1)
      elseif job and key == aside then
        enqueue(id, queue, job[2], job[3], job[4])
      end
      remove_later(key, position)
    end
  end
  write_pending()
  if redis.call('EXISTS', aside, away) > 0 then return true end
  redis.call('SREM', root .. ':aside_names', name)
  if redis.call('EXISTS', root .. ':aside_names') == 0 then redis.call('DEL', root .. ':aside_counts') end
  return false
end

-- Add the jobs that are due or resumed to the lanes of open queues. Return whether there are more of them, and
-- when the next job is due.
local function fill_lanes(open, paused, now)
  local more, due = false, false
  for _, queue in ipairs(open) do
    local first = move_due_jobs(queue, now)
    if first then
      more = more or first <= now
      due = math.min(due or first, first)
    end
  end
  for _, name in ipairs(redis.call('SMEMBERS', root .. ':aside_names')) do
    local queue, task = split_aside_name(name)
    if open[queue] and not paused.task[task] and resume_jobs(name, queue) then more = true end
  end
  return more, due
end

-- Set a job of a paused task aside, so that claims do not read it again and again. Aside is the key prefix:
-- ':aside:' for jobs of a lane, ':aside_waiting:' for jobs of a waiting list.
local function set_aside(key, queue, task, position, score, aside)
  local name = #queue .. ':' .. queue .. ':' .. task
  redis.call('ZREM', key, position)
  redis.call('HSET', root .. ':job:' .. id_of(position), 'aside', name)
  redis.call('ZADD', root .. aside .. name, score, position)
  redis.call('SADD', root .. ':aside_names', name)
end

-- The caller does not take jobs of these tasks now.
local function exclude_tasks(tasks)
  for _, task in ipairs(tasks) do
    excluded_tasks[task] = true
    has_excluded = true
  end
end

-- Return the first positions of a lane that may start, with their scores, and whether there may be more.
local function lane_front(queue, kind, limit, paused)
  if limit <= 0 then return {}, false end
  local key = root .. ':lane:' .. kind .. ':' .. queue
  if not paused.tasks and not has_excluded then
    return redis.call('ZRANGE', key, 0, limit - 1, 'WITHSCORES'), false
  end
  local found, passed = {}, 0
  while #found < 2 * limit and skips_left > 0 do
    local at = #found / 2 + passed
    local some = redis.call('ZRANGE', key, at, at + limit - 1, 'WITHSCORES')
    if #some == 0 then break end
    for at = 1, #some, 2 do
      local job = read_job(id_of(some[at]), 'task')
      local task = job and job[2] or ''
      if excluded_tasks[task] and not paused.task[task] then
        passed, skips_left = passed + 1, skips_left - 1
      elseif not paused.task[task] then
        if #found < 2 * limit then
          found[#found + 1], found[#found + 2] = some[at], some[at + 1]
        end
      elseif budget > 0 then
        budget = budget - 1
        set_aside(key, queue, task, some[at], some[at + 1], ':aside:')
      else
        return found, true
      end
    end
  end
  return found, false
end

-- Return a job as a worker gets it (the columns below; nil if there is no such job), its sequence, and the name
-- of the set in which it is set aside. Most jobs have few fields, so HGETALL is used: in a small hash, finding one
-- field takes as long as reading all of them.
local TASK, KIND, EXPIRES, HEADERS, GATES, SLOTS = 3, 5, 12, 17, 20, 21
local COLUMN = {}
for column, field in ipairs({'state', 'fence', 'task', 'queue', 'kind', 'priority', 'type', 'content_type', 'body',
                             'created', 'not_before', 'expires', 'attempt', 'max_deaths', 'unique', 'traceparent',
                             'headers', 'deaths', 'sections', 'gates', 'slots'}) do
  COLUMN[field] = column
end
local function read_delivery(id)
  local found = redis.pcall('HGETALL', root .. ':job:' .. id)
  local job = {false, false, false, false, false, false, false, false, false, false, false, false, false, false,
               false, false, false, false, false, false, false}
  local sequence, aside
  for at = 1, #found, 2 do
    local field, value = found[at], found[at + 1]
    local column = COLUMN[field]
    if column then
      job[column] = value
    elseif field == 'sequence' then
      sequence = value
    elseif field == 'aside' then
      aside = value
    end
  end
  return job[1] and job, sequence, aside
end

-- Return the fence that follows this one.
local function next_fence(fence)
  return math.min(to_number(fence, 0), MAX_NUMBER - 1) + 1
end

-- Give a job that is in no lane to the owner, under a higher fence. Return its row: id, fence, message. The
-- leases of the owner are written at the end, by write_leases. The caller may pass further fields to write.
local leases = {}
local function lease(id, job, owner, worker, now, ...)
  local fence = next_fence(job[2])
  local fence_text = format_number(fence)
  redis.call('HSET', root .. ':job:' .. id, 'state', 'running', 'fence', fence_text, 'worker', worker,
             'claimed', format_number(now), ...)
  leases[#leases + 1], leases[#leases + 2] = id, fence_text
  job[1], job[2] = id, fence
  return job
end
-- Redis stores a small hash as a list, which it searches for each field. One long field name turns the hash into
-- a table, and it stays a table after that field is deleted.
local LONG_FIELD = string.rep('-', 65)
local function write_leases(owner)
  if #leases == 0 then return end
  local key, is_large = root .. ':leases:' .. owner, #leases > 40
  if is_large then redis.call('HSET', key, LONG_FIELD, '') end
  for first = 1, #leases, 4000 do
    local last = math.min(first + 3999, #leases)
    redis.call('HSET', key, unpack(leases, first, last))
  end
  if is_large then redis.call('HDEL', key, LONG_FIELD) end
  redis.call('SADD', root .. ':owners', owner)
end

-- Return the ids of a portion of the jobs of a queue that do not run, wherever they wait, after skipping some.
-- Remove entries of jobs that were deleted by hand, so that the remaining number shrinks with every call.
local function idle_jobs_in(queue, passed)
  passed = passed or 0
  local keys = {}
  for _, kind in ipairs(KINDS) do
    keys[#keys + 1] = root .. ':lane:' .. kind .. ':' .. queue
    keys[#keys + 1] = root .. ':sent:' .. kind .. ':' .. queue
    keys[#keys + 1] = root .. ':waiting:' .. kind .. ':' .. queue
  end
  for _, name in ipairs(redis.call('SMEMBERS', root .. ':aside_names')) do
    if split_aside_name(name) == queue then keys[#keys + 1] = root .. ':aside:' .. name end
  end
  local ids = {}
  local function collect(key, member, id)
    local job = read_job(id)
    if job and job[1] ~= 'running' and not FINAL[job[1]] then
      ids[#ids + 1] = id
    else
      redis.call('ZREM', key, member)
    end
  end
  -- Return the first members of a set after the skipped ones.
  local function portion_of(key)
    local found = redis.call('ZRANGE', key, passed, passed + PORTION - #ids - 1)
    if passed > 0 then passed = math.max(passed - redis.call('ZCARD', key), 0) end
    return found
  end
  for _, key in ipairs(keys) do
    if #ids < PORTION then
      for _, position in ipairs(portion_of(key)) do collect(key, position, id_of(position)) end
    end
  end
  for _, key in ipairs({root .. ':due:' .. queue, root .. ':blocked:' .. queue}) do
    if #ids < PORTION then
      for _, id in ipairs(portion_of(key)) do collect(key, id, id) end
    end
  end
  return ids
end
