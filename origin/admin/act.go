package admin

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin/audit"
)

// act makes a change and adds it to the audit log, in one transaction: both are
// committed, or neither. do makes the change and says what it did. Every method of Conn
// that changes something calls act.
func act[T any](ctx context.Context, c *Conn, do func(tx pgx.Tx) (T, audit.Act, error)) (T, error) {
	var none T
	tx, err := c.conn.Begin(ctx)
	if err != nil {
		return none, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // nothing, after a commit; if it fails, pgx closes the connection
	made, done, err := do(tx)
	if err != nil {
		return none, err
	}
	if err := audit.Write(ctx, tx, done); err != nil {
		return none, err
	}
	if err := tx.Commit(ctx); err != nil {
		return none, fmt.Errorf("commit: %w", err)
	}
	return made, nil
}

// stored says how updateRow changes a table.
type stored struct {
	table    string
	subject  string // selects the ids by which audit_log names the row, as workspace and key; NULL = has none
	settable string // selects the columns that commands change, by their names in JSON
}

// audited is a row that commands change: a workspace or a key.
type audited interface {
	stored() stored
	columns() string // selects the row as commands show it
}

func (Workspace) columns() string { return workspaceColumns }
func (Workspace) stored() stored {
	return stored{"workspaces", "id AS workspace, NULL::uuid AS key", `'suspendedAt', suspended_at, 'ratePerSecond', rate_per_second, 'burst', burst,
		'quota', CASE WHEN quota IS NOT NULL THEN jsonb_build_object('requests', quota, 'period', quota_period) END`}
}

func (Key) columns() string { return keyColumns }
func (Key) stored() stored {
	return stored{"api_keys", "workspace_id AS workspace, id AS key",
		`'ratePerSecond', rate_per_second, 'burst', burst, 'expiresAt', expires_at, 'revokedAt', revoked_at`}
}

// storedRow is a row as the database has it, whatever values other systems have written.
type storedRow struct {
	Workspace, Key *uuid.UUID
	Settable       map[string]any
}

// updateRow changes one row, and then returns it as it is: that it cannot be shown must not keep
// a key from being revoked. In set $1 is the id, and further arguments begin with $2. The audit
// log gets each column that changed.
func updateRow[T audited](ctx context.Context, c *Conn, action, set string, id uuid.UUID, args ...any) (row T, err error) {
	doing := strings.ReplaceAll(action, ".", " ") + " " + id.String()
	s := row.stored()
	columns := s.subject + ", jsonb_build_object(" + s.settable + ") AS settable"
	_, err = act(ctx, c, func(tx pgx.Tx) (after storedRow, done audit.Act, err error) {
		before, err := one[storedRow](ctx, tx, doing, `SELECT `+columns+` FROM `+s.table+` WHERE id = $1 FOR NO KEY UPDATE`, id)
		if err == nil {
			after, err = one[storedRow](ctx, tx, doing, `UPDATE `+s.table+` SET `+set+` WHERE id = $1 RETURNING `+columns, append([]any{id}, args...)...)
		}
		return after, audit.Act{Action: action, Workspace: after.Workspace, Key: after.Key, Details: changes(before.Settable, after.Settable)}, err
	})
	if err != nil {
		return row, err
	}
	row, err = one[T](ctx, c.conn, "it is done, but what came of it cannot be shown", `SELECT `+row.columns()+` FROM `+s.table+` WHERE id = $1`, id)
	return row, err
}

// changes returns what two rows do not have in common.
func changes(before, after map[string]any) map[string]any {
	details := map[string]any{}
	for name, to := range after {
		if from := before[name]; !reflect.DeepEqual(from, to) {
			details[name] = audit.Change{From: from, To: to}
		}
	}
	return details
}

// Audit returns the newest acts that the filter selects, newest first. Those of a key include the
// rotation that made it in the place of another key.
func (c *Conn) Audit(ctx context.Context, f audit.Filter) ([]audit.Entry, error) {
	return all[audit.Entry](ctx, c.conn, "read the audit log", `SELECT id, at, actor, role, action, workspace_id, key_id, details FROM public.audit_log
		WHERE ($1::uuid IS NULL OR workspace_id = $1) AND ($2::uuid IS NULL OR key_id = $2 OR details ->> '`+audit.NewKey+`' = $2::text)
			AND ($3::interval IS NULL OR at >= now() - $3::interval)
		ORDER BY at DESC, id DESC LIMIT $4`, f.Workspace, f.Key, f.Since, f.Limit)
}
