-- Rules of gates and members of pools. Keys: see keys.lua; writes rules, rules_to_check, check_now, check_later,
-- pools, members, member, free; reads gates, waiting_lists, waiting_list, aside_counts, holders, entries.
-- Guarantees: a change that may let jobs pass requests a check of the waiting lists in the same step, or, if there
-- are many, with the next claims; a member can be assigned exactly if it is ready and no job holds it.

-- name: declare
-- {name, declared, lifted, name ...}: stores the rules that the code declares; a lifted rule is stored only if it
-- was declared before.
local arguments = cmsgpack.unpack(ARGV[1])
allow_when_full()
for at = 1, #arguments, 3 do
  local name, declared, lifted = arguments[at], arguments[at + 1], arguments[at + 2]
  local before = redis.call('HGET', root .. ':rules', name)
  if before ~= declared and (before or not lifted) then
    redis.call('HSET', root .. ':rules', name, declared)
    request_rule_checks(name, '')
  end
end
return 0

-- name: rules
-- Returns all rules, {name, declared ...}, and the capacities that operators gave them, {name, capacity ...}.
local limits = {}
for _, key in ipairs(redis.call('ZRANGEBYLEX', root .. ':entries', '[' .. LIMITS, '(limits0')) do
  local rule = string.sub(key, #LIMITS + 1)
  local capacity = read_limit(rule)
  if capacity then limits[#limits + 1], limits[#limits + 2] = rule, tostring(capacity) end
end
return {redis.call('HGETALL', root .. ':rules'), limits}

-- name: gates
-- {keys, first, last, limit}: returns {key, held, waiting} of these gates, and of at most a limit of the known gates
-- in a range.
local keys, first, last, limit = unpack(cmsgpack.unpack(ARGV[1]))
local rows = {}
local function show(gate)
  local waiting = to_number(redis.call('HGET', root .. ':aside_counts', gate), 0)
  for _, lane in ipairs(redis.call('HKEYS', root .. ':waiting_lists:' .. gate)) do
    waiting = waiting + redis.call('ZCARD', waiting_list_key(gate, lane))
  end
  rows[#rows + 1] = {gate, redis.call('SCARD', root .. ':holders:' .. gate), waiting}
end
for _, gate in ipairs(keys) do show(gate) end
for _, gate in ipairs(redis.call('ZRANGEBYLEX', root .. ':gates', first, last, 'LIMIT', 0, limit)) do
  show(gate)
end
return rows

-- name: add_members
-- {pool, only, name, data, name, data ...}: adds members. Only: they are all members that the code names. in_code is 1
-- if the code names the member and may remove it; 2 if the code has removed it and may add it again.
local arguments = cmsgpack.unpack(ARGV[1])
allow_when_full()
local pool, only = arguments[1], arguments[2]
local named = {}
redis.call('SADD', root .. ':pools', pool)
for at = 3, #arguments, 2 do
  local name, data = arguments[at], arguments[at + 1]
  local key = member_key(pool, name)
  local found = redis.call('HMGET', key, 'condition', 'in_code')
  local condition, in_code = found[1] or 'ready', to_number(found[2], 0)
  local leaves = condition == 'leaving' or condition == 'gone'
  named[name] = true
  if only then
    if in_code == 2 then condition, leaves = 'ready', false end
    if not leaves then in_code = 1 end
  else
    if leaves then condition = 'ready' end
    in_code = 0
  end
  redis.call('ZADD', root .. ':members:' .. pool, 0, name)
  redis.call('HSET', key, 'data', data, 'condition', condition, 'in_code', in_code)
  update_free_member(pool, name)
end
if only then
  for _, name in ipairs(redis.call('ZRANGE', root .. ':members:' .. pool, 0, -1)) do
    local found = redis.call('HMGET', member_key(pool, name), 'in_code', 'job')
    if found[1] == '1' and not named[name] then
      redis.call('HSET', member_key(pool, name), 'in_code', 2, 'condition', found[2] and 'leaving' or 'gone')
      update_free_member(pool, name)
    end
  end
end
return 0

-- name: remove_members
-- {pool, name, name ...}: removes members as soon as no job holds them. Returns those that existed.
local arguments = cmsgpack.unpack(ARGV[1])
allow_when_full()
return change_members(arguments[1], {unpack(arguments, 2)}, function(key, _, job)
  redis.call('HSET', key, 'condition', job and 'leaving' or 'gone', 'in_code', 0)
end)

-- name: set_condition
-- {pool, condition, name, name ...}: changes whether members are assigned to jobs. Returns those that existed.
local arguments = cmsgpack.unpack(ARGV[1])
allow_when_full()
return change_members(arguments[1], {unpack(arguments, 3)}, function(key)
  redis.call('HSET', key, 'condition', arguments[2], 'failures', 0)
  redis.call('HDEL', key, 'check_at')
end)

-- name: quarantine
-- {pool, name, delay}: a member failed its check; the next check is due after so many seconds.
local pool, name, delay = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
return change_members(pool, {name}, function(key, condition)
  if condition == 'drained' then return end
  redis.call('HSET', key, 'condition', 'quarantined', 'check_at', format_number(now + delay))
  redis.call('HINCRBY', key, 'failures', 1)
end)

-- name: claim_due_checks
-- {pool, delay}: returns the members that are to be checked now; no other caller gets them for so many seconds.
local pool, delay = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
local rows = {}
for _, name in ipairs(redis.call('ZRANGE', root .. ':members:' .. pool, 0, -1)) do
  local found = redis.call('HMGET', member_key(pool, name), 'condition', 'check_at')
  if found[1] == 'quarantined' and to_number(found[2], MAX_NUMBER) <= now then
    redis.call('HSET', member_key(pool, name), 'check_at', format_number(now + delay))
    rows[#rows + 1] = member_row(pool, name)
  end
end
return rows

-- name: members
-- {pool}: returns the members that exist or are leaving, by name; of all pools if none is given.
local pool = unpack(cmsgpack.unpack(ARGV[1]))
local pools, rows = {pool}, {}
if pool == '' then pools = redis.call('SMEMBERS', root .. ':pools') end
table.sort(pools)
for _, each in ipairs(pools) do
  for _, name in ipairs(redis.call('ZRANGE', root .. ':members:' .. each, 0, -1)) do
    local row = member_row(each, name)
    if row[4] and row[4] ~= 'gone' then rows[#rows + 1] = row end
  end
end
return rows
