-- The moves that scripts of deployments share. They go by the server's own clock: see jobs.lua.

-- A number with all its digits.
local function exact(value)
  return string.format('%.17g', value)
end

local deployment = {}

function deployment.under_way(state)
  return state == 'waiting' or state == 'go'
end

function deployment.last()
  local found = redis.call('HMGET', root .. ':deployment', 'plan', 'state', 'epoch', 'since', 'until', 'went',
                           'ended', 'outcome')
  if not found[1] then return {} end
  found[9] = exact(now)
  return found
end

function deployment.stop(id, state, outcome)
  local found = redis.call('HMGET', root .. ':deployment', 'id', 'state')
  if found[1] ~= id or not deployment.under_way(found[2]) then return {} end
  even_if_full()
  redis.call('DEL', root .. ':holds')
  redis.call('HDEL', root .. ':deployment', 'until')
  redis.call('HSET', root .. ':deployment', 'state', state, 'ended', exact(now), 'outcome', outcome)
  redis.call('INCR', root .. ':epoch')
  tell('c')
  return deployment.last()
end

function deployment.lapse()
  local found = redis.call('HMGET', root .. ':deployment', 'id', 'state', 'until')
  if found[2] ~= 'waiting' or number(found[3], 0) >= now then return {} end
  return deployment.stop(found[1], 'aborted', 'nobody renewed it')
end

-- The longest of these runs, longest first, and no more of them.
function deployment.keep(runs, most)
  table.sort(runs, function(one, other)
    if one[1] ~= other[1] then return one[1] > other[1] end
    return one[2] > other[2]
  end)
  for at = #runs, most + 1, -1 do runs[at] = nil end
end
