-- name: insert_jobs
-- Adds each job once: an id that lives or has finished, or a unique key in use, adds nothing. The
-- state of those that are not scheduled and have no gate to pass is given: queued, or sent.
-- Answers how many were added and the places in the batch of those that were not. The "offset 0"
-- keeps the look into the history a look: a join might read all of it.
with sent as (
  select * from rows from (
    unnest(%(id)s::uuid[], %(namespace)s::text[], %(queue)s::text[], %(kind)s::text[],
           %(task)s::text[], %(type)s::text[], %(priority)s::smallint[], %(content_type)s::text[],
           %(body)s::bytea[], %(created)s::float8[], %(not_before)s::float8[], %(expires)s::float8[],
           %(delay)s::float8[], %(expires_in)s::float8[],
           %(attempt)s::integer[], %(max_deaths)s::integer[], %(unique_key)s::text[],
           %(traceparent)s::text[], %(gates)s::text[]),
    jsonb_array_elements(%(headers)s::jsonb)
  ) with ordinality as s (id, namespace, queue, kind, task, type, priority, content_type, body,
                          created, not_before, expires, delay, expires_in, attempt, max_deaths, unique_key,
                          traceparent, gates, headers, place)
),
added as (
  insert into $schema.job (id, namespace, queue, kind, task, type, state, priority, content_type,
                           body, created, not_before, expires, attempt, max_deaths, unique_key,
                           traceparent, headers, gates, line)
  select id, namespace, queue, kind, task, type,
         case when $schema.moment(not_before, delay) > statement_timestamp() then 'scheduled'
              when gates is not null then 'waiting' else %(idle)s end,
         priority, content_type, body,
         coalesce(to_timestamp(nullif(created, 0)), statement_timestamp()),
         $schema.moment(not_before, delay), $schema.moment(expires, expires_in), attempt, max_deaths, unique_key,
         traceparent, headers, gates::jsonb,
         case when $schema.moment(not_before, delay) > statement_timestamp() then null
              else gates::jsonb ->> 0 end
  from sent where not exists (select 1 from $schema.record r
                              where r.id = sent.id and r.namespace = sent.namespace offset 0)
  order by place
  on conflict do nothing
  returning id, namespace, queue, state
)
select (select count(*) from added),
       (select array_agg(place) from sent
        where (id, namespace) not in (select id, namespace from added)),
       (select count(pg_notify('$channel', hint))
        from (select distinct case state when 'scheduled' then 's:' || namespace
                                         else 'r:' || namespace || ':' || queue end as hint
              from added where state <> 'sent') h)

-- name: insert_job
-- The same for a lone job: half the work. One row when it was added.
insert into $schema.job (id, namespace, queue, kind, task, type, state, priority, content_type,
                         body, created, not_before, expires, attempt, max_deaths, unique_key,
                         traceparent, headers, gates, line)
select %(id)s::uuid, %(namespace)s, %(queue)s, %(kind)s, %(task)s, %(type)s,
       case when $schema.moment(%(not_before)s, %(delay)s) > statement_timestamp() then 'scheduled'
            when %(gates)s::jsonb is not null then 'waiting' else %(idle)s end,
       %(priority)s::smallint, %(content_type)s, %(body)s,
       coalesce(to_timestamp(nullif(%(created)s::float8, 0)), statement_timestamp()),
       $schema.moment(%(not_before)s, %(delay)s), $schema.moment(%(expires)s, %(expires_in)s),
       %(attempt)s::integer, %(max_deaths)s::integer, %(unique_key)s::text,
       %(traceparent)s::text, %(headers)s::jsonb, %(gates)s::jsonb,
       case when $schema.moment(%(not_before)s, %(delay)s) > statement_timestamp() then null
            else %(gates)s::jsonb ->> 0 end
where not exists (select 1 from $schema.record
                  where id = %(id)s::uuid and namespace = %(namespace)s)
on conflict do nothing
returning case when state <> 'sent' then pg_notify('$channel',
            case state when 'scheduled' then 's:' || %(namespace)s
                       else 'r:' || %(namespace)s || ':' || %(queue)s end) end

-- name: insert_plain
-- The same for a job that nothing special was said of: each parameter is paid for on both sides.
insert into $schema.job (id, namespace, queue, kind, task, state, body, created, traceparent)
select %(id)s::uuid, %(namespace)s, %(queue)s, %(kind)s, %(task)s, %(idle)s, %(body)s,
       coalesce(to_timestamp(nullif(%(created)s::float8, 0)), statement_timestamp()),
       %(traceparent)s::text
where not exists (select 1 from $schema.record
                  where id = %(id)s::uuid and namespace = %(namespace)s)
on conflict do nothing
returning case when %(idle)s <> 'sent'
               then pg_notify('$channel', 'r:' || %(namespace)s || ':' || %(queue)s) end

