-- name: insert_jobs
-- Adds jobs unless their ids are live or finished, or their unique keys in use. The parameter idle
-- is the state of jobs that are not scheduled and have no gate: queued or sent. Or all of them are
-- blocked. Returns how many
-- were added, and the places in the batch of those that were not. The "offset 0" keeps the subquery
-- on the history a lookup: a join might read all of it.
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
                           traceparent, headers, gates, gate, part)
  select id, namespace, queue, kind, task, type,
         case when %(idle)s = 'blocked' then 'blocked'
              when $schema.moment(not_before, delay) > statement_timestamp() then 'scheduled'
              when gates is not null then 'waiting' else %(idle)s end,
         priority, content_type, body,
         coalesce(to_timestamp(nullif(created, 0)), statement_timestamp()),
         $schema.moment(not_before, delay), $schema.moment(expires, expires_in), attempt, max_deaths, unique_key,
         traceparent, headers, gates::jsonb,
         case when $schema.moment(not_before, delay) > statement_timestamp() then null
              when %(idle)s = 'blocked' then null else gates::jsonb ->> 0 end, %(part)s::boolean
  from sent where not exists (select 1 from $schema.record r
                              where r.id = sent.id and r.namespace = sent.namespace
                                and r.attempt >= 0 offset 0)
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
              from added where state not in ('sent', 'blocked')) h)

-- name: insert_job
-- Adds a single job, for half the work. One row if it was added.
insert into $schema.job (id, namespace, queue, kind, task, type, state, priority, content_type,
                         body, created, not_before, expires, attempt, max_deaths, unique_key,
                         traceparent, headers, gates, gate, part)
select %(id)s::uuid, %(namespace)s, %(queue)s, %(kind)s, %(task)s, %(type)s,
       case when %(idle)s = 'blocked' then 'blocked'
            when $schema.moment(%(not_before)s, %(delay)s) > statement_timestamp() then 'scheduled'
            when %(gates)s::jsonb is not null then 'waiting' else %(idle)s end,
       %(priority)s::smallint, %(content_type)s, %(body)s,
       coalesce(to_timestamp(nullif(%(created)s::float8, 0)), statement_timestamp()),
       $schema.moment(%(not_before)s, %(delay)s), $schema.moment(%(expires)s, %(expires_in)s),
       %(attempt)s::integer, %(max_deaths)s::integer, %(unique_key)s::text,
       %(traceparent)s::text, %(headers)s::jsonb, %(gates)s::jsonb,
       case when $schema.moment(%(not_before)s, %(delay)s) > statement_timestamp() then null
            when %(idle)s = 'blocked' then null else %(gates)s::jsonb ->> 0 end, %(part)s::boolean
where not exists (select 1 from $schema.record
                  where id = %(id)s::uuid and namespace = %(namespace)s)
on conflict do nothing
returning case when state not in ('sent', 'blocked') then pg_notify('$channel',
            case state when 'scheduled' then 's:' || %(namespace)s
                       else 'r:' || %(namespace)s || ':' || %(queue)s end) end

-- name: insert_plain
-- Adds a single job that has only default values: each parameter costs time on both sides. One row
-- if it was added.
insert into $schema.job (id, namespace, queue, kind, task, state, body, created, traceparent)
select %(id)s::uuid, %(namespace)s, %(queue)s, %(kind)s, %(task)s, %(idle)s, %(body)s,
       coalesce(to_timestamp(nullif(%(created)s::float8, 0)), statement_timestamp()),
       %(traceparent)s::text
where not exists (select 1 from $schema.record
                  where id = %(id)s::uuid and namespace = %(namespace)s)
on conflict do nothing
returning case when %(idle)s <> 'sent'
               then pg_notify('$channel', 'r:' || %(namespace)s || ':' || %(queue)s) end

