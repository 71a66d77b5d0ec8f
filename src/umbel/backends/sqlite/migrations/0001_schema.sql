-- Live jobs. A row is both the message and its state, and is deleted when the job is final. "Sent" is
-- a queued job whose message a transport carries.
create table job (
  seq integer primary key,  -- greater than those of all live jobs; it may be used again after its job is deleted
  id text not null check (length(id) = 36),
  namespace text not null,
  queue text not null check (length(queue) between 1 and 255),
  kind text not null default '' check (kind in ($kinds)),
  task text not null check (length(task) between 1 and 255),
  type text not null default 'umbel.command'
    check (type in ('umbel.command', 'umbel.event', 'umbel.document')),
  state text not null default 'queued' check (state in ('blocked', 'scheduled', 'waiting', 'queued', 'sent', 'running')),
  priority integer not null default 0,
  content_type text not null default 'application/json',
  body blob not null,
  created real not null,
  not_before real,
  expires real,
  attempt integer not null default 1,
  deaths integer not null default 0,
  blame integer not null default 0,
  lapses integer not null default 0,  -- how often its lease lapsed while its worker was alive
  max_deaths integer not null default 3,
  unique_key text,
  traceparent text,
  headers text not null default '{}' check (json_valid(headers)),
  owner text,
  worker text,
  fence integer not null default 0,
  claimed real,
  sections text not null default '{}' check (json_valid(sections)),
  attempts text not null default '[]' check (json_valid(attempts)),
  progress_done real,
  progress_of real,
  cancel_reason text,
  gates text check (gates is null or json_valid(gates)),  -- the gates that it has to pass, in order; null if none
  gate text,  -- the gate at which it waits
  slots text check (slots is null or json_valid(slots)),  -- the slots that it holds of gates that it has passed
  received integer not null default 0,  -- whether the one worker that it is for has received it
  steps integer not null default 0,  -- whether it has steps; few jobs do
  unique (id, namespace),  -- an id names one job in each namespace
  check ((state = 'waiting') = (gate is not null)),
  check ((state = 'running') = (owner is not null)),
  check ((state = 'scheduled') <= (not_before is not null))
) strict;

create index job_ready on job (namespace, queue, kind, priority desc, seq) where state = 'queued';
create index job_sent on job (namespace, queue, kind) where state = 'sent';
create index job_due on job (namespace, not_before) where state = 'scheduled';
create index job_owner on job (owner) where state = 'running';
create index job_gate on job (namespace, gate, queue, kind, priority desc, seq)
  where state = 'waiting';
create index job_expires on job (namespace, expires) where expires is not null;
create unique index job_unique on job (namespace, unique_key) where unique_key is not null;

-- Finished jobs, with the payload, so that they can be replayed.
create table record (
  id text not null,
  namespace text not null,
  queue text not null,
  kind text not null,
  task text not null,
  type text not null,
  state text not null check (state in ('succeeded', 'buried', 'cancelled', 'expired')),
  priority integer not null,
  content_type text not null,
  body blob not null,
  created real not null,
  not_before real,
  expires real,
  attempt integer not null,
  deaths integer not null,
  lapses integer not null default 0,
  max_deaths integer not null,
  unique_key text,
  traceparent text,
  headers text not null,
  worker text,
  fence integer not null,
  claimed real,
  attempts text not null,
  progress_done real,
  progress_of real,
  finished real not null,
  result_type text,
  result blob,
  failure text,
  reason text not null default '',
  keep_until real,  -- when it is pruned; null if only its age and the size of the history count
  primary key (id, namespace)
) strict;

-- It has all columns that pruning needs to find the end of the history without reading the records.
create index record_finished on record (namespace, finished, state);
create index record_buried on record (namespace, finished) where state = 'buried';
create index record_keep_until on record (namespace, keep_until) where keep_until is not null;
-- The roots of graphs, whose joins are removed when they are old. Other records are not in it.
create index record_graph on record (namespace, finished, id)
  where task = 'umbel.graph' and state <> 'buried';

