-- Ending leases: recording outcomes, putting jobs back, recovering the jobs of dead workers. Keys: see keys.lua;
-- writes leases, owners, job, steps, live, lane, due, done, keep_until, buried, unique, deaths; of gates waiting, waiting_list,
-- waiting_lists, gates, check_now, holders, member, free; of routes routed_jobs, idle_routes; for follow-ups all
-- that a publish writes; for parts of joins what counting.lua writes, for growths what publications.lua writes; reads
-- lapsed.
-- Guarantees: an outcome counts only under the current lease, and once; its follow-ups are published, and its joins
-- count it, in the same step; a death counts once, however many processes recover jobs; the death of a worker that
-- turns out to be alive is taken back.

-- name: settle
-- {settlements}: each is {id, owner, fence, attempt, follow-ups, growth, ending...}; a growth is {publication, place};
-- an ending is {'end', keep, state, fields, keep_for}, {'again', delay, cost, section} or {'park', gates}. Returns the indexes,
-- counted from 0, of those that were refused; or what is wrong with a growth: then nothing has happened.
local settlements = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
local refused = {}

-- The fences of all leases that are to end, read and removed with one command for each owner.
local fences, ended = {}, {}
local function read_fences()
  local asked = {}
  for _, settlement in ipairs(settlements) do
    local key = root .. ':leases:' .. settlement[2]
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

-- End this lease. Return false if it is not the current lease of the job.
local function end_lease(id, owner, fence)
  local key = root .. ':leases:' .. owner
  if fences[key][id] ~= fence then return false end
  fences[key][id] = nil
  table.insert(ended[key], id)
  return true
end

-- Return whether a job is a part of a join.
local function has_edges(id)
  return redis.call('EXISTS', root .. ':part:' .. id) == 1
end

-- Return why a growth has no effect: the reason for which the job is to be cancelled; false if it has one.
local function cancel_reason(id)
  return redis.call('HGET', root .. ':job:' .. id, 'cancel')
end

-- End a job. The record of a part of a join is always kept, because its result is read later.
local function record_end(id, attempt, growth, keep, state, fields, keep_for)
  local job = read_job(id, 'unique', 'awaited', 'part', 'expires', 'attempts', 'slots')
  if not job or job[1] ~= 'running' then return false end
  local reason = growth and cancel_reason(id)
  if reason and state == 'succeeded' then  -- the job with its result does not exist
    keep, state, fields, keep_for = true, 'cancelled', {'reason', reason}, nil
  elseif growth and not reason then
    open_publications().grow(id, unpack(growth))
    job[4] = redis.call('HGET', root .. ':job:' .. id, 'part')  -- it may be a part of the joins of its growth
  end
  end_live_job(id, state, unpack(job, 2, 5))
  local original_queue = job[7] and free_slots(id, job[7])
  if keep or (job[4] and has_edges(id)) then
    local size = #fields
    fields[size + 1], fields[size + 2] = 'attempts', append_attempt(job[6], attempt)
    if job[7] then fields[size + 3], fields[size + 4] = 'slots', '' end
    if original_queue then fields[size + 5], fields[size + 6] = 'queue', original_queue end
    finish(id, state, now, fields)
    if keep_for then add_later(root .. ':keep_until', now + keep_for, id) end
  else
    redis.call('DEL', root .. ':job:' .. id, root .. ':steps:' .. id)
  end
  return true
end

-- Count one more failure of a retry section. Counts that cannot be read start from zero.
local function count_failure(text, section)
  local ok, counts = pcall(cjson.decode, text or '{}')
  if not ok or type(counts) ~= 'table' then counts = {} end
  for name, count in pairs(counts) do
    if type(name) ~= 'string' or type(count) ~= 'number' or count < 0 or count % 1 ~= 0 then
      counts = {}
      break
    end
  end
  counts[section] = (counts[section] or 0) + 1
  return cjson.encode(counts)
end

