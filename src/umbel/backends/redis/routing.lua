-- Steps with routes that scripts of more than one room take. It stands after keys.lua and jobs.lua; touches
-- route, routes, routed, seated, went, closing, resting, past, moves, sitting; for jobs that go back to the
-- line all that a settlement does; reads seats, seat, worker.
-- Guarantees: a key has one live route at most; what waits by a route is back in line before that is released;
-- at most a portion of jobs goes back a call.

local HERE = 'route:#'  -- what the gate before a worker begins with; the key follows
local MOST_TOLD = 100

-- Made only where there is something to route: see granting.lua.
local function routing(now)
  local left, ended = PORTION, {}
  local able, counts = {}, {}  -- who could have the jobs of a task in a queue; live routes of indexes

  -- The gate before the worker that has a key.
  local function route_gate(key)
    return HERE .. key
  end

  -- Whether a worker is enlisted at an index. Forgets those that are gone. With a name: one of another name, and
  -- gives that.
  local function sits(index, name)
    local key = root .. ':sitting:' .. index
    for _, incarnation in ipairs(redis.call('SMEMBERS', key)) do
      local its = redis.pcall('HGET', root .. ':worker:' .. incarnation, 'name')
      if type(its) ~= 'string' then
        redis.call('SREM', key, incarnation)
      elseif its ~= name then
        return its
      end
    end
    return nil
  end

  -- Whether an index is somebody's: enlisted, or gone so lately that it is kept.
  local function occupied(index)
    if sits(index) then return true end
    return number(redis.call('HGET', root .. ':seat:' .. index, 'kept'), 0) > now
  end

  local function hash(way)
    return root .. ':route:' .. way
  end

  -- One who waits in a worker's queue by a route stands at its first gate again. False: it runs there. What
  -- somebody deleted or changed by hand does not count any more.
  local function take_back(id, way)
    local job = read(id, 'queue', 'kind', 'priority', 'place', 'aside', 'gates', 'slots')
    local slots = job and job[8] and slots_in(job[8]) or {}
    if slots[#slots - 2] ~= way then
      drop(root .. ':went:' .. way, id)
      return true
    elseif job[1] ~= 'queued' and job[1] ~= 'sent' then
      return false
    end
    leave(id, job[1], job[2] or '', job[3], job[5], job[6])
    local key, home = root .. ':job:' .. id, free(id, job[8])
    redis.call('HDEL', key, 'slots', 'aside')
    know(home)
    redis.call('HSET', key, 'queue', home, line_up(id, home, job[3], job[4], job[5], job[7]))
    return true
  end

  -- The same for all of a route, as far as there is time. Whether that was enough. What runs is passed over: that
  -- is no more than one worker can run.
  local function take_all_back(way)
    local went, at = root .. ':went:' .. way, 0
    while left > 0 do
      local some = redis.call('ZRANGE', went, at, at + left - 1)
      if #some == 0 then return true end
      for _, id in ipairs(some) do
        if take_back(id, tonumber(way)) then left = left - 1 else at = at + 1 end
      end
      write_all()
    end
    return redis.call('ZCARD', went) <= at
  end

  -- A route is over.
  local function finish_route(way, key, index)
    redis.call('HSET', hash(way), 'released', now)
    if redis.call('HGET', root .. ':routed', key) == tostring(way) then
      redis.call('HDEL', root .. ':routed', key)
    end
    redis.call('ZREM', root .. ':closing', way)
    redis.call('ZREM', root .. ':resting', way)
    redis.call('ZREM', root .. ':seated:' .. index, way)
    redis.call('ZADD', root .. ':past', now, way)
    counts[number(index, -1)] = nil
    ended[#ended + 1] = way
    wake(route_gate(key))
  end

  -- Releases a route that is to be, if that can be now. Whether everything is done that can be.
  local function settle_route(way)
    local route = redis.call('HMGET', hash(way), 'key', 'index', 'closing', 'released')
    if not route[1] or route[4] then
      redis.call('ZREM', root .. ':closing', way)
      return true
    end
    if not take_all_back(way) then return false end
    if route[3] == '2' or redis.call('EXISTS', root .. ':went:' .. way) == 0 then
      finish_route(way, route[1], route[2] or '')
    end
    return true
  end

  -- A route is to be released: 1, when nothing runs by it any more; 2, whatever runs, for its worker is gone.
  local function close_route(way, how, why, ...)
    local closing = math.max(number(redis.call('HGET', hash(way), 'closing'), 0), how)
    redis.call('HSET', hash(way), 'closing', closing, 'why', why, ...)
    redis.call('ZADD', root .. ':closing', way, way)
    redis.call('ZREM', root .. ':resting', way)
    return settle_route(way)
  end

  -- The same where its worker is gone.
  local function lose_route(way)
    local why = redis.call('HGET', hash(way), 'why')
    return close_route(way, 2, (why or '') ~= '' and why or 'its worker is gone')
  end

  -- Where the jobs of a key go now: number and index. Or else whether it has a route that is to be released, and
  -- whether that takes another look.
  local function live_route(key)
    local way = redis.call('HGET', root .. ':routed', key)
    local route = way and redis.call('HMGET', hash(way), 'index', 'closing', 'key')
    if way and not route[3] then  -- deleted by hand
      redis.call('HDEL', root .. ':routed', key)
      way = false
    end
    if not way then return nil, nil, false, false end
    local here, done = occupied(route[1] or ''), true
    if here and not route[2] then return tonumber(way), route[1] end
    if here then done = settle_route(way) else done = lose_route(way) end
    return nil, nil, redis.call('HEXISTS', root .. ':routed', key) == 1, not done
  end

  -- Who could have the jobs of a task in a queue: indexes.
  local function who_could(queue, task)
    local seen, found = {}, {}
    for _, incarnation in ipairs(redis.call('SMEMBERS', root .. ':workers')) do
      local worker = redis.pcall('HMGET', root .. ':worker:' .. incarnation, 'index', 'stopping',
                                 'serves:' .. queue, 'knows:' .. task)
      local index = not worker.err and tonumber(worker[1] or nil)
      if index and worker[2] ~= '1' and worker[3] and worker[4] and not seen[index] then
        seen[index] = true
        if redis.call('HGET', root .. ':seat:' .. index, 'retiring') ~= '1' then
          found[#found + 1] = index
        end
      end
    end
    return found
  end

  -- The same, each with its live routes, the best first.
  local function candidates(queue, task)
    local name, found = #queue .. ':' .. queue .. ':' .. task, {}
    able[name] = able[name] or who_could(queue, task)
    for place, index in ipairs(able[name]) do
      counts[index] = counts[index] or redis.call('ZCARD', root .. ':seated:' .. index)
      found[place] = {index, counts[index]}
    end
    table.sort(found, function(one, other)
      return one[2] < other[2] or (one[2] == other[2] and one[1] < other[1])
    end)
    return found
  end

  -- The index that a key is to move to, if it is one of these.
  local function target(key, found)
    local before = redis.call('HGET', root .. ':moves', key)
    local index = before and tonumber(redis.call('HGET', hash(before), 'target') or nil)
    redis.call('HDEL', root .. ':moves', key)
    for _, one in ipairs(found) do
      if one[1] == index then return one end
    end
    return nil
  end

  -- A route begins: to who has the fewest, then to the lowest index. Gives its number and index, or nothing when
  -- nobody could have it. What it was chosen among is told up to a size: there is one for each key.
  local function make_route(key, queue, task)
    local found = candidates(queue, task)
    if #found == 0 then return nil end
    local best = target(key, found) or found[1]
    local way, told = redis.call('INCR', root .. ':route'), {}
    for place = 1, math.min(#found, MOST_TOLD) do
      told[place] = '[' .. found[place][1] .. ',' .. found[place][2] .. ']'
    end
    -- Not before others have ended, whatever the clocks of those who release say.
    local last = redis.call('ZREVRANGE', root .. ':past', 0, 0, 'WITHSCORES')[2]
    redis.call('HSET', hash(way), 'key', key, 'index', best[1], 'made', math.max(now, number(last, 0)), 'among',
               '[' .. table.concat(told, ',') .. ']')
    redis.call('ZADD', root .. ':routes', way, way)
    redis.call('ZADD', root .. ':seated:' .. best[1], way, way)
    counts[best[1]] = best[2] + 1
    redis.call('HSET', root .. ':routed', key, way)
    wake(route_gate(key))  -- for those of other queues and kinds
    return way, best[1]
  end

  return {
    sits = sits, occupied = occupied, live = live_route, make = make_route, close = close_route,
    lose = lose_route, settle = settle_route, ended = ended, gate = route_gate,
  }
end
