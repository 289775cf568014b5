package world_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/list"
	"listedge/internal/sandbox/postgrestest"
	"listedge/origin/admin"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
	"listedge/origin/usage"
)

// postgresStandIn answers what a node that follows no changes asks Postgres, by the protocol. Which statement it is asked, it knows by
// what that reads. TestAStandInForPostgres asks a real server the same.
type postgresStandIn struct {
	keys map[apikey.Hash]string // in JSON, as the statement of keys has them
	rows map[*list.List][][]byte

	mu    sync.Mutex // guards all below
	asked map[string]question
	used  map[string]usage.Counts // as it was written, by keys
	batch map[string]int64        // the last that was written, by runs of nodes
}

// question is a statement that was asked, and what is answered.
type question struct {
	arguments [][]byte
	types     []uint32
	rows      [][][]byte
	changes   bool // it is answered with a number of rows alone
	own       bool // each server has values of its own
}

// serverOf is a server's answer to postgres.ServerSQL.
const serverOf = "1700000000.5@1@listedge"

func rowOf(all ...string) (row [][]byte) {
	for _, text := range all {
		row = append(row, []byte(text))
	}
	return row
}

var hashes = regexp.MustCompile(`\\\\x([0-9a-f]{64})`)

// answer answers a question. Without arguments it says its types alone.
func (s *postgresStandIn) answer(sql string, arguments [][]byte) (is question, err error) {
	text := []uint32{pgtype.TextOID}
	reads := func(what string) bool { return strings.Contains(sql, what) }
	is = question{arguments: arguments}
	switch {
	case strings.HasPrefix(sql, "SELECT set_config("), sql == "SELECT "+postgres.ServerSQL:
		is.types, is.rows, is.own = text, [][][]byte{rowOf(serverOf)}, true
	case reads("public.listedge_usage_writers"):
		is.changes = true
	case reads("pg_control_system()"):
		is.types = []uint32{pgtype.TextOID, pgtype.OIDOID, pgtype.TextOID, pgtype.Int8OID, pgtype.TextOID}
		is.own = true
		is.rows = [][][]byte{rowOf("7300000000000000001", "16384", "listedge", "1", "1700000000.5")}
	case reads("public.listedge_schema_version"):
		is.types, is.rows, is.own = []uint32{pgtype.Int8OID}, [][][]byte{rowOf("999")}, true
	case reads(apikey.FormsTable.String()):
		is.types, is.rows = append(text, text...), [][][]byte{rowOf(serverOf, "[]")}
	case reads("public.api_keys"):
		is.types, is.rows = append(text, text...), [][][]byte{{[]byte(serverOf), nil}}
		for _, found := range hashes.FindAllSubmatch(arguments[0], -1) {
			var hash apikey.Hash
			_, _ = hex.Decode(hash[:], found[1])
			if key, known := s.keys[hash]; known {
				is.rows = append(is.rows, [][]byte{nil, []byte(key)})
			}
		}
	default:
		err = s.page(sql, &is)
	}
	s.asked[sql] = is
	return is, err
}

// page answers a statement of pages.
func (s *postgresStandIn) page(sql string, is *question) error {
	for l, row := range s.rows {
		if !strings.Contains(sql, "FROM "+l.Table.SQL()+" ") {
			continue
		}
		is.types = []uint32{pgtype.TextOID}
		for _, c := range l.Columns[:l.Selected] {
			is.types = append(is.types, c.OID)
		}
		is.rows = [][][]byte{append([][]byte{[]byte("5:5:@0@" + serverOf)}, make([][]byte, l.Selected)...)}
		if is.arguments[0] != nil { // of a tenant
			is.rows = append(is.rows, append([][]byte{nil}, row...))
		}
		return nil
	}
	return fmt.Errorf("the stand-in for Postgres does not know %.200q", sql)
}

// write adds a batch of usage, or removes what has expired.
func (s *postgresStandIn) write(arguments [][]byte) (tag string) {
	if len(arguments) != 3 {
		return "SELECT 0"
	}
	var rows []usage.Row
	var number int64
	if err := errors.Join(json.Unmarshal(arguments[1], &number), json.Unmarshal(arguments[2], &rows)); err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	run := string(arguments[0])
	for _, row := range rows {
		if number > s.batch[run] {
			sum := s.used[row.ID.String()]
			sum.Add(row.Counts)
			s.used[row.ID.String()] = sum
		}
	}
	s.batch[run] = max(s.batch[run], number)
	return "INSERT 0 1"
}

