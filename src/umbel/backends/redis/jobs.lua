-- The moves that scripts share. Keys: see keys.lua, which stands before it.

local PORTION = 1000
local MOST = 9007199254740990
local FINAL = {succeeded = true, buried = true, cancelled = true, expired = true}
local KINDS = {'', 'io', 'cpu'}
local NOWHERE = string.rep('0', 16)
local SLOT = 5  -- parts of a slot: gate, member, its fence, its data, whether it is rejected; of one before
                -- a worker: gate, the queue that the job left, number of the route, nothing, rejected
local ROUTE = 'route:'

-- The server's time in seconds. No other clock decides anything: those who call may have wrong ones.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

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

-- A number as the server writes it for a command, which takes it longer than most else there: each once a script.
local texts = {}
local function written(value)
  if type(value) == 'string' then return value end
  local text = texts[value]
  if not text then
    text = string.format('%.17g', value)
    texts[value] = text
  end
  return text
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

-- The lines of a gate are worth a look. A slot set free changes nothing for one that waits for a time. Where
-- one was so before, everybody was told, and has looked, or looks when there is room.
local function wake(gate, freed)
  local lines = redis.call('HGETALL', root .. ':lines:' .. gate)
  for at = 1, #lines, 2 do
    local lane = lines[at]
    local looks = root .. ':looks:' .. lane
    if not freed or not redis.call('ZSCORE', looks, gate) then
      redis.call('ZREM', looks, gate)
      if redis.call('ZADD', root .. ':awake:' .. lane, number(lines[at + 1], 0), gate) == 1 then
        tell('r', string.sub(lane, string.find(lane, ':', 1, true) + 1))
      end
    end
  end
  return #lines
end