-- The time up to which the history has been pruned.
create table pruned (
  namespace text primary key not null,
  until real not null
) strict, without rowid;

-- A record that is made while the machine's clock is behind must not look old when the clock is correct again.
create trigger record_is_new after insert on record
  when new.finished < (select until from pruned where namespace = new.namespace)
begin
  update record
  set finished = until, keep_until = keep_until + until - finished
  from pruned where pruned.namespace = new.namespace and record.rowid = new.rowid;
end;

-- Steps that jobs have done. They are kept as long as the job is live or has a record.
create table step (
  job text not null check (length(job) = 36),
  namespace text not null,
  number integer not null check (number > 0),
  name text not null check (length(name) between 1 and 255),
  content_type text not null,
  result blob not null,
  started real not null,
  finished real not null,
  primary key (job, namespace, number)
) strict;

-- Registered workers. Deleting a row ends all leases of its incarnation.
create table worker (
  incarnation text primary key not null,
  namespace text not null,
  entry text not null check (json_valid(entry)),
  name text not null,
  started real not null,
  beat integer not null default 0,
  beaten real not null,
  running integer not null default 0,
  epoch integer not null default 0,
  stopping integer not null default 0,
  idx integer not null default 0  -- its index: registered workers of different names never share one
) strict, without rowid;

create index worker_by_index on worker (namespace, idx);

-- Counted deaths. One is taken back if the process of the incarnation turns out to be alive.
create table death (
  incarnation text not null,
  job text not null,
  namespace text not null,
  blamed integer not null,
  counted real not null,
  primary key (incarnation, job)
) strict, without rowid;

create index death_counted on death (counted);

-- Incarnations whose process reported that it was alive when their leases lapsed.
create table lapse (
  incarnation text primary key not null,
  namespace text not null,
  reported real not null
) strict, without rowid;

-- The indexes of workers. The index of a worker that has unregistered is kept for it for a while.
create table worker_index (
  namespace text not null,
  idx integer not null check (idx >= 0),
  name text not null,
  kept real,
  retiring integer not null default 0,
  primary key (namespace, idx)
) strict, without rowid;

-- Routes: which worker has which key, live and released ones. Held: the jobs of the route that are in
-- the inbox or run. Rested: since when there are none, as of the last check.
create table route (
  id integer primary key autoincrement,
  namespace text not null,
  key text not null,
  idx integer not null,
  made real not null,
  released real,
  why text not null default '',
  held integer not null default 0,
  closing integer not null default 0,
  target integer,  -- the index for the next route of this key
  rested real,
  among text not null default '[]'
) strict;

create unique index route_live on route (namespace, key) where released is null;
create index route_by_index on route (namespace, idx) where released is null;
create index route_history on route (namespace, key, id);

-- Messages to one worker that it has received, so that it accepts none twice.
create table inbox_receipt (
  namespace text not null,
  job text not null,
  until real not null,
  primary key (namespace, job)
) strict, without rowid;

create index inbox_receipt_until on inbox_receipt (until);

-- Coordination: small entries, each with the revision of the commit that wrote it. Until: when its lease
-- lapses. From then on the entry is absent, whether or not it is still in the table.
create table entry (
  namespace text not null,
  key text not null,
  value blob not null,
  revision integer not null,
  until real,
  primary key (namespace, key)
) strict, without rowid;

create index entry_lapse on entry (namespace, until) where until is not null;

-- The last revision that changed a section of the entries; of all sections if the name is empty.
create table section (
  namespace text not null,
  name text not null,
  revision integer not null,
  primary key (namespace, name)
) strict, without rowid;

-- Pauses: entries pauses/<scope>/<holder>/<name>. Every claim reads them. A file has no clock, so readers
-- compare "until" with their own time.
create view pause as
  select namespace, scope, substr(rest, 1, instr(rest, '/') - 1) as holder,
         substr(rest, instr(rest, '/') + 1) as name, until
  from (select namespace, substr(path, 1, instr(path, '/') - 1) as scope,
               substr(path, instr(path, '/') + 1) as rest, coalesce(until, 9e999) as until
        from (select namespace, substr(key, 8) as path, until from entry
              where key >= 'pauses/' and key < 'pauses0'));

