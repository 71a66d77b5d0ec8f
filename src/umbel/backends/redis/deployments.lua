-- Deployments. Keys: see keys.lua; touches deployment, holds, epoch, awake, looks; reads owners' held, job,
-- live, done, buried.
-- Guarantees: a deployment and its pauses come and go in one step, and the epoch grows with both; operators'
-- own pauses are left alone. Time is the server's.

-- name: last
-- The one under way, or the last there was: {plan, state, epoch, since, until, went, ended, outcome, now}, or {}.
return deployment.last()

-- name: begin
-- {id, plan, lease, force, reason, name, name ...}: takes the place and pauses, unless another is under way that has
-- not lapsed, or this one is already. Gives what is there then.
local asked = cmsgpack.unpack(ARGV[1])
local id, plan, lease, force, reason = unpack(asked, 1, 5)
even_if_full()
deployment.lapse()
local found = redis.call('HMGET', root .. ':deployment', 'id', 'state')
if deployment.under_way(found[2]) and (found[1] == id or not force) then return deployment.last() end
redis.call('DEL', root .. ':holds', root .. ':deployment')
for at = 6, #asked do redis.call('HSET', root .. ':holds', asked[at], noted(reason)) end
redis.call('HSET', root .. ':deployment', 'id', id, 'plan', plan, 'state', 'waiting', 'epoch',
           redis.call('INCR', root .. ':epoch'), 'since', exact(now), 'until', exact(now + lease))
tell('c')
return deployment.last()

-- name: renew
-- {id, lease}: it waits longer. Gives what is there.
local id, lease = unpack(cmsgpack.unpack(ARGV[1]))
local found = redis.call('HMGET', root .. ':deployment', 'id', 'state')
if found[1] == id and found[2] == 'waiting' then
  even_if_full()
  redis.call('HSET', root .. ':deployment', 'until', exact(now + lease))
end
return deployment.last()

-- name: go
-- {id}: it lapses no more. Whether it is so.
local id = unpack(cmsgpack.unpack(ARGV[1]))
local found = redis.call('HMGET', root .. ':deployment', 'id', 'state')
if found[1] ~= id then return 0 end
if found[2] == 'waiting' then
  even_if_full()
  redis.call('HDEL', root .. ':deployment', 'until')
  redis.call('HSET', root .. ':deployment', 'state', 'go', 'went', exact(now))
  return 1
end
return found[2] == 'go' and 1 or 0

-- name: end
-- {id, state, outcome}: ends it and lifts its pauses. Gives it, or {} when it was not under way.
return deployment.stop(unpack(cmsgpack.unpack(ARGV[1])))

-- name: lapse
-- Ends the one that nobody has renewed in time. Gives it, or {}.
return deployment.lapse()

-- name: runs
-- {owner}: what it holds, and for how many seconds: {id, task, queue, seconds, id ...}.
local owner = unpack(cmsgpack.unpack(ARGV[1]))
local answer = {}
for _, id in ipairs(redis.call('HKEYS', root .. ':held:' .. owner)) do
  local job = read(id, 'task', 'queue', 'claimed')
  if job and job[1] == 'running' then
    for at, field in ipairs({id, job[2] or '', job[3] or '', exact(now - number(job[4], 0))}) do
      answer[#answer + 1] = field
    end
  end
end
return answer

-- name: waiting
-- {from}: of a portion of the live jobs, how many of each queue and task do not run: {where to go on or 0,
-- {queue, task, count} ...}.
local from = unpack(cmsgpack.unpack(ARGV[1]))
local counts = {}
local found = redis.call('ZRANGE', root .. ':live', from, from + PORTION - 1)
for _, id in ipairs(found) do
  local job = read(id, 'task', 'queue')
  if job and job[1] ~= 'running' and not FINAL[job[1]] then
    local task, queue = job[2] or '', job[3] or ''
    local name = #queue .. ':' .. queue .. task
    counts[name] = counts[name] or {queue, task, 0}
    counts[name][3] = counts[name][3] + 1
  end
end
local answer = {#found == PORTION and from + PORTION or 0}
for _, row in pairs(counts) do answer[#answer + 1] = row end
return answer

-- name: run_times
-- {index, from, since, longer, but, worst}: of a portion of those finished since then, how long runs took: {where to go
-- on or 0, task, {runs, long, {step, count, ...}, {took, id, ...}}, task ...}. A step is a fiftieth more
-- than the one before it, so that runs can be put in order without being told one by one.
local index, from, since, longer, but, worst = unpack(cmsgpack.unpack(ARGV[1]))
local left_out, tasks = {}, {}
for _, task in ipairs(but) do left_out[task] = true end
local function count(task, took, id)
  local seen = tasks[task]
  if not seen then
    seen = {runs = 0, long = 0, steps = {}, worst = {}}
    tasks[task] = seen
  end
  local step = math.ceil(math.log(math.max(took, 0.000001)) / math.log(1.02))
  seen.runs = seen.runs + 1
  seen.steps[step] = (seen.steps[step] or 0) + 1
  if took > longer then
    seen.long = seen.long + 1
    seen.worst[#seen.worst + 1] = {took, id}
    if #seen.worst > 20 * worst then deployment.keep(seen.worst, worst) end
  end
end
local key = root .. ':' .. index
local found = redis.call('ZRANGEBYSCORE', key, exact(since), '+inf', 'LIMIT', from, PORTION)
for _, id in ipairs(found) do
  local job = read(id, 'task', 'attempts')
  if job and job[3] and not left_out[job[2] or ''] then
    for line in string.gmatch(job[3], '[^\n]+') do
      local well, attempt = pcall(cjson.decode, line)
      if well and type(attempt) == 'table' and attempt.ended ~= 'lost'
         and type(attempt.started) == 'number' and type(attempt.finished) == 'number' then
        count(job[2], attempt.finished - attempt.started, id)
      end
    end
  end
end
local answer = {#found == PORTION and from + PORTION or 0}
for task, seen in pairs(tasks) do
  deployment.keep(seen.worst, worst)
  local steps, longest = {}, {}
  for step, many in pairs(seen.steps) do
    steps[#steps + 1] = step
    steps[#steps + 1] = many
  end
  for _, one in ipairs(seen.worst) do
    longest[#longest + 1] = exact(one[1])
    longest[#longest + 1] = one[2]
  end
  answer[#answer + 1] = task
  answer[#answer + 1] = {seen.runs, seen.long, steps, longest}
end
return answer
