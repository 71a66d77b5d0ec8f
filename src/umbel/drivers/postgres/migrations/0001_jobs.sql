-- Live jobs. A row here is both the message and its state; it leaves when the job is final. "Sent"
-- is a queued job whose message another broker carries.
create table $schema.job (
  id uuid primary key,
  seq bigint generated always as identity,
  namespace text collate "C" not null,
  queue text collate "C" not null check (length(queue) between 1 and 255),
  kind text collate "C" not null default '' check (kind in ('', 'io', 'cpu')),
  task text collate "C" not null check (length(task) between 1 and 255),
  type text collate "C" not null default 'umbel.command'
    check (type in ('umbel.command', 'umbel.event', 'umbel.document')),
  state text collate "C" not null default 'queued'
    constraint job_state check (state in ('scheduled', 'queued', 'sent', 'running')),
  priority smallint not null default 0,
  content_type text not null default 'application/json',
  body bytea not null,
  created timestamptz not null default statement_timestamp(),
  not_before timestamptz,
  expires timestamptz,
  attempt integer not null default 1,
  deaths integer not null default 0,
  blame integer not null default 0,
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
  check ((state = 'running') = (owner is not null)),
  check ((state = 'scheduled') <= (not_before is not null))
) with (
  -- Every job is inserted, claimed and deleted: three quarters of what is written here is soon
  -- dead. Room on the page keeps a claimed row on the page it is read from.
  fillfactor = 70,
  -- Dead rows are counted, not put in proportion to a size that swings from nothing to millions,
  -- and removed at full speed: a fetch has to step over those that are left.
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0,
  toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 1000,
  toast.autovacuum_vacuum_cost_delay = 0,
  -- Giving empty pages back to the disk locks every fetch out, for pages needed again at once.
  vacuum_truncate = off, toast.vacuum_truncate = off
);

create index job_ready on $schema.job (namespace, queue, kind, priority desc, seq)
  where state = 'queued';
create index job_sent on $schema.job (namespace, queue, kind) where state = 'sent';
create index job_due on $schema.job (namespace, not_before) where state = 'scheduled';
create index job_owner on $schema.job (owner) where state = 'running';
create unique index job_unique on $schema.job (namespace, unique_key)
  where unique_key is not null;

-- Finished jobs: what is remembered of them, with the payload, so that they can be replayed.
create table $schema.record (
  id uuid primary key,
  namespace text collate "C" not null,
  queue text collate "C" not null,
  kind text collate "C" not null,
  task text collate "C" not null,
  type text collate "C" not null,
  state text collate "C" not null
    constraint record_state check (state in ('succeeded', 'buried', 'cancelled', 'expired')),
  priority smallint not null,
  content_type text not null,
  body bytea not null,
  created timestamptz not null,
  not_before timestamptz,
  expires timestamptz,
  attempt integer not null,
  deaths integer not null,
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
  reason text not null default ''
);

-- Each index here is paid for by every job that finishes. This one grows at its right edge only,
-- and without it "the newest fifty" and pruning read the whole history.
create index record_finished on $schema.record (namespace, finished);
create index record_buried on $schema.record (namespace, finished) where state = 'buried';

-- Living workers. Removing a row is what ends every lease its incarnation holds.
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
  stopping boolean not null default false
) with (
  -- A beat touches no index: with room on the page it costs no index entry either.
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500
);

-- What operators paused, and the number that grows with every change.
create table $schema.pause (
  namespace text collate "C" not null,
  scope text collate "C" not null check (scope in ('all', 'queue', 'task')),
  name text collate "C" not null default '',
  since timestamptz not null default statement_timestamp(),
  reason text not null default '',
  primary key (namespace, scope, name)
);

create table $schema.control (
  namespace text collate "C" primary key,
  epoch bigint not null default 0
);

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
    job.task := event ->> field;
    if coalesce(length(job.task), 0) not between 1 and 255 then
      raise exception 'must name the task, in 1 to 255 characters'
        using errcode = 'invalid_parameter_value';
    end if;
    field := 'queue';
    job.queue := coalesce(event ->> field, 'default');
    if length(job.queue) not between 1 and 255 then
      raise exception 'must have 1 to 255 characters' using errcode = 'invalid_parameter_value';
    end if;
    field := 'namespace';
    job.namespace := coalesce(event ->> field, 'umbel');
    if length(job.namespace) not between 1 and 63 then
      raise exception 'must have 1 to 63 characters' using errcode = 'invalid_parameter_value';
    end if;
    field := 'kind';
    job.kind := coalesce(event ->> field, '');
    if job.kind not in ('', 'io', 'cpu') then
      raise exception 'must be io or cpu' using errcode = 'invalid_parameter_value';
    end if;
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
    field := 'notbefore'; job.not_before := (event ->> field)::timestamptz;
    field := 'expiry'; job.expires := (event ->> field)::timestamptz;
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
    where not exists (select 1 from $schema.record r where r.id = job.id)
    on conflict do nothing;
    if found then
      perform pg_notify('$channel', case job.state
        when 'queued' then 'r:' || job.namespace || ':' || job.queue
        else 's:' || job.namespace end);
      return job.id;
    end if;
    if exists (select 1 from $schema.job j where j.id = job.id)
       or exists (select 1 from $schema.record r where r.id = job.id) then
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
  end loop;  -- the holder has finished meanwhile: the key is free
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