-- Capacities that operators have set: entries limits/<rule>. A value that is not a number has no effect.
create view limit_override as
  select namespace, substr(key, 8) as rule, cast(cast(value as text) as integer) as capacity,
         coalesce(until, 9e999) as until
  from entry
  where key >= 'limits/' and key < 'limits0' and length(value) between 1 and 9
    and cast(value as text) not glob '*[^0-9]*';

-- Joins: jobs that wait until other jobs have ended.
create table job_join (
  namespace text not null,
  id text not null,
  group_id text not null,
  fire text not null check (fire in ('all', 'success', 'failure')),
  held real,  -- since when it is held; null if it may complete
  open integer not null default 0,  -- how many parts have not ended
  failed integer not null default 0,  -- how many parts have ended without success
  done integer not null default 0,  -- whether no job is blocked by it any more
  abandoned integer not null default 0,  -- whether it was held for too long
  primary key (namespace, id)
) strict, without rowid;

create unique index job_join_group on job_join (namespace, group_id, id);
create index job_join_due on job_join (namespace, id)
  where held is null and not done and (open = 0 or abandoned);
create index job_join_held on job_join (namespace, held) where held is not null;

-- Parts of joins. State: how the part ended, once the join has counted it.
create table job_edge (
  namespace text not null,
  join_id text not null,
  position integer not null,
  job text not null,
  state text,
  primary key (namespace, join_id, position)
) strict, without rowid;

create index job_edge_job on job_edge (job, namespace, state);

-- Jobs that wait for a join. The seconds count from when it is complete.
create table job_wait (
  namespace text not null,
  join_id text not null,
  job text not null,
  delay real,
  expires_in real,
  primary key (namespace, join_id, job)
) strict, without rowid;

create index job_wait_job on job_wait (job, namespace);

-- Gates: their rules, how many slots of each are held, and where jobs wait. Triggers free the slots of
-- every job that ends or returns to its queue, whichever program changed it.
create table rule (
  namespace text not null,
  name text not null,
  declared text not null check (json_valid(declared)),
  primary key (namespace, name)
) strict, without rowid;

create table gate (
  namespace text not null,
  key text not null,
  held integer not null default 0,
  paces text not null default '[]',  -- of a rate: when each of its paces allows the next job
  primary key (namespace, key)
) strict, without rowid;

-- A lane of jobs that wait at a gate. Look: when a job may pass; null until a slot is freed.
create table waiting_list (
  namespace text not null,
  key text not null,
  queue text not null,
  kind text not null,
  next_check real,
  turn integer not null default 0,  -- grows with each grant: the lane served last comes last
  primary key (namespace, key, queue, kind)
) strict, without rowid;

create index waiting_list_check on waiting_list (namespace, queue, kind, turn, next_check) where next_check is not null;
create index waiting_list_turn on waiting_list (namespace, turn);

create table member (
  namespace text not null,
  pool text not null,
  name text not null,
  data text not null default '{}' check (json_valid(data)),
  condition text not null default 'ready'
    check (condition in ('ready', 'drained', 'quarantined', 'leaving', 'gone')),
  coded integer not null default 0,  -- 1: the code declares it; 2: the code has removed it
  job text,
  fence integer not null default 0,
  turn integer not null default 0,
  failures integer not null default 0,
  check_at real,
  primary key (namespace, pool, name)
) strict, without rowid;

create index member_job on member (job, namespace) where job is not null;

create trigger job_waits after insert on job when new.state = 'waiting'
begin
  insert into waiting_list (namespace, key, queue, kind, next_check, turn)
  values (new.namespace, new.gate, new.queue, new.kind, 0,
          coalesce((select max(turn) from waiting_list where namespace = new.namespace), 0))
  on conflict do update set next_check = 0;
end;

create trigger job_waits_now after update of state, gate, queue, kind on job
  when new.state = 'waiting'