-- The same for all gates of a rule, a portion of them; claims go on with the others.
local function wake_rule(rule, from)
  if from == '' then wake(rule) end
  from = from == '' and '[' .. rule .. '#' or '(' .. from
  local found = redis.call('ZRANGEBYLEX', root .. ':gates', from, '(' .. rule .. '$', 'LIMIT', 0, PORTION)
  for _, gate in ipairs(found) do wake(gate) end
  if #found < PORTION then
    redis.call('HDEL', root .. ':waking', rule)
  else
    redis.call('HSET', root .. ':waking', rule, found[#found])
    tell('c')
  end
end

-- A gate is known for as long as somebody waits at it or holds a slot of it.
local function forget_gate(gate)
  if redis.call('EXISTS', root .. ':lines:' .. gate, root .. ':holders:' .. gate) == 0 then
    redis.call('ZREM', root .. ':gates', gate)
  end
end

-- Members of sorted sets are added and dropped together at the end: one command for many jobs.
local added, dropped, released, returned = {}, {}, {}, {}
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
  for way, left in pairs(returned) do  -- one that is to be released may be when nobody goes by it
    local went = root .. ':went:' .. way
    returned[way] = nil
    write('ZREM', {[went] = left})
    local route = redis.call('HMGET', root .. ':route:' .. way, 'key', 'released', 'closing')
    if route[1] and not route[2] and redis.call('EXISTS', went) == 0 then
      if route[3] then wake(left.gate) else redis.call('ZADD', root .. ':resting', -1, way) end
    end
  end
  for gate, ids in pairs(released) do
    write('SREM', {[root .. ':holders:' .. gate] = ids})
    released[gate] = nil
    if wake(gate, true) == 0 then forget_gate(gate) end
  end
end
local function add(key, score, member)
  local list = added[key]
  if not list then
    list = {}
    added[key] = list
  end
  local size = #list
  list[size + 1], list[size + 2] = written(score), member
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

-- The gates that a job has to pass: nothing, where that cannot be read.
local lists = {}
local function gates_in(text)
  if not text then return nil end
  if not lists[text] then
    local fine, found = pcall(cjson.decode, text)
    lists[text] = fine and type(found) == 'table' and found or {}
  end
  return lists[text]
end

-- The slots that a job holds, part by part.
local unpacked = {}
local function slots_in(packed)
  if not unpacked[packed] then
    local fine, found = pcall(cmsgpack.unpack, packed)
    unpacked[packed] = fine and type(found) == 'table' and found or {}
  end
  return unpacked[packed]
end

-- Where a job stands that has to pass these gates and holds these slots.
local function gate_at(gates, slots)
  local passed = slots and #slots_in(slots) / SLOT or 0
  local gate = gates and gates_in(gates)[passed + 1]
  return type(gate) == 'string' and gate or nil
end

local line_keys = {}
local function line_of(gate, lane)
  local keys = line_keys[gate]
  if not keys then
    keys = {}
    line_keys[gate] = keys
  end
  if not keys[lane] then keys[lane] = root .. ':line:' .. #gate .. ':' .. gate .. ':' .. lane end
  return keys[lane]
end

-- Into the line of a gate. Where that is asleep nobody could pass, and so neither can who comes.
local standing = {}
local function stand(gate, lane, score, place)
  local line = line_of(gate, lane)
  add(line, score, place)
  if standing[line] then return end
  standing[line] = true
  if redis.call('HSETNX', root .. ':lines:' .. gate, lane, 0) == 1 then
    redis.call('ZADD', root .. ':gates', 0, gate)
    redis.call('ZADD', root .. ':awake:' .. lane, 0, gate)
  elseif not redis.call('ZSCORE', root .. ':awake:' .. lane, gate) then
    return
  end
  tell('r', string.sub(lane, string.find(lane, ':', 1, true) + 1))
end

-- Nobody stands there any more.
local function end_line(gate, lane)
  standing[line_of(gate, lane)] = nil
  redis.call('HDEL', root .. ':lines:' .. gate, lane)
  redis.call('ZREM', root .. ':awake:' .. lane, gate)
  redis.call('ZREM', root .. ':looks:' .. lane, gate)
  forget_gate(gate)
end

-- A job waits at a gate.
local function wait_at(id, gate, queue, kind, priority, place)
  local lane, score = known_kind(kind) .. ':' .. queue, -number(priority, 0)
  local member = (place or NOWHERE) .. id
  add(root .. ':waiting:' .. lane, score, member)
  stand(gate, lane, score, member)
end

-- Into its lane, or into the line of its first gate. Gives the fields that say so.
local function line_up(id, queue, kind, priority, place, gates)
  local first = gate_at(gates)
  if first then
    wait_at(id, first, queue, kind, priority, place)
    return 'state', 'waiting'
  end
  enter(id, queue, kind, priority, place)
  return 'state', 'queued'
end

local function member_key(pool, name)
  return root .. ':member:' .. #pool .. ':' .. pool .. ':' .. name
end

-- A member is nobody's any more. One that was to leave is gone.
local function return_member(pool, name, id)
  local key = member_key(pool, name)
  local found = redis.call('HMGET', key, 'job', 'condition', 'turn')
  if found[1] ~= id then return end
  redis.call('HDEL', key, 'job')
  if found[2] == 'leaving' then
    redis.call('HSET', key, 'condition', 'gone')
  elseif found[2] == 'ready' then
    redis.call('ZADD', root .. ':free:' .. pool, number(found[3], 0), name)
  end
end

-- The slots that a job holds are anybody's again. What says that it had them is the caller's to remove. Gives
-- the queue where the job belongs, if it left that for a worker's own.
local function free(id, slots)
  local found, home = slots_in(slots), nil
  for at = 1, #found, SLOT do
    local gate, member, way = found[at], found[at + 1], found[at + 2]
    if string.sub(gate, 1, #ROUTE) ~= ROUTE then
      local ids = released[gate] or {}
      released[gate] = ids
      ids[#ids + 1] = id
      if member ~= '' then return_member(string.match(gate, '^pool:(.*)$') or '', member, id) end
    elseif way ~= 0 then
      returned[way] = returned[way] or {gate = gate}
      table.insert(returned[way], id)
      home = member
    end
  end
  return home
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
local function leave(id, state, queue, kind, place, aside, gate)
  write_all()
  local member = (place or NOWHERE) .. id
  if state == 'scheduled' then
    redis.call('ZREM', root .. ':due:' .. queue, id)
  elseif state == 'sent' then
    redis.call('ZREM', root .. ':sent:' .. known_kind(kind) .. ':' .. queue, member)
  elseif state == 'waiting' then
    local lane = known_kind(kind) .. ':' .. queue
    redis.call('ZREM', root .. ':waiting:' .. lane, member)
    if aside then
      redis.call('ZREM', root .. ':away:' .. aside, member)
      redis.call('HINCRBY', root .. ':absent', gate or '', -1)
    elseif gate then
      redis.call('ZREM', line_of(gate, lane), member)
      if redis.call('EXISTS', line_of(gate, lane)) == 0 then end_line(gate, lane) end
    end
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
  redis.call('HSET', root .. ':job:' .. id, 'state', state, 'finished', written(now), unpack(fields))
  add(root .. (state == 'buried' and ':buried' or ':done'), now, id)
end

-- A job that does not run becomes a cancelled record. Gives its state then; nil: no such job.
local function cancel_idle(id, reason, now, final)
  local job = read(id, 'queue', 'kind', 'place', 'aside', 'unique', 'awaited', 'gates', 'slots')
  if not job then return nil end
  local state = job[1]
  if state == 'running' or FINAL[state] then return state end
  leave(id, state, job[2] or '', job[3], job[4], job[5], gate_at(job[8], job[9]))
  local fields = {'reason', reason}
  if job[9] then
    redis.call('HDEL', root .. ':job:' .. id, 'slots')
    local home = free(id, job[9])
    if home then fields[3], fields[4] = 'queue', home end
  end
  let_go(id, job[6], job[7])
  finish(id, final or 'cancelled', now, fields)
  return final or 'cancelled'
end

-- A running job that nobody holds any more goes back to its queue, at once or later. A job: queue, kind,
-- priority, place, gates, slots.
local function put_back(id, job, now, delay, fields)
  local queue, kind, priority, place, gates, slots = unpack(job, 1, 6)
  local key = root .. ':job:' .. id
  redis.call('HDEL', key, 'worker', 'done', 'of', 'slots')
  local home = slots and free(id, slots)
  if home then
    queue = home
    fields[#fields + 1], fields[#fields + 2] = 'queue', home
    know(home)
  end
  local size = #fields
  if delay > 0 then
    fields[size + 1], fields[size + 2] = 'state', 'scheduled'
    fields[size + 3], fields[size + 4] = 'not_before', now + delay
    schedule(id, queue or '', now + delay)
  else
    fields[size + 1], fields[size + 2] = line_up(id, queue or '', kind, priority, place, gates)
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
-- not before, unique key, what to do when that is taken, fields, gates; seconds until it may run and until it
-- expires, where these are not moments; when it was made. A job that runs keeps its key.
local function insert(row, sequence, now, idle)
  local id, queue, kind, priority, not_before, unique, on_conflict, fields, gates = unpack(row, 1, 9)
  local delay, expires_in, created = unpack(row, 10, 12)
  local key = root .. ':job:' .. id
  if redis.call('EXISTS', key) == 1 then return id end
  if unique then
    local holder, state = holder_of(unique)
    if holder and (on_conflict == 'return' or state == 'running') then return holder end
    if holder then cancel_idle(holder, 'replaced by ' .. id, now) end
    redis.call('HSET', root .. ':unique', unique, id)
  end
  local place = string.format('%016d', sequence)
  local state = idle
  local function set(field, value)
    fields[#fields + 1], fields[#fields + 2] = field, value
  end
  if gates then
    state = 'waiting'
    set('gates', gates)
  end
  if delay then
    not_before = now + delay
    set('not_before', written(not_before))
  end
  if expires_in then set('expires', written(now + expires_in)) end
  if not_before and not_before > now then state = 'scheduled' end
  set('created', written(created or now))
  set('state', state)
  set('place', place)
  redis.call('HSET', key, unpack(fields))
  know(queue)
  add(root .. ':live', place, id)
  if state == 'scheduled' then
    schedule(id, queue, not_before)
  elseif state == 'sent' then
    add(root .. ':sent:' .. known_kind(kind) .. ':' .. queue, -priority, place .. id)
  elseif state == 'waiting' then
    wait_at(id, gate_at(gates), queue, kind, priority, place)
  else
    enter(id, queue, kind, priority, place)
  end
  return nil
end

-- What is kept of a pause: since when, and why.
local function noted(reason)
  return cjson.encode({since = now, reason = reason})
end

-- Deaths that were counted with an incarnation whose process was alive are counted as lapses. A job that was
-- buried for its deaths, and would not have been without this one, is queued again; one that may die only
-- once stays buried: it has started. A unique key that another job holds now is lost.
local DAY = 86400
local function come_back(id, key, queue, kind, priority, place, gates, unique)
  redis.call('HDEL', key, 'finished', 'reason', 'done', 'of', 'worker', 'slots', 'awaited', 'aside', 'cancel')
  if unique and holder_of(unique) then
    redis.call('HDEL', key, 'unique')
  elseif unique then
    redis.call('HSET', root .. ':unique', unique, id)
  end
  drop(root .. ':buried', id)
  add(root .. ':live', number(place, 0), id)
  know(queue)
  return line_up(id, queue, kind, priority, place, gates)
end
local function take_back_deaths(owner)
  local counted = redis.call('HGETALL', root .. ':deaths:' .. owner)
  for at = 1, #counted, 2 do
    local id, blamed = counted[at], number(counted[at + 1], 0)
    local key = root .. ':job:' .. id
    local job = read(id, 'deaths', 'blame', 'lapses', 'max_deaths', 'reason', 'queue', 'kind', 'priority',
                     'place', 'gates', 'unique')
    if job then
      local fields = {'deaths', math.max(number(job[2], 0) - 1, 0), 'lapses', number(job[4], 0) + 1}
      local poison = job[1] == 'buried' and string.sub(job[6] or '', 1, 8) == 'poison: '
      if poison and blamed > 0 and number(job[5], 3) > 1 then
        fields[5], fields[6] = come_back(id, key, job[7] or '', unpack(job, 8, 12))
      end
      if not FINAL[job[1]] or fields[5] then
        local size = #fields
        fields[size + 1], fields[size + 2] = 'blame', math.max(number(job[3], 0) - blamed, 0)
      end
      redis.call('HSET', key, unpack(fields))
    end
  end
  redis.call('DEL', root .. ':deaths:' .. owner)
end

-- What is paused at this very moment, by operators or a deployment: everything, or by name.
local function read_pauses()
  local paused = {all = false, queue = {}, task = {}, tasks = false, gate = {}}
  for _, key in ipairs({':pauses', ':holds', ':missing'}) do
    for _, name in ipairs(redis.call('HKEYS', root .. key)) do
      local scope, rest = string.match(name, '^(%a+):(.*)$')
      if scope == 'all' then
        paused.all = true
      elseif scope == 'queue' then
        paused.queue[rest] = true
      elseif scope == 'task' then
        paused.task[rest] = true
        paused.tasks = true
      elseif scope == 'gate' then
        paused.gate[rest] = true
      end
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
