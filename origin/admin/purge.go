package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin/audit"
	"listedge/origin/follower"
)

// purgeSQL writes the message of a purge into the WAL, and says whether a follower will read it.
const purgeSQL = `
SELECT pg_logical_emit_message(true, $2, $3) IS NOT NULL
	AND EXISTS (SELECT FROM pg_replication_slots s JOIN pg_database d ON d.datname = current_database()
		WHERE active AND slot_name ~ ('^' || $1 || d.oid || '(_|$)'))`

var errNotFollowed = errors.New("no node follows changes, so a purge would reach none; pages expire after --cache-ttl")

// Purge makes all nodes read again the pages of the rows that the workspace sees; nil = all pages.
func Purge(ctx context.Context, c *Conn, workspace *uuid.UUID) error {
	message := follower.PurgeAll
	if workspace != nil {
		w, err := c.workspace(ctx, *workspace)
		if err != nil {
			return err
		}
		message = follower.PurgeMessage(w.ID, w.Tenant)
	}
	_, err := act(ctx, c, func(tx pgx.Tx) (followed bool, done audit.Act, err error) {
		err = tx.QueryRow(ctx, purgeSQL, follower.SlotPrefix, follower.MessagePrefix, message).Scan(&followed)
		if err == nil && !followed {
			err = errNotFollowed
		}
		return followed, audit.Act{Action: "purge", Workspace: workspace}, err
	})
	if err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	return nil
}
