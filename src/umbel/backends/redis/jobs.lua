-- Functions that many scripts share. Keys: see keys.lua, which comes before this file in every script.

local PORTION = 1000
local MAX_NUMBER = 9007199254740990
local FINAL = {succeeded = true, buried = true, cancelled = true, expired = true}
local KINDS = {$kinds}
local DEFAULT_KINDS = {$default_kinds}
local NO_SEQUENCE = string.rep('0', 16)
-- Parts of a slot: gate, pool member, its fence, its data, whether the job is rejected. Of a slot at the gate of a
-- route: gate, the job's original queue, the route number, '{}', whether the job is rejected.
local SLOT_PARTS = 5
local ROUTE_RULE = 'route:'  -- the rule of these gates, and the beginning of their names

-- The server's time in seconds. Scripts use no other clock, because a caller's clock may be wrong.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000

-- A script that frees memory or keeps a worker alive must run even if the server is out of memory. Redis allows
-- that if the first write of the script needs no memory, such as this one.
local function allow_when_full()
  redis.call('DEL', root)
end

-- Return text as a number, or the default if it is not a number: people edit values by hand.
local function to_number(text, default)
  local found = tonumber(text)
  if not found or found ~= found then return default end
  return math.max(math.min(found, MAX_NUMBER), -MAX_NUMBER)
end

-- Return a number as text with all its digits. Formatting is slow, so each number is formatted once per script.
local formatted = {}
local function format_number(value)
  if type(value) == 'string' then return value end
  local text = formatted[value]
  if not text then
    text = string.format('%.17g', value)
    formatted[value] = text
  end
  return text
end

local function normalize_kind(kind)
  for _, known in ipairs(KINDS) do
    if kind == known then return kind end
  end
  return ''
end

-- The kinds of which a job takes one unit of capacity each. A job of unknown kind may be of any default kind.
local function needed(kind)
  return kind == '' and DEFAULT_KINDS or {kind}
end

-- How many jobs of a kind could start with this free capacity.
local function capacity_for(free, kind)
  local least = math.huge
  for _, one in ipairs(needed(kind)) do least = math.min(least, free[one] or 0) end
  return least
end

local function has_capacity(free)
  for _, many in pairs(free) do
    if many > 0 then return true end
  end
  return false
end

-- Return the state and these fields of a job; nil if the key does not exist or is not a hash.
local function read_job(id, ...)
  local found = redis.pcall('HMGET', root .. ':job:' .. id, 'state', ...)
  if not found[1] then return nil end
  return found
end

-- Publish a wake-up, at most once per script. If the user may not use the channel, there is no wake-up, but the
-- script still does its work.
local sent_wake_ups = {}
local function notify(kind, name)
  local wake_up = kind .. ':' .. root .. (name and ':' .. name or '')
  if not sent_wake_ups[wake_up] then
    sent_wake_ups[wake_up] = true
    redis.pcall('PUBLISH', root .. ':wake_ups', wake_up)
  end
end

-- Mark the waiting lists of a gate to be checked now. After a freed slot, a list that waits for a time keeps
-- waiting. If a list was marked before, the workers were notified already and check it as soon as they have
-- capacity. Return twice the number of lists.
local function request_check(gate, is_slot_freed)
  local waiting_lists = redis.call('HGETALL', root .. ':waiting_lists:' .. gate)
  for at = 1, #waiting_lists, 2 do
    local lane = waiting_lists[at]
    local check_later = root .. ':check_later:' .. lane
    if not is_slot_freed or not redis.call('ZSCORE', check_later, gate) then
      redis.call('ZREM', check_later, gate)
      if redis.call('ZADD', root .. ':check_now:' .. lane, to_number(waiting_lists[at + 1], 0), gate) == 1 then
        notify('r', string.sub(lane, string.find(lane, ':', 1, true) + 1))
      end
    end
  end
  return #waiting_lists
end