-- name: insert_alike
-- The same for jobs that differ in id, body, time and trace alone and have no unique key: much
-- cheaper. Bodies come in one piece. An id that lives already fails it, and then nothing was added.
with sent as (
  select id, substr(%(body)s::bytea, start, size) as body, created, traceparent, place
  from unnest(%(id)s::uuid[], %(start)s::integer[], %(size)s::integer[], %(created)s::float8[],
              %(traceparent)s::text[])
       with ordinality as s (id, start, size, created, traceparent, place)
),
added as (
  insert into $schema.job (id, namespace, queue, kind, task, type, state, priority, content_type,
                           body, created, not_before, expires, attempt, max_deaths, traceparent,
                           headers, gates, line)
  select id, %(namespace)s, %(queue)s, %(kind)s, %(task)s, %(type)s,
         case when $schema.moment(%(not_before)s, %(delay)s) > statement_timestamp() then 'scheduled'
              when %(gates)s::jsonb is not null then 'waiting' else %(idle)s end,
         %(priority)s::smallint, %(content_type)s, body,
         coalesce(to_timestamp(nullif(created, 0)), statement_timestamp()),
         $schema.moment(%(not_before)s, %(delay)s), $schema.moment(%(expires)s, %(expires_in)s),
         %(attempt)s::integer, %(max_deaths)s::integer, traceparent, %(headers)s::jsonb,
         %(gates)s::jsonb,
         case when $schema.moment(%(not_before)s, %(delay)s) > statement_timestamp() then null
              else %(gates)s::jsonb ->> 0 end
  from sent where not exists (select 1 from $schema.record r
                              where r.id = sent.id and r.namespace = %(namespace)s offset 0)
  returning id, state
)
select count(*),
       case when count(*) < cardinality(%(id)s::uuid[])
            then (select array_agg(place) from sent where id not in (select id from added)) end,
       (select count(pg_notify('$channel', case state when 'scheduled' then 's:' || %(namespace)s
                                           else 'r:' || %(namespace)s || ':' || %(queue)s end))
        from (select state from added where state <> 'sent' limit 1) one)
from added

-- name: known_ids
-- Which of these ids live or have finished, each in its namespace.
with asked as (select * from unnest(%(id)s::uuid[], %(namespace)s::text[]) as a (id, namespace))
select a.namespace, a.id::text from asked a
where exists (select 1 from $schema.job j where j.id = a.id and j.namespace = a.namespace)
   or exists (select 1 from $schema.record r where r.id = a.id and r.namespace = a.namespace)

-- name: unique_holders
-- The live jobs that hold these unique keys.
select namespace, unique_key, id::text, state from $schema.job
where (namespace, unique_key) in (select * from unnest(%(namespace)s::text[], %(unique_key)s::text[]))

-- name: promote
-- Scheduled jobs whose time has come are queued, or wait at their first gate; at most a thousand a
-- call.
-- Answers their queues, and seconds until the next one is due.
with due as (
  select id from $schema.job
  where namespace = %(namespace)s and state = 'scheduled' and not_before <= statement_timestamp()
  order by not_before limit 1000 for update skip locked
),
promoted as (
  update $schema.job j
  set state = case when j.gates ->> 0 is null then 'queued' else 'waiting' end,
      line = j.gates ->> 0
  from due where j.id = due.id and j.namespace = %(namespace)s returning j.queue
),
ready as (select queue, count(*) as jobs from promoted group by queue)
select (select array_agg(queue) from ready),
       case when (select sum(jobs) from ready) >= 1000 then 0 else
         (select date_part('epoch', min(not_before) - statement_timestamp()) from $schema.job
          where namespace = %(namespace)s and state = 'scheduled'
            and not_before > statement_timestamp() and isfinite(not_before)) end,
       (select count(pg_notify('$channel', 'r:' || %(namespace)s || ':' || queue)) from ready)

-- name: claim
-- Takes the first jobs of a queue's two lanes, highest priority first, then oldest, but for those of
-- some tasks; raises their fence. Locks no row that it does not take. One row without a job when there
-- is nothing, no row when the owner is not enlisted. The last columns: the number of the last knock at
-- a gate; whether there are jobs of unknown kind: then nothing was taken, and it is for claim_mixed
-- to tell whose turn it is; in how many seconds somebody may pass a gate into this queue, null when
-- nobody waits at one. Is that now, and not granted yet, then nothing was taken either: their turn
-- may be first. What has passed with this owner's grant just before takes room, and is on the disk
-- when this is: something is written for that.
with allowed as materialized (
  select name, array(select p.name from $schema.pause p
                     where p.namespace = %(namespace)s and p.scope = 'task')
               || %(without)s::text[] as paused,
         exists (select 1 from $schema.job
                 where namespace = %(namespace)s and queue = %(queue)s and kind = ''
                   and state = 'queued') as mixed,
         case when exists (select 1 from $schema.knock where namespace = %(namespace)s)
              then '-Infinity'::float8
              else (select coalesce(date_part('epoch', l.look), 'Infinity')
                           - date_part('epoch', statement_timestamp())
                    from $schema.line l
                    where l.namespace = %(namespace)s and l.queue = %(queue)s
                      and case l.kind when 'io' then %(io_room)s when 'cpu' then %(cpu_room)s
                                      else least(%(io_room)s, %(cpu_room)s) end > 0
                      and not exists (select 1 from $schema.pause p
                                      where p.namespace = %(namespace)s and p.scope = 'gate'
                                        and p.name = l.key)
                    order by l.look limit 1) end as look
  from $schema.worker where incarnation = %(owner)s
    and not exists (select 1 from $schema.pause p
                    where p.namespace = %(namespace)s
                      and (p.scope = 'all' or (p.scope = 'queue' and p.name = %(queue)s)))
),
io as materialized (
  select id from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = 'io' and state = 'queued'
    and exists (select 1 from allowed
                where not mixed and (%(granted)s::boolean or coalesce(look, 1) > 0))
    and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit %(io)s for update skip locked
),
cpu as materialized (
  select id from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = 'cpu' and state = 'queued'
    and exists (select 1 from allowed
                where not mixed and (%(granted)s::boolean or coalesce(look, 1) > 0))
    and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit %(cpu)s for update skip locked
),
-- Materialized: a flattened union loses rows that changed while their lock was waited for.
picked as materialized (select id from io union all select id from cpu),
claimed as (
  update $schema.job j
  set state = 'running', owner = %(owner)s, worker = (select name from allowed),
      fence = least(j.fence, 9223372036854775806) + 1, claimed = statement_timestamp()
  from picked where j.id = picked.id and j.namespace = %(namespace)s
  returning j.seq, j.id::text, j.kind, j.task, j.priority, j.content_type, j.body, j.type,
            date_part('epoch', j.created), date_part('epoch', j.not_before),
            date_part('epoch', j.expires), j.attempt, j.max_deaths, j.unique_key, j.traceparent,
            j.headers::text, j.deaths, j.sections::text, j.fence, date_part('epoch', j.claimed),
            j.gates::text, j.slots::text
)
select claimed.*, (select setval('$schema.written', 1) where %(passed)s),
       (select pg_sequence_last_value('$schema.knock_seq_seq')),
       coalesce((select mixed from allowed), false), (select look from allowed)
