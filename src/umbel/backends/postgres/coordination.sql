-- name: lock_revision
-- Lets only one transaction at a time change entries, and returns the last revision. It is the first
-- lock that such a transaction takes.
insert into $schema.section as s (namespace, name, revision) values (%(namespace)s, '', 0)
on conflict (namespace, name) do update set revision = s.revision
returning revision

-- name: try_lock_revision
-- The same without waiting. No row if another transaction has the lock, or nothing was ever written.
select revision from $schema.section
where namespace = %(namespace)s and name = '' for update skip locked

-- name: has_lapsed
-- One row if an entry has lapsed and is still in the table.
select 1 from $schema.entry
where namespace = %(namespace)s and until <= statement_timestamp() limit 1

-- name: entry_revisions
-- The revisions of those of these entries that have not lapsed.
select key, revision from $schema.entry
where namespace = %(namespace)s and key = any(%(keys)s::text[])
  and (until is null or until > statement_timestamp())

-- name: put_entry
-- Writes one entry. Without seconds it has no lease.
insert into $schema.entry as e (namespace, key, value, revision, until)
values (%(namespace)s, %(key)s, %(value)s, %(revision)s,
        statement_timestamp() + make_interval(secs => %(seconds)s::float8))
on conflict (namespace, key) do update
set value = excluded.value, revision = excluded.revision, until = excluded.until

-- name: delete_entries
-- Deletes entries.
delete from $schema.entry where namespace = %(namespace)s and key = any(%(keys)s::text[])

-- name: change_sections
-- Sets the revision of changed sections, and notifies all processes that wait for a change. If pauses
-- have changed, waiting fetches are notified, too.
insert into $schema.section as s (namespace, name, revision)
select %(namespace)s, name, %(revision)s from unnest(%(sections)s::text[]) as c (name) order by name
on conflict (namespace, name) do update set revision = excluded.revision
returning pg_notify('$channel', case name when 'pauses/' then 'c:' else 'e:' end || %(namespace)s)

-- name: read_entries
-- The entries of a range, the revision of the section, the time, and whether any entry has lapsed and
-- is still in the table, all of the same moment. One row without an entry if there is none.
select e.key, e.value, e.revision, date_part('epoch', e.until - statement_timestamp()),
       coalesce((select revision from $schema.section
                 where namespace = %(namespace)s and name = %(section)s), 0),
       date_part('epoch', statement_timestamp()),
       exists (select 1 from $schema.entry
               where namespace = %(namespace)s and until <= statement_timestamp())
from (select) one left join (
  select key, value, revision, until from $schema.entry
  where namespace = %(namespace)s and key >= %(prefix)s and key < %(end)s and key > %(after)s
    and (until is null or until > statement_timestamp())
  order by key limit %(limit)s) e on true
order by e.key

-- name: renew_entries
-- Extends the leases of entries that were not written by another commit and have not lapsed. Returns
-- their keys. An entry without a lease gets none. In order of key, so that two of these statements never wait for each other.
with found as materialized (
  select e.key from unnest(%(keys)s::text[], %(revisions)s::bigint[]) as h (key, revision)
    join $schema.entry e on e.namespace = %(namespace)s and e.key = h.key and e.revision = h.revision
  where e.until is null or e.until > statement_timestamp()
  order by e.key for update of e
)
update $schema.entry e
set until = case when e.until is not null
                 then statement_timestamp() + make_interval(secs => %(seconds)s::float8) end
from found where e.namespace = %(namespace)s and e.key = found.key
  and (e.until is null or e.until > clock_timestamp())  -- the lock may have taken a while
returning e.key

-- name: section_revisions
-- The revisions of these sections, and the seconds until the next of their leases lapses. One row without
-- a section if none of them was ever changed.
select s.name, s.revision,
       (select date_part('epoch', until - statement_timestamp()) from $schema.entry
        where namespace = %(namespace)s and until is not null
          and split_part(key, '/', 1) || '/' = any(%(sections)s::text[])
        order by until limit 1)
from (select) one left join $schema.section s
  on s.namespace = %(namespace)s and s.name = any(%(sections)s::text[])

-- name: delete_lapsed
-- Deletes entries that have lapsed, the oldest first. Returns their keys.
with lapsed as materialized (
  select key from $schema.entry
  where namespace = %(namespace)s and until <= statement_timestamp()
  order by until limit %(limit)s for update skip locked
)
delete from $schema.entry e using lapsed
where e.namespace = %(namespace)s and e.key = lapsed.key and e.until <= statement_timestamp()
returning e.key