begin
  insert into waiting_list (namespace, key, queue, kind, next_check, turn)
  values (new.namespace, new.gate, new.queue, new.kind, 0,
          coalesce((select max(turn) from waiting_list where namespace = new.namespace), 0))
  on conflict do update set next_check = 0;
end;

create trigger job_frees after update of slots on job
  when old.slots is not null and new.slots is null
begin
  update gate set held = held - 1
  where namespace = old.namespace
    and key in (select json_extract(value, '$.gate') from json_each(old.slots));
  delete from gate  -- of a token that no job uses
  where namespace = old.namespace and held = 0 and paces = '[]' and instr(key, '#')
    and key in (select json_extract(value, '$.gate') from json_each(old.slots));
  update waiting_list set next_check = 0
  where namespace = old.namespace
    and key in (select json_extract(value, '$.gate') from json_each(old.slots));
  update member set job = null, condition = iif(condition = 'leaving', 'gone', condition)
  where job = old.id and namespace = old.namespace;
  update route set held = held - 1
  where id in (select json_extract(value, '$.route') from json_each(old.slots));
end;

-- Statements that delete jobs free their slots first. A trigger for that would read each deleted row and
-- make a deletion three times as expensive, for the few jobs that have slots.

create trigger steps_end_with_record after delete on record
begin
  delete from step
  where job = old.id and namespace = old.namespace
    and not exists (select 1 from job where id = old.id and namespace = old.namespace);
end;

-- After a pause ends, all gates are checked again; after a change of a limit, its gates.
create trigger pause_ends after delete on entry
  when old.key >= 'pauses/' and old.key < 'pauses0' or old.key >= 'limits/' and old.key < 'limits0'
begin
  update waiting_list set next_check = 0 where namespace = old.namespace;
end;

create trigger limit_comes after insert on entry when new.key >= 'limits/' and new.key < 'limits0'
begin
  update waiting_list set next_check = 0
  where namespace = new.namespace
    and (key = substr(new.key, 8) or substr(key, 1, length(new.key) - 6) = substr(new.key, 8) || '#');
end;

create trigger limit_changes after update on entry when new.key >= 'limits/' and new.key < 'limits0'
begin
  update waiting_list set next_check = 0
  where namespace = new.namespace
    and (key = substr(new.key, 8) or substr(key, 1, length(new.key) - 6) = substr(new.key, 8) || '#');
end;

create trigger part_comes after insert on job_edge
begin
  update job_join
  set open = open + (new.state is null), failed = failed + coalesce(new.state <> 'succeeded', 0)
  where namespace = new.namespace and id = new.join_id;
end;

create trigger join_goes after delete on job_join
begin
  delete from job_edge where namespace = old.namespace and join_id = old.id;
  delete from job_wait where namespace = old.namespace and join_id = old.id;
end;

-- A part ends, for whatever reason. Its joins count it, and jobs of complete joins are queued, at most a
-- thousand.
create trigger part_ends after insert on record
  when exists (select 1 from job_edge where job = new.id and namespace = new.namespace and state is null)
