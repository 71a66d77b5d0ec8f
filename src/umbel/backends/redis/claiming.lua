-- Claiming jobs under a lease, and checking leases. Keys: see keys.lua; writes job, lane, aside, aside_names,
-- due, leases, owners, standby; at gates all that granting.lua writes; reads worker, entries, inbox.
-- Guarantees: a job is in one lane or under the lease of one owner; each claim raises its fence; what is paused
-- when the script runs is not claimed; only a registered owner gets jobs.

-- name: claim
-- {owner, free, queues, excluded, listener, received, is_waiting, ticket}: claims the first jobs of each lane,
-- up to the free capacity of each kind, but no jobs of the excluded tasks. Jobs at gates pass them if they can.
-- Returns {0} if the owner is not registered, else {1, more, due, rows, inbox, now}: whether to claim again at
-- once, in how many seconds the next job is due, the number of unread events from other programs, and the time of
-- the claim. Before that, a portion of the jobs that are due or resumed goes to the lanes. If there is no job and
-- the caller waits, it is on standby from now on, with or without a ticket: see standby.py.
local owner, free, queues, excluded, listener, received, is_waiting, ticket = unpack(cmsgpack.unpack(ARGV[1]))
local worker = redis.call('HGET', root .. ':worker:' .. owner, 'name')
if not worker then return {0} end
local paused = read_pauses()
local open = unpaused_queues(queues, paused)
allow_when_full()
local more, due = fill_lanes(open, paused, now)
due = paused.lapse and math.min(due or paused.lapse, paused.lapse) or due
local gates, rules_to_check = prepare_gates()
more = more or rules_to_check
exclude_tasks(excluded)
local rows = {}

local function use_capacity(kind)
  for _, one in ipairs(needed(kind)) do free[one] = (free[one] or 0) - 1 end
end

local handed = end_standby(owner, listener, received, now)
if handed then
  rows[1] = handed
  use_capacity(normalize_kind(handed[KIND]))
end