from $schema.worker left join claimed on true where incarnation = %(owner)s

-- name: claim_onwards
-- The same from where the last look ended: in each lane after a sequence number of one priority,
-- and whatever has another. While the server cannot remove dead entries, because of a transaction
-- somewhere that has been open for long, a look from the start steps over all of them. So would one
-- for knocks at gates: those are looked for that came after the last look from the start, or so
-- shortly before that it may not have seen them.
with allowed as materialized (
  select name, array(select p.name from $schema.pause p
                     where p.namespace = %(namespace)s and p.scope = 'task')
               || %(without)s::text[] as paused,
         exists (select 1 from $schema.job
                 where namespace = %(namespace)s and queue = %(queue)s and kind = ''
                   and state = 'queued') as mixed,
         case when exists (select 1 from $schema.knock
                           where namespace = %(namespace)s and seq > %(knock)s::bigint - 1000)
              then '-Infinity'::float8
              else (select coalesce(date_part('epoch', l.look), 'Infinity')
                           - date_part('epoch', statement_timestamp())
                    from $schema.line l
                    where l.namespace = %(namespace)s and l.queue = %(queue)s
                      and case l.kind when 'io' then %(io_room)s when 'cpu' then %(cpu_room)s
                                      else least(%(io_room)s, %(cpu_room)s) end > 0
                      and not exists (select 1 from $schema.pause p
                                      where p.namespace = %(namespace)s and p.scope = 'gate'
                                        and p.name = l.key)
                    order by l.look limit 1) end as look
  from $schema.worker where incarnation = %(owner)s
    and not exists (select 1 from $schema.pause p
                    where p.namespace = %(namespace)s
                      and (p.scope = 'all' or (p.scope = 'queue' and p.name = %(queue)s)))
),
io_above as materialized (
  select id from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = 'io' and state = 'queued'
    and priority > %(io_priority)s::integer
    and exists (select 1 from allowed
                where not mixed and (%(granted)s::boolean or coalesce(look, 1) > 0))
    and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit %(io)s for update skip locked
),
io_level as materialized (
  select id from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = 'io' and state = 'queued'
    and priority = %(io_priority)s::integer and seq > %(io_seq)s::bigint
    and exists (select 1 from allowed
                where not mixed and (%(granted)s::boolean or coalesce(look, 1) > 0))
    and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit %(io)s - (select count(*) from io_above) for update skip locked
),
io_below as materialized (
  select id from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = 'io' and state = 'queued'
    and priority < %(io_priority)s::integer
    and exists (select 1 from allowed
                where not mixed and (%(granted)s::boolean or coalesce(look, 1) > 0))
    and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit %(io)s - (select count(*) from io_above)
    - (select count(*) from io_level) for update skip locked
),
cpu_above as materialized (
  select id from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = 'cpu' and state = 'queued'
    and priority > %(cpu_priority)s::integer
    and exists (select 1 from allowed
                where not mixed and (%(granted)s::boolean or coalesce(look, 1) > 0))
    and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit %(cpu)s for update skip locked
),
cpu_level as materialized (
  select id from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = 'cpu' and state = 'queued'
    and priority = %(cpu_priority)s::integer and seq > %(cpu_seq)s::bigint
    and exists (select 1 from allowed
                where not mixed and (%(granted)s::boolean or coalesce(look, 1) > 0))
    and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit %(cpu)s - (select count(*) from cpu_above) for update skip locked
),
cpu_below as materialized (
  select id from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = 'cpu' and state = 'queued'
    and priority < %(cpu_priority)s::integer
    and exists (select 1 from allowed
                where not mixed and (%(granted)s::boolean or coalesce(look, 1) > 0))
    and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit %(cpu)s - (select count(*) from cpu_above)
    - (select count(*) from cpu_level) for update skip locked
),
-- Materialized: a flattened union loses rows that changed while their lock was waited for.
picked as materialized (
  select id from io_above union all select id from io_level union all select id from io_below
  union all
  select id from cpu_above union all select id from cpu_level union all select id from cpu_below
),
claimed as (
  update $schema.job j
  set state = 'running', owner = %(owner)s, worker = (select name from allowed),
      fence = least(j.fence, 9223372036854775806) + 1, claimed = statement_timestamp()
  from picked where j.id = picked.id and j.namespace = %(namespace)s
  returning j.seq, j.id::text, j.kind, j.task, j.priority, j.content_type, j.body, j.type,
            date_part('epoch', j.created), date_part('epoch', j.not_before),
            date_part('epoch', j.expires), j.attempt, j.max_deaths, j.unique_key, j.traceparent,
            j.headers::text, j.deaths, j.sections::text, j.fence, date_part('epoch', j.claimed),
            j.gates::text, j.slots::text
)
select claimed.*, (select setval('$schema.written', 1) where %(passed)s),
       (select pg_sequence_last_value('$schema.knock_seq_seq')),
       coalesce((select mixed from allowed), false), (select look from allowed)