-- name: insert_uniform
-- Adds jobs that differ only in id, body, time and trace and have no unique key, for much less
-- work. The bodies are one parameter. It fails if an id is live, and then nothing was added.
with sent as (
  select id, substr(%(body)s::bytea, start, size) as body, created, traceparent, place
  from unnest(%(id)s::uuid[], %(start)s::integer[], %(size)s::integer[], %(created)s::float8[],
              %(traceparent)s::text[])
       with ordinality as s (id, start, size, created, traceparent, place)
),
added as (
  insert into $schema.job (id, namespace, queue, kind, task, type, state, priority, content_type,
                           body, created, not_before, expires, attempt, max_deaths, traceparent,
                           headers, gates, gate)
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
                              where r.id = sent.id and r.namespace = %(namespace)s
                                and r.attempt >= 0 offset 0)
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
-- Which of these ids are live or finished, each in its namespace.
with asked as (select * from unnest(%(id)s::uuid[], %(namespace)s::text[]) as a (id, namespace))
select a.namespace, a.id::text from asked a
where exists (select 1 from $schema.job j where j.id = a.id and j.namespace = a.namespace)
   or exists (select 1 from $schema.record r
              where r.id = a.id and r.namespace = a.namespace and r.attempt >= 0)

-- name: unique_holders
-- The live jobs that hold these unique keys.
select namespace, unique_key, id::text, state from $schema.job
where (namespace, unique_key) in (select * from unnest(%(namespace)s::text[], %(unique_key)s::text[]))

