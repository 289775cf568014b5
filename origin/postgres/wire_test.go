package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/sandbox/sandboxtest"
)

// message is what a server sends.
func message(t *testing.T, m pgproto3.BackendMessage) []byte {
	t.Helper()
	b, err := m.Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// readSent reads an answer that comes in pieces of such sizes, and then ends.
func readSent(sent []byte, piece func() int) (rows []string, s *Session, err error) {
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		defer there.Close()
		for len(sent) > 0 {
			n := min(len(sent), piece())
			if _, err := there.Write(sent[:n]); err != nil {
				return
			}
			sent = sent[n:]
		}
	}()
	s = &Session{wire: here, broken: true}
	err = s.readAnswer(answer{row: func(row []byte) error {
		rows = append(rows, string(row))
		return nil
	}})
	return rows, s, err
}

// The rows of an answer are the same, however it is split.
func TestAnAnswerIsTheSameHoweverItIsSplit(t *testing.T) {
	random := rand.New(rand.NewPCG(30, 31))
	for range 300 {
		answer := message(t, &pgproto3.BindComplete{})
		var want []string
		for range random.IntN(30) {
			row := &pgproto3.DataRow{Values: [][]byte{bytes.Repeat([]byte{'v'}, random.IntN([]int{10, 300, 3 * firstBuffer}[random.IntN(3)])), nil}}
			body := message(t, row)
			answer, want = append(answer, body...), append(want, string(body[5:]))
			if random.IntN(5) == 0 {
				answer = append(answer, message(t, &pgproto3.ParameterStatus{Name: "TimeZone", Value: "UTC"})...)
			}
		}
		answer = append(append(answer, message(t, &pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})...), message(t, &pgproto3.ReadyForQuery{TxStatus: 'I'})...)
		most := 1 + random.IntN(3*firstBuffer)
		rows, s, err := readSent(answer, func() int { return 1 + random.IntN(most) })
		if err != nil || s.broken || !slices.Equal(rows, want) {
			t.Fatalf("%d rows instead of %d, broken: %v, %v", len(rows), len(want), s.broken, err)
		}
	}
}

// An incomplete answer is an error, after which the connection is not used. The
// server's own error is an answer.
func TestAnIncompleteAnswerBreaksTheSession(t *testing.T) {
	bound := message(t, &pgproto3.BindComplete{})
	row := message(t, &pgproto3.DataRow{Values: [][]byte{[]byte("value")}})
	refused := message(t, &pgproto3.ErrorResponse{Severity: "ERROR", Code: "57014", Message: "too slow"})
	complete := message(t, &pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
	ready := message(t, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	for name, c := range map[string]struct {
		sent   [][]byte
		code   string
		fails  bool
		broken bool
	}{
		"an answer":              {sent: [][]byte{bound, row, complete, ready}},
		"the end of another":     {sent: [][]byte{ready}, fails: true, broken: true},
		"rows without an end":    {sent: [][]byte{bound, row, ready}, fails: true, broken: true},
		"a refusal":              {sent: [][]byte{refused, ready}, code: "57014", fails: true},
		"a refusal behind a row": {sent: [][]byte{bound, row, refused, ready}, code: "57014", fails: true},
		"the end":                {fails: true, broken: true},
		"no end":                 {sent: [][]byte{bound, row}, fails: true, broken: true},
		"half a row":             {sent: [][]byte{bound, row[:len(row)-1]}, fails: true, broken: true},
		"a fatal error, cut":     {sent: [][]byte{bound, row, refused}, code: "57014", fails: true, broken: true},
		"a fatal error":          {sent: [][]byte{bound, row, message(t, &pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P01"}), ready}, code: "57P01", fails: true, broken: true},
		"a transaction":          {sent: [][]byte{bound, complete, message(t, &pgproto3.ReadyForQuery{TxStatus: 'T'})}, broken: true},
		"more behind the answer": {sent: [][]byte{bound, complete, ready, refused}, broken: true},
		"no length":              {sent: [][]byte{{'D', 0, 0, 0, 3}, ready}, fails: true, broken: true},
		"too long":               {sent: [][]byte{{'D', 0xff, 0xff, 0xff, 0xff}, ready}, fails: true, broken: true},
		"another protocol":       {sent: [][]byte{[]byte("HTTP/1.1 400 Bad Request\r\n\r\n")}, fails: true, broken: true},
		"an unreadable refusal":  {sent: [][]byte{{'E', 0, 0, 0, 5, 'M'}, ready}, fails: true, broken: true},
		"an unexpected message":  {sent: [][]byte{message(t, &pgproto3.CopyInResponse{}), ready}, fails: true, broken: true},
	} {
		_, s, err := readSent(slices.Concat(c.sent...), func() int { return 1 << 20 })
		if s.broken != c.broken || (err != nil) != c.fails || Code(err) != c.code {
			t.Errorf("%s: broken: %v, %v", name, s.broken, err)
		}
	}
}

// openSession is a session at a server, until the test ends.
func openSession(t *testing.T) *Session {
	t.Helper()
	pool, err := openPool(t.Context(), sandboxtest.Postgres(t).URL("postgres"), toPrimary, 1, 1, SessionSettings(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := new(Session)
	if err := s.Acquire(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Release)
	return s
}

func TestQuery(t *testing.T) {
	s := openSession(t)
	numbers := &Statement{
		Name: "numbers", SQL: "SELECT n FROM generate_series(1, $1::int4) n",
		Parameters: []uint32{pgtype.Int4OID}, Columns: []Column{{"n", pgtype.Int4OID}}, Formats: []int16{pgtype.TextFormatCode},
	}
	t.Run("an error of the reader leaves the session usable", func(t *testing.T) {
		wrong := errors.New("wrong")
		for _, want := range []error{wrong, nil, wrong, nil} {
			rows := 0
			err := s.Query(t.Context(), numbers, [][]byte{{0, 0, 0x10, 0}}, func(row []byte) error {
				if rows++; fmt.Sprint(rows) != string(row[6:]) {
					t.Errorf("%q is row %d", row, rows)
				}
				return want
			})
			if n := map[bool]int{true: 4096, false: 1}[want == nil]; err != want || rows != n || s.broken {
				t.Errorf("%d rows, broken: %v, %v", rows, s.broken, err)
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
			if err := s.Query(t.Context(), &q, [][]byte{{0, 0, 0, 1}}, func([]byte) error { return nil }); !errors.Is(err, ErrSchema) || s.broken {
				t.Errorf("%s: %v, broken: %v", name, err, s.broken)
			}
		}
	})
	// The answer arrived, but the connection's deadline may be set at any later time.
	t.Run("a late cancellation breaks the session", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		_ = s.Query(ctx, numbers, [][]byte{{0, 0, 0, 1}}, func([]byte) error { cancel(); return nil })
		if !s.broken {
			t.Error("not broken")
		}
	})
}