from $schema.worker left join claimed on true where incarnation = %(owner)s

-- name: claim_mixed
-- The same where there are jobs of unknown kind: such a one takes room of both kinds, when it is
-- its turn in both. The last but one column says whether some of them had to stand back.
with allowed as materialized (
  select name, array(select p.name from $schema.pause p
                     where p.namespace = %(namespace)s and p.scope = 'task')
               || %(without)s::text[] as paused
  from $schema.worker where incarnation = %(owner)s
    and not exists (select 1 from $schema.pause p
                    where p.namespace = %(namespace)s
                      and (p.scope = 'all' or (p.scope = 'queue' and p.name = %(queue)s)))
),
first_either as materialized (
  select kind, priority, seq from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = '' and state = 'queued'
    and exists (select 1 from allowed) and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit least(%(io)s, %(cpu)s)
),
first_io as (
  select kind, priority, seq from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = 'io' and state = 'queued'
    and exists (select 1 from first_either) and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit %(io)s
),
first_cpu as (
  select kind, priority, seq from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = 'cpu' and state = 'queued'
    and exists (select 1 from first_either) and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit %(cpu)s
),
turn as (
  select kind, count(*) filter (where kind <> 'cpu') over before as io,
         count(*) filter (where kind <> 'io') over before as cpu
  from (select * from first_either union all select * from first_io
        union all select * from first_cpu) f
  window before as (order by priority desc, seq)
),
fitting as materialized (
  select count(*) as jobs from turn where kind = '' and io <= %(io)s and cpu <= %(cpu)s
),
either as materialized (
  select id from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = '' and state = 'queued'
    and exists (select 1 from allowed) and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit (select jobs from fitting) for update skip locked
),
io as materialized (
  select id from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = 'io' and state = 'queued'
    and exists (select 1 from allowed) and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit %(io)s - (select count(*) from either)
  for update skip locked
),
cpu as materialized (
  select id from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = 'cpu' and state = 'queued'
    and exists (select 1 from allowed) and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit %(cpu)s - (select count(*) from either)
  for update skip locked
),
picked as materialized (
  select id from either union all select id from io union all select id from cpu
),
claimed as (
  update $schema.job j
  set state = 'running', owner = %(owner)s, worker = (select name from allowed),
      fence = least(j.fence, 9223372036854775806) + 1, claimed = statement_timestamp()
  from picked where j.id = picked.id and j.namespace = %(namespace)s
  returning j.seq, j.id::text, j.kind, j.task, j.priority, j.content_type, j.body, j.type,
            date_part('epoch', j.created), date_part('epoch', j.not_before),
            date_part('epoch', j.expires), j.attempt, j.max_deaths, j.unique_key, j.traceparent,
            j.headers::text, j.deaths, j.sections::text, j.fence, date_part('epoch', j.claimed),
            j.gates::text, j.slots::text
)
select claimed.*, null::bigint, (select count(*) from first_either) > (select jobs from fitting),
       null::float8
from $schema.worker left join claimed on true where incarnation = %(owner)s

-- name: sort
-- Queued jobs whose sender did not know the task's kind get it from somebody who does. Those that
-- were sent are to be sent again, to where that kind is waited for. One that is being sent, or taken
-- back, in this very moment is still one of them.
with known as (select * from unnest(%(task)s::text[], %(kind)s::text[]) as k (task, kind)),
unsorted as materialized (
  select id from $schema.job j
  where j.namespace = %(namespace)s and j.queue = any(%(queue)s::text[]) and j.kind = ''
    and j.state = 'queued' and j.task in (select task from known)
  union all
  select id from $schema.job j
  where j.namespace = %(namespace)s and j.queue = any(%(queue)s::text[]) and j.kind = ''
    and j.state = 'sent' and j.task in (select task from known)
  union all
  select id from $schema.job j
  where j.namespace = %(namespace)s and j.queue = any(%(queue)s::text[]) and j.kind = ''
    and j.state = 'waiting' and j.task in (select task from known)
),
sorted as (
  update $schema.job j
  set kind = k.kind, state = case j.state when 'sent' then 'queued' else j.state end
  from known k
  where j.id in (select id from unsorted) and j.namespace = %(namespace)s and j.task = k.task
    and j.kind = ''
    and j.state in ('queued', 'sent', 'waiting')
  returning j.queue
)
select (select count(*) from sorted),
       (select count(pg_notify('$channel', 'r:' || %(namespace)s || ':' || queue))
        from (select distinct queue from sorted) s)

-- A lease is named by id, owner and fence. That is enough: an owner is a worker of one namespace.

-- name: extend
-- Gives back what an owner holds but does not know of; no attempt, no death. Answers the places
-- of what it believes to hold and does not.
with held as (
  select * from unnest(%(id)s::uuid[], %(fence)s::bigint[]) with ordinality as h (id, fence, place)
),
mine as materialized (
  select id, fence, claimed from $schema.job where owner = %(owner)s and state = 'running'
),
unknown as materialized (
  select id, fence from mine m
  where claimed < statement_timestamp() - make_interval(secs => %(older_than)s)
    and not exists (select 1 from held h where h.id = m.id and h.fence = m.fence)
),
back as (
  update $schema.job j
  set state = case when j.gates ->> 0 is null then 'queued' else 'waiting' end,
      queue = coalesce(j.slots -> -1 ->> 'home', j.queue),
      line = j.gates ->> 0, slots = null,
      owner = null, worker = null, progress_done = null, progress_of = null
  from unknown u
  where j.id = u.id and j.fence = u.fence and j.owner = %(owner)s
  returning j.namespace, j.queue
)
select (select array_agg(place) from held h
        where not exists (select 1 from mine m where m.id = h.id and m.fence = h.fence)),
       (select count(pg_notify('$channel', 'r:' || namespace || ':' || queue))
        from (select distinct namespace, queue from back) b)