-- Lease the job of a position that was removed from its lane.
local function claim_job(id)
  local job = read_delivery(id)
  if not job or job[1] ~= 'queued' then  -- deleted or changed by hand
    more = true
    return false
  end
  rows[#rows + 1] = lease(id, job, owner, worker, now)
  return true
end

local function claim_position(queue, kind, position)
  local id = id_of(position)
  local candidate = gates and gates.granted[position]
  if candidate then
    rows[#rows + 1] = lease(id, candidate.job, owner, worker, now, 'slots', candidate.job[SLOTS])
    gates.granted[position] = nil
    return true
  end
  remove_later(root .. ':lane:' .. kind .. ':' .. queue, position)
  return claim_job(id)
end

-- If only one lane of a queue has jobs, there is nothing to compare: claim the first jobs with one command.
-- Return false, without any change, if several lanes have jobs.
local function claim_only_lane(queue, capacity)
  if gates or has_excluded or paused.tasks then return false end
  local only
  for _, kind in ipairs(KINDS) do
    if capacity[kind] > 0 and redis.call('EXISTS', root .. ':lane:' .. kind .. ':' .. queue) == 1 then
      if only then return false end
      only = kind
    end
  end
  if not only then return true end
  local lane = root .. ':lane:' .. only .. ':' .. queue
  local positions = redis.call('ZRANGE', lane, 0, capacity[only] - 1)
  redis.call('ZREMRANGEBYRANK', lane, 0, #positions - 1)
  for _, position in ipairs(positions) do
    if claim_job(id_of(position)) then use_capacity(only) end
  end
  return true
end

-- Return the lane whose first job comes before those of the other lanes, and the position of that job.
local function next_lane(fronts, at)
  local best, position, score
  for _, kind in ipairs(KINDS) do
    local other = fronts[kind][at[kind]]
    if other then
      local other_score = tonumber(fronts[kind][at[kind] + 1])
      if not best or other_score < score or (other_score == score and other < position) then
        best, position, score = kind, other, other_score
      end
    end
  end
  return best, position
end

-- Claim from the lanes of a queue in one common order.
local function claim_queue(queue)
  local capacity = {}
  for _, kind in ipairs(KINDS) do capacity[kind] = capacity_for(free, kind) end
  if claim_only_lane(queue, capacity) then return end
  local fronts, at = {}, {}
  for _, kind in ipairs(KINDS) do
    local found, unfinished = lane_front(queue, kind, capacity[kind], paused)
    more = more or unfinished
    if gates and capacity[kind] > 0 then
      found, unfinished = gates.grant(queue, kind, capacity[kind], found, paused, now)
      more, due = more or unfinished, gates.next_check(queue, kind, due)
    end
    fronts[kind], at[kind] = found, 1
  end
  local kind, position = next_lane(fronts, at)
  while kind do
    at[kind] = at[kind] + 2
    if capacity_for(free, kind) > 0 and claim_position(queue, kind, position) then use_capacity(kind) end
    kind, position = next_lane(fronts, at)
  end
end

for round = 1, gates and 2 or 1 do
  for _, queue in ipairs(open) do
    if round == 1 or gates.worker_queues[queue] then  -- the first round may have sent jobs to the queue of a worker
      if has_capacity(free) then claim_queue(queue) end
      if gates and next(gates.granted) then  -- others of this queue came first
        gates.enqueue_granted()
        notify('r', queue)
      end
    end
  end
end
write_pending()
write_leases(owner)
if #rows == 0 and not more and is_waiting then begin_standby(owner, open, now, ticket ~= '' and ticket, worker) end
local inbox = redis.pcall('LLEN', root .. ':inbox')  -- an error, if the key is not a list: then no event can be adopted
return {1, more and 1 or 0, due and format_number(due - now), rows, tonumber(inbox) or 0, format_number(now)}

-- name: end_standby
-- {owner, listener, received, ticket}: ends the standby that uses this ticket. Returns {now, row} of a job that was
-- handed over but not received, else {}.
local owner, listener, received, ticket = unpack(cmsgpack.unpack(ARGV[1]))
if read_standby(owner) ~= ticket then return {} end
allow_when_full()
local row = end_standby(owner, listener, received, now)
write_pending()
return row and {format_number(now), row} or {}

-- name: extend
-- {owner, age, held}: returns the indexes, counted from 0, of the entries of held {id, fence, id, fence ...} that
-- are lost. A job that was claimed so many seconds ago and is not in held goes back to its queue, without an
-- attempt or a death.
local owner, age, held = unpack(cmsgpack.unpack(ARGV[1]))
local key = root .. ':leases:' .. owner
local all = redis.call('HGETALL', key)
local fences = {}
for at = 1, #all, 2 do fences[all[at]] = to_number(all[at + 1], -1) end
local lost, known = {}, {}
for at = 1, #held, 2 do
  if fences[held[at]] == held[at + 1] then
    known[held[at]] = true
  else
    lost[#lost + 1] = (at - 1) / 2
  end
end
allow_when_full()
for id in pairs(fences) do
  if not known[id] then
    local job = read_job(id, 'queue', 'kind', 'priority', 'sequence', 'gates', 'slots', 'expires', 'claimed')
    if not job or job[1] ~= 'running' then
      redis.call('HDEL', key, id)
    elseif to_number(job[9], 0) < now - age then
      redis.call('HDEL', key, id)
      put_back(id, {unpack(job, 2, 8)}, 0, 0, {})
    end
  end
end
write_pending()
return lost

-- name: has_waiting_jobs
-- {queues, kinds, excluded}: returns whether a claim without these tasks would find a job; changes nothing.
local queues, kinds, excluded = unpack(cmsgpack.unpack(ARGV[1]))
local paused = read_pauses()
local wanted = {}
exclude_tasks(excluded)
for _, kind in ipairs(kinds) do wanted[kind] = true end

local function can_start(id, state)
  local job = read_job(id, 'task', 'kind', 'gates')
  local task = job and job[2] or ''
  return job and job[1] == state and wanted[normalize_kind(job[3])] and not paused.task[task]
         and not excluded_tasks[task] and not (job[4] and state == 'scheduled')
end

-- Return whether a waiting list of this lane, of a gate that is not paused, is to be checked.
local function has_gate_to_check(lane)
  if redis.call('ZCOUNT', root .. ':check_later:' .. lane, '-inf', now) > 0 then return true end
  for _, gate in ipairs(redis.call('ZRANGE', root .. ':check_now:' .. lane, 0, PORTION - 1)) do
    if not paused.gate[gate] then return true end
  end
  return false
end

local open = unpaused_queues(queues, paused)
for _, queue in ipairs(open) do
  for _, kind in ipairs(kinds) do
    if has_gate_to_check(kind .. ':' .. queue) then return 1 end
    for name, state in pairs({lane = 'queued', sent = 'sent'}) do
      local key = root .. ':' .. name .. ':' .. kind .. ':' .. queue
      for _, position in ipairs(redis.call('ZRANGE', key, 0, PORTION - 1)) do
        if can_start(id_of(position), state) then return 1 end
      end
    end
  end
  local key = root .. ':due:' .. queue
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, PORTION)) do
    if can_start(id, 'scheduled') then return 1 end
  end
end
for _, name in ipairs(redis.call('SMEMBERS', root .. ':aside_names')) do
  if open[(split_aside_name(name))] then
    for aside, state in pairs({aside = 'queued', aside_waiting = 'waiting'}) do
      for _, position in ipairs(redis.call('ZRANGE', root .. ':' .. aside .. ':' .. name, 0, 9)) do
        if can_start(id_of(position), state) then return 1 end
      end
    end
  end
end
return 0
