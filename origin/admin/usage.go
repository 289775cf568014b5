package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"listedge/origin/apikey"
	"listedge/origin/postgres"
	"listedge/origin/usage"
)

// KeyUse is what one key was used for. The name and the prefix of a key that was deleted
// are empty.
type KeyUse struct {
	ID     uuid.UUID `json:"id"`
	Name   string    `json:"name"`
	Prefix string    `json:"prefix"`
	usage.Counts
	LastUsedAt *time.Time `json:"lastUsedAt"` // nil = not known
}

// Usage is what the keys of a workspace were used for in a period.
type Usage struct {
	WorkspaceID uuid.UUID     `json:"workspaceId"`
	Since       time.Time     `json:"since"` // the beginning of an hour
	Until       time.Time     `json:"until"`
	Keys        []KeyUse      `json:"keys"` // those that were used, most requests first
	Totals      usage.Counts  `json:"totals"`
	Quota       *apikey.Quota `json:"quota"`
	QuotaUsed   *int64        `json:"quotaUsed"` // in the quota's present period: see quotaUsed
}

// Usage returns the usage of a workspace's keys that nodes have written so far. The period begins
// with the hour that lies since back.
func (c *Conn) Usage(ctx context.Context, workspace uuid.UUID, since time.Duration) (u Usage, err error) {
	w, err := one[struct {
		Workspace
		Now time.Time
	}](ctx, c.conn, "workspace "+workspace.String(), `SELECT `+workspaceColumns+`, `+quotaUsed+`, now() FROM workspaces WHERE id = $1`, workspace)
	if err != nil {
		return u, err
	}
	u.WorkspaceID, u.Quota, u.QuotaUsed, u.Until = workspace, w.Quota, w.QuotaUsed, w.Now.UTC()
	u.Since = u.Until.Add(-since).Truncate(time.Hour)
	u.Keys, err = all[KeyUse](ctx, c.conn, "read the usage of keys",
		`SELECT u.key_id AS id, coalesce(k.name, '') AS name, coalesce(k.key_prefix, '') AS prefix, sum(requests)::int8 AS requests, sum(refused)::int8 AS refused,
			sum(not_modified)::int8 AS not_modified, sum(bypassed)::int8 AS bypassed, sum(bytes)::int8 AS bytes, sum(queries)::int8 AS queries, l.last_used_at
		FROM key_usage u LEFT JOIN api_keys k ON k.id = u.key_id LEFT JOIN key_last_used l ON l.key_id = u.key_id
		WHERE u.workspace_id = $1 AND u.hour >= $2 GROUP BY u.key_id, k.name, k.key_prefix, l.last_used_at
		ORDER BY sum(requests) DESC, u.key_id`, workspace, u.Since)
	for i := range u.Keys {
		u.Totals.Add(u.Keys[i].Counts)
	}
	return u, err
}

// UsageSince returns since when nodes count usage.
func (c *Conn) UsageSince(ctx context.Context) (since time.Time, err error) {
	if err = c.conn.QueryRow(ctx, `SELECT written_at FROM usage_writers WHERE batch = 0`).Scan(&since); err != nil {
		err = fmt.Errorf("read since when usage is counted: %w", postgres.WithSchemaHint(err))
	}
	return since, err
}
