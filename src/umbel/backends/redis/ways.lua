-- What the scripts of routes.lua share. It stands before them, after routing.lua.

-- A route as others see it.
local function route_row(way)
  local row = redis.call('HMGET', root .. ':route:' .. way, 'key', 'index', 'made', 'released', 'why', 'closing',
                         'among')
  return {way, redis.call('ZCARD', root .. ':went:' .. way), unpack(row, 1, 7)}
end
