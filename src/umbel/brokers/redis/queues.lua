-- Queues as operators and workers see them. Keys: see jobs.lua; touches job, lane, aside, sent, due, live,
-- done, queues, unique.
-- Guarantees: each call is one step over at most a portion of the jobs, so that no queue, however long,
-- keeps the server busy; whoever asks repeats it until nothing is left.

-- name: purge
-- {now, queue}: cancels a portion of what does not run. Gives how many.
local now, queue = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
local purged = 0
for _, id in ipairs(idle_in(queue)) do
  if cancel_idle(id, 'purged', now) == 'cancelled' then purged = purged + 1 end
end
write_all()
return purged

-- name: move
-- {source, target}: puts a portion of what does not run into another queue. Gives how many. What a
-- transport carries has to be sent again from there.
local source, target = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
local moved = 0
for _, id in ipairs(idle_in(source)) do
  local job = read(id, 'kind', 'priority', 'place', 'aside')
  if job then
    local state = job[1]
    local when = redis.call('ZSCORE', root .. ':due:' .. source, id)
    leave(id, state, source, job[2], job[4], job[5])
    redis.call('HDEL', root .. ':job:' .. id, 'aside')
    if state == 'scheduled' then
      redis.call('HSET', root .. ':job:' .. id, 'queue', target)
      schedule(id, target, tonumber(when or 0))
    else
      redis.call('HSET', root .. ':job:' .. id, 'queue', target, 'state', 'queued')
      enter(id, target, job[2], job[3], job[4])
    end
    moved = moved + 1
  end
end
if moved > 0 then know(target) end
write_all()
return moved

-- name: sort
-- {queues, kinds, at, from}: gives queued jobs of unknown kind the kind of their task, a portion of the
-- lanes a call, from a place of the queue at which to go on. Gives how many, and those two again; nothing
-- when the lanes are done.
local queues, kinds, at, from = unpack(cmsgpack.unpack(ARGV[1]))
local sorted, looked = 0, 0
while at <= #queues and looked < PORTION do
  local key = root .. ':lane::' .. queues[at]
  local places = redis.call('ZRANGE', key, from, from + PORTION - 1)
  looked, from = looked + #places, from + #places
  for _, place in ipairs(places) do
    local id = id_of(place)
    local job = read(id, 'task', 'priority', 'place')
    local kind = job and kinds[job[2] or '']
    if kind then
      redis.call('ZREM', key, place)
      redis.call('HSET', root .. ':job:' .. id, 'kind', kind)
      enter(id, queues[at], kind, job[3], job[4])
      sorted, from = sorted + 1, from - 1
    end
  end
  if #places < PORTION then
    at, from = at + 1, 0
  end
end
write_all()
if at > #queues then return {sorted} end
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
  end
  count(queue, 'queued', root .. ':sent:' .. queue)
  for _, name in ipairs(asides) do
    if aside_parts(name) == queue then count(queue, 'queued', root .. ':aside:' .. name) end
  end
  count(queue, 'scheduled', root .. ':due:' .. queue, function(id) return id end)
  if #rows == before and not runs[queue] then redis.call('SREM', root .. ':queues', queue) end
end
for _, row in ipairs(rows) do row[4] = string.format('%.17g', row[4] or 0) end
return rows