-- name: promote
-- Queues scheduled jobs that are due, or moves them to their first gate; at most a thousand per
-- call. Returns their queues, and the seconds until the next one is due.
with due as (
  select id from $schema.job
  where namespace = %(namespace)s and state = 'scheduled' and not_before <= statement_timestamp()
  order by not_before limit 1000 for update skip locked
),
promoted as (
  update $schema.job j
  set state = case when j.gates ->> 0 is null then 'queued' else 'waiting' end,
      gate = j.gates ->> 0
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
-- Claims the first jobs of each lane of a queue, highest priority first, then oldest, without
-- those of some tasks, and increments their fence. Locks no row that it does not claim. One row
-- without a job if there is none, no row if the owner is not registered.
-- The last columns: the last number in gate_event; whether there are jobs of unknown kind: then nothing
-- was claimed, and claim_mixed decides; and the seconds until a job may pass a gate into this
-- queue, null if no job waits at one. If that is now, and slots were not granted before, nothing
-- was claimed either, because that job may be first.
-- Jobs that the same owner has claimed by a grant just before reduce the demand. This commit makes
-- them durable; for that, it writes to a sequence.
with allowed as materialized (
  select name, array(select p.name from $schema.pause p
                     where p.namespace = %(namespace)s and p.scope = 'task')
               || %(without)s::text[] as paused,
         exists (select 1 from $schema.job
                 where namespace = %(namespace)s and queue = %(queue)s and kind = ''
                   and state = 'queued') as mixed,
         case when exists (select 1 from $schema.gate_event where namespace = %(namespace)s)
              then '-Infinity'::float8
              else (select coalesce(date_part('epoch', l.next_check), 'Infinity')
                           - date_part('epoch', statement_timestamp())
                    from $schema.waiting_list l
                    where l.namespace = %(namespace)s and l.queue = %(queue)s
                      and l.kind = any(%(open_kinds)s::text[])
                      and not exists (select 1 from $schema.pause p
                                      where p.namespace = %(namespace)s and p.scope = 'gate'
                                        and p.name = l.key)
                    order by l.next_check limit 1) end as next_check
  from $schema.worker where incarnation = %(owner)s
    and not exists (select 1 from $schema.pause p
                    where p.namespace = %(namespace)s
                      and (p.scope = 'all' or (p.scope = 'queue' and p.name = %(queue)s)))
),
-- Materialized: a flattened query loses rows that changed while the statement waited for their lock.
picked as materialized (
  select f.id from unnest(%(kind)s::text[], %(room)s::integer[]) k (kind, room), lateral (
    select id from $schema.job
    where namespace = %(namespace)s and queue = %(queue)s and kind = k.kind and state = 'queued'
      and exists (select 1 from allowed
                  where not mixed and (%(granted)s::boolean or coalesce(next_check, 1) > 0))
      and task <> all ((select paused from allowed)::text[])
    order by priority desc, seq limit k.room for update skip locked) f
),
claimed as (
  update $schema.job j
  set state = 'running', owner = %(owner)s, worker = (select name from allowed),
      fence = least(j.fence, 9223372036854775806) + 1, claimed = statement_timestamp()
  where j.id = any(array(select id from picked)) and j.namespace = %(namespace)s
  returning j.seq, j.id::text, j.kind, j.task, j.priority, j.content_type, j.body, j.type,
            date_part('epoch', j.created), date_part('epoch', j.not_before),
            date_part('epoch', j.expires), j.attempt, j.max_deaths, j.unique_key, j.traceparent,
            j.headers::text, j.deaths, j.sections::text, j.fence, date_part('epoch', j.claimed),
            j.gates::text, j.slots::text
)
select claimed.*, (select setval('$schema.written', 1) where %(passed)s),
       (select pg_sequence_last_value('$schema.gate_event_seq_seq')),
       coalesce((select mixed from allowed), false), (select next_check from allowed)
from $schema.worker left join claimed on true where incarnation = %(owner)s

-- name: claim_from_marks
-- Claims from where the last scan ended: in each lane, after a sequence number of one priority, and
-- all jobs of other priorities. While the server cannot remove dead entries, because a transaction
-- is open for long, a scan from the start steps over all of them. So would a scan of gate_event: only
-- rows are read that came after the last scan from the start, or so shortly before that it may not
-- have seen them.
with allowed as materialized (
  select name, array(select p.name from $schema.pause p
                     where p.namespace = %(namespace)s and p.scope = 'task')
               || %(without)s::text[] as paused,
         exists (select 1 from $schema.job
                 where namespace = %(namespace)s and queue = %(queue)s and kind = ''
                   and state = 'queued') as mixed,
         case when exists (select 1 from $schema.gate_event
                           where namespace = %(namespace)s and seq > %(gate_event)s::bigint - 1000)
              then '-Infinity'::float8
              else (select coalesce(date_part('epoch', l.next_check), 'Infinity')
                           - date_part('epoch', statement_timestamp())
                    from $schema.waiting_list l
                    where l.namespace = %(namespace)s and l.queue = %(queue)s
                      and l.kind = any(%(open_kinds)s::text[])
                      and not exists (select 1 from $schema.pause p
                                      where p.namespace = %(namespace)s and p.scope = 'gate'
                                        and p.name = l.key)
                    order by l.next_check limit 1) end as next_check
  from $schema.worker where incarnation = %(owner)s
    and not exists (select 1 from $schema.pause p
                    where p.namespace = %(namespace)s
                      and (p.scope = 'all' or (p.scope = 'queue' and p.name = %(queue)s)))
),
marks as materialized (
  select * from unnest(%(kind)s::text[], %(room)s::integer[], %(mark_priority)s::integer[],
                       %(mark_seq)s::bigint[]) k (kind, room, priority, seq)
),
above as materialized (
  select k.kind, f.id from marks k, lateral (
    select id from $schema.job
    where namespace = %(namespace)s and queue = %(queue)s and kind = k.kind and state = 'queued'
      and priority > k.priority
      and exists (select 1 from allowed
                  where not mixed and (%(granted)s::boolean or coalesce(next_check, 1) > 0))
      and task <> all ((select paused from allowed)::text[])
    order by priority desc, seq limit k.room for update skip locked) f
),
level as materialized (
  select k.kind, f.id from marks k, lateral (
    select id from $schema.job
    where namespace = %(namespace)s and queue = %(queue)s and kind = k.kind and state = 'queued'
      and priority = k.priority and seq > k.seq
      and exists (select 1 from allowed
                  where not mixed and (%(granted)s::boolean or coalesce(next_check, 1) > 0))
      and task <> all ((select paused from allowed)::text[])
    order by priority desc, seq limit k.room
      - (select count(*) from above a where a.kind = k.kind) for update skip locked) f
),
below as materialized (
  select k.kind, f.id from marks k, lateral (
    select id from $schema.job
    where namespace = %(namespace)s and queue = %(queue)s and kind = k.kind and state = 'queued'
      and priority < k.priority
      and exists (select 1 from allowed
                  where not mixed and (%(granted)s::boolean or coalesce(next_check, 1) > 0))
      and task <> all ((select paused from allowed)::text[])
    order by priority desc, seq limit k.room
      - (select count(*) from above a where a.kind = k.kind)
      - (select count(*) from level a where a.kind = k.kind) for update skip locked) f
),
-- Materialized: a flattened union loses rows that changed while the statement waited for their lock.
picked as materialized (
  select id from above union all select id from level union all select id from below
),
claimed as (
  update $schema.job j
  set state = 'running', owner = %(owner)s, worker = (select name from allowed),
      fence = least(j.fence, 9223372036854775806) + 1, claimed = statement_timestamp()
  where j.id = any(array(select id from picked)) and j.namespace = %(namespace)s
  returning j.seq, j.id::text, j.kind, j.task, j.priority, j.content_type, j.body, j.type,
            date_part('epoch', j.created), date_part('epoch', j.not_before),
            date_part('epoch', j.expires), j.attempt, j.max_deaths, j.unique_key, j.traceparent,
            j.headers::text, j.deaths, j.sections::text, j.fence, date_part('epoch', j.claimed),
            j.gates::text, j.slots::text
)
select claimed.*, (select setval('$schema.written', 1) where %(passed)s),
       (select pg_sequence_last_value('$schema.gate_event_seq_seq')),
       coalesce((select mixed from allowed), false), (select next_check from allowed)
from $schema.worker left join claimed on true where incarnation = %(owner)s

-- name: claim_mixed
-- Claims where there are jobs of unknown kind. Such a job needs a free slot of both kinds, and has
-- to be next in both. The last but one column says whether some of them have to wait.
with allowed as materialized (
  select name, array(select p.name from $schema.pause p
                     where p.namespace = %(namespace)s and p.scope = 'task')
               || %(without)s::text[] as paused
  from $schema.worker where incarnation = %(owner)s
    and not exists (select 1 from $schema.pause p
                    where p.namespace = %(namespace)s
                      and (p.scope = 'all' or (p.scope = 'queue' and p.name = %(queue)s)))
),
free as materialized (
  select *, kind = any(%(unknown)s::text[]) as may_be from unnest(%(kind)s::text[], %(room)s::integer[]) k (kind, room)
),
first_unknown as materialized (
  select priority, seq, row_number() over (order by priority desc, seq) as number from (
    select priority, seq from $schema.job
    where namespace = %(namespace)s and queue = %(queue)s and kind = '' and state = 'queued'
      and exists (select 1 from allowed) and task <> all ((select paused from allowed)::text[])
    order by priority desc, seq limit (select min(room) from free where may_be)) f
),
first_known as materialized (
  select k.kind, f.priority, f.seq from free k, lateral (
    select priority, seq from $schema.job
    where namespace = %(namespace)s and queue = %(queue)s and kind = k.kind and state = 'queued'
      and exists (select 1 from first_unknown) and task <> all ((select paused from allowed)::text[])
    order by priority desc, seq limit k.room) f
  where k.may_be
),
fitting as materialized (
  select count(*) as jobs from first_unknown u
  where not exists (
    select 1 from free k
    where k.may_be and k.room < u.number + (
      select count(*) from first_known f
      where f.kind = k.kind
        and (f.priority > u.priority or (f.priority = u.priority and f.seq < u.seq))))
),
unknown as materialized (
  select id from $schema.job
  where namespace = %(namespace)s and queue = %(queue)s and kind = '' and state = 'queued'
    and exists (select 1 from allowed) and task <> all ((select paused from allowed)::text[])
  order by priority desc, seq limit (select jobs from fitting) for update skip locked
),
known as materialized (
  select f.id from free k, lateral (
    select id from $schema.job
    where namespace = %(namespace)s and queue = %(queue)s and kind = k.kind and state = 'queued'
      and exists (select 1 from allowed) and task <> all ((select paused from allowed)::text[])
    order by priority desc, seq
    limit k.room - case when k.may_be then (select count(*) from unknown) else 0 end
    for update skip locked) f
),
picked as materialized (select id from unknown union all select id from known),
claimed as (
  update $schema.job j
  set state = 'running', owner = %(owner)s, worker = (select name from allowed),
      fence = least(j.fence, 9223372036854775806) + 1, claimed = statement_timestamp()
  where j.id = any(array(select id from picked)) and j.namespace = %(namespace)s
  returning j.seq, j.id::text, j.kind, j.task, j.priority, j.content_type, j.body, j.type,
            date_part('epoch', j.created), date_part('epoch', j.not_before),
            date_part('epoch', j.expires), j.attempt, j.max_deaths, j.unique_key, j.traceparent,
            j.headers::text, j.deaths, j.sections::text, j.fence, date_part('epoch', j.claimed),
            j.gates::text, j.slots::text
)
select claimed.*, null::bigint, (select count(*) from first_unknown) > (select jobs from fitting),
       null::float8
from $schema.worker left join claimed on true where incarnation = %(owner)s

-- name: assign_kinds
-- Sets the kind of queued jobs whose sender did not know it. Sent jobs are sent again, to the lane
-- of that kind. This includes jobs that are being sent or recalled at the same moment.
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

-- Id, owner and fence identify a lease. An owner is a worker of one namespace, so that is enough.

-- name: extend
-- Gives back jobs that an owner holds according to the store but does not know of. This is neither
-- an attempt nor a death. Returns the places of leases that the owner believes to hold and does
-- not.
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
      gate = j.gates ->> 0, slots = null,
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
-- Turns the jobs under these leases into records. A part of a join always leaves one. Returns the places of
-- leases that are not held.
with sent as (
  select * from rows from (
    unnest(%(id)s::uuid[], %(owner)s::text[], %(fence)s::bigint[], %(state)s::text[],
           %(result_type)s::text[], %(result)s::bytea[], %(reason)s::text[], %(keep)s::boolean[],
           %(keep_for)s::float8[]),
    jsonb_array_elements(%(attempt_json)s::jsonb), jsonb_array_elements(%(failure)s::jsonb)
  ) with ordinality as s (id, owner, fence, final, result_type, result, reason, keep, keep_for,
                          attempt_json, failure, place)
),
gone as (
  delete from $schema.job j using sent s
  where j.id = s.id and j.owner = s.owner and j.fence = s.fence
  returning j.*, s.final, s.result_type, s.result, s.reason, s.keep, s.keep_for, s.attempt_json,
            s.failure
),
kept as (
  insert into $schema.record (id, namespace, queue, kind, task, type, state, priority, content_type,
                              body, created, not_before, expires, attempt, deaths, max_deaths,
                              unique_key, traceparent, headers, worker, fence, claimed, attempts, progress_done,
                              progress_of, finished, result_type, result, failure, reason, keep_until)
  select id, namespace, coalesce(slots -> -1 ->> 'home', queue), kind, task, type, final, priority, content_type, body, created,
         not_before, expires, attempt, deaths, max_deaths, unique_key, traceparent, headers, worker, fence,
         claimed,
         (case when jsonb_typeof(attempts) <> 'array' then '[]'
               when jsonb_array_length(attempts) < 100 then attempts
               else attempts - 0 end) || attempt_json,
         progress_done, progress_of, statement_timestamp(),
         result_type, result, nullif(failure, 'null'), reason,
         statement_timestamp() + make_interval(secs => keep_for)
  from gone where keep or part
  on conflict (id, namespace) do nothing
)
select (select array_agg(place) from sent
                  where (id, fence) not in (select id, fence from gone)),
       (select count(pg_notify('$channel', 'd:' || namespace || ':' || ids))
        from (select namespace, string_agg(id::text, ',') as ids
              from (select namespace, id, row_number() over () / 200 as chunk
                    from gone where awaited) w
              group by namespace, chunk) d)

-- name: finish_uniform
-- Does the same for jobs of one owner with equal outcomes that are no failures: the common case,
-- for an eighth less work.
with sent as (
  select * from rows from (
    unnest(%(id)s::uuid[], %(fence)s::bigint[], %(result)s::bytea[]),
    jsonb_array_elements(%(attempt_json)s::jsonb)
  ) with ordinality as s (id, fence, result, attempt_json, place)
),
gone as (
  delete from $schema.job j using sent s
  where j.id = s.id and j.owner = %(owner)s and j.fence = s.fence
  returning j.awaited, j.id, j.namespace, j.queue, j.kind, j.task, j.type, j.priority,
            j.content_type, j.body, j.created, j.not_before, j.expires, j.attempt, j.deaths,
            j.max_deaths, j.unique_key, j.traceparent, j.headers, j.worker, j.fence, j.claimed,
            j.attempts, j.progress_done, j.progress_of, j.slots, j.part, s.result, s.attempt_json
),
kept as (
  insert into $schema.record (id, namespace, queue, kind, task, type, state, priority, content_type,
                              body, created, not_before, expires, attempt, deaths, max_deaths,
                              unique_key, traceparent, headers, worker, fence, claimed, attempts,
                              progress_done, progress_of, finished, result_type, result, reason,
                              keep_until)
  select id, namespace, coalesce(slots -> -1 ->> 'home', queue), kind, task, type, %(state)s,
         priority, content_type, body, created, not_before, expires, attempt, deaths, max_deaths,
         unique_key, traceparent, headers, worker, fence, claimed,
         (case when jsonb_typeof(attempts) <> 'array' then '[]'
               when jsonb_array_length(attempts) < 100 then attempts
               else attempts - 0 end) || attempt_json,
         progress_done, progress_of, statement_timestamp(), %(result_type)s, result, %(reason)s,
         statement_timestamp() + make_interval(secs => %(keep_for)s::float8)
  from gone where %(keep)s or part
  on conflict (id, namespace) do nothing
)
select case when (select count(*) from gone) < cardinality(%(id)s::uuid[])
            then (select array_agg(place) from sent
                  where (id, fence) not in (select id, fence from gone)) end,
       (select count(pg_notify('$channel', 'd:' || namespace || ':' || ids))
        from (select namespace, string_agg(id::text, ',') as ids
              from (select namespace, id, row_number() over () / 200 as chunk
                    from gone where awaited) w
              group by namespace, chunk) d)

-- name: again
-- Returns the jobs under these leases to their queues, at once or after a delay, or to their first
-- gate. Jobs that are given gates were not started, so their history does not grow. Returns the
-- places of leases that are not held.
with sent as (
  select * from rows from (
    unnest(%(id)s::uuid[], %(owner)s::text[], %(fence)s::bigint[], %(delay)s::float8[],
           %(cost)s::integer[], %(section)s::text[], %(gates)s::text[]),
    jsonb_array_elements(%(attempt_json)s::jsonb)
  ) with ordinality as s (id, owner, fence, delay, cost, section, gates, attempt_json, place)
),
back as (
  update $schema.job j
  set state = case when s.delay > 0 then 'scheduled'
                   when coalesce(s.gates::jsonb, j.gates) ->> 0 is null then 'queued'
                   else 'waiting' end,
      queue = coalesce(j.slots -> -1 ->> 'home', j.queue),
      gates = nullif(coalesce(s.gates::jsonb, j.gates), '[]'),
      gate = case when s.delay > 0 then null else coalesce(s.gates::jsonb, j.gates) ->> 0 end,
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
                         else j.attempts - 0 end) || s.attempt_json end,
      owner = null, worker = null, progress_done = null, progress_of = null
  from sent s
  where j.id = s.id and j.owner = s.owner and j.fence = s.fence
  returning j.id, j.fence, j.namespace, j.queue, j.state
)
select (select array_agg(place) from sent where (id, fence) not in (select id, fence from back)),
       (select count(pg_notify('$channel', hint))
        from (select distinct case state when 'scheduled' then 's:' || namespace
                                         else 'r:' || namespace || ':' || queue end as hint
              from back) h)

