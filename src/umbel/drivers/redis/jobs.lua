-- What every script begins with: where a namespace keeps its jobs, and the moves they all share.
--
-- KEYS[1] is the root, umbel:{<namespace>}. No key has that very name, but each begins with it, and
-- the braces put all of them into one slot of a cluster. ARGV[1] is a list, packed.
--
--   <root>:job:<id>             hash    a job, live or finished; what is usual is left out
--   <root>:sequence             number  of the job that was published last
--   <root>:live                 zset    ids of live jobs, by their number
--   <root>:lane:<kind>:<queue>  zset    places of queued jobs, by priority turned round
--   <root>:aside:<aside>        zset    the same for jobs whose task is paused, out of the way
--   <root>:asides               set     names of those: <bytes of the queue>:<queue>:<task>
--   <root>:sent:<queue>         zset    the same for queued jobs that another broker carries
--   <root>:due:<queue>          zset    ids of scheduled jobs, by when they are due
--   <root>:queues               set     queues that have live jobs, or had some a while ago
--   <root>:unique               hash    from a unique key to the id of the live job that holds it
--   <root>:held:<owner>         hash    from the id of a running job to its fence: the leases
--   <root>:owners               set     incarnations that hold something, or did a while ago
--   <root>:done, :buried        zset    ids of finished jobs, by when they ended
--   <root>:worker:<owner>       hash    a living worker; <root>:workers is the set of them
--   <root>:pauses               hash    from <scope>:<name> to when and why; <root>:epoch counts
--   <root>:hints                channel where "look now" is said, see listener.py
--
-- A place is a job's number in sixteen digits and its id. Redis sorts equal scores by their bytes:
-- so the order of a lane is priority first, then number, whatever their size.
--
-- A script is one step: others see all of it or nothing. Only a server that is full stops a script,
-- and only before its first write, if that may need memory.

local root = KEYS[1]
local PORTION = 1000
local MOST = 9007199254740990
local FINAL = {succeeded = true, buried = true, cancelled = true, expired = true}
local KINDS = {'', 'io', 'cpu'}
local NOWHERE = string.rep('0', 16)

-- What frees memory, or keeps a worker alive, has to go on when the server is full: such a script
-- begins with a write that needs none.
local function even_if_full()
  redis.call('DEL', root)
end

-- People edit values by hand; what is no number is the usual one.
local function number(text, usual)
  local found = tonumber(text)
  if not found or found ~= found then return usual end
  return math.max(math.min(found, MOST), -MOST)
end

local function known_kind(kind)
  return (kind == 'io' or kind == 'cpu') and kind or ''
end

-- Fields of a job; nil when there is no such job, or something else in its place.
local function read(id, ...)
  local found = redis.pcall('HMGET', root .. ':job:' .. id, 'state', ...)
  if not found[1] then return nil end
  return found
end

-- Says it once a script. A user who may not use the channel gets no hints, but the step is done.
local told = {}
local function tell(kind, name)
  local hint = kind .. ':' .. root .. (name and ':' .. name or '')
  if not told[hint] then
    told[hint] = true
    redis.pcall('PUBLISH', root .. ':hints', hint)
  end
end

