-- A row of a route, shared by the scripts of routes.lua. Included after routing.lua.

-- Return a route as routes.py reads it.
local function route_row(route_number)
  local row = redis.call('HMGET', root .. ':route:' .. route_number, 'key', 'index', 'made', 'released', 'why',
                         'closing', 'among')
  return {route_number, redis.call('ZCARD', root .. ':routed_jobs:' .. route_number), unpack(row, 1, 7)}
end
