-- Domains instead of table checks: every statement that writes parses each check of the table again,
-- and ten of them take a sixth of the server's time for a single job.
create domain $schema.job_queue as text collate "C" check (length(value) between 1 and 255);
create domain $schema.job_task as text collate "C" check (length(value) between 1 and 255);
create domain $schema.job_kind as text collate "C" check (value in ($kinds));
create domain $schema.job_type as text collate "C"
  check (value in ('umbel.command', 'umbel.event', 'umbel.document'));
create domain $schema.job_state as text collate "C"
  check (value in ('blocked', 'scheduled', 'waiting', 'queued', 'sent', 'running'));
create domain $schema.job_list as jsonb check (jsonb_typeof(value) = 'array');
create domain $schema.record_state as text collate "C"
  check (value in ('succeeded', 'buried', 'cancelled', 'expired'));

-- Live jobs. A row is both the message and its state, and is deleted when the job is final. "Sent" is
-- a queued job whose message a transport carries.
create table $schema.job (
  id uuid not null,
  seq bigint generated always as identity,
  namespace text collate "C" not null,
  queue $schema.job_queue not null,
  kind $schema.job_kind not null default '',
  task $schema.job_task not null,
  type $schema.job_type not null default 'umbel.command',
  state $schema.job_state not null default 'queued',
  priority smallint not null default 0,
  content_type text not null default 'application/json',
  body bytea not null,
  created timestamptz not null default statement_timestamp(),
  not_before timestamptz,
  expires timestamptz,
  attempt integer not null default 1,
  deaths integer not null default 0,
  blame integer not null default 0,
  lapses integer not null default 0,  -- how often its lease lapsed while its worker was alive
  max_deaths integer not null default 3,
  unique_key text collate "C",
  traceparent text,
  headers jsonb not null default '{}',
  owner text collate "C",
  worker text collate "C",
  fence bigint not null default 0,
  claimed timestamptz,
  sections jsonb not null default '{}',
  attempts jsonb not null default '[]',
  progress_done double precision,
  progress_of double precision,
  cancel_reason text,
  awaited boolean not null default false,
  gates $schema.job_list,  -- the gates that it has to pass, in order; null if none
  gate text collate "C",  -- the gate at which it waits
  slots $schema.job_list,  -- the slots that it holds of gates that it has passed
  steps boolean not null default false,  -- whether it has steps; few jobs do
  received boolean,  -- whether the one worker that it is for has received it
  part boolean not null default false,  -- whether joins have to count its end; few jobs are parts
  primary key (id, namespace),  -- an id names one job in each namespace
  check ((state = 'waiting') = (gate is not null)),
  check ((state = 'running') = (owner is not null)),
  check ((state = 'scheduled') <= (not_before is not null))
) with (
  -- Every job is inserted, claimed and deleted, so three quarters of the row versions are soon
  -- dead. Free space keeps the new version of a claimed row on the same page.
  fillfactor = 70,
  -- The threshold is a number of dead rows, because the size of the table changes between nothing
  -- and millions. Vacuum runs at full speed, because a fetch has to step over dead rows.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0,
  toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 1000,
  toast.autovacuum_vacuum_cost_delay = 0,
  -- Truncating the table would lock out every fetch, for pages that are needed again at once.
  vacuum_truncate = off, toast.vacuum_truncate = off
);

create index job_ready on $schema.job (namespace, queue, kind, priority desc, seq)
  where state = 'queued';
create index job_sent on $schema.job (namespace, queue, kind) where state = 'sent';
create index job_due on $schema.job (namespace, not_before) where state = 'scheduled';
create index job_owner on $schema.job (owner) where state = 'running';
create index job_gate on $schema.job (namespace, gate, queue, kind, priority desc, seq)
  where state = 'waiting';
create index job_unsorted on $schema.job (namespace, queue) where state = 'waiting' and kind = '';
create index job_expires on $schema.job (namespace, expires) where expires is not null;
create unique index job_unique on $schema.job (namespace, unique_key)
  where unique_key is not null;

-- Finished jobs, with the payload, so that they can be replayed.
create table $schema.record (
  id uuid not null,
  namespace text collate "C" not null,
  queue text collate "C" not null,
  kind text collate "C" not null,
  task text collate "C" not null,
  type text collate "C" not null,
  state $schema.record_state not null,
  priority smallint not null,
  content_type text not null,
  body bytea not null,
  created timestamptz not null,
  not_before timestamptz,
  expires timestamptz,
  attempt integer not null,
  deaths integer not null,
  lapses integer not null default 0,
  max_deaths integer not null,
  unique_key text collate "C",
  traceparent text,
  headers jsonb not null,
  worker text collate "C",
  fence bigint not null,
  claimed timestamptz,
  attempts jsonb not null,
  progress_done double precision,
  progress_of double precision,
  finished timestamptz not null,
  result_type text,
  result bytea,
  failure jsonb,
  reason text not null default '',
  keep_until timestamptz,  -- when it is pruned; null if only its age and the size of the history count
  primary key (id, namespace)
);

-- Every finished job pays for each index here. This one grows only at its right edge. Without it, a
-- list of the newest jobs, and pruning, would read the whole history. It has all columns that pruning
-- needs to find the end of the history.
create index record_finished on $schema.record (namespace, finished, id) include (state);
create index record_buried on $schema.record (namespace, finished) where state = 'buried';
create index record_keep_until on $schema.record (namespace, keep_until) where keep_until is not null;
-- The roots of graphs, whose joins are removed when they are old. Other records are not in it.
create index record_graph on $schema.record (namespace, finished, id)
  where task = 'umbel.graph' and state <> 'buried';

-- Steps that jobs have done. They are kept as long as the job is live or has a record.
create table $schema.step (
  job uuid not null,
  namespace text collate "C" not null,
  number integer not null check (number > 0),
  name text not null check (length(name) between 1 and 255),
  content_type text not null,
  result bytea not null,
  started timestamptz not null,
  finished timestamptz not null,
  primary key (job, namespace, number)
);

-- Registered workers. Deleting a row ends all leases of its incarnation.
create table $schema.worker (
  incarnation text collate "C" primary key,
  namespace text collate "C" not null,
  entry jsonb not null,
  name text collate "C" not null,
  started timestamptz not null default statement_timestamp(),
  beat bigint not null default 0,
  beaten timestamptz not null default statement_timestamp(),
  running integer not null default 0,
  epoch bigint not null default 0,
  stopping boolean not null default false,
  idx integer not null default 0  -- its index: registered workers of different names never share one
) with (
  -- A heartbeat changes no indexed column. With free space on the page it adds no index entry.
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500
);

-- Counted deaths. One is taken back if the process of the incarnation turns out to be alive.
create table $schema.death (
  incarnation text collate "C" not null,
  job uuid not null,
  namespace text collate "C" not null,
  blamed integer not null,
  counted timestamptz not null default statement_timestamp(),
  primary key (incarnation, job)
);

create index death_counted on $schema.death (counted);

-- Incarnations whose process reported that it was alive when their leases lapsed.
create table $schema.lapse (
  incarnation text collate "C" primary key,
  namespace text collate "C" not null,
  reported timestamptz not null default statement_timestamp()
);

