-- Steps that a job has done. They stay for as long as the job is live or its record is kept.
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

-- Whether anything is to be looked for when the job leaves: almost none has steps.
alter table $schema.job add column steps boolean not null default false;

-- Both run when the whole statement is done, so a job that becomes a record, or comes back from one,
-- is found there.
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