begin
  update job_join
  set open = open - (select count(*) from job_edge e
                     where e.job = new.id and e.namespace = new.namespace and e.join_id = job_join.id
                       and e.state is null),
      failed = failed + iif(new.state = 'succeeded', 0, (
        select count(*) from job_edge e
        where e.job = new.id and e.namespace = new.namespace and e.join_id = job_join.id
          and e.state is null))
  where namespace = new.namespace
    and id in (select join_id from job_edge e
               where e.job = new.id and e.namespace = new.namespace and e.state is null);
  update job_edge set state = new.state
  where job = new.id and namespace = new.namespace and state is null;
  update job
  set state = case when coalesce(not_before, new.finished + w.delay) > new.finished then 'scheduled'
                   when gates is not null then 'waiting' else 'queued' end,
      gate = case when coalesce(not_before, new.finished + w.delay) > new.finished then null
                  else json_extract(gates, '$[0]') end,
      not_before = coalesce(not_before, new.finished + w.delay),
      expires = coalesce(expires, new.finished + w.expires_in)
  from (
    select job_wait.job, job_wait.delay, job_wait.expires_in
    from job_edge e  -- cross join: in this order, or it would begin with all jobs that wait
      cross join job_join on job_join.namespace = e.namespace and job_join.id = e.join_id
      cross join job_wait on job_wait.namespace = job_join.namespace and job_wait.join_id = job_join.id
      cross join job blocked on blocked.id = job_wait.job and blocked.namespace = job_wait.namespace
    where e.job = new.id and e.namespace = new.namespace
      and job_join.open = 0 and job_join.held is null and not job_join.done
      and not job_join.abandoned and (job_join.fire = 'all' or (job_join.fire = 'success') = (job_join.failed = 0))
      and blocked.state = 'blocked'
    limit 1000) w
  where job.id = w.job and job.namespace = new.namespace;
  update job_join set done = 1
  where namespace = new.namespace and open = 0 and held is null and not done
    and id in (select join_id from job_edge e where e.job = new.id and e.namespace = new.namespace)
    and not exists (select 1 from job_wait w join job b on b.id = w.job and b.namespace = w.namespace
                    where w.namespace = job_join.namespace and w.join_id = job_join.id
                      and b.state = 'blocked');
end;

create trigger member_comes after insert on member
begin
  update waiting_list set next_check = 0 where namespace = new.namespace and key = 'pool:' || new.pool;
end;

create trigger member_is_back after update of condition, job on member
  when new.condition = 'ready' and new.job is null
begin
  update waiting_list set next_check = 0 where namespace = new.namespace and key = 'pool:' || new.pool;
end;

-- A new worker may get routes that no other could have, or return to its own.
create trigger worker_comes after insert on worker
begin
  update waiting_list set next_check = 0
  where namespace = new.namespace and key >= 'route:' and key < 'route;' and next_check is not 0;
end;

-- Publishing from SQL: insert into publish (task, args) values ('tasks.add', '[1, 2]');
create view publish as
  select id, task, '[]' as args, '{}' as kwargs, queue, priority, 0.0 as delay, namespace from job;

create trigger publish_insert instead of insert on publish
begin
  insert into job (id, namespace, queue, task, state, priority, body, created, not_before)
  values (
    coalesce(new.id, lower(
      hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) ||
      '-a' || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))),
    coalesce(new.namespace, 'umbel'),
    coalesce(new.queue, 'default'),
    new.task,
    iif(coalesce(new.delay, 0) > 0, 'scheduled', 'queued'),
    coalesce(new.priority, 0),
    cast(json_object('args', json(coalesce(new.args, '[]')),
                     'kwargs', json(coalesce(new.kwargs, '{}'))) as blob),
    (julianday('now') - 2440587.5) * 86400.0,
    iif(coalesce(new.delay, 0) > 0,
        (julianday('now') - 2440587.5) * 86400.0 + new.delay, null)
  );
end;

-- How a job ended, as a CloudEvent: select event from document where id = '...' and namespace = 'umbel';
-- Null while it is not finished, no row for an unknown id. A result that is not JSON stays in the record.
create view document as
  select id, namespace, null as event from job
  union all
  select id, namespace, json_patch(
    json_object(
      'specversion', '1.0', 'type', 'umbel.document', 'id', id, 'source', '/umbel/' || namespace,
      'subject', task, 'time', strftime('%Y-%m-%dT%H:%M:%fZ', finished, 'unixepoch'),
      'namespace', namespace, 'datacontenttype', 'application/json', 'state', state,
      'data', json(case
        when state <> 'succeeded' then coalesce(failure, json_object('message', reason))
        when result_type like '%json' and json_valid(cast(result as text)) then cast(result as text)
        else 'null' end)),
    json_object(
      'reason', case
        when state = 'succeeded' and result is not null
          and not (result_type like '%json' and json_valid(cast(result as text)))
        then 'data: ' || result_type || ', see the record'
        else nullif(substr(reason, 1, 1000), '') end,
      'correlationid', json_extract(headers, '$.correlationid'))) as event
  from record;
