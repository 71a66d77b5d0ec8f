-- Deployments. Keys: see keys.lua; writes deployment, deployment_pauses, epoch; reads leases, job, live, done,
-- buried.
-- Guarantees: a deployment and its pauses begin and end in one step, and the epoch grows with both; the pauses of
-- operators are not changed. Times are the server's.

-- name: last
-- Returns the current or last deployment: {plan, state, epoch, since, until, went, ended, outcome, now}, or {}.
return deployment.last()

-- name: begin
-- {id, plan, lease, force, reason, name, name ...}: begins a deployment and pauses these names, unless another
-- deployment is active and has not lapsed, or this one is active already. Returns the current deployment.
local asked = cmsgpack.unpack(ARGV[1])
local id, plan, lease, force, reason = unpack(asked, 1, 5)
allow_when_full()
deployment.lapse()
local found = redis.call('HMGET', root .. ':deployment', 'id', 'state')
if deployment.is_active(found[2]) and (found[1] == id or not force) then return deployment.last() end
redis.call('DEL', root .. ':deployment_pauses', root .. ':deployment')
for at = 6, #asked do redis.call('HSET', root .. ':deployment_pauses', asked[at], encode_pause(reason)) end
redis.call('HSET', root .. ':deployment', 'id', id, 'plan', plan, 'state', 'waiting', 'epoch',
           redis.call('INCR', root .. ':epoch'), 'since', format_number(now), 'until', format_number(now + lease))
notify('c')
return deployment.last()

-- name: renew
-- {id, lease}: extends the lease of a waiting deployment. Returns the current deployment.
local id, lease = unpack(cmsgpack.unpack(ARGV[1]))
local found = redis.call('HMGET', root .. ':deployment', 'id', 'state')
if found[1] == id and found[2] == 'waiting' then
  allow_when_full()
  redis.call('HSET', root .. ':deployment', 'until', format_number(now + lease))
end
return deployment.last()

-- name: go
-- {id}: the deployment proceeds and no longer lapses. Returns whether it is in that state.
local id = unpack(cmsgpack.unpack(ARGV[1]))
local found = redis.call('HMGET', root .. ':deployment', 'id', 'state')
if found[1] ~= id then return 0 end
if found[2] == 'waiting' then
  allow_when_full()
  redis.call('HDEL', root .. ':deployment', 'until')
  redis.call('HSET', root .. ':deployment', 'state', 'go', 'went', format_number(now))
  return 1
end
return found[2] == 'go' and 1 or 0

-- name: end
-- {id, state, outcome}: ends the deployment and its pauses. Returns it, or {} if it was not active.
return deployment.stop(unpack(cmsgpack.unpack(ARGV[1])))

-- name: end_lapsed
-- Ends a deployment that was not renewed in time. Returns it, or {}.
return deployment.lapse()

-- name: runs
-- {owner}: returns its running jobs: {id, task, queue, seconds, id ...}.
local owner = unpack(cmsgpack.unpack(ARGV[1]))
local answer = {}
for _, id in ipairs(redis.call('HKEYS', root .. ':leases:' .. owner)) do
  local job = read_job(id, 'task', 'queue', 'claimed')
  if job and job[1] == 'running' then
    for at, field in ipairs({id, job[2] or '', job[3] or '', format_number(now - to_number(job[4], 0))}) do
      answer[#answer + 1] = field
    end
  end
end
return answer

-- name: count_waiting
-- {from}: counts, in a portion of the live jobs, those that do not run by queue and task. Returns {where to continue or
-- 0, {queue, task, count} ...}.
local from = unpack(cmsgpack.unpack(ARGV[1]))
local counts = {}
local found = redis.call('ZRANGE', root .. ':live', from, from + PORTION - 1)
for _, id in ipairs(found) do
  local job = read_job(id, 'task', 'queue')
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
-- {index, from, since, longer, excluded, worst}: returns how long runs took, for a portion of the jobs finished since
-- then: {where to continue or 0, task, {runs, long, {step, count, ...}, {seconds, id, ...}}, task ...}. Each step is
-- 2% longer than the step before, so that percentiles can be computed without returning every run.
local index, from, since, longer, excluded, worst = unpack(cmsgpack.unpack(ARGV[1]))
local excluded_set, tasks = {}, {}
for _, task in ipairs(excluded) do excluded_set[task] = true end
local function count(task, seconds, id)
  local seen = tasks[task]
  if not seen then
    seen = {runs = 0, long = 0, steps = {}, worst = {}}
    tasks[task] = seen
  end
  local step = math.ceil(math.log(math.max(seconds, 0.000001)) / math.log(1.02))
  seen.runs = seen.runs + 1
  seen.steps[step] = (seen.steps[step] or 0) + 1
  if seconds > longer then
    seen.long = seen.long + 1
    seen.worst[#seen.worst + 1] = {seconds, id}
    if #seen.worst > 20 * worst then deployment.keep_longest(seen.worst, worst) end
  end
end
local key = root .. ':' .. index
local found = redis.call('ZRANGEBYSCORE', key, format_number(since), '+inf', 'LIMIT', from, PORTION)
for _, id in ipairs(found) do
  local job = read_job(id, 'task', 'attempts')
  if job and job[3] and not excluded_set[job[2] or ''] then
    for line in string.gmatch(job[3], '[^\n]+') do
      local ok, attempt = pcall(cjson.decode, line)
      if ok and type(attempt) == 'table' and attempt.ended ~= 'lost'
         and type(attempt.started) == 'number' and type(attempt.finished) == 'number' then
        count(job[2], attempt.finished - attempt.started, id)
      end
    end
  end
end
local answer = {#found == PORTION and from + PORTION or 0}
for task, seen in pairs(tasks) do
  deployment.keep_longest(seen.worst, worst)
  local steps, longest = {}, {}
  for step, count in pairs(seen.steps) do
    steps[#steps + 1] = step
    steps[#steps + 1] = count
  end
  for _, one in ipairs(seen.worst) do
    longest[#longest + 1] = format_number(one[1])
    longest[#longest + 1] = one[2]
  end
  answer[#answer + 1] = task
  answer[#answer + 1] = {seen.runs, seen.long, steps, longest}
end
return answer
