-- What claims, the ledger and operators share: getting at the jobs that wait. It stands before their
-- scripts, after keys.lua and jobs.lua; touches job, lane, aside, asides, due, held, owners; for those at
-- gates waiting, line, lines, gates, awake, away, absent.
-- Guarantees: at most a portion of what is due, resumed or put aside is touched a call, so that no
-- script keeps the server busy for long.

local left = PORTION
local unwanted, any_unwanted = {}, false
local patience = 10 * PORTION  -- so many jobs that are not wanted now are passed over, no more

-- Those that are not paused, each once, in order and by name.
local function open_queues(queues, paused)
  local open = {}
  for _, queue in ipairs(queues) do
    if not paused.all and not paused.queue[queue] and not open[queue] then
      open[queue] = true
      open[#open + 1] = queue
    end
  end
  return open
end

-- What is due goes to its lane, or into its line. Gives when the next one is due; false when there is none.
local function promote(queue, now)
  local key = root .. ':due:' .. queue
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if first and tonumber(first) <= now then
    local ids = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, left)
    left = left - #ids
    for _, id in ipairs(ids) do
      local job = read(id, 'kind', 'priority', 'place', 'gates')
      if job and job[1] == 'scheduled' then
        redis.call('HSET', root .. ':job:' .. id, line_up(id, queue, unpack(job, 2, 5)))
      end
      drop(key, id)
    end
    write_all()
    first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  end
  return first and tonumber(first)
end

-- Jobs whose task is not paused any more go back to their lane, or into their line. Whether some are left.
local function bring_back(name, queue)
  local aside, away = root .. ':aside:' .. name, root .. ':away:' .. name
  for _, key in ipairs({aside, away}) do
    local places = left > 0 and redis.call('ZRANGE', key, 0, left - 1) or {}
    left = left - #places
    for _, place in ipairs(places) do
      local id = id_of(place)
      local job = read(id, 'kind', 'priority', 'place', 'gates', 'slots')
      local gate = job and job[1] == 'waiting' and gate_at(job[5], job[6])
      if job then redis.call('HDEL', root .. ':job:' .. id, 'aside') end
      if gate then
        stand(gate, known_kind(job[2]) .. ':' .. queue, -number(job[3], 0), place)
        redis.call('HINCRBY', root .. ':absent', gate, -1)
      elseif job and key == aside then
        enter(id, queue, job[2], job[3], job[4])
      end
      drop(key, place)
    end
  end
  write_all()
  if redis.call('EXISTS', aside, away) > 0 then return true end
  redis.call('SREM', root .. ':asides', name)
  if redis.call('EXISTS', root .. ':asides') == 0 then redis.call('DEL', root .. ':absent') end
  return false
end

-- Fills the lanes of open queues with what is due or resumed by now. Gives whether there is more of
-- it, and when something falls due.
local function fill(open, paused, now)
  local more, due = false, false
  for _, queue in ipairs(open) do
    local first = promote(queue, now)
    if first then
      more = more or first <= now
      due = math.min(due or first, first)
    end
  end
  for _, name in ipairs(redis.call('SMEMBERS', root .. ':asides')) do
    local queue, task = aside_parts(name)
    if open[queue] and not paused.task[task] and bring_back(name, queue) then more = true end
  end
  return more, due
end

-- Puts a job of a paused task out of the way, once, so that nobody has to pass it again and again. Aside:
-- where to, of two for each queue and task.
local function put_aside(key, queue, task, place, score, aside)
  local name = #queue .. ':' .. queue .. ':' .. task
  redis.call('ZREM', key, place)
  redis.call('HSET', root .. ':job:' .. id_of(place), 'aside', name)
  redis.call('ZADD', root .. aside .. name, score, place)
  redis.call('SADD', root .. ':asides', name)
end

-- Who asks does not want jobs of these tasks now.
local function do_without(tasks)
  for _, task in ipairs(tasks) do
    unwanted[task] = true
    any_unwanted = true
  end
end

