package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin/audit"
	"listedge/origin/postgres"
)

// Rotated is a new key that replaces another.
type Rotated struct {
	Key
	Replaces Key `json:"replaces"` // the old key, after the rotation
}

// RotateKey makes a key with the workspace, name, scopes and limit of the old one, which then
// expires after the overlap, if not sooner. With no expiresIn the new key works as long as
// the old one would have, so that a rotation alone extends nothing.
func (c *Conn) RotateKey(ctx context.Context, id uuid.UUID, overlap time.Duration, expiresIn *time.Duration) (Rotated, error) {
	doing := "rotate key " + id.String()
	var before, after Key
	made, err := c.newKey(ctx, func(tx pgx.Tx, hash []byte, prefix string) (made Key, done audit.Act, err error) {
		// The lock comes first: a statement that waits for it may have read the clock before.
		if _, err = tx.Exec(ctx, `SELECT FROM api_keys WHERE id = $1 FOR NO KEY UPDATE`, id); err != nil {
			return made, done, fmt.Errorf("%s: %w", doing, postgres.WithSchemaHint(err))
		}
		if before, err = working(ctx, tx, doing, id); err != nil {
			return made, done, err
		}
		made, err = one[Key](ctx, tx, doing,
			`INSERT INTO api_keys (workspace_id, name, key_hash, key_prefix, scopes, rate_per_second, burst, expires_at)
			SELECT workspace_id, name, $2, $3, scopes, rate_per_second, burst, coalesce(clock_timestamp() + $4::interval, least(expires_at, revoked_at))
			FROM api_keys WHERE id = $1 RETURNING `+keyColumns, id, hash, prefix, expiresIn)
		if err == nil && made.State != KeyActive {
			err = fmt.Errorf("%s: the new key would have ended already", doing)
		}
		if err == nil {
			after, err = one[Key](ctx, tx, doing,
				`UPDATE api_keys SET expires_at = least(expires_at, clock_timestamp() + $2::interval) WHERE id = $1 RETURNING `+keyColumns, id, overlap)
		}
		done = audit.Act{Action: "keys.rotate", Workspace: &before.WorkspaceID, Key: &before.ID, Details: changes(
			map[string]any{"expiresAt": before.ExpiresAt}, map[string]any{"expiresAt": after.ExpiresAt})}
		done.Details[audit.NewKey] = made.ID
		return made, done, err
	})
	if err != nil {
		return Rotated{}, err
	}
	return Rotated{Key: made, Replaces: after}, nil
}
