-- Taking jobs under lease, and keeping track of what is held. Keys: see keys.lua; touches job, lane,
-- aside, asides, due, held, owners, standby; at gates all that granting.lua does; reads worker, pauses, inbox.
-- Guarantees: a job is in one lane or in one owner's hands; each claim raises its fence; what is paused
-- when the script runs is not claimed; only an owner that is enlisted is given anything.

-- name: claim
-- {owner, io, cpu, queues, without, listener, heard, waits, ticket}: takes the first jobs of each lane, as far
-- as there is room, but none of the tasks to do without; who has to pass gates for that passes them. Gives {0}
-- when the owner is not enlisted, else {1, more, due, rows, inbox, now}: whether to look again at once, in how
-- many seconds something falls due, how many events from other programs are not read yet, and the time of the
-- claim. Before, what is due or resumed goes to its lane, a portion a call. Where there is nothing, who waits stands by, with a ticket or without.
local owner, io, cpu, queues, without, listener, heard, waits, ticket = unpack(cmsgpack.unpack(ARGV[1]))
local worker = redis.call('HGET', root .. ':worker:' .. owner, 'name')
if not worker then return {0} end
local paused = read_pauses()
local open = open_queues(queues, paused)
even_if_full()
local more, due = fill(open, paused, now)
local gates, waking = see_to_gates()
more = more or waking
do_without(without)
local rows = {}

-- A slot less of its kind; of both, where nobody knows the kind.
local function spend(kind)
  if kind ~= 'cpu' then io = io - 1 end
  if kind ~= 'io' then cpu = cpu - 1 end
end

local handed = stand_down(owner, listener, heard, now)
if handed then
  rows[1] = handed
  spend(known_kind(handed[KIND]))
end

