package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"listedge/internal/remedy"
	"listedge/origin/postgres"
)

// DiagnoseReplica says whether a server can serve pages as a replica of the primary, which is on
// this timeline; empty = it is not known, which is another finding.
func DiagnoseReplica(ctx context.Context, url, timeline string) Finding {
	ctx, cancel := context.WithTimeout(ctx, 4*postgres.PingTimeout)
	defer cancel()
	var where string
	var here postgres.WALPosition
	conn, err := postgres.Connect(ctx, url)
	if err == nil {
		defer conn.Close(context.WithoutCancel(ctx))
		where = fmt.Sprintf("%s:%d ", conn.Config().Host, conn.Config().Port)
		here, err = postgres.ScanWALPosition(conn.QueryRow(ctx, postgres.StandbySQL))
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		err = remedy.Add(errors.New(where+"is no standby, receives no WAL, or does not show this user from whom; it is not used"),
			"name hot standbys of the primary in --replica-url, GRANT pg_read_all_stats TO their user, and see their logs")
	case err == nil && timeline != "" && here.TimelineName() != timeline:
		err = remedy.Add(fmt.Errorf("%sfollows %s, and the primary is %s; it is not used", where, here.TimelineName(), timeline),
			"make it follow the primary, or remove it from --replica-url")
	}
	return FindingOf("replica", Warn, where+"follows the primary", err, "check --replica-url, the server and pg_hba.conf")
}
