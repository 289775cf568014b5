package postgres

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/sandbox/sandboxtest"
)

// openConn takes a connection from a pool of one, until the test ends.
func openConn(t *testing.T) *pgx.Conn {
	t.Helper()
	pool, err := openPool(t.Context(), sandboxtest.Postgres(t).URL("postgres"), toPrimary, 1, 1, SessionSettings(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	return conn.Conn()
}

func TestQuery(t *testing.T) {
	conn := openConn(t)
	numbers := &Statement{
		Name: "numbers", SQL: "SELECT n FROM generate_series(1, $1::int4) n",
		Parameters: []uint32{pgtype.Int4OID}, Columns: []Column{{"n", pgtype.Int4OID}},
	}
	t.Run("an error of the reader leaves the session usable", func(t *testing.T) {
		wrong := errors.New("wrong")
		for _, want := range []error{wrong, nil, wrong, nil} {
			rows := 0
			err := numbers.Query(t.Context(), conn, [][]byte{{0, 0, 0x10, 0}}, func(row [][]byte) error {
				if rows++; rows != int(binary.BigEndian.Uint32(row[0])) {
					t.Errorf("%q is row %d", row, rows)
				}
				return want
			})
			if n := map[bool]int{true: 4096, false: 1}[want == nil]; err != want || rows != n || conn.IsClosed() {
				t.Errorf("%d rows, closed: %v, %v", rows, conn.IsClosed(), err)
			}
		}
	})
	t.Run("other columns are refused", func(t *testing.T) {
		for name, other := range map[string]func(*Statement){
			"another argument":   func(q *Statement) { q.Parameters = []uint32{pgtype.Int8OID} },
			"another type":       func(q *Statement) { q.Columns = []Column{{"n", pgtype.TextOID}} },
			"a column more":      func(q *Statement) { q.Columns = append(q.Columns, q.Columns...) },
			"no column at all":   func(q *Statement) { q.Columns = nil },
			"no argument at all": func(q *Statement) { q.Parameters = nil },
		} {
			q := *numbers
			other(&q)
			if err := q.Query(t.Context(), conn, [][]byte{{0, 0, 0, 1}}, func([][]byte) error { return nil }); !errors.Is(err, ErrSchema) || conn.IsClosed() {
				t.Errorf("%s: %v, closed: %v", name, err, conn.IsClosed())
			}
		}
	})
	t.Run("a row that is too long is not read", func(t *testing.T) {
		long := &Statement{Name: "long", SQL: "SELECT repeat('x', 5000000)", Columns: []Column{{"n", pgtype.TextOID}}}
		err := long.Query(t.Context(), conn, nil, func([][]byte) error { t.Error("a row"); return nil })
		if found := (*pgproto3.ExceededMaxBodyLenErr)(nil); !errors.As(err, &found) || found.ActualBodyLen < 5_000_000 {
			t.Error(err)
		}
	})
}