// counted returns the usage that was written.
func (s *postgresStandIn) counted() map[string]usage.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.used)
}

// session is a connection to the stand-in.
type session struct {
	*pgproto3.Backend
	server   *postgresStandIn
	prepared map[string]string
	bound    *pgproto3.Bind
	failed   bool // what follows until Sync is skipped
	inside   byte // a transaction: T; I = none
}

func (s *postgresStandIn) serve(conn net.Conn) {
	defer conn.Close()
	c := &session{pgproto3.NewBackend(conn, conn), s, map[string]string{}, nil, false, 'I'}
	first, err := c.ReceiveStartupMessage()
	if _, starts := first.(*pgproto3.StartupMessage); err != nil || !starts {
		_, _ = conn.Write(nil) // a request to cancel waits, too, while the server hangs
		return
	}
	c.Send(&pgproto3.AuthenticationOk{})
	for name, value := range map[string]string{"server_version": "17.0", "client_encoding": "UTF8", "standard_conforming_strings": "on"} {
		c.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	c.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}})
	for c.ready() == nil {
		for more := true; more; {
			m, err := c.Receive()
			if _, ends := m.(*pgproto3.Terminate); err != nil || ends {
				return
			}
			more = c.handle(m)
		}
	}
}

func (c *session) ready() error {
	c.Send(&pgproto3.ReadyForQuery{TxStatus: c.inside})
	c.failed = false
	return c.Flush()
}

// handle handles a message. It reports whether others belong to it.
func (c *session) handle(m pgproto3.FrontendMessage) (more bool) {
	switch m := m.(type) {
	case *pgproto3.Sync:
		return false
	case *pgproto3.Query:
		c.simple(m.String)
		return false
	}
	if c.failed {
		return true
	}
	switch m := m.(type) {
	case *pgproto3.Parse:
		c.prepared[m.Name] = m.Query
		c.Send(&pgproto3.ParseComplete{})
	case *pgproto3.Bind:
		bound := *m
		bound.Parameters = nil
		for _, p := range m.Parameters { // the next message has their memory
			if p != nil {
				p = append([]byte{}, p...)
			}
			bound.Parameters = append(bound.Parameters, p)
		}
		c.bound = &bound
		c.Send(&pgproto3.BindComplete{})
	case *pgproto3.Describe:
		sql := c.prepared[m.Name]
		if m.ObjectType == 'S' {
			c.Send(&pgproto3.ParameterDescription{ParameterOIDs: parametersOf(sql)})
			c.describe(sql, make([][]byte, len(parametersOf(sql))))
		} else {
			c.describe(c.prepared[c.bound.PreparedStatement], c.bound.Parameters)
		}
	case *pgproto3.Execute:
		c.execute(c.prepared[c.bound.PreparedStatement], c.bound.Parameters)
	case *pgproto3.Close:
		c.Send(&pgproto3.CloseComplete{})
	}
	return true
}

var parameters = regexp.MustCompile(`\$(\d+)`)

func parametersOf(sql string) (types []uint32) {
	for _, n := range parameters.FindAllStringSubmatch(sql, -1) {
		for fmt.Sprint(len(types)) < n[1] { // there are less than ten
			types = append(types, pgtype.TextOID)
		}
	}
	return types
}

// simple answers a statement that is sent as a text.
func (c *session) simple(sql string) {
	word, _, _ := strings.Cut(sql, " ")
	switch word {
	case "begin":
		c.inside = 'T'
	case "commit", "rollback":
		c.inside = 'I'
	case "--":
		c.Send(&pgproto3.EmptyQueryResponse{})
		return
	default:
		c.describe(sql, nil)
		c.execute(sql, nil)
		return
	}
	c.Send(&pgproto3.CommandComplete{CommandTag: []byte(strings.ToUpper(word))})
}

func (c *session) ask(sql string, arguments [][]byte) (question, bool) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	is, err := c.server.answer(sql, arguments)
	if err != nil {
		c.failed = true
		c.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "XX000", Message: err.Error()})
	}
	return is, err == nil
}

func (c *session) describe(sql string, arguments [][]byte) {
	is, ok := c.ask(sql, arguments)
	switch {
	case !ok:
		return
	case is.changes:
		c.Send(&pgproto3.NoData{})
		return
	}
	fields := make([]pgproto3.FieldDescription, len(is.types))
	for i, t := range is.types {
		fields[i] = pgproto3.FieldDescription{Name: []byte("c"), DataTypeOID: t, DataTypeSize: -1, TypeModifier: -1}
	}
	c.Send(&pgproto3.RowDescription{Fields: fields})
}

