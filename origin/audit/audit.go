// Package audit keeps the log of administrative acts: who changed what, and when.
//
//	command ──► change of workspaces, keys, rows ──┐
//	                                               ├──► one transaction
//	            Write: a row of listedge_audit_log ─────────┘
//
// The row is written in the transaction of the change, so that neither is there without
// the other. Nobody updates or deletes rows: the table refuses it.
package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin/postgres"
)

// Act is one change by a command. It names neither the text nor the hash of a key.
type Act struct {
	Action    string         `json:"action"`            // the command, as "keys.rotate"
	Workspace *uuid.UUID     `json:"workspace"`         // what it was done to; nil = no single one
	Key       *uuid.UUID     `json:"key"`               // likewise
	Details   map[string]any `json:"details,omitempty"` // what was changed, and to what; Change where both are known
}

// Change is a value before an act and after it.
type Change struct {
	From any `json:"from"`
	To   any `json:"to"`
}

// Entry is a row of the log.
type Entry struct {
	ID          int64          `json:"id"`
	At          time.Time      `json:"at"`
	Actor       string         `json:"actor"` // who the command said it was
	Role        string         `json:"role"`  // the role of Postgres that wrote the row
	Action      string         `json:"action"`
	WorkspaceID *uuid.UUID     `json:"workspaceId"`
	KeyID       *uuid.UUID     `json:"keyId"`
	Details     map[string]any `json:"details"`
}

// NewKey is the detail that names the key by which keys.rotate replaced another.
const NewKey = "newKey"

// Write adds acts to the log, in the transaction of the change.
func Write(ctx context.Context, tx pgx.Tx, acts ...Act) error {
	rows, err := json.Marshal(acts)
	if err == nil {
		_, err = tx.Exec(ctx, `INSERT INTO public.listedge_audit_log (actor, action, workspace_id, key_id, details)
			SELECT $1, action, workspace, key, coalesce(details, '{}')
			FROM jsonb_to_recordset($2::jsonb) a (action text, workspace uuid, key uuid, details jsonb)`, actor(ctx), string(rows))
	}
	if err != nil {
		return fmt.Errorf("write the audit log: %w", postgres.WithSchemaHint(err))
	}
	return nil
}

// Filter selects entries of the log.
type Filter struct {
	Workspace, Key *uuid.UUID     // nil = all
	Since          *time.Duration // at most so old; nil = all
	Limit          int
}

type actorKey struct{}

// As returns a context whose acts are the actor's. Without it they are the system user's.
func As(ctx context.Context, actor string) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

func actor(ctx context.Context) string {
	if name, ok := ctx.Value(actorKey{}).(string); ok {
		return name
	}
	return SystemUser()
}

// maxActor is the most characters of an actor's name; the table has the same bound.
const maxActor = 128

// CheckActor refuses names that are empty, too long, or would spoil a line of the log.
func CheckActor(name string) error {
	if strings.TrimSpace(name) == "" || !utf8.ValidString(name) || utf8.RuneCountInString(name) > maxActor ||
		strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return fmt.Errorf("must be text of 1 to %d printable characters", maxActor)
	}
	return nil
}

// SystemUser is the name of the user that runs this process, or its number, as in a
// container whose user has no name.
func SystemUser() string {
	number := strconv.Itoa(os.Getuid())
	if u, err := user.LookupId(number); err == nil && CheckActor(u.Username) == nil {
		return u.Username
	}
	return number
}