-- Request a check of a portion of the gates of a rule; later claims continue with the others.
local function request_rule_checks(rule, from)
  if from == '' then request_check(rule) end
  from = from == '' and '[' .. rule .. '#' or '(' .. from
  local found = redis.call('ZRANGEBYLEX', root .. ':gates', from, '(' .. rule .. '$', 'LIMIT', 0, PORTION)
  for _, gate in ipairs(found) do request_check(gate) end
  if #found < PORTION then
    redis.call('HDEL', root .. ':rules_to_check', rule)
  else
    redis.call('HSET', root .. ':rules_to_check', rule, found[#found])
    notify('c')
  end
end

-- Remove a gate from the index of gates once no job waits at it and no job holds a slot of it.
local function forget_gate(gate)
  if redis.call('EXISTS', root .. ':waiting_lists:' .. gate, root .. ':holders:' .. gate) == 0 then
    redis.call('ZREM', root .. ':gates', gate)
  end
end

-- Changes of sorted sets are collected and written at the end, with one command for many jobs.
local pending_adds, pending_removals, freed_slots, left_routes = {}, {}, {}, {}
local function write_lists(command, values_by_key)
  for key, values in pairs(values_by_key) do
    for first = 1, #values, 4000 do
      redis.call(command, key, unpack(values, first, math.min(first + 3999, #values)))
    end
    values_by_key[key] = nil
  end
end
local function write_pending()
  write_lists('ZADD', pending_adds)
  write_lists('ZREM', pending_removals)
  for route_number, ids in pairs(left_routes) do  -- a closing route can be released once no job uses it
    local routed_jobs = root .. ':routed_jobs:' .. route_number
    left_routes[route_number] = nil
    write_lists('ZREM', {[routed_jobs] = ids})
    local route = redis.call('HMGET', root .. ':route:' .. route_number, 'key', 'released', 'closing')
    if route[1] and not route[2] and redis.call('EXISTS', routed_jobs) == 0 then
      if route[3] then request_check(ids.gate) else redis.call('ZADD', root .. ':idle_routes', -1, route_number) end
    end
  end
  for gate, ids in pairs(freed_slots) do
    write_lists('SREM', {[root .. ':holders:' .. gate] = ids})
    freed_slots[gate] = nil
    if request_check(gate, true) == 0 then forget_gate(gate) end
  end
end
local function add_later(key, score, member)
  local list = pending_adds[key]
  if not list then
    list = {}
    pending_adds[key] = list
  end
  local size = #list
  list[size + 1], list[size + 2] = format_number(score), member
end
local function remove_later(key, member)
  local list = pending_removals[key]
  if not list then
    list = {}
    pending_removals[key] = list
  end
  list[#list + 1] = member
end

local known_queues = {}
local function register_queue(queue)
  if not known_queues[queue] then
    known_queues[queue] = true
    redis.call('SADD', root .. ':queues', queue)
  end
end

-- Add a job to its lane, where fetches find it.
local function enqueue(id, queue, kind, priority, sequence)
  add_later(root .. ':lane:' .. normalize_kind(kind) .. ':' .. queue, -to_number(priority, 0),
      (sequence or NO_SEQUENCE) .. id)
  notify('r', queue)
end

-- Return the gates that a job must pass: an empty list if they cannot be read.
local decoded_gates = {}
local function decode_gates(text)
  if not text then return nil end
  if not decoded_gates[text] then
    local ok, found = pcall(cjson.decode, text)
    decoded_gates[text] = ok and type(found) == 'table' and found or {}
  end
  return decoded_gates[text]
end

-- Return the slots that a job holds, as a flat list of parts.
local decoded_slots = {}
local function decode_slots(packed)
  if not decoded_slots[packed] then
    local ok, found = pcall(cmsgpack.unpack, packed)
    decoded_slots[packed] = ok and type(found) == 'table' and found or {}
  end
  return decoded_slots[packed]
end

-- Return the gate at which a job with these gates and slots waits next; nil if it has passed all of them.
local function next_gate(gates, slots)
  local passed = slots and #decode_slots(slots) / SLOT_PARTS or 0
  local gate = gates and decode_gates(gates)[passed + 1]
  return type(gate) == 'string' and gate or nil
end

local waiting_list_keys = {}
local function waiting_list_key(gate, lane)
  local keys = waiting_list_keys[gate]
  if not keys then
    keys = {}
    waiting_list_keys[gate] = keys
  end
  if not keys[lane] then keys[lane] = root .. ':waiting_list:' .. #gate .. ':' .. gate .. ':' .. lane end
  return keys[lane]
end

-- Add a job to the waiting list of a gate. A list that is not to be checked now has no job that could pass, so
-- the new job cannot pass either and no worker is notified.
local lists_joined = {}
local function join_waiting_list(gate, lane, score, position)
  local list_key = waiting_list_key(gate, lane)
  add_later(list_key, score, position)
  if lists_joined[list_key] then return end
  lists_joined[list_key] = true
  if redis.call('HSETNX', root .. ':waiting_lists:' .. gate, lane, 0) == 1 then
    redis.call('ZADD', root .. ':gates', 0, gate)
    redis.call('ZADD', root .. ':check_now:' .. lane, 0, gate)
  elseif not redis.call('ZSCORE', root .. ':check_now:' .. lane, gate) then
    return
  end
  notify('r', string.sub(lane, string.find(lane, ':', 1, true) + 1))
end

-- Remove all traces of a waiting list that is empty.
local function remove_waiting_list(gate, lane)
  lists_joined[waiting_list_key(gate, lane)] = nil
  redis.call('HDEL', root .. ':waiting_lists:' .. gate, lane)
  redis.call('ZREM', root .. ':check_now:' .. lane, gate)
  redis.call('ZREM', root .. ':check_later:' .. lane, gate)
  forget_gate(gate)
end

-- Add a job to the waiting list of this gate, and to the index of waiting jobs of its lane.
local function wait_at_gate(id, gate, queue, kind, priority, sequence)
  local lane, score = normalize_kind(kind) .. ':' .. queue, -to_number(priority, 0)
  local position = (sequence or NO_SEQUENCE) .. id
  add_later(root .. ':waiting:' .. lane, score, position)
  join_waiting_list(gate, lane, score, position)
end

-- Add a job to its lane, or to the waiting list of its first gate. Return the field that stores the new state.
local function enqueue_or_wait(id, queue, kind, priority, sequence, gates)
  local first = next_gate(gates)
  if first then
    wait_at_gate(id, first, queue, kind, priority, sequence)
    return 'state', 'waiting'
  end
  enqueue(id, queue, kind, priority, sequence)
  return 'state', 'queued'
end

local function member_key(pool, name)
  return root .. ':member:' .. #pool .. ':' .. pool .. ':' .. name
end

-- Take a pool member back from a job. A member that was leaving is gone now.
local function return_member(pool, name, id)
  local key = member_key(pool, name)
  local found = redis.call('HMGET', key, 'job', 'condition', 'turn')
  if found[1] ~= id then return end
  redis.call('HDEL', key, 'job')
  if found[2] == 'leaving' then
    redis.call('HSET', key, 'condition', 'gone')
  elseif found[2] == 'ready' then
    redis.call('ZADD', root .. ':free:' .. pool, to_number(found[3], 0), name)
  end
end

-- Free the slots that a job holds. The caller removes the job's field. Return the job's original queue if a
-- route had moved the job into a worker's queue.
local function free_slots(id, slots)
  local found, original_queue = decode_slots(slots), nil
  for at = 1, #found, SLOT_PARTS do
    local gate, member, route_number = found[at], found[at + 1], found[at + 2]
    if string.sub(gate, 1, #ROUTE_RULE) ~= ROUTE_RULE then
      local ids = freed_slots[gate] or {}
      freed_slots[gate] = ids
      ids[#ids + 1] = id
      if member ~= '' then return_member(string.match(gate, '^pool:(.*)$') or '', member, id) end
    elseif route_number ~= 0 then
      left_routes[route_number] = left_routes[route_number] or {gate = gate}
      table.insert(left_routes[route_number], id)
      original_queue = member
    end
  end
  return original_queue
end

-- Schedule a job. Workers sleep until the first due time, so they are notified only if this job is due earlier.
local first_due = {}
local function schedule(id, queue, when)
  local key = root .. ':due:' .. queue
  local first = first_due[queue]
  if not first then
    first = tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or 'inf')
  end
  if when < first then
    first = when
    notify('s', queue)
  end
  first_due[queue] = first
  add_later(key, when, id)
end

-- Remove a job that does not run from the sorted sets in which it waits. Pending changes are written first.
local function remove_from_index(id, state, queue, kind, sequence, aside, gate)
  write_pending()
  local position = (sequence or NO_SEQUENCE) .. id
  if state == 'scheduled' then
    redis.call('ZREM', root .. ':due:' .. queue, id)
  elseif state == 'blocked' then
    redis.call('ZREM', root .. ':blocked:' .. queue, id)
    redis.call('ZREM', root .. ':blocked_by:' .. (redis.call('HGET', root .. ':job:' .. id, 'join') or ''), id)
  elseif state == 'sent' then
    redis.call('ZREM', root .. ':sent:' .. normalize_kind(kind) .. ':' .. queue, position)
  elseif state == 'waiting' then
    local lane = normalize_kind(kind) .. ':' .. queue
    redis.call('ZREM', root .. ':waiting:' .. lane, position)
    if aside then
      redis.call('ZREM', root .. ':aside_waiting:' .. aside, position)
      redis.call('HINCRBY', root .. ':aside_counts', gate or '', -1)
    elseif gate then
      redis.call('ZREM', waiting_list_key(gate, lane), position)
      if redis.call('EXISTS', waiting_list_key(gate, lane)) == 0 then remove_waiting_list(gate, lane) end
    end
  elseif aside then
    redis.call('ZREM', root .. ':aside:' .. aside, position)
  else
    redis.call('ZREM', root .. ':lane:' .. normalize_kind(kind) .. ':' .. queue, position)
  end
end

-- Add a job to those that a join blocks, and to the blocked jobs of its queue.
local function block_job(id, queue, sequence, join)
  add_later(root .. ':blocked:' .. queue, to_number(sequence, 0), id)
  add_later(root .. ':blocked_by:' .. join, to_number(sequence, 0), id)
end

-- Return the queue and the task in a name of a set of jobs that are set aside.
local function split_aside_name(name)
  local size, rest = string.match(name, '^(%d+):(.*)$')
  size = tonumber(size or 0)
  return string.sub(rest or '', 1, size), string.sub(rest or '', size + 2)
end

-- Return the job's id in a position.
local function id_of(position)
  return string.sub(position, 17)
end