-- name: recover
-- Returns running jobs whose owner is not registered to their queues and counts the death, or
-- buries them after too many deaths or lapses: umbel.resilience.judge in SQL. Rows are locked in
-- order, so of several recoveries at once, one gets all jobs of an owner. Each death is recorded,
-- so that it can be taken back. Returns the ids.
with dead as materialized (
  select id, owner, fence from $schema.job j
  where namespace = %(namespace)s and state = 'running'
    and not exists (select 1 from $schema.worker w where w.incarnation = j.owner)
),
-- Compared with the dead owner: another worker may have claimed the job while this statement waited
-- for its lock, and then PostgreSQL does not check again whether the owner is registered.
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
      gate = case when o.delay > 0 then null else j.gates ->> 0 end, slots = null,
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
  returning j.*, o.deaths as died, o.attempts as attempt_json, o.lapsed
),
kept as (
  insert into $schema.record (id, namespace, queue, kind, task, type, state, priority, content_type,
                              body, created, not_before, expires, attempt, deaths, lapses, max_deaths,
                              unique_key, traceparent, headers, worker, fence, claimed, attempts, progress_done,
                              progress_of, finished, reason)
  select id, namespace, coalesce(slots -> -1 ->> 'home', queue), kind, task, type, 'buried', priority, content_type, body, created,
         not_before, expires, attempt, died, lapses, max_deaths, unique_key, traceparent, headers, worker,
         fence, claimed, attempt_json, progress_done, progress_of, statement_timestamp(),
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
-- The number of live jobs by queue and state.
select queue, case state when 'sent' then 'queued' else state end, count(*),
       date_part('epoch', statement_timestamp()) - date_part('epoch', min(created)) from $schema.job
where namespace = %(namespace)s group by 1, 2

-- name: waiting
-- Whether a fetch of these queues and lanes, without some tasks, would find a job now.
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
    (select 1 from $schema.waiting_list l
     where l.namespace = %(namespace)s and l.queue = q and l.kind = k
       and l.next_check <= statement_timestamp()
       and not exists (select 1 from $schema.pause p
                       where p.namespace = %(namespace)s and p.scope = 'gate' and p.name = l.key)
     limit 1)
    union all
    (select 1 from $schema.gate_event n
     where n.namespace = %(namespace)s and n.queue = q and n.kind = k limit 1)
    union all
    (select 1 from $schema.gate_event n join $schema.waiting_list l using (namespace, key)
     where n.namespace = %(namespace)s and n.freed > 0 and l.queue = q and l.kind = k limit 1)
  ) and not exists (
    select 1 from $schema.pause p
    where p.namespace = %(namespace)s and (p.scope = 'all' or (p.scope = 'queue' and p.name = q))
  )
)