-- Members of sorted sets are added and dropped together at the end: one command for many jobs.
local added, dropped = {}, {}
local function write(command, lists)
  for key, list in pairs(lists) do
    for first = 1, #list, 4000 do
      redis.call(command, key, unpack(list, first, math.min(first + 3999, #list)))
    end
    lists[key] = nil
  end
end
local function write_all()
  write('ZADD', added)
  write('ZREM', dropped)
end
local function add(key, score, member)
  local list = added[key]
  if not list then
    list = {}
    added[key] = list
  end
  local size = #list
  list[size + 1], list[size + 2] = score, member
end
local function drop(key, member)
  local list = dropped[key]
  if not list then
    list = {}
    dropped[key] = list
  end
  list[#list + 1] = member
end

local queues_seen = {}
local function know(queue)
  if not queues_seen[queue] then
    queues_seen[queue] = true
    redis.call('SADD', root .. ':queues', queue)
  end
end

-- Into its lane, for whoever fetches.
local function enter(id, queue, kind, priority, place)
  add(root .. ':lane:' .. known_kind(kind) .. ':' .. queue, -number(priority, 0),
      (place or NOWHERE) .. id)
  tell('r', queue)
end

-- Waits for its time. Whoever sleeps until something is due is told only of what is due earlier.
local first_due = {}
local function schedule(id, queue, when)
  local key = root .. ':due:' .. queue
  local first = first_due[queue]
  if not first then
    first = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or 'inf')
  end
  if when < first then
    first = when
    tell('s', queue)
  end
  first_due[queue] = first
  add(key, when, id)
end

-- Out of where it waits. What was added in the same script is written before.
local function leave(id, state, queue, kind, place, aside)
  write_all()
  local member = (place or NOWHERE) .. id
  if state == 'scheduled' then
    redis.call('ZREM', root .. ':due:' .. queue, id)
  elseif state == 'sent' then
    redis.call('ZREM', root .. ':sent:' .. queue, member)
  elseif aside then
    redis.call('ZREM', root .. ':aside:' .. aside, member)
  else
    redis.call('ZREM', root .. ':lane:' .. known_kind(kind) .. ':' .. queue, member)
  end
end

-- The key of a job that ends is free again, and whoever waits for the end hears of it.
local function let_go(id, unique, awaited)
  if unique and redis.call('HGET', root .. ':unique', unique) == id then
    redis.call('HDEL', root .. ':unique', unique)
  end
  if awaited then tell('d', id) end
  drop(root .. ':live', id)
end

-- A job that waits or is held nowhere any more becomes a record.
local function finish(id, state, now, fields)
  local size = #fields
  fields[size + 1], fields[size + 2] = 'state', state
  fields[size + 3], fields[size + 4] = 'finished', now
  redis.call('HSET', root .. ':job:' .. id, unpack(fields))
  add(root .. (state == 'buried' and ':buried' or ':done'), now, id)
end

-- A job that does not run becomes a cancelled record. Gives its state then; nil: no such job.
local function cancel_idle(id, reason, now)
  local job = read(id, 'queue', 'kind', 'place', 'aside', 'unique', 'awaited')
  if not job then return nil end
  local state = job[1]
  if state == 'running' or FINAL[state] then return state end
  leave(id, state, job[2] or '', job[3], job[4], job[5])
  let_go(id, job[6], job[7])
  finish(id, 'cancelled', now, {'reason', reason})
  return 'cancelled'
end

-- A running job that nobody holds any more goes back to its queue, at once or later.
local function put_back(id, job, now, delay, fields)
  local queue, kind, priority, place = unpack(job)
  local key, size = root .. ':job:' .. id, #fields
  redis.call('HDEL', key, 'worker', 'done', 'of')
  if delay > 0 then
    fields[size + 1], fields[size + 2] = 'state', 'scheduled'
    fields[size + 3], fields[size + 4] = 'not_before', now + delay
    schedule(id, queue or '', now + delay)
  else
    fields[size + 1], fields[size + 2] = 'state', 'queued'
    enter(id, queue or '', kind, priority, place)
  end
  redis.call('HSET', key, unpack(fields))
end

-- The story with one attempt more: a line each, the last hundred.
local function retold(story, attempt)
  if not story or story == '' then return attempt end
  local _, breaks = string.gsub(story, '\n', '\n')
  for _ = 99, breaks do
    story = string.sub(story, string.find(story, '\n', 1, true) + 1)
  end
  return story .. '\n' .. attempt
end

-- The live job that holds a unique key, and its state.
local function holder_of(unique)
  local id = redis.call('HGET', root .. ':unique', unique)
  local job = id and read(id)
  if job and not FINAL[job[1]] then return id, job[1] end
  return nil
end

-- Adds a job, or gives the id of the one that was there before. A row: id, queue, kind, priority,
-- not before, unique key, what to do when that is taken, fields. A job that runs keeps its key.
local function insert(row, sequence, now, idle)
  local id, queue, kind, priority, not_before, unique, on_conflict, fields = unpack(row, 1, 8)
  local key = root .. ':job:' .. id
  if redis.call('EXISTS', key) == 1 then return id end
  if unique then
    local holder, state = holder_of(unique)
    if holder and (on_conflict == 'return' or state == 'running') then return holder end
    if holder then cancel_idle(holder, 'replaced by ' .. id, now) end
    redis.call('HSET', root .. ':unique', unique, id)
  end
  local place = string.format('%016.0f', sequence)
  local state, size = idle, #fields
  if not_before and not_before > now then state = 'scheduled' end
  fields[size + 1], fields[size + 2] = 'state', state
  fields[size + 3], fields[size + 4] = 'place', place
  redis.call('HSET', key, unpack(fields))
  know(queue)
  add(root .. ':live', sequence, id)
  if state == 'scheduled' then
    schedule(id, queue, not_before)
  elseif state == 'sent' then
    add(root .. ':sent:' .. queue, -priority, place .. id)
  else
    enter(id, queue, kind, priority, place)
  end
  return nil
end

-- What is paused at this very moment: everything, or by name.
local function read_pauses()
  local paused = {all = false, queue = {}, task = {}, tasks = false}
  for _, name in ipairs(redis.call('HKEYS', root .. ':pauses')) do
    local scope, rest = string.match(name, '^(%a+):(.*)$')
    if scope == 'all' then
      paused.all = true
    elseif scope == 'queue' then
      paused.queue[rest] = true
    elseif scope == 'task' then
      paused.task[rest] = true
      paused.tasks = true
    end
  end
  return paused
end

-- The queue and the task in the name of an aside.
local function aside_parts(name)
  local size, rest = string.match(name, '^(%d+):(.*)$')
  size = tonumber(size or 0)
  return string.sub(rest or '', 1, size), string.sub(rest or '', size + 2)
end

-- The id in a place.
local function id_of(place)
  return string.sub(place, 17)
end
