-- Joins: jobs that wait for other jobs. Keys: see keys.lua; writes what publications.lua and counting.lua write, and
-- dropped_joins; for jobs that end or are reopened job, steps, live, done, buried, lane, aside, sent, due, unique,
-- expiring; of gates waiting, waiting_list, waiting_lists, gates, aside_waiting, aside_counts, holders, member, free.
-- Guarantees: each call is one step; a publication is added as a whole or not at all.

-- name: add
-- {publication}: see publications.lua. Returns {1, index ...} with the indexes, counted from 1, of the jobs that
-- existed before; or what is wrong: then nothing was added.
local publication = unpack(cmsgpack.unpack(ARGV[1]))
local publications = open_publications()
local problem = publications.find_error(publication)
if problem then return problem end
local answer = {1}
for _, index in ipairs(publications.add(publication)) do answer[#answer + 1] = index end
write_pending()
return answer

-- name: seal
-- {join, join ...}: lets held joins complete. Returns how many were held.
local joins, sealed = open_joins(), 0
allow_when_full()
for _, join in ipairs(cmsgpack.unpack(ARGV[1])) do
  local found = joins.read(join)
  if found and found.held then
    redis.call('HDEL', root .. ':join:' .. join, 'held')
    redis.call('ZREM', root .. ':held_joins', join)
    found.held, sealed = false, sealed + 1
    joins.complete(join, found)
  end
end
write_pending()
return sealed

-- name: advance
-- {limit}: queues or cancels jobs of complete joins, at most a portion. Returns {how many, whether there are more}.
local limit, joins, checked = math.min(cmsgpack.unpack(ARGV[1])[1], PORTION), open_joins(), 0
allow_when_full()
releases_left = limit

local function advance_join(join, found)
  local reason = joins.cancel_reason(found)
  if not reason then
    joins.queue_jobs(join)
  else
    for _, id in ipairs(joins.take_blocked_jobs(join)) do
      local is_cancelled = cancel_idle(id, reason, now) == 'cancelled'
      if not is_cancelled then redis.call('ZREM', root .. ':blocked_by:' .. join, id) end  -- changed by hand
    end
  end
  joins.remember_due(join)
end

while releases_left > 0 and checked < PORTION do
  local join = redis.call('ZRANGE', root .. ':due_joins', 0, 0)[1]
  if not join then break end
  checked = checked + 1
  redis.call('ZREM', root .. ':due_joins', join)
  local found = joins.read(join)
  if found and joins.is_complete(found) then advance_join(join, found) end
end
write_pending()
return {limit - releases_left, redis.call('EXISTS', root .. ':due_joins')}

-- name: results
-- {join, after, limit, fields}: returns the parts after a position: {position, job, state, fields}, with the state that
-- was counted if the record does not exist.
local join, after, limit, fields = unpack(cmsgpack.unpack(ARGV[1]))
local answer = {}
if redis.call('EXISTS', root .. ':join:' .. join) == 0 then return answer end
local from = '(' .. string.format('%.0f', after)
for _, part in ipairs(redis.call('ZRANGEBYSCORE', root .. ':parts:' .. join, from, '+inf', 'LIMIT', 0, limit)) do
  local position, id = split_edge(part)
  local job = read_job(id, unpack(fields))
  local state = job and job[1] or redis.call('HGET', root .. ':part:' .. id, edge_name(position, join))
  if not job or not FINAL[state] then job = {} end
  answer[#answer + 1] = {position, id, (state or '') ~= '' and state or 'cancelled', {unpack(job, 2, #fields + 1)}}
end
return answer

-- name: members
-- {group, join, position, limit, failed, fields}: returns the parts of the joins of a group after a place, as far as a
-- portion goes; if failed, only those that have ended without success: {place to continue after: join and position;
-- nothing at the end, {join, position, job, state, fields} ...}, with the state that was counted if the record does not
-- exist.
local group, after_join, after, limit, failed, fields = unpack(cmsgpack.unpack(ARGV[1]))
local budget, rows = PORTION, {}
local first = after_join == '' and '-' or '[' .. after_join
local found = redis.call('ZRANGEBYLEX', root .. ':group:' .. group, first, '+', 'LIMIT', 0, PORTION)

local function add_row(join, position, id)
  local job = read_job(id, unpack(fields))
  local state = job and job[1] or redis.call('HGET', root .. ':part:' .. id, edge_name(position, join))
  state = (state or '') ~= '' and state or 'cancelled'
  if failed and (not FINAL[state] or state == 'succeeded') then return end
  rows[#rows + 1] = {join, position, id, state, {unpack(job or {}, 2, #fields + 1)}}
end

for _, join in ipairs(found) do
  budget = budget - 1
  if not failed or to_number(redis.call('HGET', root .. ':join:' .. join, 'failed'), 0) > 0 then
    local from = '(' .. string.format('%.0f', join == after_join and after or -1)
    local some = redis.call('ZRANGEBYSCORE', root .. ':parts:' .. join, from, '+inf', 'LIMIT', 0, math.max(budget, 1))
    for _, part in ipairs(some) do
      local position, id = split_edge(part)
      add_row(join, position, id)
      budget = budget - 1
      if #rows >= limit or budget <= 0 then return {{join, position}, rows} end
    end
  end
end
return {#found == PORTION and {found[PORTION], MAX_NUMBER} or {}, rows}

-- name: resolve
-- {id, state, fields}: ends a job that does not run. Returns 1 if it did.
local id, state, fields = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
local job = read_job(id)
if not job or job[1] == 'running' or FINAL[job[1]] then return 0 end
end_idle(id, state, now, fields)
write_pending()
return 1

-- name: reopen
-- {ids, fields, from_scratch, limit}: makes finished jobs live again, with changed fields, and those that wait for
-- them. Returns the ids of the jobs that were finished; nil if there are more than a limit: then nothing has changed.
local ids, changes, from_scratch, limit = unpack(cmsgpack.unpack(ARGV[1]))
local ended, live, seen, read_joins = {}, {}, {}, {}

-- Remember a job that is to be live or blocked again.
local function remember(id, state)
  seen[id] = true
  local list = FINAL[state] and ended or live
  list[#list + 1] = {id = id, state = state}
  return #ended + #live <= limit
end

-- Remember the jobs that wait for a join, except those that run, have succeeded or are blocked. Return false if there
-- are too many. What waited for an abandoned join stays as it is.
local function remember_waiting(join)
  if read_joins[join] then return true end
  read_joins[join] = true
  if redis.call('HEXISTS', root .. ':join:' .. join, 'abandoned') == 1 then return true end
  for _, id in ipairs(redis.call('ZRANGE', root .. ':waits:' .. join, 0, -1)) do
    local job = not seen[id] and read_job(id)
    local state = job and job[1]
    if state and state ~= 'running' and state ~= 'succeeded' and state ~= 'blocked' and not remember(id, state) then
      return false
    end
  end
  return true
end

-- Remember all jobs that wait for the given ones, directly or through others. Return false if there are too many.
local function remember_closure()
  for _, id in ipairs(ids) do
    local job = not seen[id] and read_job(id)
    if job and FINAL[job[1]] and not remember(id, job[1]) then return false end
  end
  local named, at_ended, at_live = #ended, 0, 0
  while at_ended < #ended or at_live < #live do
    local job
    if at_ended < #ended then
      at_ended = at_ended + 1
      job = ended[at_ended]
      job.is_named = at_ended <= named
    else
      at_live = at_live + 1
      job = live[at_live]
    end
    for _, edge in ipairs(redis.call('HKEYS', root .. ':part:' .. job.id)) do
      local _, join = split_edge(edge)
      if not remember_waiting(join) then return false end
    end
  end
  return true
end

-- Count a job as not ended in its joins. They are to complete again, unless they were abandoned.
local function uncount(id)
  local edges = redis.call('HGETALL', root .. ':part:' .. id)
  for at = 1, #edges, 2 do
    local _, join = split_edge(edges[at])
    local key = root .. ':join:' .. join
    if edges[at + 1] ~= '' and redis.call('EXISTS', key) == 1 then
      redis.call('HSET', root .. ':part:' .. id, edges[at], '')
      redis.call('HINCRBY', key, 'open', 1)
      if edges[at + 1] ~= 'succeeded' then redis.call('HINCRBY', key, 'failed', -1) end
    end
  end
end

local function reopen_ended(job, number)
  if job.is_named then
    restart_job(job.id, job.state, number, changes, from_scratch)
  else
    restart_job(job.id, job.state, number, {}, false)
  end
end

-- Forget when a job is due and expires, as far as that is given in seconds: they count from its next release.
local function forget_times(id)
  local key = root .. ':job:' .. id
  local seconds = redis.call('HMGET', key, 'delay', 'expires_in')
  if seconds[1] then redis.call('HDEL', key, 'not_before') end
  if seconds[2] then
    redis.call('HDEL', key, 'expires')
    remove_later(root .. ':expiring', id)
  end
end

local function block_again(id)
  local job, join = read_job(id, unpack(IDLE_FIELDS)), redis.call('HGET', root .. ':job:' .. id, 'join')
  if not join or not is_blocking(join) then return end
  local queue = take_idle_job(id, job) or job[2] or ''
  forget_times(id)
  redis.call('HDEL', root .. ':job:' .. id, 'aside')
  redis.call('HSET', root .. ':job:' .. id, 'state', 'blocked', 'queue', queue)
  register_queue(queue)
  block_job(id, queue, job[4], join)
end

if not remember_closure() then return false end
if #ended == 0 then return {} end
for _, job in ipairs(ended) do uncount(job.id) end
for _, job in ipairs(live) do uncount(job.id) end  -- those that were replayed had been counted
local sequence = redis.call('INCRBY', root .. ':sequence', #ended) - #ended
local answer = {}
for index, job in ipairs(ended) do
  reopen_ended(job, sequence + index)
  answer[index] = job.id
end
for _, job in ipairs(live) do block_again(job.id) end
write_pending()
return answer

-- name: drop
-- {group, join, skipped}: checks whether the jobs of a group have ended, a portion from a join on, after skipping some
-- of its jobs. At the end, it removes the joins. Returns {0} if a job is live, {1} if the joins were removed, else {2,
-- join, skipped} to continue with.
local group, from, skipped = unpack(cmsgpack.unpack(ARGV[1]))
local key, budget, is_first_call = root .. ':group:' .. group, PORTION, from == ''
local found = redis.call('ZRANGEBYLEX', key, from == '' and '-' or '[' .. from, '+', 'LIMIT', 0, PORTION)

local function is_live(id)
  local job = read_job(id)
  return job and not FINAL[job[1]]
end

-- Return the ids of jobs of a join, its parts before the jobs that wait for it.
local function jobs_of(join, first, limit)
  local parts, waits = root .. ':parts:' .. join, root .. ':waits:' .. join
  local count = redis.call('ZCARD', parts)
  if first >= count then return redis.call('ZRANGE', waits, first - count, first - count + limit - 1) end
  local some = redis.call('ZRANGE', parts, first, first + limit - 1)
  for at, part in ipairs(some) do
    local _, id = split_edge(part)
    some[at] = id
  end
  return some
end

for _, join in ipairs(found) do
  if join ~= from then skipped = 0 end
  local some
  repeat
    if budget <= 0 then return {2, join, skipped} end
    some = jobs_of(join, skipped, budget)
    for _, id in ipairs(some) do
      if is_live(id) then return {0} end
    end
    skipped, budget = skipped + #some, budget - math.max(#some, 1)
  until #some == 0
end
if #found == PORTION then return {2, found[PORTION], skipped} end

-- Since an earlier call has checked them, a job may have been reopened, so that its join is not complete, or a job may
-- have been added that is blocked.
local all = redis.call('ZRANGE', key, 0, -1)
for _, join in ipairs(is_first_call and {} or all) do
  if to_number(redis.call('HGET', root .. ':join:' .. join, 'open'), 0) > 0
     or redis.call('EXISTS', root .. ':blocked_by:' .. join) == 1 then
    return {0}
  end
end
allow_when_full()
for _, join in ipairs(all) do
  redis.call('DEL', root .. ':join:' .. join)
  redis.call('ZREM', root .. ':held_joins', join)
  redis.call('ZREM', root .. ':due_joins', join)
  redis.call('SADD', root .. ':dropped_joins', join)
end
redis.call('DEL', key)
redis.call('ZREM', root .. ':groups', group)
return {1}

-- name: forget_dropped
-- Deletes a portion of what is left of joins that were removed. Returns whether there may be more.
local budget = PORTION
local function forget_parts(join)
  local parts = root .. ':parts:' .. join
  local some = redis.call('ZRANGE', parts, 0, budget - 1)
  budget = budget - math.max(#some, 1)
  for _, part in ipairs(some) do
    local position, id = split_edge(part)
    redis.call('HDEL', root .. ':part:' .. id, edge_name(position, join))
  end
  write_lists('ZREM', {[parts] = some})
  return redis.call('EXISTS', parts) == 0
end

local join = redis.call('SRANDMEMBER', root .. ':dropped_joins')
while join and budget > 0 do
  if forget_parts(join) then
    redis.call('UNLINK', root .. ':waits:' .. join, root .. ':blocked_by:' .. join)
    redis.call('SREM', root .. ':dropped_joins', join)
  end
  join = redis.call('SRANDMEMBER', root .. ':dropped_joins')
end
return redis.call('EXISTS', root .. ':dropped_joins')

-- name: sweep
-- {age, limit}: abandons joins that have been held for so many seconds, and cancels a portion of the jobs that wait for
-- them; advance cancels the others. Returns the joins.
local age, limit = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
local joins = open_joins()
local held = redis.call('ZRANGEBYSCORE', root .. ':held_joins', '-inf', now - age, 'LIMIT', 0, math.min(limit, PORTION))
for _, join in ipairs(held) do
  redis.call('ZREM', root .. ':held_joins', join)
  if redis.call('HDEL', root .. ':join:' .. join, 'held') == 1 then
    redis.call('HSET', root .. ':join:' .. join, 'abandoned', 1)
    for _, id in ipairs(joins.take_blocked_jobs(join)) do cancel_idle(id, NEVER_SEALED, now) end
    joins.remember_due(join)
  end
end
write_pending()
return held