-- Coordination: small entries, each with the revision of the commit that wrote it. Until: when its lease
-- lapses. From then on the entry is absent, whether or not it is still in the table.
create table $schema.entry (
  namespace text collate "C" not null,
  key text collate "C" not null,
  value bytea not null,
  revision bigint not null,
  until timestamptz,
  primary key (namespace, key)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

create index entry_lapse on $schema.entry (namespace, until) where until is not null;

-- The last revision that changed a section of the entries; of all sections if the name is empty.
create table $schema.section (
  namespace text collate "C" not null,
  name text collate "C" not null,
  revision bigint not null,
  primary key (namespace, name)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Pauses: entries pauses/<scope>/<holder>/<name>. Every claim reads them.
create view $schema.pause as
select namespace, split_part(key, '/', 2) as scope, split_part(key, '/', 3) as holder,
       substr(key, length(split_part(key, '/', 2)) + length(split_part(key, '/', 3)) + 10) as name
from $schema.entry
where key >= 'pauses/' and key < 'pauses0' and (until is null or until > statement_timestamp());

-- Capacities that operators have set: entries limits/<rule>. A value that is not a number has no effect.
create view $schema.limit_override as
select namespace, substr(key, 8) as rule,
       case when encode(value, 'escape') ~ '^[0-9]{1,9}$'
            then encode(value, 'escape')::integer end as capacity
from $schema.entry
where key >= 'limits/' and key < 'limits0' and (until is null or until > statement_timestamp());

-- Joins: jobs that wait until other jobs have ended.
create table $schema.job_join (
  namespace text collate "C" not null,
  id text collate "C" not null,
  group_id text collate "C" not null,
  fire text collate "C" not null check (fire in ('all', 'success', 'failure')),
  held timestamptz,  -- since when it is held; null if it may complete
  open integer not null default 0,  -- how many parts have not ended
  failed integer not null default 0,  -- how many parts have ended without success
  done boolean not null default false,  -- whether no job is blocked by it any more
  abandoned boolean not null default false,  -- whether it was held for too long
  primary key (namespace, id)
) with (fillfactor = 70);

create index job_join_group on $schema.job_join (namespace, group_id, id);
create index job_join_due on $schema.job_join (namespace, id)
  where held is null and not done and (open = 0 or abandoned);
create index job_join_held on $schema.job_join (namespace, held) where held is not null;

-- Parts of joins. State: how the part ended, once the join has counted it.
create table $schema.job_edge (
  namespace text collate "C" not null,
  join_id text collate "C" not null,
  position integer not null,
  job uuid not null,
  state text collate "C",
  primary key (namespace, join_id, position)
) with (fillfactor = 70);

create index job_edge_job on $schema.job_edge (job, namespace);

-- Jobs that wait for a join. The seconds count from when it is complete.
create table $schema.job_wait (
  namespace text collate "C" not null,
  join_id text collate "C" not null,
  job uuid not null,
  delay double precision,
  expires_in double precision,
  primary key (namespace, join_id, job)
);

create index job_wait_job on $schema.job_wait (job, namespace);

-- The indexes of workers. The index of a worker that has unregistered is kept for it for a while.
create table $schema.worker_index (
  namespace text collate "C" not null,
  idx integer not null check (idx >= 0),
  name text collate "C" not null,
  kept timestamptz,
  retiring boolean not null default false,
  primary key (namespace, idx)
);

create index worker_by_index on $schema.worker (namespace, idx);

-- Routes: which worker has which key, live and released ones. Held: the jobs of the route that are in
-- the inbox or run. Rested: since when there are none, as of the last check.
create table $schema.route (
  id bigint generated always as identity primary key,
  namespace text collate "C" not null,
  key text collate "C" not null,
  idx integer not null,
  made timestamptz not null default clock_timestamp(),  -- the transaction may have waited for others
  released timestamptz,
  why text not null default '',
  held integer not null default 0,
  closing smallint not null default 0,  -- 1: is released when no job of it runs; 2: its worker is gone
  target integer,  -- the index for the next route of this key
  rested timestamptz,
  among jsonb not null default '[]'
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

create unique index route_live on $schema.route (namespace, key) where released is null;
create index route_by_index on $schema.route (namespace, idx) where released is null;
create index route_history on $schema.route (namespace, key, id);

-- Messages to one worker that it has received, so that it accepts none twice.
create table $schema.inbox_receipt (
  namespace text collate "C" not null,
  job uuid not null,
  until timestamptz not null,
  primary key (namespace, job)
);

create index inbox_receipt_until on $schema.inbox_receipt (until);

-- Gates: their rules, how many slots of each are held, and where jobs wait.
create table $schema.rule (
  namespace text collate "C" not null,
  name text collate "C" not null,
  declared jsonb not null,
  primary key (namespace, name)
);

create table $schema.gate (
  namespace text collate "C" not null,
  key text collate "C" not null,
  held integer not null default 0,
  paces double precision[] not null default '{}',  -- of a rate: when each of its paces allows the next job
  primary key (namespace, key)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

create sequence $schema.turn;

-- A transaction that sets it has written something, so its commit waits for the disk. It locks no
-- other transaction out.
create sequence $schema.written;

-- A lane of jobs that wait at a gate. Look: when a job may pass, minus infinity for now; null until a
-- slot is freed.
create table $schema.waiting_list (
  namespace text collate "C" not null,
  key text collate "C" not null,
  queue text collate "C" not null,
  kind text collate "C" not null,
  next_check timestamptz,
  turn bigint not null default nextval('$schema.turn'),  -- the lane served last comes last
  primary key (namespace, key, queue, kind)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

create index waiting_list_check on $schema.waiting_list (namespace, queue, next_check);
create index waiting_list_turn on $schema.waiting_list (namespace, queue, kind, turn) where next_check = '-infinity';

create table $schema.member (
  namespace text collate "C" not null,
  pool text collate "C" not null,
  name text collate "C" not null,
  data jsonb not null default '{}',
  condition text collate "C" not null default 'ready'
    check (condition in ('ready', 'drained', 'quarantined', 'leaving', 'gone')),
  coded smallint not null default 0,  -- 1: the code declares it; 2: the code has removed it
  job uuid,
  fence bigint not null default 0,
  turn bigint not null default 0,
  failures integer not null default 0,
  check_at timestamptz,
  primary key (namespace, pool, name)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Events at gates since the last grant. Publishing and settling only add rows, so they lock nothing that
-- others need, however long their transaction is open. apply_gate_events applies the rows, one transaction at
-- a time. With a queue: a job came to that lane. Otherwise: more jobs may pass than before at this gate,
-- at all gates of this rule, or, with an empty key, at every gate.
create table $schema.gate_event (
  namespace text collate "C" not null,
  seq bigint generated always as identity,
  key text collate "C" not null,
  queue text collate "C",
  kind text collate "C",
  freed integer not null default 0,
  job uuid,
  member text collate "C",
  primary key (namespace, seq)
) with (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

-- The time that is given as a time or as seconds from now, by the server's clock.
create function $schema.moment(at float8, seconds float8) returns timestamptz language sql stable as $$
  select to_timestamp(coalesce(at, date_part('epoch', statement_timestamp()) + seconds))
$$;

-- Records a job that a transport carries. Returns whether it was new. The transport has made the message
-- durable: if the server crashes and loses the row, the worker that receives the message adds it again.
create function $schema.note_job(
  its_id uuid, space text, to_queue text, of_kind text, of_task text, arguments bytea,
  made timestamptz, trace text
) returns boolean language plpgsql as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  insert into $schema.job (id, namespace, queue, kind, task, state, body, created, traceparent)
  select its_id, space, to_queue, of_kind, of_task, 'sent', arguments, made, trace
  where not exists (select 1 from $schema.record where id = its_id and namespace = space)
  on conflict do nothing;
  if not found then
    return false;
  end if;
  -- A worker may have recorded, run and settled it since that statement began, which then saw neither
  -- job nor record. This statement sees the record.
  delete from $schema.job
  where id = its_id and namespace = space and state = 'sent'
    and exists (select 1 from $schema.record where id = its_id and namespace = space);
  return true;
end $$;

-- Both triggers run after the whole statement, so they see a job that becomes a record, or a record
-- that becomes a job.
create function $schema.steps_end_with_job() returns trigger language plpgsql as $$
begin
  delete from $schema.step s
  where s.job = old.id and s.namespace = old.namespace
    and not exists (select 1 from $schema.record r
                    where r.id = old.id and r.namespace = old.namespace);
  return null;
end $$;

create trigger steps_end_with_job after delete on $schema.job for each row
  when (old.steps) execute function $schema.steps_end_with_job();

create function $schema.steps_end_with_record() returns trigger language plpgsql as $$
begin
  delete from $schema.step s using gone g
  where s.job = g.id and s.namespace = g.namespace
    and not exists (select 1 from $schema.job j where j.id = g.id and j.namespace = g.namespace);
  return null;
end $$;

create trigger steps_end_with_record after delete on $schema.record
  referencing old table as gone
  for each statement execute function $schema.steps_end_with_record();

-- A job comes to a lane. One row is enough for a batch of one lane: all its jobs become visible
-- together. The setting ends with the transaction, and is undone with a savepoint.
create function $schema.job_waits() returns trigger language plpgsql as $$
declare
  lane constant text := ('$schema', new.namespace, new.gate, new.queue, new.kind)::text;
begin
  if current_setting('umbel.lane', true) is distinct from lane then
    perform set_config('umbel.lane', lane, true);
    insert into $schema.gate_event (namespace, key, queue, kind)
    values (new.namespace, new.gate, new.queue, new.kind);
  end if;
  return null;
end $$;

create trigger job_waits after insert on $schema.job for each row
  when (new.gate is not null) execute function $schema.job_waits();

-- Not for jobs that pass to their next gate: pass_gate handles them.
create trigger job_waits_now after update of gate, queue, kind on $schema.job for each row
  when (new.gate is not null and (new.slots is null or old.gate = new.gate)
        and (old.gate is distinct from new.gate or old.queue <> new.queue or old.kind <> new.kind))
  execute function $schema.job_waits();

-- A job that ends or returns to its queue frees its slots, whichever program changed it.
create function $schema.job_frees() returns trigger language plpgsql as $$
begin
  insert into $schema.gate_event (namespace, key, freed, job, member)
  select old.namespace, coalesce(slot ->> 'gate', ''), 1, old.id,
         coalesce(slot ->> 'member', slot ->> 'route')
  from jsonb_array_elements(old.slots) slot;
  perform pg_notify('$channel', 'g:' || old.namespace);
  return null;
end $$;

create trigger job_frees after update of slots on $schema.job for each row
  when (old.slots is not null and new.slots is null) execute function $schema.job_frees();

-- Whether a job is still blocked by a join.
create function $schema.blocks_jobs(space text, named text) returns boolean language sql stable as $$
  select exists (
    select 1 from $schema.job_wait w,
      lateral (select b.state from $schema.job b
               where b.id = w.job and b.namespace = space offset 0) b
    where w.namespace = space and w.join_id = named and b.state = 'blocked')
$$;

-- Queues jobs that wait for these joins, if they are complete and fire; at most "most". Jobs that another
-- transaction has locked are skipped, so this never waits for a job: a later call does the rest. Returns how
-- many were queued. Here and below, "lateral" and "offset 0" keep each lookup on its index, whatever the
-- server believes of the sizes of the tables.
create function $schema.release_joins(space text, joins text[], most integer)
returns integer language plpgsql as $$
declare
  many integer;
begin
  with ready as materialized (
    select j.id from $schema.job_join j
    where j.namespace = space and j.id = any(joins) and j.open = 0 and j.held is null and not j.done
      and not j.abandoned and (j.fire = 'all' or (j.fire = 'success') = (j.failed = 0))
  ),
  free as materialized (
    select b.id, $schema.moment(date_part('epoch', b.not_before), w.delay) as due,
           $schema.moment(date_part('epoch', b.expires), w.expires_in) as expires
    from ready r,
      lateral (select w.job, w.delay, w.expires_in from $schema.job_wait w
               where w.namespace = space and w.join_id = r.id offset 0) w,
      lateral (select b.id, b.not_before, b.expires from $schema.job b
               where b.id = w.job and b.namespace = space and b.state = 'blocked'
               for update skip locked) b
    limit most
  ),
  released as (
    update $schema.job b
    set state = case when f.due > statement_timestamp() then 'scheduled'
                     when b.gates ->> 0 is not null then 'waiting' else 'queued' end,
        gate = case when f.due > statement_timestamp() then null else b.gates ->> 0 end,
        not_before = f.due, expires = f.expires
    from free f where b.id = f.id and b.namespace = space
    returning b.queue, b.state
  ),
  told as (
    select count(pg_notify('$channel', hint)) as hints
    from (select distinct case state when 'scheduled' then 's:' || space
                                     else 'r:' || space || ':' || queue end as hint from released) h
  )
  select count(*) + 0 * (select hints from told) into many from released;
  update $schema.job_join j set done = true
  where j.namespace = space and j.id = any(joins) and j.open = 0 and j.held is null and not j.done
    and not $schema.blocks_jobs(space, j.id);
  return many;
end $$;

-- Jobs end, for whatever reason. One statement ends many. It frees their slots, with one row per gate for
-- those without members, and counts them in their joins. Joins are locked in the order of their ids, and
-- no job is waited for after that.
create function $schema.jobs_end() returns trigger language plpgsql as $$
declare
  space text;
  joins text[];
begin
  if exists (select 1 from gone where slots is not null) then
    insert into $schema.gate_event (namespace, key, freed, job, member)
    select j.namespace, coalesce(slot ->> 'gate', ''), count(*),
           case when slot ? 'member' then j.id end, coalesce(slot ->> 'member', slot ->> 'route')
    from gone j, jsonb_array_elements(j.slots) slot where j.slots is not null
    group by 1, 2, 4, 5;
    perform pg_notify('$channel', 'g:' || j.namespace)
    from gone j where j.slots is not null group by j.namespace;
  end if;
  if exists (select 1 from gone where part) then
    for space, joins in
      select g.namespace, array_agg(distinct e.join_id)
      from gone g, lateral (select e.join_id from $schema.job_edge e
                            where e.job = g.id and e.namespace = g.namespace and e.state is null
                            offset 0) e
      where g.part group by 1 order by 1
    loop
      perform 1 from $schema.job_join j
      where j.namespace = space and j.id = any(joins) order by j.id for update;
      with ended as materialized (
        select e.join_id, e.position, coalesce((
                 select r.state::text from $schema.record r
                 where r.id = g.id and r.namespace = g.namespace and r.attempt >= 0), 'succeeded') as state
        from gone g, lateral (select e.join_id, e.position from $schema.job_edge e
                              where e.job = g.id and e.namespace = g.namespace and e.state is null
                              offset 0) e
        where g.part and g.namespace = space
      ),
      marked as (
        update $schema.job_edge e set state = d.state from ended d
        where e.namespace = space and e.join_id = d.join_id and e.position = d.position
          and e.state is null
        returning e.join_id, e.state
      ),
      counted as (
        select join_id, count(*) as parts, count(*) filter (where state <> 'succeeded') as failed
        from marked group by join_id
      )
      update $schema.job_join j set open = j.open - c.parts, failed = j.failed + c.failed
      from counted c where j.namespace = space and j.id = c.join_id;
      perform $schema.release_joins(space, joins, 1000);
    end loop;
  end if;
  return null;
end $$;

create trigger jobs_end after delete on $schema.job
  referencing old table as gone for each statement execute function $schema.jobs_end();

-- A rule or a limit was changed, a member was added, or a pause has ended: at some gates more jobs may pass.
create function $schema.gate_opens() returns trigger language plpgsql as $$
declare
  space text;
  opened text;
begin
  if tg_table_name = 'rule' then
    space := new.namespace; opened := new.name;
  elsif tg_table_name = 'member' then
    space := new.namespace; opened := 'pool:' || new.pool;
  elsif tg_op = 'DELETE' then
    space := old.namespace;
    opened := case when starts_with(old.key, 'limits/') then substr(old.key, 8) else '' end;
  else
    space := new.namespace; opened := substr(new.key, 8);
  end if;
  insert into $schema.gate_event (namespace, key) values (space, opened);
  perform pg_notify('$channel', 'g:' || space);
  return null;
end $$;

create trigger rule_comes after insert on $schema.rule for each row
  execute function $schema.gate_opens();
create trigger rule_changes after update on $schema.rule for each row
  when (old.* is distinct from new.*) execute function $schema.gate_opens();
create trigger member_comes after insert on $schema.member for each row
  execute function $schema.gate_opens();
create trigger member_is_back after update of condition on $schema.member for each row
  when (new.condition = 'ready' and old.condition <> 'ready')
  execute function $schema.gate_opens();
create trigger pause_ends after delete on $schema.entry for each row
  when (starts_with(old.key, 'pauses/') or starts_with(old.key, 'limits/'))
  execute function $schema.gate_opens();
create trigger limit_changes after insert or update on $schema.entry for each row
  when (starts_with(new.key, 'limits/')) execute function $schema.gate_opens();

-- The lock of all gates of a namespace. Only single statements take it, each in its own transaction and
-- waiting for nothing else. So a client that stops cannot hold it, and it is never part of a deadlock.
create function $schema.lock_gates(space text) returns void language sql as $$
  select pg_advisory_xact_lock(hashtextextended('$channel/gates/' || space, 0))
$$;

-- Applies the rows of gate_event, ten thousand per call: freed slots become free, and lanes where a job may
-- pass are checked.
create function $schema.apply_gate_events(space text) returns void language plpgsql
set enable_seqscan to off set enable_bitmapscan to off set enable_hashjoin to off
set enable_mergejoin to off set jit to off set plan_cache_mode to force_generic_plan
as $$
declare
  gate_events $schema.gate_event[];
  some_came boolean;
  some_freed boolean;
  some_opened boolean;
  some_tokens boolean;
  some_members boolean;
begin
  perform $schema.lock_gates(space);
  -- A crash only loses work that is repeated. The commit of a claim makes this one durable, too.
  perform set_config('synchronous_commit', 'off', true);
  with first as materialized (
    select seq from $schema.gate_event where namespace = space order by seq limit 10000
  ),
  gone as (
    delete from $schema.gate_event k using first
    where k.namespace = space and k.seq = first.seq returning k
  )
  select array_agg(gone.k), bool_or((gone.k).queue is not null), bool_or((gone.k).freed > 0),
         bool_or((gone.k).freed = 0 and (gone.k).queue is null),
         bool_or((gone.k).freed > 0 and position('#' in (gone.k).key) > 0),
         bool_or((gone.k).member is not null)
  into gate_events, some_came, some_freed, some_opened, some_tokens, some_members from gone;
  if gate_events is null then
    return;
  end if;
  perform set_config('umbel.lane', '', true);
  if some_members then
    -- Only of this slot: the job may hold another one by now.
    update $schema.member m
    set job = null, condition = case condition when 'leaving' then 'gone' else condition end
    from unnest(gate_events) k
    where k.member is not null and m.namespace = space and m.pool = substr(k.key, 6)
      and m.name = k.member and m.job = k.job;
    update $schema.route r set held = greatest(held - f.jobs, 0)
    from (select member::bigint as id, sum(freed)::integer as jobs from unnest(gate_events)
          where freed > 0 and starts_with(key, 'route:') and member is not null group by 1) f
    where r.id = f.id;
  end if;
  if some_freed then
    update $schema.gate g set held = greatest(held - f.slots, 0)
    from (select key, sum(freed)::integer as slots from unnest(gate_events) where freed > 0 group by key) f
    where g.namespace = space and g.key = f.key;
    update $schema.waiting_list l set next_check = '-infinity'
    from (select distinct key from unnest(gate_events) where freed > 0) f
    where l.namespace = space and l.key = f.key and l.next_check is null;
  end if;
  if some_tokens then  -- their number is not limited
    delete from $schema.gate g using (select distinct key from unnest(gate_events) where freed > 0) f
    where g.namespace = space and g.key = f.key and g.held = 0 and g.paces = '{}'
      and position('#' in g.key) > 0;
  end if;
  if some_opened then  -- reads all lanes
    update $schema.waiting_list l set next_check = '-infinity'
    from (select distinct key from unnest(gate_events) where freed = 0 and queue is null) o
    where l.namespace = space and l.next_check is distinct from '-infinity'
      and (o.key in ('', l.key) or starts_with(l.key, o.key || '#'));
  end if;
  if some_came then
    insert into $schema.waiting_list as l (namespace, key, queue, kind, next_check)
    select space, key, queue, kind, '-infinity'::timestamptz
    from unnest(gate_events) where queue is not null
    group by key, queue, kind order by min(seq)  -- the lane of the first job comes first
    on conflict (namespace, key, queue, kind) do update set next_check = '-infinity'
    where l.next_check is distinct from '-infinity';
  end if;
end $$;

-- Lets jobs of one lane pass their gate, to the next gate or into their queue: at most "most", and only
-- as many as a claim of "room" jobs would take. The kinds, priorities and numbers are those of the first
-- queued jobs; "deepest" is how many of these come before a job that has passed. A job that enters the
-- queue runs at once if there is a claimer. Returns how many passed, and the jobs that entered. Jobs of
-- the tasks in "without" are left out, because the claimer cannot run them.
create function $schema.pass_gate(
  space text, at_gate text, to_queue text, of_kind text, without text[], most integer, room integer,
  kinds text[], priorities integer[], seqs bigint[], claimer text, its_name text,
  inout deepest integer, out passed integer, out entered uuid[]
) language plpgsql as $$
declare
  now constant timestamptz := statement_timestamp();
  seconds constant double precision := date_part('epoch', statement_timestamp());
  slack constant double precision := 0.01;  -- umbel.resilience.pace in SQL
  credit constant double precision := 0.9 * slack;
  rule jsonb;
  sort text;
  capacity integer;
  burst integer;
  holding integer;
  paced double precision[];
  free integer := 0;
  next_time timestamptz;
  slot jsonb := jsonb_build_object('gate', at_gate);
  offered jsonb[];
  names text[];
  paused text[];
  jobs uuid[];
  onwards text[];  -- the next gate of each job; null after its last one
  found_many integer := 0;
  before_last integer;
  last_turn bigint;
begin
  passed := 0;
  entered := '{}';
  if starts_with(at_gate, 'route:') then
    select s.passed, s.entered into passed, entered
    from $schema.send_on(space, at_gate, to_queue, of_kind, least(most, room)) s;
    return;
  end if;
  select r.declared, coalesce(r.declared ->> 'kind', 'limit'),
         coalesce((select o.capacity from $schema.limit_override o
                   where o.namespace = space and o.rule = r.name),
                  (r.declared ->> 'capacity')::integer, 0),
         coalesce((r.declared ->> 'burst')::integer, 1)
  into rule, sort, capacity, burst
  from $schema.rule r where r.namespace = space and r.name = split_part(at_gate, '#', 1);
  select g.held, g.paces into holding, paced
  from $schema.gate g where g.namespace = space and g.key = at_gate;
  holding := coalesce(holding, 0);
  if sort = 'pool' then
    select array_agg(m.name), array_agg(slot || jsonb_build_object(
             'member', m.name, 'fence', m.fence + 1, 'data', m.data)), count(*)
    into names, offered, free
    from (select f.name, f.fence, f.data from $schema.member f
          where f.namespace = space and f.pool = substr(at_gate, 6) and f.condition = 'ready'
            and f.job is null
          order by f.turn, f.name limit most) m;
  elsif sort = 'rate' then
    select least(min(floor(ahead / step) + 1), most)::integer into free
    from (select step, seconds + (burst - 1) * step
                 - greatest(paced[n], seconds - credit * period) as ahead
          from (select n, (rate ->> 1)::float8 as period,
                       (rate ->> 1)::float8 / (rate ->> 0)::integer * (1 + slack) as step
                from jsonb_array_elements(rule -> 'rates') with ordinality r (rate, n)) s) a;
    free := greatest(coalesce(free, 0), 0);
  elsif sort = 'open' then
    free := most;
  elsif sort = 'limit' and capacity = 0 and (rule -> 'rejects')::boolean then
    free := most;
    slot := slot || '{"rejected": true}';
  elsif sort = 'limit' then
    free := greatest(least(most, capacity - holding), 0);
  end if;

  if free > 0 then
    -- Jobs that are locked are skipped: this must not wait for other transactions.
    paused := array(select p.name from $schema.pause p
                    where p.namespace = space and p.scope = 'task');
    select array_agg(f.id) filter (where f.place + greatest(f.before, deepest) <= room),
           array_agg(f.onwards) filter (where f.place + greatest(f.before, deepest) <= room),
           count(*), max(f.before) filter (where f.place + greatest(f.before, deepest) <= room)
    into jobs, onwards, found_many, before_last
    from (
      select w.id, w.onwards, row_number() over () as place, (
               select count(*) from unnest(kinds, priorities, seqs) as q (kind, priority, seq)
               where q.kind = of_kind
                 and (q.priority > w.priority or (q.priority = w.priority and q.seq < w.seq))
             ) as before
      from (
        select j.id, j.priority, j.seq,
               j.gates ->> (coalesce(jsonb_array_length(j.slots), 0) + 1) as onwards
        from $schema.job j
        where j.namespace = space and j.gate = at_gate and j.queue = to_queue and j.kind = of_kind
          and j.state = 'waiting' and j.task <> all (paused || without)
        order by j.priority desc, j.seq limit free for update skip locked) w) f;
    passed := coalesce(cardinality(jobs), 0);
    deepest := greatest(deepest, before_last);
  end if;

  if passed > 0 then
    update $schema.job j
    set gate = p.onwards,
        slots = coalesce(j.slots, '[]') || jsonb_build_array(coalesce(offered[p.place], slot)),
        state = case when p.onwards is not null then 'waiting' when claimer is null then 'queued'
                     else 'running' end,
        owner = case when p.onwards is null then claimer end,
        worker = case when p.onwards is null then its_name end,
        fence = case when p.onwards is not null or claimer is null then j.fence
                     else least(j.fence, 9223372036854775806) + 1 end,
        claimed = case when p.onwards is not null or claimer is null then j.claimed else now end
    from unnest(jobs, onwards) with ordinality as p (id, onwards, place)
    where j.id = p.id and j.namespace = space;
    entered := array(select p.id from unnest(jobs, onwards) as p (id, onwards)
                     where p.onwards is null);
    if cardinality(entered) < passed then
      insert into $schema.waiting_list as l (namespace, key, queue, kind, next_check)
      select distinct space, o.gate, to_queue, of_kind, '-infinity'::timestamptz
      from unnest(onwards) o (gate) where o.gate is not null order by 2
      on conflict (namespace, key, queue, kind) do update set next_check = '-infinity';
    end if;
    if sort = 'pool' then
      select max(m.turn) into last_turn
      from $schema.member m where m.namespace = space and m.pool = substr(at_gate, 6);
      update $schema.member m set job = p.job, fence = m.fence + 1, turn = last_turn + p.place
      from unnest(names[1:passed], jobs) with ordinality as p (name, job, place)
      where m.namespace = space and m.pool = substr(at_gate, 6) and m.name = p.name;
    elsif sort = 'rate' then
      paced := array(
        select greatest(paced[n], seconds - credit * (rate ->> 1)::float8)
               + passed * (rate ->> 1)::float8 / (rate ->> 0)::integer * (1 + slack)
        from jsonb_array_elements(rule -> 'rates') with ordinality r (rate, n) order by n);
    end if;
    insert into $schema.gate as g (namespace, key, held, paces)
    values (space, at_gate, passed, coalesce(paced, '{}'))
    on conflict (namespace, key) do update
    set held = g.held + excluded.held, paces = excluded.paces;
  end if;

  if free = most then
    next_time := '-infinity';
  elsif sort = 'rate' then
    select to_timestamp(max(paced[n] - (burst - 1) * (rate ->> 1)::float8
                            / (rate ->> 0)::integer * (1 + slack))) into next_time
    from jsonb_array_elements(rule -> 'rates') with ordinality r (rate, n);
  end if;
  if passed < free then
    perform 1 from $schema.job j
    where j.namespace = space and j.gate = at_gate and j.queue = to_queue and j.kind = of_kind
      and j.state = 'waiting' limit 1;
    if not found then
      delete from $schema.waiting_list l
      where l.namespace = space and l.key = at_gate and l.queue = to_queue and l.kind = of_kind;
      return;
    end if;
    if found_many > passed then
      next_time := '-infinity';  -- they come after queued jobs
    else
      -- For other workers or locked: check again soon. Or paused: check when the pause ends.
      perform 1 from $schema.job j
      where j.namespace = space and j.gate = at_gate and j.queue = to_queue and j.kind = of_kind
        and j.state = 'waiting' and j.task <> all (paused) limit 1;
      if found then
        next_time := case without when '{}' then now + interval '50 ms' else '-infinity' end;
      else
        next_time := null;
      end if;
    end if;
  end if;
  update $schema.waiting_list l set next_check = next_time, turn = nextval('$schema.turn')
  where l.namespace = space and l.key = at_gate and l.queue = to_queue and l.kind = of_kind;
end $$;

-- Lets the jobs pass their gates that a claim of these queues would take now, so many of each kind. For a
-- registered claimer they run at once, if it is certain that the claim would take them: not where there
-- are jobs of unknown kind. Returns the jobs that are in their queue now, or run. Must not be called in a
-- transaction: see lock_gates. It does not wait for the disk, so that the lock is short. A claimer that
-- gets running jobs makes a commit that does.
create function $schema.grant_slots(
  space text, queues text[], kinds text[], capacity integer[], without text[] default '{}',
  claimer text default null
) returns setof $schema.job language plpgsql
set enable_seqscan to off set enable_bitmapscan to off set enable_sort to off
set enable_hashjoin to off set enable_mergejoin to off set jit to off
set plan_cache_mode to force_generic_plan
as $$
declare
  to_queue text;
  room integer[];
  at integer;
  share integer;
  lane record;
  step record;
  queued_kinds text[];
  priorities integer[];
  seqs bigint[];
  deepest integer[];
  moving boolean;
  granted uuid[] := '{}';
  its_name text;
  unsorted boolean;
  -- A job that passes may wait at the next gate. Long waiting lists move in several calls.
  left_to_pass integer := 1000 + 2 * (select sum(many) from unnest(capacity) c (many));
begin
  if claimer is not null then
    select w.name into its_name from $schema.worker w where w.incarnation = claimer;
    if not found then
      return;
    end if;
  end if;
  perform $schema.apply_gate_events(space);
  foreach to_queue in array queues loop
    continue when exists (
      select 1 from $schema.pause p
      where p.namespace = space and (p.scope = 'all' or (p.scope = 'queue' and p.name = to_queue)));
    update $schema.waiting_list l set next_check = '-infinity'
    where l.namespace = space and l.queue = to_queue
      and l.next_check > '-infinity' and l.next_check <= statement_timestamp();
    room := capacity;
    deepest := array_fill(0, array[cardinality(kinds)]);
    -- Queued jobs that come first take the slots before waiting jobs.
    select array_agg(k.kind), array_agg(q.priority), array_agg(q.seq)
    into queued_kinds, priorities, seqs
    from unnest(kinds, room) k (kind, room), lateral (
      select j.priority, j.seq from $schema.job j
      where j.namespace = space and j.queue = to_queue and j.kind = k.kind and j.state = 'queued'
        and j.task <> all (without || array(select p.name from $schema.pause p
                                            where p.namespace = space and p.scope = 'task'))
      order by j.priority desc, j.seq limit greatest(k.room, 0)) q;
    unsorted := exists (
      select 1 from $schema.job j
      where j.namespace = space and j.queue = to_queue and j.kind = '' and j.state = 'queued')
    or exists (
      select 1 from $schema.waiting_list l
      where l.namespace = space and l.queue = to_queue and l.kind = '' and l.next_check = '-infinity');
    moving := true;
    while moving and left_to_pass > 0 loop
      moving := false;
      for lane in
        select f.key, k.kind, k.place::integer,
               count(*) over (partition by k.kind order by f.turn desc)::integer as lanes
        from unnest(kinds) with ordinality k (kind, place),
          lateral (
            select l.key, l.turn from $schema.waiting_list l
            where l.namespace = space and l.queue = to_queue and l.kind = k.kind
              and l.next_check = '-infinity'
              and not exists (select 1 from $schema.pause p
                              where p.namespace = space and p.scope = 'gate' and p.name = l.key)
            order by l.turn limit greatest(room[k.place], 0)) f
        order by f.turn
      loop
        at := lane.place;
        continue when room[at] <= 0;
        share := least(greatest(room[at] / lane.lanes, 1), left_to_pass);
        exit when share <= 0;
        select * into step from $schema.pass_gate(
          space, lane.key, to_queue, lane.kind, without, share, room[at], queued_kinds, priorities,
          seqs, case when unsorted then null else claimer end, its_name, deepest[at]);
        deepest[at] := step.deepest;
        room[at] := room[at] - cardinality(step.entered);
        left_to_pass := left_to_pass - step.passed;
        granted := granted || step.entered;
        moving := moving or step.passed > 0;
      end loop;
    end loop;
  end loop;
  return query select j.* from $schema.job j where j.id = any(granted) and j.namespace = space;
end $$;

-- Registers an incarnation at the requested index, at one that is kept for its name, or at the lowest
-- free one. If a worker of another name has the requested index, returns that name and registers nothing.
create function $schema.register_worker(
  space text, its_incarnation text, its_name text, its_entry jsonb, inout at_index integer, out taken text
) language plpgsql as $$
declare
  found_at integer;
begin
  perform $schema.lock_gates(space);
  select w.idx into found_at from $schema.worker w where w.incarnation = its_incarnation;
  if found then
    at_index := found_at;
    return;
  end if;
  if at_index is null then
    select s.idx into at_index from $schema.worker_index s
    where s.namespace = space and s.name = its_name
      and not exists (select 1 from $schema.worker w where w.namespace = space and w.idx = s.idx)
    order by coalesce(s.kept > statement_timestamp(), false) desc, s.idx limit 1;
    if not found then
      select min(f.idx) into at_index
      from (select 0 as idx union all select s.idx + 1 from $schema.worker_index s where s.namespace = space) f
      where not exists (select 1 from $schema.worker w where w.namespace = space and w.idx = f.idx)
        and not exists (select 1 from $schema.worker_index k where k.namespace = space and k.idx = f.idx
                                                       and k.kept > statement_timestamp());
    end if;
  else
    select w.name into taken from $schema.worker w
    where w.namespace = space and w.idx = at_index and w.name <> its_name limit 1;
    if found then
      return;
    end if;
  end if;
  if exists (select 1 from $schema.worker_index s
             where s.namespace = space and s.idx = register_worker.at_index and s.name <> its_name) then
    -- The routes of this index belong to another worker, which is gone.
    update $schema.worker_index s set kept = null where s.namespace = space and s.idx = register_worker.at_index;
    perform $schema.settle_routes(space);
  end if;
  insert into $schema.worker_index as s (namespace, idx, name) values (space, at_index, its_name)
  on conflict (namespace, idx) do update set name = excluded.name, kept = null, retiring = false;
  insert into $schema.worker (incarnation, namespace, entry, name, idx)
  values (its_incarnation, space, jsonb_set(its_entry, '{index}', to_jsonb(at_index)), its_name, at_index);
  -- It may get routes that no other worker could have, or return to its own.
  insert into $schema.gate_event (namespace, key) values (space, 'route:');
  perform pg_notify('$channel', 'g:' || space);
end $$;

-- Whether a worker with this index is registered, or the index kept.
create function $schema.has_worker(space text, at_index integer) returns boolean language sql stable as $$
  select exists (select 1 from $schema.worker w where w.namespace = space and w.idx = at_index)
      or exists (select 1 from $schema.worker_index s
                 where s.namespace = space and s.idx = at_index and s.kept > statement_timestamp())
$$;

-- Releases closing routes that can be released, and puts their jobs back on the waiting list before.
create function $schema.settle_routes(space text, idle double precision default null)
returns setof $schema.route language plpgsql
set enable_seqscan to off set enable_bitmapscan to off
as $$
declare
  ended $schema.route;
begin
  perform $schema.lock_gates(space);
  update $schema.route r
  set closing = 2, why = case r.why when '' then 'its worker is gone' else r.why end
  where r.namespace = space and r.released is null and r.closing < 2
    and not $schema.has_worker(space, r.idx);
  if idle is not null then
    perform $schema.apply_gate_events(space);
    update $schema.route r set rested = statement_timestamp()
    where r.namespace = space and r.released is null and r.held = 0 and r.rested is null;
    update $schema.route r set closing = 1, why = 'idle'
    where r.namespace = space and r.released is null and r.closing = 0 and r.held = 0
      and r.rested <= statement_timestamp() - make_interval(secs => idle)
      and not exists (select 1 from $schema.job j
                      where j.namespace = space and j.gate = 'route:#' || r.key
                        and j.state = 'waiting');
  end if;
  if not exists (select 1 from $schema.route r
                 where r.namespace = space and r.released is null and r.closing > 0) then
    return;
  end if;
  update $schema.job j
  set state = 'waiting', queue = j.slots -> -1 ->> 'home', gate = j.gates ->> 0, slots = null
  from $schema.route r
  where r.namespace = space and r.released is null and r.closing > 0
    and j.namespace = space and j.queue = 'worker-' || r.idx
    and j.state in ('queued', 'sent') and (j.slots -> -1 ->> 'route')::bigint = r.id;
  perform $schema.apply_gate_events(space);
  for ended in
    update $schema.route r set released = clock_timestamp()
    where r.namespace = space and r.released is null and r.closing > 0
      and (r.held = 0 or r.closing = 2)
    returning r.*
  loop
    update $schema.waiting_list l set next_check = '-infinity'
    where l.namespace = space and l.key = 'route:#' || ended.key;
    return next ended;
  end loop;
  perform pg_notify('$channel', 'g:' || space);
end $$;

-- Makes a route to the worker with the fewest live routes, then the lowest index, or to the index that the
-- last route was to move to. No row if no worker could run the task.
create function $schema.make_route(space text, named text, to_queue text, of_task text)
returns setof $schema.route language plpgsql as $$
declare
  among_whom jsonb;
  chosen integer;
  wanted integer;
begin
  select jsonb_agg(jsonb_build_array(c.idx, c.many) order by c.many, c.idx) into among_whom
  from (
    select w.idx, (select count(*) from $schema.route r
                   where r.namespace = space and r.idx = w.idx and r.released is null) as many
    from $schema.worker w join $schema.worker_index s on s.namespace = w.namespace and s.idx = w.idx
    where w.namespace = space and not w.stopping and not s.retiring
      and w.entry -> 'queues' ? to_queue and w.entry -> 'tasks' ? of_task
    group by w.idx) c;
  if among_whom is null then
    return;
  end if;
  chosen := (among_whom -> 0 ->> 0)::integer;
  select r.target into wanted from $schema.route r
  where r.namespace = space and r.key = named order by r.id desc limit 1;
  if exists (select 1 from jsonb_array_elements(among_whom) a where (a ->> 0)::integer = wanted) then
    chosen := wanted;
  end if;
  update $schema.waiting_list l set next_check = '-infinity'  -- for jobs of other queues and kinds
  where l.namespace = space and l.key = 'route:#' || named;
  return query insert into $schema.route (namespace, key, idx, among)
  values (space, named, chosen, among_whom) returning *;
end $$;

-- Moves jobs of one lane into the inbox of the worker that has their key. A job that is to run only if
-- there is a route, and has none, passes into this queue to end, as far as the demand allows.
create function $schema.send_on(
  space text, at_gate text, to_queue text, of_kind text, room integer, out passed integer,
  out entered uuid[]
) language plpgsql as $$
declare
  named constant text := substr(at_gate, 8);  -- after 'route:#'
  most constant integer := 1000;
  paused constant text[] := array(select p.name from $schema.pause p
                                  where p.namespace = space and p.scope = 'task');
  way $schema.route;
  job record;
  jobs uuid[] := '{}';
  next_time timestamptz;
  found_many integer := 0;
begin
  passed := 0;
  entered := '{}';
  select * into way from $schema.route r
  where r.namespace = space and r.key = named and r.released is null;
  if found and (way.closing > 0 or not $schema.has_worker(space, way.idx)) then
    perform $schema.settle_routes(space);
    select * into way from $schema.route r
    where r.namespace = space and r.key = named and r.released is null;
  end if;
  if way.id is null or way.closing = 0 then
    for job in
      select j.id, j.seq, j.task, j.headers ? 'onlyifrouted' as only_if_routed from $schema.job j
      where j.namespace = space and j.gate = at_gate and j.queue = to_queue and j.kind = of_kind
        and j.state = 'waiting' and j.task <> all (paused)
      order by j.priority desc, j.seq limit most for update skip locked
    loop
      found_many := found_many + 1;
      if way.id is null and job.only_if_routed then
        if exists (
          select 1 from $schema.job b
          where b.namespace = space and b.gate = at_gate and b.state = 'waiting'
            and b.seq < job.seq and not b.headers ? 'onlyifrouted') then
          -- That job makes the route, or leaves without a notification.
          jobs := jobs || job.id;
          next_time := statement_timestamp() + interval '1 second';
          continue;
        end if;
        if cardinality(entered) >= room then
          next_time := '-infinity';
          exit;
        end if;
        update $schema.job j
        set state = 'queued', gate = null,
            slots = coalesce(j.slots, '[]') || jsonb_build_array(
              jsonb_build_object('gate', at_gate, 'rejected', true))
        where j.id = job.id and j.namespace = space;
        entered := entered || job.id;
        continue;
      end if;
      if way.id is null then
        select * into way from $schema.make_route(space, named, to_queue, job.task);
        exit when way.id is null;
      end if;
      jobs := jobs || job.id;
    end loop;
  end if;
  if way.id is null then
    jobs := '{}';
  elsif cardinality(jobs) > 0 then
    update $schema.job j
    set state = 'queued', gate = null, queue = 'worker-' || way.idx,
        slots = coalesce(j.slots, '[]') || jsonb_build_array(
          jsonb_build_object('gate', at_gate, 'route', way.id, 'home', to_queue))
    where j.id = any (jobs) and j.namespace = space;
    update $schema.route r set held = r.held + cardinality(jobs), rested = null where r.id = way.id;
    perform pg_notify('$channel', 'r:' || space || ':worker-' || way.idx);
  end if;
  passed := cardinality(jobs) + cardinality(entered);
  if found_many = most and passed > 0 then
    next_time := '-infinity';
  end if;
  perform 1 from $schema.job j
  where j.namespace = space and j.gate = at_gate and j.queue = to_queue and j.kind = of_kind
    and j.state = 'waiting' and j.task <> all (paused) limit 1;
  if found and found_many = 0 and (way.id is null or way.closing = 0) then
    next_time := statement_timestamp() + interval '50 ms';  -- another transaction has locked them
  end if;
  perform 1 from $schema.job j
  where j.namespace = space and j.gate = at_gate and j.queue = to_queue and j.kind = of_kind
    and j.state = 'waiting' limit 1;
  if found then
    update $schema.waiting_list l set next_check = next_time, turn = nextval('$schema.turn')
    where l.namespace = space and l.key = at_gate and l.queue = to_queue and l.kind = of_kind;
  else
    delete from $schema.waiting_list l
    where l.namespace = space and l.key = at_gate and l.queue = to_queue and l.kind = of_kind;
  end if;
end $$;

-- Closes the route of a key. The next route of the key goes to an index if one is given. Returns the last
-- route of the key; no row if it has none.
create function $schema.close_route(space text, named text, reason text, wanted integer)
returns setof $schema.route language plpgsql as $$
begin
  perform $schema.lock_gates(space);
  update $schema.route r set closing = greatest(r.closing, 1), why = reason, target = wanted
  where r.namespace = space and r.key = named and r.released is null;
  if not found then
    return;
  end if;
  perform $schema.settle_routes(space);
  return query select * from $schema.route r
  where r.namespace = space and r.key = named order by r.id desc limit 1;
end $$;

-- Closes all routes of an index and gives it no more, or lets it have routes again. Returns how many it
-- has.
create function $schema.retire(space text, at_index integer, leaves boolean)
returns bigint language plpgsql as $$
declare
  many bigint;
begin
  perform $schema.lock_gates(space);
  select count(*) into many from $schema.route r
  where r.namespace = space and r.idx = at_index and r.released is null;
  update $schema.worker_index s set retiring = leaves where s.namespace = space and s.idx = at_index;
  if leaves then
    update $schema.route r set closing = greatest(r.closing, 1), why = 'retired'
    where r.namespace = space and r.idx = at_index and r.released is null;
    perform $schema.settle_routes(space);
  else
    insert into $schema.gate_event (namespace, key) values (space, 'route:');
    perform pg_notify('$channel', 'g:' || space);
  end if;
  return many;
end $$;

-- The time of an attribute of an event, which is a time or a duration such as PT30S.
create function $schema.moment_in(value text) returns timestamptz language sql stable as $$
  select case when value like 'P%' then statement_timestamp() + value::interval
              else value::timestamptz end
$$;

-- Publishing from any language: select umbel.publish_event('{"specversion": "1.0", ...}');
create function $schema.publish_event(event jsonb) returns uuid language plpgsql as $$
declare
  known constant text[] := array[
    'specversion', 'id', 'type', 'source', 'subject', 'time', 'datacontenttype', 'dataschema',
    'data', 'data_base64', 'namespace', 'queue', 'kind', 'priority', 'notbefore', 'expiry',
    'attempt', 'maxdeaths', 'uniquekey', 'onconflict', 'traceparent'];
  field text := 'event';
  job $schema.job;
  holder uuid;
  conflict text;
begin
  begin
    if jsonb_typeof(event) is distinct from 'object' then
      raise exception 'a CloudEvent is a JSON object' using errcode = 'invalid_parameter_value';
    end if;
    field := 'specversion';
    if coalesce(event ->> field, '1.0') <> '1.0' then
      raise exception 'must be 1.0' using errcode = 'invalid_parameter_value';
    end if;
    field := 'type';
    if event ->> field is distinct from 'umbel.command' then
      raise exception 'must be umbel.command' using errcode = 'invalid_parameter_value';
    end if;
    field := 'subject';
    if coalesce(length(event ->> field), 0) not between 1 and 255 then
      raise exception 'must name the task, in 1 to 255 characters'
        using errcode = 'invalid_parameter_value';
    end if;
    job.task := event ->> field;
    field := 'queue';
    if length(event ->> field) not between 1 and 255 then
      raise exception 'must have 1 to 255 characters' using errcode = 'invalid_parameter_value';
    end if;
    job.queue := coalesce(event ->> field, 'default');
    field := 'namespace';
    job.namespace := coalesce(event ->> field, 'umbel');
    if length(job.namespace) not between 1 and 63 then
      raise exception 'must have 1 to 63 characters' using errcode = 'invalid_parameter_value';
    end if;
    field := 'kind';
    if event ->> field not in ($kinds) then
      raise exception 'must be a kind of tasks' using errcode = 'invalid_parameter_value';
    end if;
    job.kind := coalesce(event ->> field, '');
    field := 'onconflict';
    conflict := coalesce(event ->> field, 'raise');
    if conflict not in ('raise', 'return') then
      raise exception 'must be raise or return here' using errcode = 'invalid_parameter_value';
    end if;
    field := 'id'; job.id := coalesce((event ->> field)::uuid, gen_random_uuid());
    field := 'priority'; job.priority := coalesce((event ->> field)::smallint, 0);
    field := 'attempt'; job.attempt := coalesce((event ->> field)::integer, 1);
    field := 'maxdeaths'; job.max_deaths := coalesce((event ->> field)::smallint, 3);
    field := 'time'; job.created := coalesce((event ->> field)::timestamptz, statement_timestamp());
    field := 'notbefore'; job.not_before := $schema.moment_in(event ->> field);
    field := 'expiry'; job.expires := $schema.moment_in(event ->> field);
    field := 'uniquekey'; job.unique_key := event ->> field;
    field := 'data_base64';
    job.content_type := coalesce(event ->> 'datacontenttype', 'application/json');
    job.body := decode(event ->> field, 'base64');
    field := 'data';
    job.body := coalesce(job.body, convert_to((event -> field)::text, 'UTF8'));
    if job.body is null then
      raise exception 'is missing; a command carries {"args": [...], "kwargs": {...}}'
        using errcode = 'invalid_parameter_value';
    end if;
  exception when data_exception then
    raise exception '%: %', field, sqlerrm using errcode = 'invalid_parameter_value';
  end;
  job.traceparent := event ->> 'traceparent';
  job.state := case when job.not_before > statement_timestamp() then 'scheduled' else 'queued' end;
  select coalesce(jsonb_object_agg(key, event ->> key), '{}') into job.headers
  from jsonb_each(event) where key <> all (known) and value <> 'null';
  loop
    insert into $schema.job (id, namespace, queue, kind, task, state, priority, content_type, body,
                             created, not_before, expires, attempt, max_deaths, unique_key,
                             traceparent, headers)
    select job.id, job.namespace, job.queue, job.kind, job.task, job.state, job.priority,
           job.content_type, job.body, job.created, job.not_before, job.expires, job.attempt,
           job.max_deaths, job.unique_key, job.traceparent, job.headers
    where not exists (select 1 from $schema.record r
                      where r.id = job.id and r.namespace = job.namespace)
    on conflict do nothing;
    if found then
      perform pg_notify('$channel', case job.state
        when 'queued' then 'r:' || job.namespace || ':' || job.queue
        else 's:' || job.namespace end);
      return job.id;
    end if;
    if exists (select 1 from $schema.job j where j.id = job.id and j.namespace = job.namespace)
       or exists (select 1 from $schema.record r
                  where r.id = job.id and r.namespace = job.namespace) then
      return job.id;  -- published before: repeating is safe
    end if;
    select j.id into holder from $schema.job j
    where j.namespace = job.namespace and j.unique_key = job.unique_key;
    if found and conflict = 'return' then
      return holder;
    elsif found then
      raise exception 'uniquekey: job % already holds the unique key %', holder, job.unique_key
        using errcode = 'unique_violation';
    end if;
  end loop;  -- the holder has finished, so the key is free
end $$;

-- Publishing from psql: select umbel.publish('tasks.add', '[1, 2]');
create function $schema.publish(
  task text, args jsonb default '[]', kwargs jsonb default '{}', queue text default 'default',
  priority integer default 0, delay interval default '0', namespace text default 'umbel',
  id uuid default gen_random_uuid()
) returns uuid language plpgsql as $$
begin
  if jsonb_typeof(args) is distinct from 'array' then
    raise exception 'args: must be a JSON array' using errcode = 'invalid_parameter_value';
  elsif jsonb_typeof(kwargs) is distinct from 'object' then
    raise exception 'kwargs: must be a JSON object' using errcode = 'invalid_parameter_value';
  end if;
  return $schema.publish_event(jsonb_build_object(
    'specversion', '1.0', 'type', 'umbel.command', 'id', id, 'subject', task, 'queue', queue,
    'priority', priority, 'namespace', namespace,
    'notbefore', case when delay > interval '0' then statement_timestamp() + delay end,
    'data', jsonb_build_object('args', args, 'kwargs', kwargs)));
end $$;

-- How a job ended, as a CloudEvent for programs in any language: select umbel.document(id); Null while it
-- is not finished.
create function $schema.document(job uuid, namespace text default 'umbel')
returns jsonb language plpgsql stable as $$
declare
  found_record $schema.record;
  event jsonb;
  data jsonb := 'null';
begin
  select * into found_record from $schema.record r
  where r.id = job and r.namespace = document.namespace;
  if not found then
    perform 1 from $schema.job j where j.id = job and j.namespace = document.namespace;
    if not found then
      raise exception 'id: there is no job % in the namespace %', job, namespace using errcode = 'no_data_found';
    end if;
    return null;
  end if;
  event := jsonb_build_object(
    'specversion', '1.0', 'type', 'umbel.document', 'id', job,
    'source', '/umbel/' || found_record.namespace, 'subject', found_record.task,
    'time', to_char(found_record.finished at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    'namespace', found_record.namespace, 'datacontenttype', 'application/json',
    'state', found_record.state)
    || jsonb_strip_nulls(jsonb_build_object(
      'reason', nullif(left(found_record.reason, 1000), ''),
      'correlationid', found_record.headers ->> 'correlationid'));
  if found_record.state <> 'succeeded' then
    data := coalesce(found_record.failure, jsonb_build_object('message', found_record.reason));
  elsif found_record.result is not null then
    begin
      if found_record.result_type not like '%json' then
        raise invalid_text_representation;
      end if;
      data := convert_from(found_record.result, 'UTF8')::jsonb;
    exception when data_exception then  -- other bytes, or JSON with a NUL, which jsonb does not accept
      return event || jsonb_build_object(
        'datacontenttype', found_record.result_type,
        'data_base64', translate(encode(found_record.result, 'base64'), E'\n', ''));
    end;
  end if;
  return event || jsonb_build_object('data', data);
end $$;