-- name: finish
-- Jobs under these very leases become records; anything else is left alone. Answers the places
-- of the leases that are not held.
with sent as (
  select * from rows from (
    unnest(%(id)s::uuid[], %(owner)s::text[], %(fence)s::bigint[], %(state)s::text[],
           %(result_type)s::text[], %(result)s::bytea[], %(reason)s::text[], %(keep)s::boolean[]),
    jsonb_array_elements(%(story)s::jsonb), jsonb_array_elements(%(failure)s::jsonb)
  ) with ordinality as s (id, owner, fence, final, result_type, result, reason, keep, story,
                          failure, place)
),
gone as (
  delete from $schema.job j using sent s
  where j.id = s.id and j.owner = s.owner and j.fence = s.fence
  returning j.*, s.final, s.result_type, s.result, s.reason, s.keep, s.story, s.failure
),
kept as (
  insert into $schema.record (id, namespace, queue, kind, task, type, state, priority, content_type,
                              body, created, not_before, expires, attempt, deaths, max_deaths,
                              unique_key, traceparent, headers, worker, fence, claimed, attempts, progress_done,
                              progress_of, finished, result_type, result, failure, reason)
  select id, namespace, coalesce(slots -> -1 ->> 'home', queue), kind, task, type, final, priority, content_type, body, created,
         not_before, expires, attempt, deaths, max_deaths, unique_key, traceparent, headers, worker, fence,
         claimed,
         (case when jsonb_typeof(attempts) <> 'array' then '[]'
               when jsonb_array_length(attempts) < 100 then attempts
               else attempts - 0 end) || story,
         progress_done, progress_of, statement_timestamp(),
         result_type, result, nullif(failure, 'null'), reason
  from gone where keep
  on conflict (id, namespace) do nothing
)
select (select array_agg(place) from sent where id not in (select id from gone)),
       (select count(pg_notify('$channel', 'd:' || namespace || ':' || ids))
        from (select namespace, string_agg(id::text, ',') as ids
              from (select namespace, id, row_number() over () / 200 as chunk
                    from gone where awaited) w
              group by namespace, chunk) d)

-- name: finish_alike
-- The same for jobs of one owner that end alike and without a failure: an eighth cheaper, and most do.
with sent as (
  select * from rows from (
    unnest(%(id)s::uuid[], %(fence)s::bigint[], %(result)s::bytea[]),
    jsonb_array_elements(%(story)s::jsonb)
  ) with ordinality as s (id, fence, result, story, place)
),
gone as (
  delete from $schema.job j using sent s
  where j.id = s.id and j.owner = %(owner)s and j.fence = s.fence
  returning j.awaited, j.id, j.namespace, j.queue, j.kind, j.task, j.type, j.priority,
            j.content_type, j.body, j.created, j.not_before, j.expires, j.attempt, j.deaths,
            j.max_deaths, j.unique_key, j.traceparent, j.headers, j.worker, j.fence, j.claimed,
            j.attempts, j.progress_done, j.progress_of, j.slots, s.result, s.story
),
kept as (
  insert into $schema.record (id, namespace, queue, kind, task, type, state, priority, content_type,
                              body, created, not_before, expires, attempt, deaths, max_deaths,
                              unique_key, traceparent, headers, worker, fence, claimed, attempts,
                              progress_done, progress_of, finished, result_type, result, reason)
  select id, namespace, coalesce(slots -> -1 ->> 'home', queue), kind, task, type, %(state)s,
         priority, content_type, body, created, not_before, expires, attempt, deaths, max_deaths,
         unique_key, traceparent, headers, worker, fence, claimed,
         (case when jsonb_typeof(attempts) <> 'array' then '[]'
               when jsonb_array_length(attempts) < 100 then attempts
               else attempts - 0 end) || story,
         progress_done, progress_of, statement_timestamp(), %(result_type)s, result, %(reason)s
  from gone where %(keep)s
  on conflict (id, namespace) do nothing
)
select case when (select count(*) from gone) < cardinality(%(id)s::uuid[])
            then (select array_agg(place) from sent where id not in (select id from gone)) end,
       (select count(pg_notify('$channel', 'd:' || namespace || ':' || ids))
        from (select namespace, string_agg(id::text, ',') as ids
              from (select namespace, id, row_number() over () / 200 as chunk
                    from gone where awaited) w
              group by namespace, chunk) d)