local function run_again(id, attempt, delay, cost, section)
  local job = read_job(id, 'queue', 'kind', 'priority', 'sequence', 'gates', 'slots', 'expires', 'attempt', 'sections',
                   'attempts')
  if not job or job[1] ~= 'running' then return false end
  local fields = {'attempts', append_attempt(job[11], attempt)}
  if cost > 0 then
    fields[3], fields[4] = 'attempt', to_number(job[9], 1) + cost
  end
  if section then
    fields[#fields + 1], fields[#fields + 2] = 'sections', count_failure(job[10], section)
  end
  put_back(id, {unpack(job, 2, 8)}, now, delay, fields)
  return true
end

-- Let a job wait at these gates, or queue it if there are none. This is no attempt: the history does not grow.
local function park(id, gates)
  local job = read_job(id, 'queue', 'kind', 'priority', 'sequence', 'gates', 'slots', 'expires')
  if not job or job[1] ~= 'running' then return false end
  if not gates then redis.call('HDEL', root .. ':job:' .. id, 'gates') end
  job[6] = gates or false
  put_back(id, {unpack(job, 2, 8)}, now, 0, gates and {'gates', gates} or {})
  return true
end

local function settle(id, owner, fence, attempt, follow_ups, growth, ending, ...)
  if not end_lease(id, owner, fence) then return false end
  local accepted
  if ending == 'end' then
    accepted = record_end(id, attempt, growth, ...)
  elseif ending == 'park' then
    accepted = park(id, ...)
  else
    accepted = run_again(id, attempt, ...)
  end
  if accepted and follow_ups then insert_all(follow_ups) end
  return accepted
end

-- Return what is wrong with the first growth that cannot be added; nil if there is none. Changes nothing.
local function find_growth_error()
  for _, settlement in ipairs(settlements) do
    local id, owner, fence, growth = settlement[1], settlement[2], settlement[3], settlement[6]
    if growth and fences[root .. ':leases:' .. owner][id] == fence and not cancel_reason(id) then
      local problem = open_publications().find_error(growth[1])
      if problem then return problem end
    end
  end
  return nil
end

read_fences()
local problem = find_growth_error()
if problem then return problem end
for index, settlement in ipairs(settlements) do
  if not settle(unpack(settlement, 1, 11)) then refused[#refused + 1] = index - 1 end
end
write_lists('HDEL', ended)
write_pending()
return refused

-- name: orphans
-- Returns running jobs whose owner is not registered, so that their leases have lapsed. Removes owners without
-- leases, leases of jobs that were deleted by hand, and a few of the slots that such jobs held.
local rows = {}
allow_when_full()

local function holds_slot(id)
  local job = read_job(id, 'slots')
  return job and (job[2] or '') ~= ''
end

local function free_stale_slots(gate)
  for _, id in ipairs(redis.call('SRANDMEMBER', root .. ':holders:' .. gate, 10)) do
    if not holds_slot(id) then freed_slots[gate] = {id} end
  end
  local pool = string.match(gate, '^pool:(.*)$')
  for _, name in ipairs(pool and redis.call('ZRANGE', root .. ':members:' .. pool, 0, PORTION - 1) or {}) do
    local id = redis.call('HGET', member_key(pool, name), 'job')
    if id and not holds_slot(id) then
      return_member(pool, name, id)
      freed_slots[gate] = {id}
    end
  end
end

local some = redis.pcall('ZRANDMEMBER', root .. ':gates', 20)  -- Redis before 6.2 has no ZRANDMEMBER
for _, gate in ipairs(some.err and {} or some) do
  free_stale_slots(gate)
  write_pending()
end
for _, owner in ipairs(redis.call('SMEMBERS', root .. ':owners')) do
  if redis.call('EXISTS', root .. ':worker:' .. owner) == 0 then
    local key = root .. ':leases:' .. owner
    local held = redis.call('HGETALL', key)
    if #held == 0 then redis.call('SREM', root .. ':owners', owner) end
    for at = 1, #held, 2 do
      local job = read_job(held[at], 'worker', 'claimed', 'attempt', 'deaths', 'blame', 'max_deaths', 'lapses')
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
-- {rows}: each is {id, owner, fence, attempt, deaths, blame, blamed, delay, reason}; with a reason the job is
-- buried, else it goes back to its queue, at once or later. Returns the ids of the jobs whose lease was still lapsed.
local rows = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
local recovered, alive = {}, {}
for _, row in ipairs(rows) do
  local id, owner, fence, attempt, deaths, blame, blamed, delay, reason = unpack(row, 1, 9)
  local key = root .. ':leases:' .. owner
  local lapsed = redis.call('EXISTS', root .. ':worker:' .. owner) == 0
  if lapsed and tonumber(redis.call('HGET', key, id) or nil) == fence then
    redis.call('HDEL', key, id)
    local job = read_job(id, 'queue', 'kind', 'priority', 'sequence', 'gates', 'slots', 'expires', 'attempts', 'unique',
                         'awaited', 'part')
    if job and job[1] == 'running' then
      local fields = {'attempts', append_attempt(job[9], attempt), 'deaths', deaths, 'blame', blame}
      if reason then
        fields[7], fields[8] = 'reason', reason
        end_live_job(id, 'buried', job[10], job[11], job[12], job[8])
        if job[7] then
          local original_queue = free_slots(id, job[7])
          fields[9], fields[10] = 'slots', ''
          if original_queue then fields[11], fields[12] = 'queue', original_queue end
        end
        finish(id, 'buried', now, fields)
      else
        put_back(id, {unpack(job, 2, 8)}, now, delay, fields)
      end
      recovered[#recovered + 1] = id
      redis.call('HSET', root .. ':deaths:' .. owner, id, blamed)
      redis.call('EXPIRE', root .. ':deaths:' .. owner, DAY_SECONDS)
      if redis.call('EXISTS', root .. ':lapsed:' .. owner) == 1 then alive[owner] = true end
    end
  end
end
write_pending()
for owner in pairs(alive) do take_back_deaths(owner) end
write_pending()
return recovered
