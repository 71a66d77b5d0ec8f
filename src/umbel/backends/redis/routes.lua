-- Routes and worker indexes. Keys: see keys.lua; writes index, and what routing.lua writes; for jobs that wait for a
-- worker check_now, check_later, rules_to_check; reads indexes, worker, waiting_lists, aside_counts.
-- Guarantees: each call is one step over at most a portion of routes and jobs; the caller repeats it until nothing
-- is left. A sweep finishes what another caller has begun and not continued.

-- name: routes
-- {key, index, live, before, limit}: returns the routes that match, newest first, of a portion of the routes before
-- a number; a filter that is not used is false. Returns {where to continue or 0, route ...}.
local key, index, live, before, limit = unpack(cmsgpack.unpack(ARGV[1]), 1, 5)
local numbers, from = {}, '+inf'
if before then from = '(' .. string.format('%.0f', before) end
if key and live then
  numbers[1] = redis.call('HGET', root .. ':live_routes', key) or nil
else
  local source = root .. (index and live and ':routes_to:' .. index or ':routes')
  numbers = redis.call('ZREVRANGEBYSCORE', source, from, '-inf', 'LIMIT', 0, PORTION)
end
local answer = {#numbers == PORTION and tonumber(numbers[PORTION]) or 0}
for _, route_number in ipairs(numbers) do
  local route = redis.call('HMGET', root .. ':route:' .. route_number, 'key', 'index', 'released')
  if route[1] and (not key or route[1] == key) and (not index or route[2] == tostring(index))
     and not (live and route[3]) then
    answer[#answer + 1] = route_row(route_number)
    if #answer > limit then
      answer[1] = 0
      break
    end
  end
end
return answer

-- name: close
-- {key, number, why, target}: closes the route of a key (only this route, if a number is given); the next route is to
-- lead to the target. Returns {whether there is more to do, the route}; {} if there is none.
local key, route_number, why, target = unpack(cmsgpack.unpack(ARGV[1]), 1, 4)
allow_when_full()
local live = redis.call('HGET', root .. ':live_routes', key)
if not route_number and not live then return {} end
if route_number and live ~= tostring(route_number) then return {0, route_row(route_number)} end
local closed
if target then
  redis.call('HSET', root .. ':moves', key, live)
  closed = open_routes(now).close(live, 1, why, 'target', target)
else
  redis.call('HDEL', root .. ':moves', key)
  closed = open_routes(now).close(live, 1, why)
end
write_pending()
return {closed and 0 or 1, route_row(live)}

-- name: retire
-- {index, retiring}: an index gets no more routes, or may get some again. Returns how many it has.
local index, retiring = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
local index_key = root .. ':index:' .. index
if redis.call('EXISTS', index_key) == 1 then redis.call('HSET', index_key, 'retiring', retiring and 1 or 0) end
if not retiring then request_rule_checks(ROUTE_RULE, '') end
return redis.call('ZCARD', root .. ':routes_to:' .. index)

-- name: close_all
-- {index, why, after}: closes a portion of the routes of an index after a number. Returns where to continue; 0 at the
-- end.
local index, why, after = unpack(cmsgpack.unpack(ARGV[1]))
allow_when_full()
local routes, key = open_routes(now), root .. ':routes_to:' .. index
local from = '(' .. string.format('%.0f', after)
local numbers = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'LIMIT', 0, PORTION)
for _, route_number in ipairs(numbers) do
  local closed = routes.close(route_number, 1, why)
  if not closed then
    write_pending()
    return tonumber(route_number) - 1
  end
end
write_pending()
return #numbers == PORTION and tonumber(numbers[PORTION]) or 0

-- name: worker_indexes
-- Returns the indexes that are in use or have live routes: {index, name, is_alive, retiring, routes} of each.
local routes, rows = open_routes(now), {}
for _, index in ipairs(redis.call('ZRANGE', root .. ':indexes', 0, -1)) do
  local stored = redis.call('HMGET', root .. ':index:' .. index, 'name', 'retiring')
  local is_alive, count = routes.is_taken(index), redis.call('ZCARD', root .. ':routes_to:' .. index)
  if is_alive or count > 0 then
    rows[#rows + 1] = {index, stored[1] or '', is_alive and 1 or 0, stored[2] == '1' and 1 or 0, count}
  end
end
return rows

-- name: sweep
-- {idle, keep, after}: releases routes of workers that are gone, closing routes after a number, and, unless idle is
-- false, routes that were not used for so many seconds; deletes the oldest released routes beyond a count. A portion
-- of each. Returns {whether there is more, after which number to continue, route ...}.
local idle, keep, after = unpack(cmsgpack.unpack(ARGV[1]), 1, 3)
allow_when_full()
local routes, more = open_routes(now), false

local function close_lost_routes(index)
  for _, route_number in ipairs(redis.call('ZRANGE', root .. ':routes_to:' .. index, 0, PORTION - 1)) do
    if not routes.close_lost(route_number) then
      more = true
      return
    end
  end
  more = more or redis.call('EXISTS', root .. ':routes_to:' .. index) == 1
end

local function gate_of_route(route_number)
  return routes.gate_of_key(redis.call('HGET', root .. ':route:' .. route_number, 'key') or '')
end

local function has_waiting_jobs(route_number)
  local gate = gate_of_route(route_number)
  return redis.call('EXISTS', root .. ':waiting_lists:' .. gate) == 1
         or to_number(redis.call('HGET', root .. ':aside_counts', gate), 0) > 0
end

local function close_idle()
  local key = root .. ':idle_routes'
  local undated = redis.call('ZRANGEBYSCORE', key, -1, -1, 'LIMIT', 0, PORTION)
  for _, route_number in ipairs(undated) do redis.call('ZADD', key, now, route_number) end
  local expired = redis.call('ZRANGEBYSCORE', key, '(-1', now - idle, 'LIMIT', 0, PORTION)
  for _, route_number in ipairs(expired) do
    if has_waiting_jobs(route_number) then
      redis.call('ZADD', key, now, route_number)
    else
      routes.close(route_number, 1, 'idle')
    end
  end
  more = more or #undated == PORTION or #expired == PORTION
end

local function settle_closing()
  local key = root .. ':closing'
  local from = '(' .. string.format('%.0f', after)
  local numbers = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'LIMIT', 0, PORTION)
  for _, route_number in ipairs(numbers) do
    if not routes.try_release(route_number) then
      more = true
      return
    end
    after = tonumber(route_number)
  end
  more = more or #numbers == PORTION
end

-- Remove jobs that were deleted by hand from their routes; a random sample per call.
local function forget_deleted_jobs()
  local some = redis.pcall('ZRANDMEMBER', root .. ':routes', 20)  -- Redis before 6.2 has no ZRANDMEMBER
  for _, route_number in ipairs(some.err and {} or some) do
    local routed_jobs = root .. ':routed_jobs:' .. route_number
    for _, id in ipairs(redis.call('ZRANDMEMBER', routed_jobs, 10)) do
      local job = read_job(id)
      if not job or FINAL[job[1]] then
        left_routes[route_number] = {gate = gate_of_route(route_number), id}
        write_pending()
      end
    end
  end
end

local function forget_released()
  local key = root .. ':released_routes'
  local count = redis.call('ZCARD', key) - keep
  for _, route_number in ipairs(count > 0 and redis.call('ZRANGE', key, 0, math.min(count, PORTION) - 1) or {}) do
    local key_of_route = redis.call('HGET', root .. ':route:' .. route_number, 'key') or ''
    if redis.call('HGET', root .. ':moves', key_of_route) == route_number then
      redis.call('HDEL', root .. ':moves', key_of_route)
    end
    redis.call('DEL', root .. ':route:' .. route_number)
    redis.call('ZREM', root .. ':routes', route_number)
    redis.call('ZREM', key, route_number)
  end
  more = more or count > PORTION
end

for _, index in ipairs(redis.call('ZRANGE', root .. ':indexes', 0, -1)) do
  local has_some = redis.call('EXISTS', root .. ':routes_to:' .. index) == 1
  if has_some and not routes.is_taken(index) then close_lost_routes(index) end
end
forget_deleted_jobs()
if idle then close_idle() end
settle_closing()
write_pending()
local answer = {more and 1 or 0, after}
for _, route_number in ipairs(routes.released) do answer[#answer + 1] = route_row(route_number) end
forget_released()
answer[1] = more and 1 or 0
return answer