func (c *session) execute(sql string, arguments [][]byte) {
	is, ok := c.ask(sql, arguments)
	if !ok {
		return
	}
	for _, row := range is.rows {
		c.Send(&pgproto3.DataRow{Values: row})
	}
	tag := fmt.Sprintf("SELECT %d", len(is.rows))
	if is.changes {
		tag = c.server.write(arguments)
	}
	c.Send(&pgproto3.CommandComplete{CommandTag: []byte(tag)})
}

// A real server answers what a node asks as the stand-in does: columns of the same types, as many rows, and the same values but for the
// server and versions.
func TestAStandInForPostgres(t *testing.T) {
	shared := postgrestest.Shared{Settings: postgrestest.Fast, Prepare: postgrestest.Prepare(admin.MigrateUp)}
	t.Cleanup(shared.Stop)
	url := shared.New(t)
	asked := map[string]question{}
	inBubble(t, func(t *testing.T, s *site) {
		n := s.start("one")
		for _, target := range []string{"items?limit=1", "items?limit=1&search=bolt", "contacts?limit=1&sort=name"} {
			expect(t, target, n.get("public", "/v1/"+target), 200, "uri-miss", 0)
		}
		n.end()
		hash, _ := apikey.HashOf([]byte(s.key))
		postgrestest.Exec(t, url, "INSERT INTO workspaces (id, name) VALUES ($1, 'w')", theWorkspace)
		postgrestest.Exec(t, url, "INSERT INTO api_keys (id, workspace_id, key_hash, key_prefix, name, scopes, rate_per_second, burst) "+
			"VALUES ($1, $2, $3, 'lk_', 'a', $4, 1000, 1000)", theKey, theWorkspace, hash[:], list.BuiltIn().Scopes())
		for l, row := range s.database.rows {
			insert(t, url, l, row)
		}
		asked = s.database.asked
	})
	conn := postgrestest.Connect(t, url).PgConn()
	kinds := map[string]bool{}
	for sql, is := range asked {
		kinds[sql[:min(len(sql), 40)]] = true
		real := conn.ExecParams(t.Context(), sql, is.arguments, nil, nil, nil)
		var types []uint32
		for _, f := range real.FieldDescriptions() {
			types = append(types, f.DataTypeOID)
		}
		var rows []string
		for real.NextRow() {
			rows = append(rows, valuesOf(real.Values()))
		}
		if _, err := real.Close(); err != nil {
			t.Errorf("%.200s: %s", sql, err)
		}
		var want []string
		for _, row := range is.rows {
			want = append(want, valuesOf(row))
		}
		if is.own && len(rows) <= 1 { // settings are made on the connection that they name alone, and nobody reads them
			types, rows = types[:len(is.types)], want
		}
		if !slices.Equal(types, is.types) || !slices.Equal(rows, want) {
			t.Errorf("%.200s %q:\nthe stand-in answers %v %q\nPostgres         %v %q", sql, is.arguments, is.types, want, types, rows)
		}
	}
	if len(kinds) < 8 {
		t.Errorf("asked were %q", slices.Sorted(maps.Keys(kinds)))
	}
}

// insert inserts a row as a page shows it.
func insert(t *testing.T, url string, l *list.List, row [][]byte) {
	columns, values := []string{l.Columns[l.Tenant].Name}, []string{"'" + theWorkspace.String() + "'"}
	for i, c := range l.Columns[:l.Selected] {
		if row[i] != nil {
			columns, values = append(columns, c.Name), append(values, "'"+string(row[i])+"'")
		}
	}
	postgrestest.Exec(t, url, fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", l.Table.SQL(), list.Quoted(columns...), strings.Join(values, ", ")))
}

var (
	served = regexp.MustCompile(`^(\d+:\d+:@\d+@)?\d+\.\d+@1@\w+$`)
)

// valuesOf is a row without what differs from server to server, as a text.
func valuesOf(row [][]byte) string {
	var all []string
	for _, value := range row {
		text := string(value)
		var fields map[string]any
		switch {
		case value == nil:
			text = "NULL"
		case served.Match(value):
			text = "the server"
		case json.Unmarshal(value, &fields) == nil:
			delete(fields, "Version")
			delete(fields, "WorkspaceVersion")
			sorted, _ := json.Marshal(fields)
			text = string(sorted)
		}
		all = append(all, text)
	}
	return strings.Join(all, "|")
}