-- name: expired_ids
-- A batch of jobs that do not run and whose expiry has passed.
select id::text from $schema.job
where namespace = %(namespace)s and expires <= statement_timestamp() and state <> 'running'
order by expires limit %(limit)s

-- name: idle_ids
-- A batch of jobs of a queue that do not run.
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
union all
(select b.id::text from $schema.job_wait w,
   lateral (select id, queue, state from $schema.job
            where id = w.job and namespace = %(namespace)s offset 0) b
 where w.namespace = %(namespace)s and b.queue = %(queue)s and b.state = 'blocked' limit 2000)

-- name: move
-- Moves a batch of jobs that do not run to another queue.
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
  union all
  (select b.id from $schema.job_wait w,
     lateral (select id, queue, state from $schema.job
              where id = w.job and namespace = %(namespace)s offset 0) b
   where w.namespace = %(namespace)s and b.queue = %(source)s and b.state = 'blocked' limit 2000)
),
moved as (
  update $schema.job j
  set queue = %(target)s, state = case state when 'sent' then 'queued' else state end from idle
  where j.id = idle.id and j.namespace = %(namespace)s and j.queue = %(source)s
    and j.state <> 'running'
    and j.slots -> -1 ->> 'home' is null  -- routed jobs stay with their worker
  returning j.id
)
select count(*), case when count(*) > 0 then
         pg_notify('$channel', 'r:' || %(namespace)s || ':' || %(target)s) end
