-- Changing pool members, shared by the scripts of gates.lua. Included after keys.lua and jobs.lua.

-- Update whether a member can be assigned to a job. If so, request a check of the pool's waiting lists.
local function update_free_member(pool, name)
  local found = redis.call('HMGET', member_key(pool, name), 'condition', 'job', 'turn')
  if found[1] == 'ready' and not found[2] then
    redis.call('ZADD', root .. ':free:' .. pool, to_number(found[3], 0), name)
    request_check('pool:' .. pool)
  else
    redis.call('ZREM', root .. ':free:' .. pool, name)
  end
end

-- Change the members that exist. Return their names.
local function change_members(pool, names, change)
  local changed = {}
  for _, name in ipairs(names) do
    local key = member_key(pool, name)
    local found = redis.call('HMGET', key, 'condition', 'job')
    if found[1] and found[1] ~= 'leaving' and found[1] ~= 'gone' then
      change(key, found[1], found[2])
      update_free_member(pool, name)
      changed[#changed + 1] = name
    end
  end
  return changed
end

local function member_row(pool, name)
  return {pool, name, unpack(redis.call('HMGET', member_key(pool, name), 'data', 'condition', 'job', 'fence',
                                        'failures'), 1, 5)}
end
