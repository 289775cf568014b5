package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
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
	made, done, err := do(tx)               // mutation: a row before the change is committed
	if err != nil {
		return none, err
	}
	if err := audit.Write(ctx, tx, done); err != nil { // mutation: no row
		return none, err
	}
	if err := tx.Commit(ctx); err != nil {
		return none, fmt.Errorf("commit: %w", err)
	}
	return made, nil
}

// audited is a row that commands change: a workspace or a key.
type audited interface {
	// subject returns the ids by which audit_log names the row; nil = has none.
	subject() (workspace, key *uuid.UUID)
	table() (name, columns string)
}

func (w Workspace) subject() (workspace, key *uuid.UUID) { return &w.ID, nil }
func (Workspace) table() (name, columns string)          { return "workspaces", workspaceColumns }

func (k Key) subject() (workspace, key *uuid.UUID) { return &k.WorkspaceID, &k.ID }
func (Key) table() (name, columns string)          { return "api_keys", keyColumns }

// updateRow changes one row and returns it as it is then. In set $1 is the id, and further
// arguments begin with $2. The audit log gets each column that changed.
func updateRow[T audited](ctx context.Context, c *Conn, action, set string, id uuid.UUID, args ...any) (T, error) {
	return act(ctx, c, func(tx pgx.Tx) (after T, done audit.Act, err error) {
		table, columns := after.table()
		doing := strings.ReplaceAll(action, ".", " ") + " " + id.String()
		before, err := one[T](ctx, tx, doing, `SELECT `+columns+` FROM `+table+` WHERE id = $1 FOR NO KEY UPDATE`, id)
		if err == nil {
			after, err = one[T](ctx, tx, doing, `UPDATE `+table+` SET `+set+` WHERE id = $1 RETURNING `+columns, append([]any{id}, args...)...)
		}
		workspace, key := after.subject()
		return after, audit.Act{Action: action, Workspace: workspace, Key: key, Details: changes(before, after)}, err
	})
}

// notStored are fields, by their names in JSON, that are no columns: they change by themselves.
var notStored = []string{"state", "lastUsedAt"}

// changes returns the fields that two rows do not have in common, by their names in JSON.
func changes(before, after any) map[string]any {
	from, to, details := fields(before), fields(after), map[string]any{}
	for name := range to {
		if !slices.Contains(notStored, name) && !reflect.DeepEqual(from[name], to[name]) { // mutation: every field is a change
			details[name] = audit.Change{From: from[name], To: to[name]}
		}
	}
	return details
}

func fields(row any) (fields map[string]any) {
	text, err := json.Marshal(row)
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil {
		panic("BUG: " + err.Error()) // rows are of plain types
	}
	return fields
}

// Audit returns the newest acts that the filter selects, newest first. Those of a key include the
// rotation that made it in the place of another key.
func (c *Conn) Audit(ctx context.Context, f audit.Filter) ([]audit.Entry, error) {
	return all[audit.Entry](ctx, c.conn, "read the audit log", `SELECT id, at, actor, role, action, workspace_id, key_id, details FROM public.audit_log
		-- mutation: a key is not found by what replaced it
		WHERE ($1::uuid IS NULL OR workspace_id = $1) AND ($2::uuid IS NULL OR key_id = $2 OR details ->> '`+audit.NewKey+`' = $2::text)
			AND ($3::interval IS NULL OR at >= now() - $3::interval)
		ORDER BY at DESC, id DESC LIMIT $4`, f.Workspace, f.Key, f.Since, f.Limit)
}