from moved

-- name: unsent
-- The first queued jobs of each lane that are not paused. One row without a job if there is none.
-- The last column: the seconds until a job may pass a gate into one of the queues, null if no job
-- waits at one.
select u.*, case when exists (select 1 from $schema.gate_event where namespace = %(namespace)s)
                 then '-Infinity'::float8
                 else (select min(l.seconds) from unnest(%(queue)s::text[]) q (queue), lateral (
                         select coalesce(date_part('epoch', l.next_check), 'Infinity')
                                - date_part('epoch', statement_timestamp()) as seconds
                         from $schema.waiting_list l
                         where l.namespace = %(namespace)s and l.queue = q.queue
                           and not exists (select 1 from $schema.pause p
                                           where p.namespace = %(namespace)s and p.scope = 'gate'
                                             and p.name = l.key)
                         order by l.next_check limit 1) l
                       where not exists (
                         select 1 from $schema.pause p
                         where p.namespace = %(namespace)s
                           and (p.scope = 'all' or (p.scope = 'queue' and p.name = q.queue)))) end
from (select) one left join (
select j.*, q.queue from unnest(%(queue)s::text[]) q (queue), unnest(%(kind)s::text[]) k (kind),
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
-- Lets the jobs pass their gates into these queues that a claim would take now. Returns them, and
-- whether the owner, if given, has claimed them: then the commit of a claim that follows makes that
-- durable. It must not be part of a transaction.
select j.seq, j.id::text, j.kind, j.task, j.priority, j.content_type, j.body, j.type,
       date_part('epoch', j.created), date_part('epoch', j.not_before),
       date_part('epoch', j.expires), j.attempt, j.max_deaths, j.unique_key, j.traceparent,
       j.headers::text, j.deaths, j.sections::text, j.fence, date_part('epoch', j.claimed),
       j.gates::text, j.slots::text, j.owner is not null
from $schema.grant_slots(
  %(namespace)s, %(queue)s::text[], %(lane)s::text[], %(capacity)s::integer[],
  %(without)s::text[], %(owner)s::text) j

-- name: sent
-- Marks queued jobs as sent to the transport, unless they have changed since they were offered. In
-- order of id, as all statements that lock several jobs.
with found as materialized (
  select j.id from unnest(%(id)s::uuid[], %(fence)s::bigint[], %(queue)s::text[])
                   as s (id, fence, queue) join $schema.job j using (id, fence, queue)
  where j.namespace = %(namespace)s and j.state = 'queued' order by j.id for update of j
)
update $schema.job j set state = 'sent'
from found where j.id = found.id and j.namespace = %(namespace)s

-- name: take
-- Claims these jobs, each in the queue that its message came from, and increments their fence.
-- Paused jobs are queued again. One row without a job if there is none, no row if the owner is not
-- registered. The last column names the ids that the store does not know, at the same moment: a job
-- that is being recorded now must not be taken for one that was claimed before.
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
-- Records a single job with default values that the transport carries. Returns whether it was new.
select $schema.note_job(
  %(id)s::uuid, %(namespace)s, %(queue)s, %(kind)s, %(task)s, %(body)s,
  coalesce(to_timestamp(nullif(%(created)s::float8, 0)), statement_timestamp()),
  %(traceparent)s::text)

-- name: drop_ended
-- Deletes jobs that already have a record.
delete from $schema.job j
where j.id = any(%(id)s::uuid[]) and j.namespace = %(namespace)s and j.state = 'sent'
  and exists (select 1 from $schema.record r
              where r.id = j.id and r.namespace = %(namespace)s offset 0)
returning j.id

-- name: recall
-- Queues the sent jobs of these lanes again.
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