-- name: again
-- Jobs under these very leases go back to their queues, at once or later, and to the line of their
-- first gate if they have any. Those that are given gates have not been started: their story does
-- not grow. Answers the places of the leases that are not held.
with sent as (
  select * from rows from (
    unnest(%(id)s::uuid[], %(owner)s::text[], %(fence)s::bigint[], %(delay)s::float8[],
           %(cost)s::integer[], %(section)s::text[], %(gates)s::text[]),
    jsonb_array_elements(%(story)s::jsonb)
  ) with ordinality as s (id, owner, fence, delay, cost, section, gates, story, place)
),
back as (
  update $schema.job j
  set state = case when s.delay > 0 then 'scheduled'
                   when coalesce(s.gates::jsonb, j.gates) ->> 0 is null then 'queued'
                   else 'waiting' end,
      queue = coalesce(j.slots -> -1 ->> 'home', j.queue),
      gates = nullif(coalesce(s.gates::jsonb, j.gates), '[]'),
      line = case when s.delay > 0 then null else coalesce(s.gates::jsonb, j.gates) ->> 0 end,
      slots = null,
      not_before = case when s.delay > 0
                        then statement_timestamp() + make_interval(secs => s.delay)
                        else j.not_before end,
      attempt = j.attempt + s.cost,
      sections = case when s.section is null then j.sections
                      else jsonb_set(j.sections, array[s.section], to_jsonb(
                           coalesce((j.sections ->> s.section)::integer, 0) + 1)) end,
      attempts = case when s.gates is not null then j.attempts else
                   (case when jsonb_typeof(j.attempts) <> 'array' then '[]'
                         when jsonb_array_length(j.attempts) < 100 then j.attempts
                         else j.attempts - 0 end) || s.story end,
      owner = null, worker = null, progress_done = null, progress_of = null
  from sent s
  where j.id = s.id and j.owner = s.owner and j.fence = s.fence
  returning j.id, j.namespace, j.queue, j.state
)
select (select array_agg(place) from sent where id not in (select id from back)),
       (select count(pg_notify('$channel', hint))
        from (select distinct case state when 'scheduled' then 's:' || namespace
                                         else 'r:' || namespace || ':' || queue end as hint
              from back) h)

-- name: recover
-- Running jobs whose owner is not enlisted go back to their queue with the death counted, or are
-- buried when they were to blame for one too many, or lapsed too often: umbel.resilience.judge, in SQL.
-- Locked in order, so of several that recover at once one gets all jobs of an owner. Each death is noted:
-- one that was none is taken back. Answers their ids.
with dead as materialized (
  select id, owner, fence from $schema.job j
  where namespace = %(namespace)s and state = 'running'
    and not exists (select 1 from $schema.worker w where w.incarnation = j.owner)
),
-- Compared with what was dead: a living worker may have claimed it while its lock was waited for,
-- and then PostgreSQL does not ask again whether the owner is enlisted.
orphan as materialized (
  select j.id, j.owner, deaths, lapses, deaths::bigint + lapses as seen,
         exists (select 1 from $schema.lapse l where l.incarnation = j.owner) as alive,
         (case when jsonb_typeof(attempts) <> 'array' then '[]'
               when jsonb_array_length(attempts) < 100 then attempts
               else attempts - 0 end) || jsonb_build_object(
           'number', attempt, 'worker', worker, 'started', date_part('epoch', claimed),
           'finished', date_part('epoch', statement_timestamp()), 'ended', 'lost',
           'reason', 'its worker died or lost touch') as attempts
  from dead d join $schema.job j on j.id = d.id and j.owner = d.owner and j.fence = d.fence
  order by j.owner, seq for update of j
),
judged as (
  select id, owner, least(deaths, 2147483646) + 1 as deaths, attempts, (suspected and not alive)::int as blamed,
         suspected and lapses >= %(max_lapses)s::integer as lapsed, delay
  from (
    select *, count(*) over theirs = 1
              or seen >= 2 and count(*) filter (where seen >= 2) over theirs = 1 as suspected,
           case when seen >= 1 then random() * least(3600, 0.25 * power(2, least(seen - 1, 20))
             * (count(*) filter (where seen >= 1) over theirs - 1)) else 0 end as delay
    from orphan window theirs as (partition by owner)) o
),
counted as (
  insert into $schema.death (incarnation, job, namespace, blamed)
  select owner, id, %(namespace)s, blamed from judged on conflict (incarnation, job) do nothing
),
back as (
  update $schema.job j
  set state = case when o.delay > 0 then 'scheduled'
                   when j.gates ->> 0 is null then 'queued' else 'waiting' end,
      queue = coalesce(j.slots -> -1 ->> 'home', j.queue),
      line = case when o.delay > 0 then null else j.gates ->> 0 end, slots = null,
      not_before = case when o.delay > 0
                        then statement_timestamp() + make_interval(secs => o.delay)
                        else j.not_before end,
      owner = null, worker = null, progress_done = null, progress_of = null,
      deaths = o.deaths, blame = least(j.blame, 2147483646) + o.blamed, attempts = o.attempts
  from judged o
  where j.id = o.id and j.namespace = %(namespace)s and j.blame::bigint + o.blamed < j.max_deaths
    and j.max_deaths > 1 and not o.lapsed
  returning j.id, j.queue, j.state
),
gone as (
  delete from $schema.job j using judged o
  where j.id = o.id and j.namespace = %(namespace)s
    and not (j.max_deaths > 1 and j.blame::bigint + o.blamed < j.max_deaths and not o.lapsed)
  returning j.*, o.deaths as died, o.attempts as story, o.lapsed
),
kept as (
  insert into $schema.record (id, namespace, queue, kind, task, type, state, priority, content_type,
                              body, created, not_before, expires, attempt, deaths, lapses, max_deaths,
                              unique_key, traceparent, headers, worker, fence, claimed, attempts, progress_done,
                              progress_of, finished, reason)
  select id, namespace, coalesce(slots -> -1 ->> 'home', queue), kind, task, type, 'buried', priority, content_type, body, created,
         not_before, expires, attempt, died, lapses, max_deaths, unique_key, traceparent, headers, worker,
         fence, claimed, story, progress_done, progress_of, statement_timestamp(),
         case when lapsed then format(%(lapsed_too_often)s::text, lapses)
              else 'poison: ' || died || ' workers died while running it, the last was '
                   || coalesce(worker, '?') end
  from gone
  on conflict (id, namespace) do nothing
),
told as (
  select count(pg_notify('$channel', hint)) as times
  from (select distinct case state when 'scheduled' then 's:' || %(namespace)s
                                   else 'r:' || %(namespace)s || ':' || queue end as hint from back
        union all select 'd:' || %(namespace)s || ':' || id from gone where awaited) h
)
select id::text, (select times from told) from orphan

