package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/jackc/pgx/v5"

	"listedge/internal/remedy"
	"listedge/origin/postgres"
)

// maxLag is how many bytes of WAL a replica may be behind without a warning.
const maxLag = 64 << 20

// DiagnoseReplica says whether a server can serve pages as a replica of the primary, as far as
// that is known when ctx ends.
func DiagnoseReplica(ctx context.Context, url, primaryURL string) Finding {
	where, here, err := position(ctx, url, postgres.StandbySQL)
	if errors.Is(err, pgx.ErrNoRows) {
		err = remedy.Add(errors.New("is no standby, receives no WAL, or does not show this user from whom; it is not used"),
			"name hot standbys of the primary in --replica-url, GRANT pg_read_all_stats TO their user, and see their logs")
	}
	fine := where + "follows the primary"
	if err == nil {
		_, there, unknown := position(ctx, primaryURL, postgres.PrimarySQL)
		if unknown != nil {
			err = remedy.Add(fmt.Errorf("cannot be compared with the primary: %w", unknown), "mend the findings on the primary first")
		} else {
			fine += ", " + humanize.IBytes(there.LSN-here.LSN) + " behind"
			err = compareReplica(here, there)
		}
	}
	if err != nil {
		err = fmt.Errorf("%s%w", where, err)
	}
	return FindingOf("replica", Warn, fine, err, "check --replica-url, the server and pg_hba.conf")
}

// position reads where a server is in the WAL. where is its host:port and a space, for messages.
func position(ctx context.Context, url, sql string) (where string, at postgres.WALPosition, err error) {
	conn, err := postgres.Connect(ctx, url, postgres.ConnectTimeout)
	if err != nil {
		return "", at, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	at, err = postgres.ScanWALPosition(conn.QueryRow(ctx, sql))
	return fmt.Sprintf("%s:%d ", conn.Config().Host, conn.Config().Port), at, err
}

// compareReplica returns why a replica is not used, or not for all pages. The primary's position
// was read later, so a good replica has no more WAL.
func compareReplica(replica, primary postgres.WALPosition) error {
	switch lag := int64(primary.LSN - replica.LSN); {
	case replica.TimelineName() != primary.TimelineName():
		return remedy.Add(fmt.Errorf("follows %s, and the primary is %s; it is not used", replica.TimelineName(), primary.TimelineName()),
			"make it follow the primary, or remove it from --replica-url")
	case lag > maxLag:
		return remedy.Add(fmt.Errorf("is %s behind; newer pages are read from the primary", humanize.IBytes(uint64(lag))), "find out what delays its replay")
	case lag < 0:
		return remedy.Add(fmt.Errorf("is %s ahead of the primary; it is not used", humanize.IBytes(uint64(-lag))),
			"make it anew if the primary was restored from a backup")
	}
	return nil
}
