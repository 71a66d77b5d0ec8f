-- Queues, for operators and workers. Keys: see keys.lua; writes job, lane, aside, sent, due, blocked, live, done,
-- queues, unique, expiring; of gates waiting, waiting_list, waiting_lists, gates, check_now, check_later,
-- aside_waiting, aside_counts, holders; for parts of joins what counting.lua writes.
-- Guarantees: each call is one step over at most a portion of the jobs, so that no queue, however long, keeps the
-- server busy; the caller repeats it until nothing is left.

-- name: purge
-- {queue}: cancels a portion of the jobs that do not run. Returns how many.
local queue = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
local purged = 0
for _, id in ipairs(idle_jobs_in(queue)) do
  if cancel_idle(id, 'purged', now) == 'cancelled' then purged = purged + 1 end
end
write_pending()
return purged

-- name: expire
-- {limit, reason}: ends jobs that do not run and whose expiry has passed, of a portion. Returns {whether there may be
-- more, id ...}. A running job leaves the index here; it returns there when the job is put back.
local limit, reason = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
limit = math.min(limit, PORTION)
local found = redis.call('ZRANGEBYSCORE', root .. ':expiring', '-inf', now, 'LIMIT', 0, limit)
local answer = {#found == limit and 1 or 0}
for _, id in ipairs(found) do
  remove_later(root .. ':expiring', id)
  local job = read_job(id)
  if job and not FINAL[job[1]] and cancel_idle(id, reason, now, 'expired') == 'expired' then
    answer[#answer + 1] = id
  end
end
write_pending()
return answer

-- name: move
-- {source, target, skipped}: moves a portion of the jobs that do not run to another queue. Jobs that came by a route
-- belong to that worker and are skipped, like the given number before them. Returns {how many were moved, how many
-- are skipped so far, whether there may be more}. Jobs that were sent to a transport must be sent again.
local source, target, skipped = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
local moved = 0

local function is_routed(slots)
  local held = slots and decode_slots(slots) or {}
  return string.sub(tostring(held[#held - 4]), 1, #ROUTE_RULE) == ROUTE_RULE and held[#held - 2] ~= 0
end

local found = idle_jobs_in(source, skipped)
for _, id in ipairs(found) do
  local job = read_job(id, 'kind', 'priority', 'sequence', 'aside', 'gates', 'slots')
  if job and is_routed(job[7]) then
    skipped = skipped + 1
  elseif job then
    local state = job[1]
    local gate = next_gate(job[6], job[7])
    local when = redis.call('ZSCORE', root .. ':due:' .. source, id)
    remove_from_index(id, state, source, job[2], job[4], job[5], gate)
    redis.call('HDEL', root .. ':job:' .. id, 'aside')
    if state == 'blocked' then
      redis.call('HSET', root .. ':job:' .. id, 'queue', target)
      block_job(id, target, job[4], redis.call('HGET', root .. ':job:' .. id, 'join') or '')
    elseif state == 'scheduled' then
      redis.call('HSET', root .. ':job:' .. id, 'queue', target)
      schedule(id, target, tonumber(when or 0))
    elseif state == 'waiting' and gate then
      redis.call('HSET', root .. ':job:' .. id, 'queue', target)
      wait_at_gate(id, gate, target, job[2], job[3], job[4])
    else
      redis.call('HSET', root .. ':job:' .. id, 'queue', target, 'state', 'queued')
      enqueue(id, target, job[2], job[3], job[4])
    end
    moved = moved + 1
  end
end
if moved > 0 then register_queue(target) end
write_pending()
return {moved, skipped, #found > 0 and 1 or 0}

-- name: assign_kinds
-- {queues, kinds, at, from}: gives idle jobs of unknown kind the kind of their task, for a portion of the lanes,
-- starting at a position of a lane. Returns how many, and the next two arguments; only the number if the lanes are
-- done. Jobs that were sent must be sent again, to the lane of their kind.
local queues, kinds, at, from = unpack(cmsgpack.unpack(ARGV[1]))
local keys = {}
for _, queue in ipairs(queues) do
  keys[#keys + 1] = {root .. ':lane::' .. queue, queue}
  keys[#keys + 1] = {root .. ':sent::' .. queue, queue}
  keys[#keys + 1] = {root .. ':waiting::' .. queue, queue}
end
local sorted, checked = 0, 0
while at <= #keys and checked < PORTION do
  local key, queue = unpack(keys[at])
  local positions = redis.call('ZRANGE', key, from, from + PORTION - 1)
  checked, from = checked + #positions, from + #positions
  for _, position in ipairs(positions) do
    local id = id_of(position)
    local job = read_job(id, 'task', 'priority', 'sequence', 'aside', 'gates', 'slots')
    local kind = job and kinds[job[2] or '']
    if kind and job[1] == 'waiting' then
      local gate = next_gate(job[6], job[7])
      if gate and not job[5] then
        remove_from_index(id, job[1], queue, '', job[4], job[5], gate)
        redis.call('HSET', root .. ':job:' .. id, 'kind', kind)
        wait_at_gate(id, gate, queue, kind, job[3], job[4])
        sorted, from = sorted + 1, from - 1
      end
    elseif kind then
      redis.call('ZREM', key, position)
      redis.call('HSET', root .. ':job:' .. id, 'kind', kind, 'state', 'queued')
      enqueue(id, queue, kind, job[3], job[4])
      sorted, from = sorted + 1, from - 1
    end
  end
  if #positions < PORTION then
    at, from = at + 1, 0
  end
end
write_pending()
if at > #keys then return {sorted} end
return {sorted, at, from}

-- name: depths
-- Returns live jobs by queue and state: {queue, state, jobs, age of the oldest}. Counts are exact; the oldest job is
-- looked for among the first jobs of each priority, in a portion of each set.
local rows = {}
local function oldest(members, so_far, id_in)
  for _, member in ipairs(members) do
    local job = read_job(id_in(member), 'created')
    local created = job and to_number(job[2], nil)
    if created and (not so_far or created < so_far) then so_far = created end
  end
  return so_far
end

-- The first jobs of each priority were published first. For scheduled jobs, the first due ones are a guess.
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
  for _, id in ipairs(redis.call('HKEYS', root .. ':leases:' .. owner)) do
    local job = read_job(id, 'queue', 'created')
    if job and job[1] == 'running' then
      local queue, created = job[2] or '', to_number(job[3], 0)
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
local asides = redis.call('SMEMBERS', root .. ':aside_names')
for _, queue in ipairs(redis.call('SMEMBERS', root .. ':queues')) do
  local before = #rows
  for _, kind in ipairs(KINDS) do
    count(queue, 'queued', root .. ':lane:' .. kind .. ':' .. queue)
    count(queue, 'queued', root .. ':sent:' .. kind .. ':' .. queue)
    count(queue, 'waiting', root .. ':waiting:' .. kind .. ':' .. queue)
  end
  for _, name in ipairs(asides) do
    if split_aside_name(name) == queue then count(queue, 'queued', root .. ':aside:' .. name) end
  end
  count(queue, 'scheduled', root .. ':due:' .. queue, function(id) return id end)
  count(queue, 'blocked', root .. ':blocked:' .. queue, function(id) return id end)
  if #rows == before and not runs[queue] then redis.call('SREM', root .. ':queues', queue) end
end
for _, row in ipairs(rows) do row[4] = format_number(now - (row[4] or now)) end
return rows
