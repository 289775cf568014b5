package follower

import (
	"context"
	"fmt"
	"regexp"
	"time"
)

// checkPrerequisites returns an error if changes cannot be followed here. It sets
// checkpointerStart and published:
//
//   - checkpointerStart is another one after a crash, because transaction ids may then be used again, and
//     after a fail-over or a restore. The user sees the start of the checkpointer
//     with pg_read_all_stats, or else the time when statistics began, because a crash
//     discards them.
//   - published is another one if the publication was changed, or the schema public was
//     replaced. Changes that were written meanwhile may never be sent.
func (p *primary) checkPrerequisites(ctx context.Context) error {
	var level, standbys, publishing string
	var standby bool
	var started *string
	err := p.row(ctx, `SELECT current_setting('wal_level'), current_setting('synchronous_standby_names'), pg_is_in_recovery(),
		coalesce((SELECT extract(epoch FROM max(backend_start))::text FROM pg_stat_activity WHERE backend_type = 'checkpointer'),
			(SELECT concat(extract(epoch FROM pg_postmaster_start_time()), '/', extract(epoch FROM stats_reset)) FROM pg_stat_bgwriter WHERE stats_reset IS NOT NULL)),
		(SELECT coalesce(string_agg(concat_ws('/', x.oid, x.xmin), ' ' ORDER BY x.oid), '') FROM (
			SELECT oid, xmin::text FROM pg_publication WHERE pubname = $1
			UNION ALL SELECT r.oid, r.xmin::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = prpubid WHERE pubname = $1
			UNION ALL SELECT objid, d.xmin::text FROM pg_publication p JOIN pg_depend d ON refclassid = 'pg_publication'::regclass AND refobjid = p.oid
				WHERE pubname = $1 AND classid = to_regclass('pg_catalog.pg_publication_namespace') -- which is since Postgres 15
			UNION ALL SELECT oid, 'schema' FROM pg_namespace WHERE nspname = 'public' AND oid <> 2200) x)`, // that every database is made with
		PublicationName)(&level, &standbys, &standby, &started, &publishing)
	switch {
	case err != nil:
		return fmt.Errorf("check the prerequisites: %w", err)
	case standby:
		return fmt.Errorf("%w: the database URL leads to a standby, not to the primary", ErrIncapable)
	case level != "logical":
		return fmt.Errorf("%w: wal_level is %s, not logical", ErrIncapable, level)
	case started == nil:
		return fmt.Errorf("%w: the server does not tell this user when its statistics began (GRANT pg_read_all_stats)", ErrIncapable)
	}
	if countsAsStandby.MatchString(standbys) {
		// Commits would wait for the follower, which confirms seconds later.
		return fmt.Errorf("%w: synchronous_standby_names is %s, which makes the follower a standby that commits wait for (name the standbys)", ErrIncapable, standbys)
	}
	p.checkpointerStart, p.published = *started, publishing
	return p.checkPublication(ctx)
}

// countsAsStandby matches a value of synchronous_standby_names that includes any
// standby, or one with the name of this connection.
var countsAsStandby = regexp.MustCompile(`(?:^|[\s,(])(?:\*|"\*"|"` + applicationName + `")(?:[\s,)]|$)`)

// errIncomplete says that the publication lacks rows that pages show. Changes that are
// written meanwhile are lost. So the slot is dropped, and the next slot begins a new epoch.
var errIncomplete = fmt.Errorf("%w: the publication %q", ErrIncapable, PublicationName)

// checkPublication returns errIncomplete if the publication has a defect.
//
// It returns a defect only if it has found one three times in a row. The statement reads
// some catalogs by its snapshot and others as they are now, so a partition that is
// committed meanwhile seems to be missing. Trying again is safe: if the publication was
// another one in between, published shows that.
func (p *primary) checkPublication(ctx context.Context) error {
	var defect, remedy string
	for range 3 {
		publication, err := call(ctx, func(ctx context.Context) (Publication, error) { return ReadPublication(ctx, p.conn) })
		if err != nil {
			return err
		}
		if defect, remedy = publication.Defect(); defect == "" {
			p.publication = publication
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return fmt.Errorf("%w %s: %s", errIncomplete, defect, remedy)
}
