package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// maxMessage is the longest message that is read from the server, and so the longest row, in
// bytes. Its JSON may be six times as long. A longer message is a *pgproto3.ExceededMaxBodyLenErr,
// and closes the connection.
const maxMessage = 4 << 20

// Statement is a query whose rows are read as the server sends them: all values are texts, as the settings of the
// connection have them (TextSettings). So are the arguments; nil is NULL.
type Statement struct {
	Name    string // under which a connection prepares it
	SQL     string // casts its parameters where Postgres could not tell their types
	Columns []Column
}

// Column is what a statement's column must be.
type Column struct {
	Name string // for errors
	Type uint32 // OID; of a domain, that of its base type
}

// check returns ErrSchema if the server's columns are not the statement's.
func (q *Statement) check(fields []pgconn.FieldDescription) error {
	if len(fields) != len(q.Columns) {
		return fmt.Errorf("%w: %d columns instead of %d", ErrSchema, len(fields), len(q.Columns))
	}
	for i, want := range q.Columns {
		is := fields[i].DataTypeOID
		if is != want.Type && !(is == pgtype.VarcharOID && want.Type == pgtype.TextOID) { // both compare alike
			return fmt.Errorf("%w: %s: type %s instead of %s", ErrSchema, want.Name, typeName(is), typeName(want.Type))
		}
	}
	return nil
}

// typeName returns the name of a built-in type.
func typeName(oid uint32) string {
	if t, ok := pgtype.NewMap().TypeForOID(oid); ok {
		return t.Name
	}
	return fmt.Sprintf("with the OID %d", oid)
}

// Query runs the statement and calls row for each row of the answer. The values of a row are
// valid until row returns; nil is NULL. An error of row, or of the server, leaves the connection
// usable. A statement is prepared again if the schema has changed since, or the server has
// forgotten the statement.
func (q *Statement) Query(ctx context.Context, conn *pgx.Conn, arguments [][]byte, row func([][]byte) error) error {
	if Pooled(conn.PgConn()) {
		return q.queryPooled(ctx, conn.PgConn(), arguments, row)
	}
	rows := 0
	counted := func(values [][]byte) error { rows++; return row(values) }
	err := q.queryPrepared(ctx, conn, arguments, counted)
	if code := Code(err); rows == 0 && (code == "0A000" || code == "26000" || errors.Is(err, ErrSchema)) {
		err = conn.Deallocate(ctx, q.Name)
		if err != nil {
			_ = conn.Close(ctx) // pgx does not read what follows an error
		} else {
			err = q.queryPrepared(ctx, conn, arguments, counted)
		}
	}
	return err
}

// queryPrepared prepares the statement if that has not been done, and runs it. It returns
// ErrSchema if the columns are not the expected ones.
func (q *Statement) queryPrepared(ctx context.Context, conn *pgx.Conn, arguments [][]byte, row func([][]byte) error) error {
	prepared, err := conn.Prepare(ctx, q.Name, q.SQL)
	if err != nil {
		return err
	}
	if err := q.check(prepared.Fields); err != nil {
		return err
	}
	result := conn.PgConn().ExecStatement(ctx, prepared, arguments, nil, nil)
	for result.NextRow() {
		if err == nil {
			err = row(result.Values())
		}
	}
	_, failed := result.Close()
	return cmp.Or(err, failed)
}

// queryPooled runs the settings (Settings.Local) and the statement in one transaction, which the only Sync of the
// batch ends. Behind a pooler the next transaction may run on another server connection, which
// has neither the settings nor a prepared statement.
func (q *Statement) queryPooled(ctx context.Context, conn *pgconn.PgConn, arguments [][]byte, row func([][]byte) error) (err error) {
	batch := &pgconn.Batch{}
	batch.ExecParams(localSettings(conn), nil, nil, nil, nil)
	batch.ExecParams(q.SQL, arguments, nil, nil, nil)
	results := conn.ExecBatch(ctx, batch)
	for n := 0; results.NextResult(); n++ {
		result := results.ResultReader()
		if n == 1 {
			err = q.check(result.FieldDescriptions())
		}
		for result.NextRow() {
			if n == 1 && err == nil {
				err = row(result.Values())
			}
		}
	}
	return cmp.Or(err, results.Close())
}