-- name: depths
-- Live jobs by queue and state.
select queue, case state when 'sent' then 'queued' else state end, count(*),
       date_part('epoch', statement_timestamp()) - date_part('epoch', min(created)) from $schema.job
where namespace = %(namespace)s group by 1, 2

-- name: waiting
-- Whether a fetch of these queues and lanes, apart from some tasks, would find something now.
select exists (
  select 1 from unnest(%(queue)s::text[]) q, unnest(%(kind)s::text[]) k
  where exists (
    (select 1 from $schema.job j
     where j.namespace = %(namespace)s and j.queue = q and j.kind = k and j.state = 'queued'
       and j.task <> all (array(select name from $schema.pause
                                where namespace = %(namespace)s and scope = 'task') || %(without)s::text[])
     limit 1)
    union all
    (select 1 from $schema.job j
     where j.namespace = %(namespace)s and j.queue = q and j.kind = k and j.state = 'sent'
       and j.task <> all (array(select name from $schema.pause
                                where namespace = %(namespace)s and scope = 'task') || %(without)s::text[])
     limit 1)
    union all
    (select 1 from $schema.line l
     where l.namespace = %(namespace)s and l.queue = q and l.kind = k
       and l.look <= statement_timestamp()
       and not exists (select 1 from $schema.pause p
                       where p.namespace = %(namespace)s and p.scope = 'gate' and p.name = l.key)
     limit 1)
    union all
    (select 1 from $schema.knock n
     where n.namespace = %(namespace)s and n.queue = q and n.kind = k limit 1)
    union all
    (select 1 from $schema.knock n join $schema.line l using (namespace, key)
     where n.namespace = %(namespace)s and n.freed > 0 and l.queue = q and l.kind = k limit 1)
  ) and not exists (
    select 1 from $schema.pause p
    where p.namespace = %(namespace)s and (p.scope = 'all' or (p.scope = 'queue' and p.name = q))
  )
)

-- name: idle_ids
-- Some jobs of a queue that do not run.
(select id::text from $schema.job
 where namespace = %(namespace)s and queue = %(queue)s and state = 'queued' limit 2000)
union all
(select id::text from $schema.job
 where namespace = %(namespace)s and queue = %(queue)s and state = 'scheduled' limit 2000)
union all
(select id::text from $schema.job
 where namespace = %(namespace)s and queue = %(queue)s and state = 'sent' limit 2000)
union all
(select id::text from $schema.job
 where namespace = %(namespace)s and queue = %(queue)s and state = 'waiting' limit 2000)

-- name: move
-- Some of what does not run changes its queue.
with idle as materialized (
  (select id from $schema.job
   where namespace = %(namespace)s and queue = %(source)s and state = 'queued' limit 2000)
  union all
  (select id from $schema.job
   where namespace = %(namespace)s and queue = %(source)s and state = 'scheduled' limit 2000)
  union all
  (select id from $schema.job
   where namespace = %(namespace)s and queue = %(source)s and state = 'sent' limit 2000)
  union all
  (select id from $schema.job
   where namespace = %(namespace)s and queue = %(source)s and state = 'waiting' limit 2000)
),
moved as (
  update $schema.job j
  set queue = %(target)s, state = case state when 'sent' then 'queued' else state end from idle
  where j.id = idle.id and j.namespace = %(namespace)s and j.queue = %(source)s
    and j.state <> 'running'
    and j.slots -> -1 ->> 'home' is null  -- what came there by a route is that worker's
  returning j.id
)
select count(*), case when count(*) > 0 then
         pg_notify('$channel', 'r:' || %(namespace)s || ':' || %(target)s) end
from moved

-- name: unsent
-- The first queued jobs of each lane that may start now: nothing of them is paused. One row without
-- a job when there is nothing. The last column says in how many seconds somebody may pass a gate
-- into one of the queues; null when nobody waits at one.
select u.*, case when exists (select 1 from $schema.knock where namespace = %(namespace)s)
                 then '-Infinity'::float8
                 else (select min(l.seconds) from unnest(%(queue)s::text[]) q (queue), lateral (
                         select coalesce(date_part('epoch', l.look), 'Infinity')
                                - date_part('epoch', statement_timestamp()) as seconds
                         from $schema.line l
                         where l.namespace = %(namespace)s and l.queue = q.queue
                           and not exists (select 1 from $schema.pause p
                                           where p.namespace = %(namespace)s and p.scope = 'gate'
                                             and p.name = l.key)
                         order by l.look limit 1) l
                       where not exists (
                         select 1 from $schema.pause p
                         where p.namespace = %(namespace)s
                           and (p.scope = 'all' or (p.scope = 'queue' and p.name = q.queue)))) end
from (select) one left join (
select j.*, q.queue from unnest(%(queue)s::text[]) q (queue), unnest(array['', 'io', 'cpu']) k (kind),
  lateral (
    select seq, id::text, kind, task, priority, content_type, body, type,
           date_part('epoch', created), date_part('epoch', not_before),
           date_part('epoch', expires), attempt, max_deaths, unique_key, traceparent,
           headers::text, deaths, sections::text, fence, date_part('epoch', claimed),
           gates::text, slots::text
    from $schema.job
    where namespace = %(namespace)s and queue = q.queue and kind = k.kind and state = 'queued'
      and task <> all (array(select name from $schema.pause
                             where namespace = %(namespace)s and scope = 'task'))
    order by priority desc, seq limit %(limit)s
  ) j
where not exists (
  select 1 from $schema.pause p
  where p.namespace = %(namespace)s and (p.scope = 'all' or (p.scope = 'queue' and p.name = q.queue)))
) u on true