-- The job of a place that it has left is the owner's now.
local function hold(id)
  local job = message(id)
  if not job or job[1] ~= 'queued' then  -- somebody deleted or changed it by hand
    more = true
    return false
  end
  rows[#rows + 1] = lease(id, job, owner, worker, now)
  return true
end

local function take(queue, kind, place)
  local id = id_of(place)
  local one = gates and gates.granted[place]
  if one then
    rows[#rows + 1] = lease(id, one.job, owner, worker, now, 'slots', one.job[SLOTS])
    gates.granted[place] = nil
    return true
  end
  drop(root .. ':lane:' .. kind .. ':' .. queue, place)
  return hold(id)
end

-- Takes from the one lane of a queue that has anything: there is nothing to compare, and all leave it together.
-- False, and nothing is done, where there are more.
local function take_only_lane(queue, room)
  if gates or any_unwanted or paused.tasks then return false end
  local only
  for _, kind in ipairs(KINDS) do
    if room[kind] > 0 and redis.call('EXISTS', root .. ':lane:' .. kind .. ':' .. queue) == 1 then
      if only then return false end
      only = kind
    end
  end
  if not only then return true end
  local lane = root .. ':lane:' .. only .. ':' .. queue
  local places = redis.call('ZRANGE', lane, 0, room[only] - 1)
  redis.call('ZREMRANGEBYRANK', lane, 0, #places - 1)
  for _, place in ipairs(places) do
    if hold(id_of(place)) then spend(only) end
  end
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
  if take_only_lane(queue, room) then return end
  local fronts, at = {}, {}
  for _, kind in ipairs(KINDS) do
    local found, unfinished = front(queue, kind, room[kind], paused)
    more = more or unfinished
    if gates and room[kind] > 0 then
      found, unfinished = gates.grant(queue, kind, room[kind], found, paused, now)
      more, due = more or unfinished, gates.next_look(queue, kind, due)
    end
    fronts[kind], at[kind] = found, 1
  end
  local kind, place = next_lane(fronts, at)
  while kind do
    at[kind] = at[kind] + 2
    local fits = math.min(io, cpu)
    if kind == 'io' then fits = io elseif kind == 'cpu' then fits = cpu end
    if fits > 0 and take(queue, kind, place) then spend(kind) end
    kind, place = next_lane(fronts, at)
  end
end

for round = 1, gates and 2 or 1 do
  for _, queue in ipairs(open) do
    if round == 1 or gates.sent_to[queue] then  -- some may come to where it had looked before
      if io > 0 or cpu > 0 then take_queue(queue) end
      if gates and next(gates.granted) then  -- others of this queue came first
        gates.queue_granted()
        tell('r', queue)
      end
    end
  end
end
write_all()
write_leases(owner)
if #rows == 0 and not more and waits then stand_by(owner, open, now, ticket ~= '' and ticket, worker) end
local inbox = redis.pcall('LLEN', root .. ':inbox')  -- no list: somebody's mistake, and nobody's events
return {1, more and 1 or 0, due and written(due - now), rows, tonumber(inbox) or 0, written(now)}

-- name: stand_down
-- {owner, listener, heard, ticket}: who stood by with this ticket does so no more. Gives {now, the row} of what
-- it was handed meanwhile and has not heard of, else {}.
local owner, listener, heard, ticket = unpack(cmsgpack.unpack(ARGV[1]))
if standby_of(owner) ~= ticket then return {} end
even_if_full()
local row = stand_down(owner, listener, heard, now)
write_all()
return row and {written(now), row} or {}

-- name: extend
-- {owner, age, held}: says which places of held, {id, fence, id, fence ...}, are lost; what was
-- claimed so many seconds ago and is not held goes back to its queue, no attempt and no death counted.
local owner, age, held = unpack(cmsgpack.unpack(ARGV[1]))
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
    local job = read(id, 'queue', 'kind', 'priority', 'place', 'gates', 'slots', 'claimed')
    if not job or job[1] ~= 'running' then
      redis.call('HDEL', key, id)
    elseif number(job[8], 0) < now - age then
      redis.call('HDEL', key, id)
      put_back(id, {unpack(job, 2, 7)}, 0, 0, {})
    end
  end
end
write_all()
return lost

-- name: waiting
-- {queues, kinds, without}: whether a claim without these tasks would find something; changes nothing.
local queues, kinds, without = unpack(cmsgpack.unpack(ARGV[1]))
local paused = read_pauses()
local wanted = {}
do_without(without)
for _, kind in ipairs(kinds) do wanted[kind] = true end

local function starts(id, state)
  local job = read(id, 'task', 'kind', 'gates')
  local task = job and job[2] or ''
  return job and job[1] == state and wanted[known_kind(job[3])] and not paused.task[task] and not unwanted[task]
         and not (job[4] and state == 'scheduled')
end

-- Whether a line is worth a look whose gate is not paused.
local function may_move(lane)
  if redis.call('ZCOUNT', root .. ':looks:' .. lane, '-inf', now) > 0 then return true end
  for _, gate in ipairs(redis.call('ZRANGE', root .. ':awake:' .. lane, 0, PORTION - 1)) do
    if not paused.gate[gate] then return true end
  end
  return false
end

local open = open_queues(queues, paused)
for _, queue in ipairs(open) do
  for _, kind in ipairs(kinds) do
    if may_move(kind .. ':' .. queue) then return 1 end
    for name, state in pairs({lane = 'queued', sent = 'sent'}) do
      local key = root .. ':' .. name .. ':' .. kind .. ':' .. queue
      for _, place in ipairs(redis.call('ZRANGE', key, 0, PORTION - 1)) do
        if starts(id_of(place), state) then return 1 end
      end
    end
  end
  local key = root .. ':due:' .. queue
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, PORTION)) do
    if starts(id, 'scheduled') then return 1 end
  end
end
for _, name in ipairs(redis.call('SMEMBERS', root .. ':asides')) do
  if open[(aside_parts(name))] then
    for aside, state in pairs({aside = 'queued', away = 'waiting'}) do
      for _, place in ipairs(redis.call('ZRANGE', root .. ':' .. aside .. ':' .. name, 0, 9)) do
        if starts(id_of(place), state) then return 1 end
      end
    end
  end
end
return 0