-- The first places of a lane that may start, with their scores, and whether there may be more.
local function front(queue, kind, limit, paused)
  if limit <= 0 then return {}, false end
  local key = root .. ':lane:' .. kind .. ':' .. queue
  if not paused.tasks and not any_unwanted then
    return redis.call('ZRANGE', key, 0, limit - 1, 'WITHSCORES'), false
  end
  local found, passed = {}, 0
  while #found < 2 * limit and patience > 0 do
    local at = #found / 2 + passed
    local some = redis.call('ZRANGE', key, at, at + limit - 1, 'WITHSCORES')
    if #some == 0 then break end
    for at = 1, #some, 2 do
      local job = read(id_of(some[at]), 'task')
      local task = job and job[2] or ''
      if unwanted[task] and not paused.task[task] then
        passed, patience = passed + 1, patience - 1
      elseif not paused.task[task] then
        if #found < 2 * limit then
          found[#found + 1], found[#found + 2] = some[at], some[at + 1]
        end
      elseif left > 0 then
        left = left - 1
        put_aside(key, queue, task, some[at], some[at + 1], ':aside:')
      else
        return found, true
      end
    end
  end
  return found, false
end

-- A job as a worker gets it: state, fence, message, gates, slots; nil when there is no such job. And its place, and
-- where it was put aside. Most jobs have few of these fields, so all that are there are read: looking for one takes
-- as long as passing them all.
local TASK, KIND, HEADERS, GATES, SLOTS = 3, 5, 17, 20, 21
local COLUMN = {}
for column, field in ipairs({'state', 'fence', 'task', 'queue', 'kind', 'priority', 'type', 'content_type', 'body',
                             'created', 'not_before', 'expires', 'attempt', 'max_deaths', 'unique', 'traceparent',
                             'headers', 'deaths', 'sections', 'gates', 'slots'}) do
  COLUMN[field] = column
end
local function message(id)
  local found = redis.pcall('HGETALL', root .. ':job:' .. id)
  local job = {false, false, false, false, false, false, false, false, false, false, false, false, false, false,
               false, false, false, false, false, false, false}
  local place, aside
  for at = 1, #found, 2 do
    local field, value = found[at], found[at + 1]
    local column = COLUMN[field]
    if column then
      job[column] = value
    elseif field == 'place' then
      place = value
    elseif field == 'aside' then
      aside = value
    end
  end
  return job[1] and job, place, aside
end

-- The next fence after this one.
local function raised(fence)
  return math.min(number(fence, 0), MOST - 1) + 1
end

-- A job that waits nowhere any more is the owner's, under a higher fence. Gives its row: id, fence,
-- message. What an owner holds is written at the end. Further fields may be written with it.
local leases = {}
local function lease(id, job, owner, worker, now, ...)
  local fence = raised(job[2])
  local told = written(fence)
  redis.call('HSET', root .. ':job:' .. id, 'state', 'running', 'fence', told, 'worker', worker,
             'claimed', written(now), ...)
  leases[#leases + 1], leases[#leases + 2] = id, told
  job[1], job[2] = id, fence
  return job
end
-- The server keeps a small hash as a list and looks through that for each field; one long name makes it a table,
-- and it stays one.
local LONG = string.rep('-', 65)
local function write_leases(owner)
  if #leases == 0 then return end
  local key, many = root .. ':held:' .. owner, #leases > 40
  if many then redis.call('HSET', key, LONG, '') end
  for first = 1, #leases, 4000 do
    local last = math.min(first + 3999, #leases)
    redis.call('HSET', key, unpack(leases, first, last))
  end
  if many then redis.call('HDEL', key, LONG) end
  redis.call('SADD', root .. ':owners', owner)
end

-- A portion of the ids of what does not run in a queue, wherever it waits, but for so many that were passed
-- over. Takes out what somebody deleted by hand, so that what is left shrinks with every call.
local function idle_in(queue, passed)
  passed = passed or 0
  local keys = {}
  for _, kind in ipairs(KINDS) do
    keys[#keys + 1] = root .. ':lane:' .. kind .. ':' .. queue
    keys[#keys + 1] = root .. ':sent:' .. kind .. ':' .. queue
    keys[#keys + 1] = root .. ':waiting:' .. kind .. ':' .. queue
  end
  for _, name in ipairs(redis.call('SMEMBERS', root .. ':asides')) do
    if aside_parts(name) == queue then keys[#keys + 1] = root .. ':aside:' .. name end
  end
  local ids = {}
  local function note(key, member, id)
    local job = read(id)
    if job and job[1] ~= 'running' and not FINAL[job[1]] then
      ids[#ids + 1] = id
    else
      redis.call('ZREM', key, member)
    end
  end
  -- The first of a set, after those of it that were passed over.
  local function some_of(key)
    local found = redis.call('ZRANGE', key, passed, passed + PORTION - #ids - 1)
    if passed > 0 then passed = math.max(passed - redis.call('ZCARD', key), 0) end
    return found
  end
  for _, key in ipairs(keys) do
    if #ids < PORTION then
      for _, place in ipairs(some_of(key)) do note(key, place, id_of(place)) end
    end
  end
  local due = root .. ':due:' .. queue
  if #ids < PORTION then
    for _, id in ipairs(some_of(due)) do note(due, id, id) end
  end
  return ids
end
