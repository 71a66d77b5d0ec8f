-- What the scripts of gates.lua share. It stands before them, after keys.lua and jobs.lua.

-- A member may be what somebody waits for, or not be handed out any more.
local function see_to_member(pool, name)
  local found = redis.call('HMGET', member_key(pool, name), 'condition', 'job', 'turn')
  if found[1] == 'ready' and not found[2] then
    redis.call('ZADD', root .. ':free:' .. pool, number(found[3], 0), name)
    wake('pool:' .. pool)
  else
    redis.call('ZREM', root .. ':free:' .. pool, name)
  end
end

-- Changes those of the members that are there. Gives their names.
local function each_member(pool, names, change)
  local there = {}
  for _, name in ipairs(names) do
    local key = member_key(pool, name)
    local found = redis.call('HMGET', key, 'condition', 'job')
    if found[1] and found[1] ~= 'leaving' and found[1] ~= 'gone' then
      change(key, found[1], found[2])
      see_to_member(pool, name)
      there[#there + 1] = name
    end
  end
  return there
end

local function member_row(pool, name)
  return {pool, name, unpack(redis.call('HMGET', member_key(pool, name), 'data', 'condition', 'job', 'fence',
                                        'failures'), 1, 5)}
end
