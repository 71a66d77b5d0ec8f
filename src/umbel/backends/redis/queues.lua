-- Queues as operators and workers see them. Keys: see keys.lua; touches job, lane, aside, sent, due, live,
-- done, queues, unique; of gates waiting, line, lines, gates, awake, looks, away, absent, holders.
-- Guarantees: each call is one step over at most a portion of the jobs, so that no queue, however long,
-- keeps the server busy; whoever asks repeats it until nothing is left.

-- name: purge
-- {queue}: cancels a portion of what does not run. Gives how many.
local queue = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
local purged = 0
for _, id in ipairs(idle_in(queue)) do
  if cancel_idle(id, 'purged', now) == 'cancelled' then purged = purged + 1 end
end
write_all()
return purged

-- name: move
-- {source, target, passed}: puts a portion of what does not run into another queue; what came by a route is
-- that worker's and passed over, like so many before. Gives {how many were moved, how many are passed over,
-- whether there may be more}. What a transport carries has to be sent again from there.
local source, target, passed = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
local moved = 0

local function is_routed(slots)
  local held = slots and slots_in(slots) or {}
  return string.sub(tostring(held[#held - 4]), 1, #ROUTE) == ROUTE and held[#held - 2] ~= 0
end

local found = idle_in(source, passed)
for _, id in ipairs(found) do
  local job = read(id, 'kind', 'priority', 'place', 'aside', 'gates', 'slots')
  if job and is_routed(job[7]) then
    passed = passed + 1
  elseif job then
    local state = job[1]
    local gate = gate_at(job[6], job[7])
    local when = redis.call('ZSCORE', root .. ':due:' .. source, id)
    leave(id, state, source, job[2], job[4], job[5], gate)
    redis.call('HDEL', root .. ':job:' .. id, 'aside')
    if state == 'scheduled' then
      redis.call('HSET', root .. ':job:' .. id, 'queue', target)
      schedule(id, target, tonumber(when or 0))
    elseif state == 'waiting' and gate then
      redis.call('HSET', root .. ':job:' .. id, 'queue', target)
      wait_at(id, gate, target, job[2], job[3], job[4])
    else
      redis.call('HSET', root .. ':job:' .. id, 'queue', target, 'state', 'queued')
      enter(id, target, job[2], job[3], job[4])
    end
    moved = moved + 1
  end
end
if moved > 0 then know(target) end
write_all()
return {moved, passed, #found > 0 and 1 or 0}

-- name: sort
-- {queues, kinds, at, from}: gives idle jobs of unknown kind the kind of their task, a portion of the
-- lanes a call, from a place of the lane at which to go on. Gives how many, and those two again; nothing
-- when the lanes are done. What was sent is to be sent again, to where its kind is waited for.
local queues, kinds, at, from = unpack(cmsgpack.unpack(ARGV[1]))
local keys = {}
for _, queue in ipairs(queues) do
  keys[#keys + 1] = {root .. ':lane::' .. queue, queue}
  keys[#keys + 1] = {root .. ':sent::' .. queue, queue}
  keys[#keys + 1] = {root .. ':waiting::' .. queue, queue}
end
local sorted, looked = 0, 0
while at <= #keys and looked < PORTION do
  local key, queue = unpack(keys[at])
  local places = redis.call('ZRANGE', key, from, from + PORTION - 1)
  looked, from = looked + #places, from + #places
  for _, place in ipairs(places) do
    local id = id_of(place)
    local job = read(id, 'task', 'priority', 'place', 'aside', 'gates', 'slots')
    local kind = job and kinds[job[2] or '']
    if kind and job[1] == 'waiting' then
      local gate = gate_at(job[6], job[7])
      if gate and not job[5] then
        leave(id, job[1], queue, '', job[4], job[5], gate)
        redis.call('HSET', root .. ':job:' .. id, 'kind', kind)
        wait_at(id, gate, queue, kind, job[3], job[4])
        sorted, from = sorted + 1, from - 1
      end
    elseif kind then
      redis.call('ZREM', key, place)
      redis.call('HSET', root .. ':job:' .. id, 'kind', kind, 'state', 'queued')
      enter(id, queue, kind, job[3], job[4])
      sorted, from = sorted + 1, from - 1
    end
  end
  if #places < PORTION then
    at, from = at + 1, 0
  end
end
write_all()
if at > #keys then return {sorted} end
return {sorted, at, from}

-- name: depths
-- Live jobs by queue and state: {queue, state, jobs, when the oldest was published}. Counts are exact;
-- the oldest is looked for among the first of each priority, a portion of each set.
local rows = {}
local function oldest(members, so_far, id_in)
  for _, member in ipairs(members) do
    local job = read(id_in(member), 'created')
    local created = job and number(job[2], nil)
    if created and (not so_far or created < so_far) then so_far = created end
  end
  return so_far
end

-- The first of each priority were published first; what is due first is as good a guess as any.
local function oldest_in(key, size, so_far, id_in)
  if size <= PORTION then return oldest(redis.call('ZRANGE', key, 0, -1), so_far, id_in) end
  local after = '-inf'
  for _ = 1, 20 do
    local first = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if #first == 0 then return so_far end
    local some = redis.call('ZRANGEBYSCORE', key, first[2], first[2], 'LIMIT', 0, 50)
    so_far = oldest(some, so_far, id_in)
    after = '(' .. first[2]
  end
  return so_far
end

local counted = {}
local function count(queue, state, key, id_in)
  local size = redis.call('ZCARD', key)
  if size == 0 then return end
  local name = queue .. '\0' .. state
  local row = counted[name]
  if not row then
    row = {queue, state, 0, false}
    counted[name] = row
    rows[#rows + 1] = row
  end
  row[3] = row[3] + size
  row[4] = oldest_in(key, size, row[4], id_in or id_of)
end

local runs = {}
for _, owner in ipairs(redis.call('SMEMBERS', root .. ':owners')) do
  for _, id in ipairs(redis.call('HKEYS', root .. ':held:' .. owner)) do
    local job = read(id, 'queue', 'created')
    if job and job[1] == 'running' then
      local queue, created = job[2] or '', number(job[3], 0)
      local row = runs[queue]
      if not row then
        row = {queue, 'running', 0, created}
        runs[queue] = row
        rows[#rows + 1] = row
      end
      row[3] = row[3] + 1
      row[4] = math.min(row[4], created)
    end
  end
end
local asides = redis.call('SMEMBERS', root .. ':asides')
for _, queue in ipairs(redis.call('SMEMBERS', root .. ':queues')) do
  local before = #rows
  for _, kind in ipairs(KINDS) do
    count(queue, 'queued', root .. ':lane:' .. kind .. ':' .. queue)
    count(queue, 'queued', root .. ':sent:' .. kind .. ':' .. queue)
    count(queue, 'waiting', root .. ':waiting:' .. kind .. ':' .. queue)
  end
  for _, name in ipairs(asides) do
    if aside_parts(name) == queue then count(queue, 'queued', root .. ':aside:' .. name) end
  end
  count(queue, 'scheduled', root .. ':due:' .. queue, function(id) return id end)
  if #rows == before and not runs[queue] then redis.call('SREM', root .. ':queues', queue) end
end
for _, row in ipairs(rows) do row[4] = written(now - (row[4] or now)) end
return rows
