-- Routes and seats. Keys: see keys.lua; touches what routing.lua does, seat; for who waits for a worker awake,
-- looks, waking; reads seats, worker, lines, absent.
-- Guarantees: each call is one step over at most a portion of routes and of jobs; whoever asks repeats it until
-- nothing is left. What was begun and not gone on with, a sweep ends.

-- name: routes
-- {key, index, live, before, limit}: of a portion of the routes before a number, newest first, those that
-- match; what is not asked for is false. Gives {where to go on or 0, route ...}.
local key, index, live, before, limit = unpack(cmsgpack.unpack(ARGV[1]), 1, 5)
local numbers, from = {}, '+inf'
if before then from = '(' .. string.format('%.0f', before) end
if key and live then
  numbers[1] = redis.call('HGET', root .. ':routed', key) or nil
else
  local source = root .. (index and live and ':seated:' .. index or ':routes')
  numbers = redis.call('ZREVRANGEBYSCORE', source, from, '-inf', 'LIMIT', 0, PORTION)
end
local answer = {#numbers == PORTION and tonumber(numbers[PORTION]) or 0}
for _, way in ipairs(numbers) do
  local its = redis.call('HMGET', root .. ':route:' .. way, 'key', 'index', 'released')
  if its[1] and (not key or its[1] == key) and (not index or its[2] == tostring(index))
     and not (live and its[3]) then
    answer[#answer + 1] = route_row(way)
    if #answer > limit then
      answer[1] = 0
      break
    end
  end
end
return answer

-- name: close
-- {key, number, why, target}: the route of a key is to be released, that one if a number is said, and the
-- next one to lead to a target. Gives {whether there is more to do, the route}; nothing when there is none.
local key, way, why, target = unpack(cmsgpack.unpack(ARGV[1]), 1, 4)
even_if_full()
local live = redis.call('HGET', root .. ':routed', key)
if not way and not live then return {} end
if way and live ~= tostring(way) then return {0, route_row(way)} end
local closed
if target then
  redis.call('HSET', root .. ':moves', key, live)
  closed = routing(now).close(live, 1, why, 'target', target)
else
  redis.call('HDEL', root .. ':moves', key)
  closed = routing(now).close(live, 1, why)
end
write_all()
return {closed and 0 or 1, route_row(live)}

-- name: retire
-- {index, retiring}: an index gets no more routes, or may get some again. Gives how many it has.
local index, retiring = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
local seat = root .. ':seat:' .. index
if redis.call('EXISTS', seat) == 1 then redis.call('HSET', seat, 'retiring', retiring and 1 or 0) end
if not retiring then wake_rule(ROUTE, '') end
return redis.call('ZCARD', root .. ':seated:' .. index)

-- name: close_all
-- {index, why, after}: the routes of an index after a number are to be released, a portion of them. Gives
-- where to go on; 0 when that is all.
local index, why, after = unpack(cmsgpack.unpack(ARGV[1]))
even_if_full()
local routes, key = routing(now), root .. ':seated:' .. index
local from = '(' .. string.format('%.0f', after)
local numbers = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'LIMIT', 0, PORTION)
for _, way in ipairs(numbers) do
  local closed = routes.close(way, 1, why)
  if not closed then
    write_all()
    return tonumber(way) - 1
  end
end
write_all()
return #numbers == PORTION and tonumber(numbers[PORTION]) or 0

-- name: seats
-- Indexes that somebody has, that are kept, or that have live routes: {index, name, alive, retiring,
-- routes} of each.
local routes, rows = routing(now), {}
for _, index in ipairs(redis.call('ZRANGE', root .. ':seats', 0, -1)) do
  local seat = redis.call('HMGET', root .. ':seat:' .. index, 'name', 'retiring')
  local alive, many = routes.occupied(index), redis.call('ZCARD', root .. ':seated:' .. index)
  if alive or many > 0 then
    rows[#rows + 1] = {index, seat[1] or '', alive and 1 or 0, seat[2] == '1' and 1 or 0, many}
  end
end
return rows

-- name: sweep
-- {idle, keep, after}: releases routes of workers that are gone, those that were to be and are after a
-- number, and, unless idle is false, those that nobody used for so long; forgets the oldest released ones
-- beyond a count. A portion of each. Gives {whether there is more, after which number, route ...}.
local idle, keep, after = unpack(cmsgpack.unpack(ARGV[1]), 1, 3)
even_if_full()
local routes, more = routing(now), false

local function lose_all(index)
  for _, way in ipairs(redis.call('ZRANGE', root .. ':seated:' .. index, 0, PORTION - 1)) do
    if not routes.lose(way) then
      more = true
      return
    end
  end
  more = more or redis.call('EXISTS', root .. ':seated:' .. index) == 1
end

local function is_wanted(way)
  local gate = routes.gate(redis.call('HGET', root .. ':route:' .. way, 'key') or '')
  return redis.call('EXISTS', root .. ':lines:' .. gate) == 1
         or number(redis.call('HGET', root .. ':absent', gate), 0) > 0
end

local function close_idle()
  local key = root .. ':resting'
  local undated = redis.call('ZRANGEBYSCORE', key, -1, -1, 'LIMIT', 0, PORTION)
  for _, way in ipairs(undated) do redis.call('ZADD', key, now, way) end
  local long = redis.call('ZRANGEBYSCORE', key, '(-1', now - idle, 'LIMIT', 0, PORTION)
  for _, way in ipairs(long) do
    if is_wanted(way) then
      redis.call('ZADD', key, now, way)
    else
      routes.close(way, 1, 'idle')
    end
  end
  more = more or #undated == PORTION or #long == PORTION
end

local function settle_closing()
  local key = root .. ':closing'
  local from = '(' .. string.format('%.0f', after)
  local numbers = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'LIMIT', 0, PORTION)
  for _, way in ipairs(numbers) do
    if not routes.settle(way) then
      more = true
      return
    end
    after = tonumber(way)
  end
  more = more or #numbers == PORTION
end

-- Jobs that somebody deleted by hand go by no route; a few are looked for.
local function forget_deleted()
  local some = redis.pcall('ZRANDMEMBER', root .. ':routes', 20)  -- an old server does not know how
  for _, way in ipairs(some.err and {} or some) do
    local went = root .. ':went:' .. way
    for _, id in ipairs(redis.call('ZRANDMEMBER', went, 10)) do
      local job = read(id)
      if not job or FINAL[job[1]] then
        returned[way] = {gate = routes.gate(redis.call('HGET', root .. ':route:' .. way, 'key') or ''), id}
        write_all()
      end
    end
  end
end

local function forget_past()
  local key = root .. ':past'
  local many = redis.call('ZCARD', key) - keep
  for _, way in ipairs(many > 0 and redis.call('ZRANGE', key, 0, math.min(many, PORTION) - 1) or {}) do
    local its = redis.call('HGET', root .. ':route:' .. way, 'key') or ''
    if redis.call('HGET', root .. ':moves', its) == way then redis.call('HDEL', root .. ':moves', its) end
    redis.call('DEL', root .. ':route:' .. way)
    redis.call('ZREM', root .. ':routes', way)
    redis.call('ZREM', key, way)
  end
  more = more or many > PORTION
end

for _, index in ipairs(redis.call('ZRANGE', root .. ':seats', 0, -1)) do
  local has_some = redis.call('EXISTS', root .. ':seated:' .. index) == 1
  if has_some and not routes.occupied(index) then lose_all(index) end
end
forget_deleted()
if idle then close_idle() end
settle_closing()
write_all()
local answer = {more and 1 or 0, after}
for _, way in ipairs(routes.ended) do answer[#answer + 1] = route_row(way) end
forget_past()
answer[1] = more and 1 or 0
return answer
