-- Letting jobs pass their gates in the same step in which they are claimed; shared by claims and the job store.
-- So a slot is held by a job that runs, and not by one that waits for a worker. Included after route_gates.lua;
-- writes job, lane, waiting, waiting_list, waiting_lists, gates, check_now, check_later, holders, pace, member,
-- free, turn, rules_to_check, and what lanes.lua and route_gates.lua write; reads rules, entries.
-- Guarantees: when a job passes a limit, no more jobs hold a slot than its capacity allows, and a pool member is
-- held by one job; a job that passes its last gate is one that would be claimed now; a waiting list that is in
-- neither check_now nor check_later has no job that could pass; a call touches at most a portion of waiting lists
-- and jobs.

-- Called only if there are gates, because creating these functions takes as long as claiming a job.
local function new_granter()
  local CHECK_NOW, NO_CHECK = 0, false  -- when to check a waiting list again
  local checked, unchanged = 0, 0  -- lists and jobs that were checked; lists that let no job pass and stay in check_now
  local granted = {}  -- from the position of a job that has passed its last gate to what is still to be written
  local worker_queues = {}  -- queues of workers to which route gates sent jobs

  local function is_valid_rule(rule)
    if type(rule) ~= 'table' or (rule.rates and type(rule.rates) ~= 'table') then return false end
    for _, rate in ipairs(rule.rates or {}) do
      if type(rate) ~= 'table' or to_number(rate[1], 0) <= 0 or to_number(rate[2], 0) <= 0 then return false end
    end
    return true
  end

  -- Return the rule of a gate; nil if it is not declared yet. A rule that cannot be read lets no job pass.
  local rules = {}
  local function read_rule(gate)
    local name = string.match(gate, '^[^#]*')
    if rules[name] == nil then
      local text = redis.call('HGET', root .. ':rules', name)
      local ok, rule = pcall(cjson.decode, text or 'null')
      if text and not (ok and is_valid_rule(rule)) then rule = {} end
      if text then
        rule.capacity = read_limit(name) or to_number(rule.capacity, 0)
      end
      rules[name] = text and rule or false
    end
    return rules[name] or nil
  end

  -- Return the rates of a rule, each with its step and the time from which the next job counts; see
  -- resilience/pace.py. A rate that has changed since its pace was stored starts anew.
  local SLACK, CREDIT = 0.01, 0.009
  local function read_paces(gate, rule, now)
    local paces, known = {}, {}
    for step, pace in string.gmatch(redis.call('GET', root .. ':pace:' .. gate) or '', '(%S+)/(%S+)') do
      known[#known + 1] = {step = step, pace = to_number(pace, 0)}
    end
    for index, rate in ipairs(rule.rates or {}) do
      local step, before = rate[2] / rate[1] * (1 + SLACK), known[index]
      local pace = before and before.step == string.format('%.17g', step) and before.pace or 0
      paces[index] = {
        step = step, credit = CREDIT * rate[2], pace = pace, start = math.max(pace, now - CREDIT * rate[2]),
      }
    end
    return paces
  end

  local function allowed_now(paces, burst, now)
    local limit = MAX_NUMBER
    for _, rate in ipairs(paces) do
      local ahead = now + (burst - 1) * rate.step - rate.start
      limit = math.min(limit, ahead >= 0 and math.floor(ahead / rate.step) + 1 or 0)
    end
    return limit
  end

  -- Return when the next job may pass after this number of jobs.
  local function next_time(paces, burst, count)
    local at = 0
    for _, rate in ipairs(paces) do
      local pace = count > 0 and rate.start + count * rate.step or rate.pace
      at = math.max(at, pace - (burst - 1) * rate.step)
    end
    return at
  end

  -- Store the paces after this number of jobs. A pace expires when nothing could be caught up any more, but after
  -- an hour at the earliest, because clocks differ.
  local function record_paces(gate, paces, now, count)
    local words, last, grace = {}, now, 3600
    for index, rate in ipairs(paces) do
      local pace = rate.start + count * rate.step
      words[index] = string.format('%.17g/%.17g', rate.step, pace)
      last, grace = math.max(last, pace), math.max(grace, rate.credit)
    end
    local ttl = math.min(math.ceil(last - now + grace), 1e9)
    redis.call('SET', root .. ':pace:' .. gate, table.concat(words, ' '), 'EX', ttl)
  end

  -- Return how many slots are free, when to check again once they are taken, and what a job gets with a slot.
  local function available_slots(gate, limit, now)
    local rule = read_rule(gate)
    if not rule then return 0, NO_CHECK, {} end
    if rule.kind == 'pool' then
      local pool = string.match(gate, '^pool:(.*)$') or ''
      local names = redis.call('ZRANGE', root .. ':free:' .. pool, 0, limit - 1)
      return #names, #names == limit and CHECK_NOW, {pool = pool, names = names}
    elseif rule.kind == 'rate' then
      local paces, burst = read_paces(gate, rule, now), to_number(rule.burst, 1)
      local count = math.min(limit, allowed_now(paces, burst, now))
      return count, count == limit and CHECK_NOW or next_time(paces, burst, count), {paces = paces}
    elseif rule.kind == 'open' then
      return limit, CHECK_NOW, {}
    elseif rule.rejects == true and rule.capacity == 0 then
      return limit, CHECK_NOW, {rejected = true}
    end
    local held = redis.call('SCARD', root .. ':holders:' .. gate)
    local count = math.max(math.min(limit, rule.capacity - held), 0)
    return count, count == limit and CHECK_NOW, {}
  end

  -- Return whether a position comes before another one.
  local function comes_before(score, position, last)
    if not last then return true end
    return score < last.score or (score == last.score and position < last.position)
  end

  -- Return the first jobs of a waiting list that come before the last job that a claim would take, and whether the
  -- portion was used up before the end. Jobs that go to another queue are read with read_outline, even those of
  -- excluded tasks.
  local function waiting_list_front(gate, lane, queue, limit, last, paused, read_outline)
    local key, found, passed = waiting_list_key(gate, lane), {}, 0
    while #found < limit do
      local at = #found + passed
      local some = redis.call('ZRANGE', key, at, at + limit - #found - 1, 'WITHSCORES')
      if #some == 0 then break end
      for at = 1, #some, 2 do
        local position, score = some[at], tonumber(some[at + 1])
        if not comes_before(score, position, last) then return found, false end
        local id = id_of(position)
        local skipped = has_excluded and not read_outline and excluded_tasks[(read_job(id, 'task') or {})[2] or '']
        local job = not skipped and (read_outline or read_delivery)(id)
        local task = job and job[TASK] or ''
        local actual_gate = job and job[1] == 'waiting' and next_gate(job[GATES], job[SLOTS])
        if skipped then
          passed, skips_left = passed + 1, skips_left - 1
          if skips_left <= 0 then return found, false end
        elseif actual_gate ~= gate then  -- deleted or changed by hand
          redis.call('ZREM', key, position)
          if actual_gate then join_waiting_list(actual_gate, lane, score, position) end
        elseif paused.task[task] then
          if budget <= 0 then return found, true end
          budget = budget - 1
          set_aside(key, queue, task, position, score, ':aside_waiting:')
          redis.call('HINCRBY', root .. ':aside_counts', gate, 1)
        else
          found[#found + 1] = {id = id, position = position, score = score, lane = lane, job = job}
        end
      end
    end
    return found, false
  end

  -- Assign a pool member to a job. Return its name, fence and data.
  local function assign_member(pool, name, id)
    local key = member_key(pool, name)
    local fence = redis.call('HINCRBY', key, 'fence', 1)
    redis.call('HSET', key, 'job', id, 'turn', redis.call('INCR', root .. ':turn'))
    redis.call('ZREM', root .. ':free:' .. pool, name)
    return name, fence, redis.call('HGET', key, 'data') or '{}'
  end

  -- Give a job a slot and let it proceed to the next gate or to its lane. Return whether it is to enter its lane.
  -- That is not written yet, because most jobs are claimed at once.
  local single_slots = {}
  local function pass_gate(candidate, gate, lane, given, index)
    local job = candidate.job
    if not job[SLOTS] and not given.names then
      single_slots[gate] = single_slots[gate] or cmsgpack.pack({gate, '', 0, '{}', given.rejected or false})
      job[SLOTS] = single_slots[gate]
    else
      local slots = {unpack(job[SLOTS] and decode_slots(job[SLOTS]) or {})}
      local name, fence, data = '', 0, '{}'
      if given.names then name, fence, data = assign_member(given.pool, given.names[index], candidate.id) end
      local size = #slots
      slots[size + 1], slots[size + 2], slots[size + 3], slots[size + 4], slots[size + 5] =
        gate, name, fence, data, given.rejected or false
      job[SLOTS] = cmsgpack.pack(slots)
    end
    remove_later(waiting_list_key(gate, lane), candidate.position)
    local following_gate = next_gate(job[GATES], job[SLOTS])
    if following_gate then
      redis.call('HSET', root .. ':job:' .. candidate.id, 'slots', job[SLOTS])
      if following_gate == gate then write_pending() end
      join_waiting_list(following_gate, lane, candidate.score, candidate.position)
      return false
    end
    remove_later(root .. ':waiting:' .. lane, candidate.position)
    granted[candidate.position] = candidate
    return true
  end

  -- Write the jobs that have passed and were not claimed at once.
  local function enqueue_granted()
    for position, candidate in pairs(granted) do
      redis.call('HSET', root .. ':job:' .. candidate.id, 'state', 'queued', 'slots', candidate.job[SLOTS])
      add_later(root .. ':lane:' .. candidate.lane, candidate.score, position)
      granted[position] = nil
    end
    write_pending()
  end

  -- Record that these jobs hold a slot.
  local function add_holders(gate, jobs)
    local ids = {}
    for index, job in ipairs(jobs) do ids[index] = job.id end
    write_lists('SADD', {[root .. ':holders:' .. gate] = ids})
  end

  -- End the turn of a waiting list: remove it if it is empty, else store when to check it again.
  local function end_turn(gate, lane, check_at, passed)
    if redis.call('EXISTS', waiting_list_key(gate, lane)) == 0 then
      remove_waiting_list(gate, lane)
      return
    end
    local turn = redis.call('INCR', root .. ':turn')
    redis.call('HSET', root .. ':waiting_lists:' .. gate, lane, turn)
    redis.call('ZREM', root .. (check_at == CHECK_NOW and ':check_later:' or ':check_now:') .. lane, gate)
    if check_at == CHECK_NOW then
      redis.call('ZADD', root .. ':check_now:' .. lane, turn, gate)
    elseif check_at then
      redis.call('ZADD', root .. ':check_later:' .. lane, check_at, gate)
    end
    if check_at == CHECK_NOW and passed == 0 then unchanged = unchanged + 1 end
  end

  -- Let jobs of one waiting list pass. Append those that are to enter their lane to entered. Return how many passed,
  -- how many of these are to enter their lane, and whether the portion was used up before the end.
  local send_to_worker
  local function serve_list(gate, lane, queue, share, last, paused, now, entered)
    if string.sub(gate, 1, #ROUTE_GATE) == ROUTE_GATE then
      send_to_worker = send_to_worker or new_route_sender(now, {
        waiting_list_front = waiting_list_front, pass_gate = pass_gate, end_turn = end_turn,
        worker_queues = worker_queues
      })
      return send_to_worker(gate, lane, queue, share, paused, entered)
    end
    local count, check_at, given = available_slots(gate, share, now)
    local jobs, unfinished = {}, false
    if count > 0 then jobs, unfinished = waiting_list_front(gate, lane, queue, count, last, paused) end
    local so_far = #entered
    if #jobs > 0 then
      add_holders(gate, jobs)
      if given.paces then record_paces(gate, given.paces, now, #jobs) end
      for index, candidate in ipairs(jobs) do
        if pass_gate(candidate, gate, lane, given, index) then entered[#entered + 1] = candidate end
      end
      write_pending()
    end
    if #jobs < count then check_at = CHECK_NOW end  -- the others come after other jobs, or are for another worker
    end_turn(gate, lane, check_at, #jobs)
    return #jobs, #entered - so_far, unfinished
  end

  -- Mark the waiting lists whose time has come to be checked now.
  local function move_due_checks(lane, now)
    local check_later = root .. ':check_later:' .. lane
    for _, gate in ipairs(redis.call('ZRANGEBYSCORE', check_later, '-inf', now, 'LIMIT', 0, PORTION)) do
      local turn = redis.call('HGET', root .. ':waiting_lists:' .. gate, lane)
      redis.call('ZREM', check_later, gate)
      if turn then redis.call('ZADD', root .. ':check_now:' .. lane, to_number(turn, 0), gate) end
    end
  end

  -- Return the gates whose waiting list in this lane is to be checked, the one served last at the end, and whether
  -- some are paused. The lists of paused gates are not checked until the gate is resumed.
  local function lists_to_check(lane, limit, blocked, paused)
    local check_now, open, has_paused = root .. ':check_now:' .. lane, {}, false
    for _, gate in ipairs(redis.call('ZRANGE', check_now, 0, limit - 1)) do
      if paused.gate[gate] then
        redis.call('ZREM', check_now, gate)
        checked, has_paused = checked + 1, true
      elseif not blocked[gate] then
        open[#open + 1] = gate
      end
    end
    return open, has_paused
  end

  -- Return the positions of a lane, with their scores, merged with those of the jobs that have just passed.
  local function merge_in_order(found, entered)
    table.sort(entered, function(candidate, other)
      return candidate.score < other.score
             or (candidate.score == other.score and candidate.position < other.position)
    end)
    local all, at = {}, 1
    local function append(position, score)
      all[#all + 1], all[#all + 2] = position, score
    end
    for _, candidate in ipairs(entered) do
      while found[at] and comes_before(tonumber(found[at + 1]), found[at], candidate) do
        append(found[at], found[at + 1])
        at = at + 2
      end
      append(candidate.position, candidate.score)
    end
    for rest = at, #found, 2 do append(found[rest], found[rest + 1]) end
    return all
  end

  -- Let jobs pass that a claim of this lane would take now, up to its capacity. Found has the jobs that it would take
  -- without them. Return both together, and whether to claim again at once.
  local function grant(queue, kind, capacity, found, paused, now)
    local lane, entered, more = kind .. ':' .. queue, {}, false
    local blocked, blocked_count = {}, 0
    move_due_checks(lane, now)
    while capacity > 0 do
      local gates, has_paused = lists_to_check(lane, capacity + blocked_count, blocked, paused)
      if #gates == 0 and not has_paused then break end
      for index, gate in ipairs(gates) do
        if capacity == 0 then break end
        if checked >= PORTION then
          capacity, more = 0, more or checked > unchanged
          break
        end
        local last = found[2 * capacity] and {position = found[2 * capacity - 1], score = tonumber(found[2 * capacity])}
        local share = math.max(1, math.floor(capacity / (#gates - index + 1)))
        local passed, entered_now, unfinished = serve_list(gate, lane, queue, share, last, paused, now, entered)
        checked, capacity, more = checked + math.max(passed, 1), capacity - entered_now, more or unfinished
        if passed == 0 then
          blocked[gate], blocked_count = true, blocked_count + 1
        end
      end
    end
    return #entered > 0 and merge_in_order(found, entered) or found, more
  end

  -- Return when a waiting list of this lane is to be checked, or the given time if that is earlier.
  local function next_check(queue, kind, soonest)
    local first = redis.call('ZRANGE', root .. ':check_later:' .. kind .. ':' .. queue, 0, 0, 'WITHSCORES')[2]
    if not first then return soonest end
    return math.min(soonest or tonumber(first), tonumber(first))
  end

  return {
    grant = grant, next_check = next_check, enqueue_granted = enqueue_granted, granted = granted,
    worker_queues = worker_queues,
  }
end

-- Return the functions that let jobs pass (nil if there are no gates), and whether some gates of changed rules
-- are still to be marked for a check; marks a portion of them.
local function prepare_gates()
  if redis.call('EXISTS', root .. ':gates') == 0 then return nil, false end
  local rules_to_check = redis.call('HGETALL', root .. ':rules_to_check')
  if #rules_to_check > 0 then request_rule_checks(rules_to_check[1], rules_to_check[2]) end
  return new_granter(), #rules_to_check > 0 and redis.call('EXISTS', root .. ':rules_to_check') == 1
end
