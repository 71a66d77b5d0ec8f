-- Taking jobs under lease, and keeping track of what is held. Keys: see jobs.lua; touches job, lane,
-- aside, asides, due, held, owners; reads worker, pauses.
-- Guarantees: a job is in one lane or in one owner's hands; each claim raises its fence; what is paused
-- when the script runs is not claimed; only an owner that is enlisted is given anything.

-- name: claim
-- {now, owner, io, cpu, queues}: takes the first jobs of each lane, as far as there is room. Gives
-- {0} when the owner is not enlisted, else {1, more, due, rows}: whether to look again at once, and
-- when something falls due. Before, what is due or resumed goes to its lane, a portion a call.
local now, owner, io, cpu, queues = unpack(cmsgpack.unpack(ARGV[1]))
local worker = redis.call('HGET', root .. ':worker:' .. owner, 'name')
if not worker then return {0} end
local paused = read_pauses()
local open = open_queues(queues, paused)
even_if_full()
local more, due = fill(open, paused, now)
local rows = {}

local function take(queue, kind, place)
  local id = id_of(place)
  drop(root .. ':lane:' .. kind .. ':' .. queue, place)
  local job = message(id)
  if not job or job[1] ~= 'queued' then  -- somebody deleted or changed it by hand
    more = true
    return false
  end
  rows[#rows + 1] = lease(id, job, owner, worker, now)
  return true
end

-- The lane whose first job comes first, of those that have one.
local function next_lane(fronts, at)
  local best, place, score
  for _, kind in ipairs(KINDS) do
    local other = fronts[kind][at[kind]]
    if other then
      local its = tonumber(fronts[kind][at[kind] + 1])
      if not best or its < score or (its == score and other < place) then
        best, place, score = kind, other, its
      end
    end
  end
  return best, place
end

-- Takes from the three lanes of a queue in one order. A sender that does not know the task may mean
-- either kind: such a job needs room of both.
local function take_queue(queue)
  local room = {[''] = math.min(io, cpu), io = io, cpu = cpu}
  local fronts, at = {}, {}
  for _, kind in ipairs(KINDS) do
    local found, unfinished = front(queue, kind, room[kind], paused)
    fronts[kind], at[kind] = found, 1
    more = more or unfinished
  end
  local kind, place = next_lane(fronts, at)
  while kind do
    at[kind] = at[kind] + 2
    local fits = math.min(io, cpu)
    if kind == 'io' then fits = io elseif kind == 'cpu' then fits = cpu end
    if fits > 0 and take(queue, kind, place) then
      if kind ~= 'cpu' then io = io - 1 end
      if kind ~= 'io' then cpu = cpu - 1 end
    end
    kind, place = next_lane(fronts, at)
  end
end

for _, queue in ipairs(open) do
  if io > 0 or cpu > 0 then take_queue(queue) end
end
write_all()
write_leases(owner)
return {1, more and 1 or 0, due and string.format('%.17g', due), rows}

-- name: extend
-- {owner, before, held}: says which places of held, {id, fence, id, fence ...}, are lost; what was
-- claimed before a moment and is not held goes back to its queue, no attempt and no death counted.
local owner, before, held = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':held:' .. owner
local all = redis.call('HGETALL', key)
local fences = {}
for at = 1, #all, 2 do fences[all[at]] = number(all[at + 1], -1) end
local lost, known = {}, {}
for at = 1, #held, 2 do
  if fences[held[at]] == held[at + 1] then
    known[held[at]] = true
  else
    lost[#lost + 1] = (at - 1) / 2
  end
end
even_if_full()
for id in pairs(fences) do
  if not known[id] then
    local job = read(id, 'queue', 'kind', 'priority', 'place', 'claimed')
    if not job or job[1] ~= 'running' then
      redis.call('HDEL', key, id)
    elseif number(job[6], 0) < before then
      redis.call('HDEL', key, id)
      put_back(id, {job[2], job[3], job[4], job[5]}, 0, 0, {})
    end
  end
end
write_all()
return lost

-- name: waiting
-- {now, queues, kinds}: whether a claim would find something; changes nothing.
local now, queues, kinds = unpack(cmsgpack.unpack(ARGV[1]))
local paused = read_pauses()
local wanted = {}
for _, kind in ipairs(kinds) do wanted[kind] = true end

local function starts(id, state)
  local job = read(id, 'task', 'kind')
  return job and job[1] == state and wanted[known_kind(job[3])] and not paused.task[job[2] or '']
end

local open = open_queues(queues, paused)
for _, queue in ipairs(open) do
  for _, kind in ipairs(kinds) do
    local key = root .. ':lane:' .. kind .. ':' .. queue
    for _, place in ipairs(redis.call('ZRANGE', key, 0, PORTION - 1)) do
      if starts(id_of(place), 'queued') then return 1 end
    end
  end
  local key = root .. ':due:' .. queue
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, PORTION)) do
    if starts(id, 'scheduled') then return 1 end
  end
end
for _, name in ipairs(redis.call('SMEMBERS', root .. ':asides')) do
  if open[(aside_parts(name))] then
    for _, place in ipairs(redis.call('ZRANGE', root .. ':aside:' .. name, 0, 9)) do
      if starts(id_of(place), 'queued') then return 1 end
    end
  end
end
return 0