-- name: grant
-- Lets those pass their gates into these queues that a claim would take now; answers who did, and
-- whether the owner, if there is one, has claimed them: then a claim has to follow that makes it last.
-- A statement of its own: it must not be part of a transaction.
select j.seq, j.id::text, j.kind, j.task, j.priority, j.content_type, j.body, j.type,
       date_part('epoch', j.created), date_part('epoch', j.not_before),
       date_part('epoch', j.expires), j.attempt, j.max_deaths, j.unique_key, j.traceparent,
       j.headers::text, j.deaths, j.sections::text, j.fence, date_part('epoch', j.claimed),
       j.gates::text, j.slots::text, j.owner is not null
from $schema.grant_slots(
  %(namespace)s, %(queue)s::text[], %(io)s::integer, %(cpu)s::integer, %(without)s::text[],
  %(owner)s::text) j

-- name: sent
-- Queued jobs are in another broker now, if they are what they were when they were given out. In
-- order of id, as everybody who locks several.
with found as materialized (
  select j.id from unnest(%(id)s::uuid[], %(fence)s::bigint[], %(queue)s::text[])
                   as s (id, fence, queue) join $schema.job j using (id, fence, queue)
  where j.namespace = %(namespace)s and j.state = 'queued' order by j.id for update of j
)
update $schema.job j set state = 'sent'
from found where j.id = found.id and j.namespace = %(namespace)s

-- name: take
-- Claims these very jobs, each in the queue its message came from; raises their fence. What is
-- paused is queued again. One row without a job when there is nothing, no row when the owner is
-- not enlisted. The last column names those that are not in the books, as of the same moment: one
-- that is being noted just now must not pass for one that was taken before.
with wanted as (select * from unnest(%(id)s::uuid[], %(queue)s::text[]) as w (id, queue)),
found as materialized (
  select j.id, exists (
           select 1 from $schema.pause p
           where p.namespace = %(namespace)s
             and (p.scope = 'all' or (p.scope = 'queue' and p.name = j.queue)
                  or (p.scope = 'task' and p.name = j.task))) as paused
  from $schema.job j
  where j.id = any(%(id)s::uuid[]) and j.namespace = %(namespace)s
    and j.state in ('queued', 'sent')
    and exists (select 1 from wanted w where w.id = j.id and w.queue = j.queue)
    and exists (select 1 from $schema.worker where incarnation = %(owner)s)
  order by j.id for update of j
),
back as (
  update $schema.job j set state = 'queued', fence = least(j.fence, 9223372036854775806) + 1
  from found where j.id = found.id and j.namespace = %(namespace)s and found.paused
),
claimed as (
  update $schema.job j
  set state = 'running', owner = %(owner)s,
      worker = (select name from $schema.worker where incarnation = %(owner)s),
      fence = least(j.fence, 9223372036854775806) + 1, claimed = statement_timestamp()
  from found where j.id = found.id and j.namespace = %(namespace)s and not found.paused
  returning j.seq, j.id::text, j.kind, j.task, j.priority, j.content_type, j.body, j.type,
            date_part('epoch', j.created), date_part('epoch', j.not_before),
            date_part('epoch', j.expires), j.attempt, j.max_deaths, j.unique_key, j.traceparent,
            j.headers::text, j.deaths, j.sections::text, j.fence, date_part('epoch', j.claimed),
            j.gates::text, j.slots::text
)
select claimed.*,
       (select array_agg(w.id::text) from wanted w
        where w.id not in (select id from found)
          and not exists (select 1 from $schema.job j
                          where j.id = w.id and j.namespace = %(namespace)s)
          and not exists (select 1 from $schema.record r
                          where r.id = w.id and r.namespace = %(namespace)s))
from $schema.worker left join claimed on true where incarnation = %(owner)s

-- name: note_job
select $schema.note_job(
  %(id)s::uuid, %(namespace)s, %(queue)s, %(kind)s, %(task)s, %(body)s,
  coalesce(to_timestamp(nullif(%(created)s::float8, 0)), statement_timestamp()),
  %(traceparent)s::text)

-- name: drop_ended
-- Jobs that are in the history already are no jobs.
delete from $schema.job j
where j.id = any(%(id)s::uuid[]) and j.namespace = %(namespace)s and j.state = 'sent'
  and exists (select 1 from $schema.record r
              where r.id = j.id and r.namespace = %(namespace)s offset 0)
returning j.id

-- name: unsend
-- These were noted as sent and may not have been.
with back as (
  update $schema.job j set state = 'queued', fence = least(fence, 9223372036854775806) + 1
  where j.id = any(%(id)s::uuid[]) and j.namespace = %(namespace)s and j.state = 'sent'
  returning j.queue
)
select count(pg_notify('$channel', 'r:' || %(namespace)s || ':' || queue))
from (select distinct queue from back) b

-- name: recall
-- What was sent to these lanes is to be sent again.
with back as (
  update $schema.job j set state = 'queued', fence = least(fence, 9223372036854775806) + 1
  from unnest(%(queue)s::text[], %(kind)s::text[]) as lane (queue, kind)
  where j.namespace = %(namespace)s and j.queue = lane.queue and j.kind = lane.kind
    and j.state = 'sent'
  returning j.queue
)
select (select count(*) from back),
       (select count(pg_notify('$channel', 'r:' || %(namespace)s || ':' || queue))
        from (select distinct queue from back) b)
