-- The coordination store. Keys: see keys.lua; writes what entries.lua writes; for envelopes all that a publish
-- writes.
-- Guarantees: a commit happens as a whole or not at all; the entries and the revision of a page are of the same
-- moment; values are stored byte for byte.

-- name: read
-- {section, from, to, limit}: returns the entries in a range of keys: {revision of the section, now, whether there
-- are more, {key, value, revision, seconds until it lapses or nil} ...}; {} if there were so many lapsed entries that
-- the call is to be repeated.
local section, from, to, limit = unpack(cmsgpack.unpack(ARGV[1]))
if sweep_section(section, PORTION) == PORTION then return {} end
local keys = redis.call('ZRANGEBYLEX', root .. ':entries', from, to, 'LIMIT', 0, limit + 1)
local has_leases = redis.call('EXISTS', entry_leases_key(section)) == 1
local answer = {to_number(redis.call('HGET', root .. ':section_revisions', section), 0), format_number(now),
                #keys > limit and 1 or 0}
for at = 1, math.min(#keys, limit) do
  local key = keys[at]
  local lapse = has_leases and redis.call('ZSCORE', entry_leases_key(section), key)
  answer[#answer + 1] = {key, redis.call('HGET', root .. ':entry_values', key) or '', entry_revision(key),
                         lapse and format_number(tonumber(lapse) - now)}
end
return answer

-- name: commit
-- {checks, puts, deletes, rows}: checks {key, revision, key ...}, puts {key, value, seconds or false, key ...}, deletes
-- {key ...}, rows of envelopes as for publish. Returns the revision of the commit; nil if a check does not hold.
local checks, puts, deletes, rows = unpack(cmsgpack.unpack(ARGV[1]))
for at = 1, #checks, 2 do
  if entry_revision(checks[at]) ~= checks[at + 1] then return false end
end
if #rows == 0 then allow_when_full() end  -- operators can pause and resume, but not publish
local revision, sections = next_revision(), {}
for at = 1, #puts, 3 do
  write_entry(puts[at], puts[at + 1], puts[at + 2], revision)
  sections[section_of(puts[at])] = true
end
for _, key in ipairs(deletes) do
  remove_entry(key)
  sections[section_of(key)] = true
end
for section in pairs(sections) do change_section(section, revision) end
insert_all(rows)
write_pending()
return revision

-- name: renew
-- {seconds, key, revision, key ...}: lets the leases of these entries lapse so many seconds from now. Returns the
-- indexes, counted from 0, of the entries that are lost.
local held, lost = cmsgpack.unpack(ARGV[1]), {}
allow_when_full()
for at = 2, #held, 2 do
  local key = held[at]
  local leases = entry_leases_key(section_of(key))
  if entry_revision(key) ~= held[at + 1] then
    lost[#lost + 1] = (at - 2) / 2
  else
    local lapse = tonumber(redis.call('ZSCORE', leases, key) or nil)
    if lapse then redis.call('ZADD', leases, now + held[1], key) end
    if lapse and now + held[1] < lapse then notify_section(section_of(key)) end  -- they wait for its lapse
  end
end
return lost

-- name: watch
-- {section, section ...}: removes a portion of the lapsed entries of each section. Returns {seconds until the next
-- lease in these sections lapses or nil, revision, revision ...}.
local sections, first = cmsgpack.unpack(ARGV[1]), nil
local answer = {false}
for _, section in ipairs(sections) do
  sweep_section(section, PORTION)
  local lapse = redis.call('ZRANGE', entry_leases_key(section), 0, 0, 'WITHSCORES')[2]
  if lapse then first = math.min(first or math.huge, tonumber(lapse)) end
  answer[#answer + 1] = to_number(redis.call('HGET', root .. ':section_revisions', section), 0)
end
if first then answer[1] = format_number(first - now) end
return answer

-- name: sweep
-- {limit}: removes lapsed entries of all sections, at most a portion. Returns how many.
local limit, removed = math.min(cmsgpack.unpack(ARGV[1])[1], PORTION), 0
for _, section in ipairs(redis.call('SMEMBERS', root .. ':leased_sections')) do
  if removed < limit then removed = removed + sweep_section(section, limit - removed) end
end
return removed
