package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/jackc/pgx/v5"

	"listedge/origin/postgres"
)

// maxLag is how many bytes of WAL a replica may be behind without a warning.
const maxLag = 64 << 20

// DiagnoseReplica says whether a server can serve pages as a replica of the primary.
func DiagnoseReplica(ctx context.Context, url, primaryURL string) Finding {
	say := func(level Level, text, remedy string) Finding { return Finding{"replica", level, text, remedy} }
	conn, err := postgres.Connect(ctx, url)
	if err != nil {
		return say(Warn, err.Error()+"; pages are read from the primary", "check --replica-url, the server and pg_hba.conf")
	}
	defer conn.Close(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, 4*postgres.PingTimeout)
	defer cancel()
	where := fmt.Sprintf("%s:%d ", conn.Config().Host, conn.Config().Port)
	var there postgres.WALPosition
	here, err := postgres.ScanWALPosition(conn.QueryRow(ctx, postgres.StandbySQL))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return say(Warn, where+"is no standby, receives no WAL, or does not show this user from whom; it is not used",
			"name hot standbys of the primary in --replica-url, GRANT pg_read_all_stats TO their user, and see their logs")
	case err != nil:
		return say(Warn, where+err.Error(), "let this user read the control functions")
	}
	primary, err := postgres.Connect(ctx, primaryURL)
	if err == nil {
		defer primary.Close(context.WithoutCancel(ctx))
		there, err = postgres.ScanWALPosition(primary.QueryRow(ctx, postgres.PrimarySQL))
	}
	lag := int64(there.LSN - here.LSN) // negative only if the replica has more: the primary's position was read later
	switch {
	case err != nil:
		return say(Warn, where+"cannot be compared with the primary: "+err.Error(), "fix the findings on the primary first")
	case here.TimelineName() != there.TimelineName():
		return say(Warn, fmt.Sprintf("%sfollows %s, and the primary is %s; it is not used", where, here.TimelineName(), there.TimelineName()),
			"make it follow the primary, or remove it from --replica-url")
	case lag > maxLag:
		return say(Warn, fmt.Sprintf("%sis %s behind; newer pages are read from the primary", where, humanize.IBytes(uint64(lag))), "find out what delays its replay")
	}
	return say(OK, fmt.Sprintf("%sfollows the primary, %s behind", where, humanize.IBytes(uint64(lag))), "")
}
