-- Rules of gates and members of pools. Keys: see keys.lua; touches rules, imposed, waking, awake, looks,
-- pools, members, member, free; reads gates, lines, line, absent, holders.
-- Guarantees: whatever may let somebody pass makes the lines there worth a look in the same step, or, where
-- they are many, with the next claims; a member can be handed out exactly when it is ready and nobody's.

-- name: declare
-- {name, declared, lifted, name ...}: what the code says of rules; one that is lifted was there before.
local said = cmsgpack.unpack(ARGV[1])
even_if_full()
for at = 1, #said, 3 do
  local name, declared, lifted = said[at], said[at + 1], said[at + 2]
  local before = redis.call('HGET', root .. ':rules', name)
  if before ~= declared and (before or not lifted) then
    redis.call('HSET', root .. ':rules', name, declared)
    wake_rule(name, '')
  end
end
return 0

-- name: impose
-- {rule, capacity}: what an operator says of a limit, or nothing any more. 0 when there is no such limit.
local name, capacity = unpack(cmsgpack.unpack(ARGV[1]), 1, 2)
even_if_full()
local fine, rule = pcall(cjson.decode, redis.call('HGET', root .. ':rules', name) or 'null')
if not fine or type(rule) ~= 'table' or (rule.kind and rule.kind ~= 'limit') then return 0 end
if capacity then
  redis.call('HSET', root .. ':imposed', name, capacity)
else
  redis.call('HDEL', root .. ':imposed', name)
end
wake_rule(name, '')
return 1

-- name: rules
-- All rules, {name, declared ...}, and what is imposed on them, {name, capacity ...}.
return {redis.call('HGETALL', root .. ':rules'), redis.call('HGETALL', root .. ':imposed')}

-- name: gates
-- {keys, first, last, limit}: these gates, and those known between two, at most a portion: {key, held, waiting}
-- of each.
local keys, first, last, limit = unpack(cmsgpack.unpack(ARGV[1]))
local rows = {}
local function show(gate)
  local waiting = number(redis.call('HGET', root .. ':absent', gate), 0)
  for _, lane in ipairs(redis.call('HKEYS', root .. ':lines:' .. gate)) do
    waiting = waiting + redis.call('ZCARD', line_of(gate, lane))
  end
  rows[#rows + 1] = {gate, redis.call('SCARD', root .. ':holders:' .. gate), waiting}
end
for _, gate in ipairs(keys) do show(gate) end
for _, gate in ipairs(redis.call('ZRANGEBYLEX', root .. ':gates', first, last, 'LIMIT', 0, limit)) do
  show(gate)
end
return rows

-- name: enrol
-- {pool, only, name, data, name, data ...}: members that are there from now on. Only: they are all that the
-- code names. Coded, 1: the code names it and may drop it; 2: it did, and may bring it back.
local said = cmsgpack.unpack(ARGV[1])
even_if_full()
local pool, only = said[1], said[2]
local named = {}
redis.call('SADD', root .. ':pools', pool)
for at = 3, #said, 2 do
  local name, data = said[at], said[at + 1]
  local key = member_key(pool, name)
  local found = redis.call('HMGET', key, 'condition', 'coded')
  local condition, coded = found[1] or 'ready', number(found[2], 0)
  local leaves = condition == 'leaving' or condition == 'gone'
  named[name] = true
  if only then
    if coded == 2 then condition, leaves = 'ready', false end
    if not leaves then coded = 1 end
  else
    if leaves then condition = 'ready' end
    coded = 0
  end
  redis.call('ZADD', root .. ':members:' .. pool, 0, name)
  redis.call('HSET', key, 'data', data, 'condition', condition, 'coded', coded)
  see_to_member(pool, name)
end
if only then
  for _, name in ipairs(redis.call('ZRANGE', root .. ':members:' .. pool, 0, -1)) do
    local found = redis.call('HMGET', member_key(pool, name), 'coded', 'job')
    if found[1] == '1' and not named[name] then
      redis.call('HSET', member_key(pool, name), 'coded', 2, 'condition', found[2] and 'leaving' or 'gone')
      see_to_member(pool, name)
    end
  end
end
return 0

-- name: dismiss
-- {pool, name, name ...}: members that are gone when nobody holds them any more. Gives those that were there.
local said = cmsgpack.unpack(ARGV[1])
even_if_full()
return each_member(said[1], {unpack(said, 2)}, function(key, _, job)
  redis.call('HSET', key, 'condition', job and 'leaving' or 'gone', 'coded', 0)
end)

-- name: turn
-- {pool, condition, name, name ...}: members are handed out, or not. Gives those that were there.
local said = cmsgpack.unpack(ARGV[1])
even_if_full()
return each_member(said[1], {unpack(said, 3)}, function(key)
  redis.call('HSET', key, 'condition', said[2], 'failures', 0)
  redis.call('HDEL', key, 'check_at')
end)

-- name: suspect
-- {pool, name, delay}: a member failed its check; the next is due after so many seconds.
local pool, name, delay = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
return each_member(pool, {name}, function(key, condition)
  if condition == 'drained' then return end
  redis.call('HSET', key, 'condition', 'quarantined', 'check_at', written(now + delay))
  redis.call('HINCRBY', key, 'failures', 1)
end)

-- name: suspects
-- {pool, delay}: members that are to be checked now, and not by others before so many seconds have passed.
local pool, delay = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
local rows = {}
for _, name in ipairs(redis.call('ZRANGE', root .. ':members:' .. pool, 0, -1)) do
  local found = redis.call('HMGET', member_key(pool, name), 'condition', 'check_at')
  if found[1] == 'quarantined' and number(found[2], MOST) <= now then
    redis.call('HSET', member_key(pool, name), 'check_at', written(now + delay))
    rows[#rows + 1] = member_row(pool, name)
  end
end
return rows

-- name: members
-- {pool}: members that are there, or on their way out, by name; of all pools when none is named.
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
