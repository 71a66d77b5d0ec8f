-- The state of the deployment, shared by the scripts of deployments.lua. Times are the server's: see jobs.lua.

local deployment = {}

function deployment.is_active(state)
  return state == 'waiting' or state == 'go'
end

function deployment.last()
  local found = redis.call('HMGET', root .. ':deployment', 'plan', 'state', 'epoch', 'since', 'until', 'went',
                           'ended', 'outcome')
  if not found[1] then return {} end
  found[9] = format_number(now)
  return found
end

function deployment.stop(id, state, outcome)
  local found = redis.call('HMGET', root .. ':deployment', 'id', 'state')
  if found[1] ~= id or not deployment.is_active(found[2]) then return {} end
  allow_when_full()
  redis.call('DEL', root .. ':deployment_pauses')
  redis.call('HDEL', root .. ':deployment', 'until')
  redis.call('HSET', root .. ':deployment', 'state', state, 'ended', format_number(now), 'outcome', outcome)
  redis.call('INCR', root .. ':epoch')
  notify('c')
  return deployment.last()
end

function deployment.lapse()
  local found = redis.call('HMGET', root .. ':deployment', 'id', 'state', 'until')
  if found[2] ~= 'waiting' or to_number(found[3], 0) >= now then return {} end
  return deployment.stop(found[1], 'aborted', 'it was not renewed in time')
end

-- Reduce a list of runs to the longest ones, longest first.
function deployment.keep_longest(runs, limit)
  table.sort(runs, function(one, other)
    if one[1] ~= other[1] then return one[1] > other[1] end
    return one[2] > other[2]
  end)
  for at = #runs, limit + 1, -1 do runs[at] = nil end
end
