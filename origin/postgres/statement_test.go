package postgres

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/sandbox/sandboxtest"
)

// openConn takes a connection from a pool of one, until the test ends. The session begins with settings that make
// other texts of values.
func openConn(t *testing.T) *pgx.Conn {
	t.Helper()
	url := sandboxtest.Postgres(t).URL("postgres") + "?datestyle=German&timezone=Asia/Tokyo&intervalstyle=iso_8601&extra_float_digits=0&bytea_output=escape"
	pool, err := openPool(t.Context(), url, toPrimary, 1, 1, SessionSettings(time.Minute), nil)
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
		Name: "numbers", SQL: "SELECT n FROM generate_series(1, $1::text::int4) n", Columns: []Column{{"n", pgtype.Int4OID}},
	}
	t.Run("an error of the reader leaves the session usable", func(t *testing.T) {
		wrong := errors.New("wrong")
		for _, want := range []error{wrong, nil, wrong, nil} {
			rows := 0
			err := numbers.Query(t.Context(), conn, [][]byte{[]byte("4096")}, func(row [][]byte) error {
				if rows++; string(row[0]) != strconv.Itoa(rows) {
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
			"another type":     func(q *Statement) { q.Columns = []Column{{"n", pgtype.TextOID}} },
			"a column more":    func(q *Statement) { q.Columns = append(q.Columns, q.Columns...) },
			"no column at all": func(q *Statement) { q.Columns = nil },
		} {
			q := *numbers
			other(&q)
			if err := q.Query(t.Context(), conn, [][]byte{[]byte("1")}, func([][]byte) error { return nil }); !errors.Is(err, ErrSchema) || conn.IsClosed() {
				t.Errorf("%s: %v, closed: %v", name, err, conn.IsClosed())
			}
		}
	})
	t.Run("values are texts that say all of them", func(t *testing.T) {
		for value, want := range map[string]string{
			"'2026-03-29 01:30:00.5+02'::timestamptz": "2026-03-28 23:30:00.5+00", "'0044-03-15 BC'::date": "0044-03-15 BC",
			"0.1::float8 + 0.2::float8": "0.30000000000000004",
			"'\\x00ff'::bytea":          `\x00ff`, "'1 day 2 hours'::interval": "1 day 02:00:00", "'1.50'::numeric": "1.50",
		} {
			q := &Statement{Name: value, SQL: "SELECT (" + value + ")::text, $1::text", Columns: []Column{{"n", pgtype.TextOID}, {"null", pgtype.TextOID}}}
			err := q.Query(t.Context(), conn, [][]byte{nil}, func(row [][]byte) error {
				if string(row[0]) != want || row[1] != nil {
					t.Errorf("%s is %s, want %s, and %q, want NULL", value, row[0], want, row[1])
				}
				return nil
			})
			if err != nil {
				t.Error(err)
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
