-- Makes the slot NAME, temporary or not, so that no commit falls between what it decodes and what
-- is visible. A slot decodes the commit records after a certain point of the
-- log. A transaction may have written its record before that point and not be
-- visible yet (it flushes, or waits for a synchronous standby): no change will
-- ever come for it. So the end of all that had begun when the point was known
-- is awaited before the slot has its name; whoever finds it by name may trust
-- it, and when this is interrupted nothing is left. The name of the first
-- one, which is temporary, keeps two nodes from doing it at once.
DO $$
DECLARE
    begun xid8;
BEGIN
    PERFORM pg_create_logical_replication_slot('NAME_new', 'pgoutput', true);
    begun := pg_current_xact_id(); -- later than all of them; a snapshot does not name the newest
    COMMIT;
    WHILE pg_snapshot_xmin(pg_current_snapshot()) <= begun LOOP
        PERFORM pg_sleep(0.01);
    END LOOP;
    PERFORM pg_copy_logical_replication_slot('NAME_new', 'NAME', TEMPORARY);
    PERFORM pg_drop_replication_slot('NAME_new');
END $$
