-- What claims and the ledger share: letting jobs pass their gates, in one step with handing them out. So a
-- slot is held by what runs, and not by what waits for a worker. It stands after sending.lua; touches job,
-- lane, waiting, line, lines, gates, awake, looks, holders, pace, member, free, turn, waking, and what
-- lanes.lua and sending.lua do; reads rules, imposed, pauses.
-- Guarantees: no more hold a slot of a limit than its capacity says when they pass, and a member one; who
-- passes the last gate is one that would be claimed now; a line that is not awake has nobody who could
-- pass; at most a portion of lines and of jobs is touched a call.

-- Made only where there are gates: making so many functions takes as long as claiming a job.
local function granting()
  local NOW, NEVER = 0, false  -- of a line: when it is worth another look
  local looked, in_vain = 0, 0  -- lines and jobs that were looked at; lines of them that stay as they were
  local granted = {}  -- from the place of who has passed its last gate to what is to be written of it
  local sent_to = {}  -- queues of workers to which some went

  local function readable(rule)
    if type(rule) ~= 'table' or (rule.rates and type(rule.rates) ~= 'table') then return false end
    for _, rate in ipairs(rule.rates or {}) do
      if type(rate) ~= 'table' or number(rate[1], 0) <= 0 or number(rate[2], 0) <= 0 then return false end
    end
    return true
  end

  -- What a gate goes by; nil before it was declared. What cannot be read lets nobody pass.
  local rules = {}
  local function rule_of(gate)
    local name = string.match(gate, '^[^#]*')
    if rules[name] == nil then
      local text = redis.call('HGET', root .. ':rules', name)
      local fine, rule = pcall(cjson.decode, text or 'null')
      if text and not (fine and readable(rule)) then rule = {} end
      if text then
        rule.capacity = number(redis.call('HGET', root .. ':imposed', name) or rule.capacity, 0)
      end
      rules[name] = text and rule or false
    end
    return rules[name] or nil
  end

  -- The rates of a rule, each with its step and the moment from which the next one counts; see
  -- resilience/pace.py.
  local SLACK, CREDIT = 0.01, 0.009
  local function paces_of(gate, rule, now)
    local paces, known = {}, {}
    for word in string.gmatch(redis.call('GET', root .. ':pace:' .. gate) or '', '%S+') do
      known[#known + 1] = number(word, 0)
    end
    for place, rate in ipairs(rule.rates or {}) do
      local pace = known[place] or 0
      paces[place] = {
        step = rate[2] / rate[1] * (1 + SLACK), credit = CREDIT * rate[2], pace = pace,
        start = math.max(pace, now - CREDIT * rate[2]),
      }
    end
    return paces
  end

  local function allowed(paces, burst, now)
    local most = MOST
    for _, one in ipairs(paces) do
      local ahead = now + (burst - 1) * one.step - one.start
      most = math.min(most, ahead >= 0 and math.floor(ahead / one.step) + 1 or 0)
    end
    return most
  end

  -- When the next one may go after so many.
  local function next_time(paces, burst, many)
    local at = 0
    for _, one in ipairs(paces) do
      local pace = many > 0 and one.start + many * one.step or one.pace
      at = math.max(at, pace - (burst - 1) * one.step)
    end
    return at
  end

  -- A pace that is long past is none: it is not kept. That is when nothing could be caught up, and an hour at
  -- least, for clocks differ.
  local function spend(gate, paces, now, many)
    local words, last, longer = {}, now, 3600
    for place, one in ipairs(paces) do
      local pace = one.start + many * one.step
      words[place], last, longer = string.format('%.17g', pace), math.max(last, pace), math.max(longer, one.credit)
    end
    local life = math.min(math.ceil(last - now + longer), 1e9)
    redis.call('SET', root .. ':pace:' .. gate, table.concat(words, ' '), 'EX', life)
  end

  -- How many slots are free, when to look again once they are taken, and what comes with them.
  local function offered(gate, most, now)
    local rule = rule_of(gate)
    if not rule then return 0, NEVER, {} end
    if rule.kind == 'pool' then
      local pool = string.match(gate, '^pool:(.*)$') or ''
      local names = redis.call('ZRANGE', root .. ':free:' .. pool, 0, most - 1)
      return #names, #names == most and NOW, {pool = pool, names = names}
    elseif rule.kind == 'rate' then
      local paces, burst = paces_of(gate, rule, now), number(rule.burst, 1)
      local many = math.min(most, allowed(paces, burst, now))
      return many, many == most and NOW or next_time(paces, burst, many), {paces = paces}
    elseif rule.kind == 'open' then
      return most, NOW, {}
    elseif rule.rejects == true and rule.capacity == 0 then
      return most, NOW, {rejected = true}
    end
    local held = redis.call('SCARD', root .. ':holders:' .. gate)
    local many = math.max(math.min(most, rule.capacity - held), 0)
    return many, many == most and NOW, {}
  end

  -- Whether a place comes before another one.
  local function before(score, place, last)
    if not last then return true end
    return score < last.score or (score == last.score and place < last.place)
  end

  -- Who is first in a line, so many, before the last that a claim would take. Also whether others could be
  -- if there were time. Outline: how to read those that go elsewhere, wanted here or not.
  local function line_front(gate, lane, queue, most, last, paused, outline)
    local key, found, passed = line_of(gate, lane), {}, 0
    while #found < most do
      local at = #found + passed
      local some = redis.call('ZRANGE', key, at, at + most - #found - 1, 'WITHSCORES')
      if #some == 0 then break end
      for at = 1, #some, 2 do
        local place, score = some[at], tonumber(some[at + 1])
        if not before(score, place, last) then return found, false end
        local id = id_of(place)
        local skipped = any_unwanted and not outline and unwanted[(read(id, 'task') or {})[2] or '']
        local job = not skipped and (outline or message)(id)
        local task = job and job[TASK] or ''
        local its = job and job[1] == 'waiting' and gate_at(job[GATES], job[SLOTS])
        if skipped then
          passed, patience = passed + 1, patience - 1
          if patience <= 0 then return found, false end
        elseif its ~= gate then  -- deleted or changed by hand
          redis.call('ZREM', key, place)
          if its then stand(its, lane, score, place) end
        elseif paused.task[task] then
          if left <= 0 then return found, true end
          left = left - 1
          put_aside(key, queue, task, place, score, ':away:')
          redis.call('HINCRBY', root .. ':absent', gate, 1)
        else
          found[#found + 1] = {id = id, place = place, score = score, lane = lane, job = job}
        end
      end
    end
    return found, false
  end

  -- The next member goes to a job. Gives its name, fence and data.
  local function hand_out(pool, name, id)
    local key = member_key(pool, name)
    local fence = redis.call('HINCRBY', key, 'fence', 1)
    redis.call('HSET', key, 'job', id, 'turn', redis.call('INCR', root .. ':turn'))
    redis.call('ZREM', root .. ':free:' .. pool, name)
    return name, fence, redis.call('HGET', key, 'data') or '{}'
  end

  -- One job takes a slot and goes on: into its lane, or else to the next gate. Whether it is to be in its
  -- lane; that is not written yet, for most are taken from there at once.
  local plain = {}
  local function pass(one, gate, lane, given, place)
    local job = one.job
    if not job[SLOTS] and not given.names then
      plain[gate] = plain[gate] or cmsgpack.pack({gate, '', 0, '{}', given.rejected or false})
      job[SLOTS] = plain[gate]
    else
      local slots = {unpack(job[SLOTS] and slots_in(job[SLOTS]) or {})}
      local name, fence, data = '', 0, '{}'
      if given.names then name, fence, data = hand_out(given.pool, given.names[place], one.id) end
      local size = #slots
      slots[size + 1], slots[size + 2], slots[size + 3], slots[size + 4], slots[size + 5] =
        gate, name, fence, data, given.rejected or false
      job[SLOTS] = cmsgpack.pack(slots)
    end
    drop(line_of(gate, lane), one.place)
    local onwards = gate_at(job[GATES], job[SLOTS])
    if onwards then
      redis.call('HSET', root .. ':job:' .. one.id, 'slots', job[SLOTS])
      if onwards == gate then write_all() end
      stand(onwards, lane, one.score, one.place)
      return false
    end
    drop(root .. ':waiting:' .. lane, one.place)
    granted[one.place] = one
    return true
  end

  -- Writes down who has passed and is not taken at once.
  local function queue_granted()
    for place, one in pairs(granted) do
      redis.call('HSET', root .. ':job:' .. one.id, 'state', 'queued', 'slots', one.job[SLOTS])
      add(root .. ':lane:' .. one.lane, one.score, place)
      granted[place] = nil
    end
    write_all()
  end

  -- These hold a slot from now on.
  local function hold(gate, jobs)
    local ids = {}
    for place, job in ipairs(jobs) do ids[place] = job.id end
    write('SADD', {[root .. ':holders:' .. gate] = ids})
  end

  -- A line has had its turn; it ends with the last who stood there.
  local function served(gate, lane, look, passed)
    if redis.call('EXISTS', line_of(gate, lane)) == 0 then
      end_line(gate, lane)
      return
    end
    local turn = redis.call('INCR', root .. ':turn')
    redis.call('HSET', root .. ':lines:' .. gate, lane, turn)
    redis.call('ZREM', root .. (look == NOW and ':looks:' or ':awake:') .. lane, gate)
    if look == NOW then
      redis.call('ZADD', root .. ':awake:' .. lane, turn, gate)
    elseif look then
      redis.call('ZADD', root .. ':looks:' .. lane, look, gate)
    end
    if look == NOW and passed == 0 then in_vain = in_vain + 1 end
  end

  -- Lets some of one line pass; adds those that are to be in their lane. How many passed, how many of them are
  -- such, and whether others could have if there were time.
  local sends
  local function serve(gate, lane, queue, share, last, paused, now, entered)
    if string.sub(gate, 1, #HERE) == HERE then
      sends = sends or sending(now, {line_front = line_front, pass = pass, served = served, sent_to = sent_to})
      return sends(gate, lane, queue, share, paused, entered)
    end
    local many, look, given = offered(gate, share, now)
    local jobs, unfinished = {}, false
    if many > 0 then jobs, unfinished = line_front(gate, lane, queue, many, last, paused) end
    local so_far = #entered
    if #jobs > 0 then
      hold(gate, jobs)
      if given.paces then spend(gate, given.paces, now, #jobs) end
      for place, one in ipairs(jobs) do
        if pass(one, gate, lane, given, place) then entered[#entered + 1] = one end
      end
      write_all()
    end
    if #jobs < many then look = NOW end  -- who is left is behind others, or for another worker
    served(gate, lane, look, #jobs)
    return #jobs, #entered - so_far, unfinished
  end

  -- Lines whose time has come are worth a look.
  local function rouse(lane, now)
    local looks = root .. ':looks:' .. lane
    for _, gate in ipairs(redis.call('ZRANGEBYSCORE', looks, '-inf', now, 'LIMIT', 0, PORTION)) do
      local turn = redis.call('HGET', root .. ':lines:' .. gate, lane)
      redis.call('ZREM', looks, gate)
      if turn then redis.call('ZADD', root .. ':awake:' .. lane, number(turn, 0), gate) end
    end
  end

  -- The lines of a lane that are worth a look, who was served last at the end. Those of paused gates
  -- sleep until that is over.
  local function lines_awake(lane, most, stuck, paused)
    local awake, open, asleep = root .. ':awake:' .. lane, {}, false
    for _, gate in ipairs(redis.call('ZRANGE', awake, 0, most - 1)) do
      if paused.gate[gate] then
        redis.call('ZREM', awake, gate)
        looked, asleep = looked + 1, true
      elseif not stuck[gate] then
        open[#open + 1] = gate
      end
    end
    return open, asleep
  end

  -- The places of a lane, with their scores, and those of who has just passed, in one order.
  local function merged(found, entered)
    table.sort(entered, function(one, other)
      return one.score < other.score or (one.score == other.score and one.place < other.place)
    end)
    local all, at = {}, 1
    local function note(place, score)
      all[#all + 1], all[#all + 2] = place, score
    end
    for _, one in ipairs(entered) do
      while found[at] and before(tonumber(found[at + 1]), found[at], one) do
        note(found[at], found[at + 1])
        at = at + 2
      end
      note(one.place, one.score)
    end
    for rest = at, #found, 2 do note(found[rest], found[rest + 1]) end
    return all
  end

  -- Lets those pass that a claim of a lane would take now: so many. Found: what it would take already.
  -- Gives that with who has passed, and whether to look again at once.
  local function grant(queue, kind, room, found, paused, now)
    local lane, entered, more = kind .. ':' .. queue, {}, false
    local stuck, many_stuck = {}, 0
    rouse(lane, now)
    while room > 0 do
      local lines, asleep = lines_awake(lane, room + many_stuck, stuck, paused)
      if #lines == 0 and not asleep then break end
      for place, gate in ipairs(lines) do
        if room == 0 then break end
        if looked >= PORTION then
          room, more = 0, more or looked > in_vain
          break
        end
        local last = found[2 * room] and {place = found[2 * room - 1], score = tonumber(found[2 * room])}
        local share = math.max(1, math.floor(room / (#lines - place + 1)))
        local passed, came, unfinished = serve(gate, lane, queue, share, last, paused, now, entered)
        looked, room, more = looked + math.max(passed, 1), room - came, more or unfinished
        if passed == 0 then
          stuck[gate], many_stuck = true, many_stuck + 1
        end
      end
    end
    return #entered > 0 and merged(found, entered) or found, more
  end

  -- When a line of these lanes is worth a look.
  local function next_look(queue, kind, soonest)
    local first = redis.call('ZRANGE', root .. ':looks:' .. kind .. ':' .. queue, 0, 0, 'WITHSCORES')[2]
    if not first then return soonest end
    return math.min(soonest or tonumber(first), tonumber(first))
  end

  return {
    grant = grant, next_look = next_look, queue_granted = queue_granted, granted = granted, sent_to = sent_to,
  }
end

-- What lets jobs pass, or nothing where there are no gates; goes on with waking the lines of rules that have
-- changed. Also whether that goes on.
local function see_to_gates()
  if redis.call('EXISTS', root .. ':gates') == 0 then return nil, false end
  local waking = redis.call('HGETALL', root .. ':waking')
  if #waking > 0 then wake_rule(waking[1], waking[2]) end
  return granting(), #waking > 0 and redis.call('EXISTS', root .. ':waking') == 1
end
