-- Ending leases: outcomes recorded, jobs put back, the dead's jobs recovered. Keys: see keys.lua;
-- touches held, owners, job, steps, live, lane, due, done, buried, unique; of gates waiting, line, lines, gates,
-- awake, holders, member, free, of routes went, resting; and for follow-ups all of a publish.
-- Guarantees: an outcome counts only under the lease that is held now, once; with it happen its
-- follow-ups; a death counts once, however many processes recover; the death of a worker that turns out to be
-- alive is taken back. For that: touches deaths; reads lapsed.

-- name: settle
-- {settlements}: each is {id, owner, fence, attempt, follow-ups, ending...}; an ending is either
-- {'end', keep, state, fields}, {'again', delay, cost, section} or {'park', gates}. Gives the places, counted
-- from 0, of those that were refused.
local settlements = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
local refused = {}

-- The fences of all leases that are to end, read and removed with one command for each owner.
local fences, ended = {}, {}
local function read_fences()
  local asked = {}
  for _, settlement in ipairs(settlements) do
    local key = root .. ':held:' .. settlement[2]
    asked[key] = asked[key] or {}
    table.insert(asked[key], settlement[1])
  end
  for key, ids in pairs(asked) do
    fences[key], ended[key] = {}, {}
    for first = 1, #ids, 4000 do
      local last = math.min(first + 3999, #ids)
      for at, fence in ipairs(redis.call('HMGET', key, unpack(ids, first, last))) do
        fences[key][ids[first + at - 1]] = tonumber(fence or nil)
      end
    end
  end
end

-- The lease ends here, if it is the one that counts.
local function give_up(id, owner, fence)
  local key = root .. ':held:' .. owner
  if fences[key][id] ~= fence then return false end
  fences[key][id] = nil
  table.insert(ended[key], id)
  return true
end

local function record(id, attempt, keep, state, fields)
  local job = read(id, 'unique', 'awaited', 'attempts', 'slots')
  if not job or job[1] ~= 'running' then return false end
  let_go(id, job[2], job[3])
  local home = job[5] and free(id, job[5])
  if keep then
    local size = #fields
    fields[size + 1], fields[size + 2] = 'attempts', retold(job[4], attempt)
    if job[5] then fields[size + 3], fields[size + 4] = 'slots', '' end
    if home then fields[size + 5], fields[size + 6] = 'queue', home end
    finish(id, state, now, fields)
  else
    redis.call('DEL', root .. ':job:' .. id, root .. ':steps:' .. id)
  end
  return true
end

-- One failure more of a retry section. What cannot be read counts as no failure so far.
local function counted(text, section)
  local fine, counts = pcall(cjson.decode, text or '{}')
  if not fine or type(counts) ~= 'table' then counts = {} end
  for name, count in pairs(counts) do
    if type(name) ~= 'string' or type(count) ~= 'number' or count < 0 or count % 1 ~= 0 then
      counts = {}
      break
    end
  end
  counts[section] = (counts[section] or 0) + 1
  return cjson.encode(counts)
end

local function again(id, attempt, delay, cost, section)
  local job = read(id, 'queue', 'kind', 'priority', 'place', 'gates', 'slots', 'attempt', 'sections',
                   'attempts')
  if not job or job[1] ~= 'running' then return false end
  local fields = {'attempts', retold(job[10], attempt)}
  if cost > 0 then
    fields[3], fields[4] = 'attempt', number(job[8], 1) + cost
  end
  if section then
    fields[#fields + 1], fields[#fields + 2] = 'sections', counted(job[9], section)
  end
  put_back(id, {unpack(job, 2, 7)}, now, delay, fields)
  return true
end

-- It waits at these gates, or is queued when there are none. Not an attempt: its story does not grow.
local function park(id, gates)
  local job = read(id, 'queue', 'kind', 'priority', 'place', 'gates', 'slots')
  if not job or job[1] ~= 'running' then return false end
  if not gates then redis.call('HDEL', root .. ':job:' .. id, 'gates') end
  job[6] = gates or false
  put_back(id, {unpack(job, 2, 7)}, now, 0, gates and {'gates', gates} or {})
  return true
end

local function settle(id, owner, fence, attempt, follow_ups, ending, ...)
  if not give_up(id, owner, fence) then return false end
  local accepted
  if ending == 'end' then
    accepted = record(id, attempt, ...)
  elseif ending == 'park' then
    accepted = park(id, ...)
  else
    accepted = again(id, attempt, ...)
  end
  if accepted and follow_ups then
    local sequence = redis.call('INCRBY', root .. ':sequence', #follow_ups) - #follow_ups
    for place, row in ipairs(follow_ups) do insert(row, sequence + place, now, 'queued') end
  end
  return accepted
end

read_fences()
for place, settlement in ipairs(settlements) do
  if not settle(unpack(settlement, 1, 9)) then refused[#refused + 1] = place - 1 end
end
write('HDEL', ended)
write_all()
return refused

-- name: orphans
-- Running jobs whose owner is not enlisted: its leases have lapsed. Forgets owners that hold nothing, and
-- leases on jobs that somebody deleted by hand; also a few of the slots that such jobs held.
local rows = {}
even_if_full()

local function holds(id)
  local job = read(id, 'slots')
  return job and (job[2] or '') ~= ''
end

local function free_forgotten(gate)
  for _, id in ipairs(redis.call('SRANDMEMBER', root .. ':holders:' .. gate, 10)) do
    if not holds(id) then released[gate] = {id} end
  end
  local pool = string.match(gate, '^pool:(.*)$')
  for _, name in ipairs(pool and redis.call('ZRANGE', root .. ':members:' .. pool, 0, PORTION - 1) or {}) do
    local id = redis.call('HGET', member_key(pool, name), 'job')
    if id and not holds(id) then
      return_member(pool, name, id)
      released[gate] = {id}
    end
  end
end

local some = redis.pcall('ZRANDMEMBER', root .. ':gates', 20)  -- an old server does not know how
for _, gate in ipairs(some.err and {} or some) do
  free_forgotten(gate)
  write_all()
end
for _, owner in ipairs(redis.call('SMEMBERS', root .. ':owners')) do
  if redis.call('EXISTS', root .. ':worker:' .. owner) == 0 then
    local key = root .. ':held:' .. owner
    local held = redis.call('HGETALL', key)
    if #held == 0 then redis.call('SREM', root .. ':owners', owner) end
    for at = 1, #held, 2 do
      local job = read(held[at], 'worker', 'claimed', 'attempt', 'deaths', 'blame', 'max_deaths', 'lapses')
      if job and job[1] == 'running' then
        job[1] = held[at]
        job[9] = redis.call('EXISTS', root .. ':lapsed:' .. owner)
        rows[#rows + 1] = {owner, held[at + 1], unpack(job, 1, 9)}
      else
        redis.call('HDEL', key, held[at])
      end
    end
  end
end
return rows

-- name: recover
-- {rows}: each is {id, owner, fence, attempt, deaths, blame, blamed, delay, reason}; with a reason the job
-- is buried, else it goes back to its queue, at once or later. Gives the ids whose lease had lapsed still.
local rows = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
local recovered, alive = {}, {}
for _, row in ipairs(rows) do
  local id, owner, fence, attempt, deaths, blame, blamed, delay, reason = unpack(row, 1, 9)
  local key = root .. ':held:' .. owner
  local lapsed = redis.call('EXISTS', root .. ':worker:' .. owner) == 0
  if lapsed and tonumber(redis.call('HGET', key, id) or nil) == fence then
    redis.call('HDEL', key, id)
    local job = read(id, 'queue', 'kind', 'priority', 'place', 'gates', 'slots', 'attempts', 'unique',
                     'awaited')
    if job and job[1] == 'running' then
      local fields = {'attempts', retold(job[8], attempt), 'deaths', deaths, 'blame', blame}
      if reason then
        fields[7], fields[8] = 'reason', reason
        let_go(id, job[9], job[10])
        if job[7] then
          local home = free(id, job[7])
          fields[9], fields[10] = 'slots', ''
          if home then fields[11], fields[12] = 'queue', home end
        end
        finish(id, 'buried', now, fields)
      else
        put_back(id, {unpack(job, 2, 7)}, now, delay, fields)
      end
      recovered[#recovered + 1] = id
      redis.call('HSET', root .. ':deaths:' .. owner, id, blamed)
      redis.call('EXPIRE', root .. ':deaths:' .. owner, DAY)
      if redis.call('EXISTS', root .. ':lapsed:' .. owner) == 1 then alive[owner] = true end
    end
  end
end
write_all()
for owner in pairs(alive) do take_back_deaths(owner) end
write_all()
return recovered
