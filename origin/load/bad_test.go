package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"listedge/origin"
)

var (
	longName = strings.Repeat("ä", 100)
	badFiles = []struct{ file, content, want string }{
		// The header.
		{"empty.csv", "", `1:1: no header row`},
		{"a.csv", "id,name,colour\n", `1:9: colour: there is no such column`},
		{"a.csv", "id,name,\n", `1:9: "": there is no such column`},
		{"a.csv", "id;name\n", `1:1: id;name: there is no such column`},
		{"a.csv", "id,Name\n", `1:4: Name: there is no such column`},
		{"a.csv", "id,\"na\nme\"\n", `1:4: "na\nme": there is no such column`},
		{"a.csv", "id,name,sku,id\n", `1:13: id: given twice`},
		{"a.csv", "\n\nsku,name\n", `3:1: id: the column is missing`},
		{"a.csv", "\ufeffid,sku\r\n", `1:1: name: the column is missing`},
		// The shape of CSV.
		{"a.csv", "id,name\n" + id1 + "\n", `2:1: 1 cells, where the header has 2`},
		{"a.csv", "id,name\n" + id1 + ",a,b\n", `2:40: 3 cells, where the header has 2`},
		{"a.csv", "id,name\n" + id1 + ",\"a\nb\" c\n", `3:2: extraneous or missing " in quoted-field`},
		{"a.csv", "id,name\n" + id1 + ",a\"b\n", `2:39: bare " in non-quoted-field`},
		{"a.csv", "id,name\n" + id1 + ",\"a\nb\nc", `2:38: the quote opened here is never closed`},
		{"a.csv", "id,name\n" + id1 + ",\"a \"\"b\"\"\n\"\"c", `2:38: the quote opened here is never closed`},
		// Text.
		{"a.csv", "id,name\n" + id1 + ",caf\xe9\n", `2:41: not valid UTF-8`},
		{"a.csv", "id,name\n" + id1 + ",\"two\nlines \xed\xa0\x80\"\n", `3:7: not valid UTF-8`},
		{"a.csv", "id,name\n" + id1 + ",a\x00b\n", `2:39: a NUL character`},
		{"a.csv", "\xff\xfei\x00d\x00", `1:4: a NUL character`},
		// Values.
		{"a.csv", "id,name\n" + id1 + ",\n", `2:38: name: must not be empty`},
		{"a.csv", "id,name\n,Chai\n", `2:1: id: must not be empty`},
		{"a.csv", "id,name\n{" + id1 + "},Chai\n", `2:1: id: not a UUID: "{` + id1 + `}"`},
		{"a.csv", "id,name\n" + id1[:35] + "g,Chai\n", `2:1: id: not a UUID: "` + id1[:35] + `g"`},
		{"a.csv", "id,name,costPrice\n" + id1 + ",\"quoted, é\",abc\n", `2:51: costPrice: not a decimal number: "abc"`},
		{"a.csv", "id,name,costPrice\n" + id1 + ",a,\n", `2:40: costPrice: must not be empty`},
		{"a.csv", "id,name,reorderPoint\n" + id1 + ",a,\n" + id2 + ",\"b\n\nc\",1e3\n", `5:4: reorderPoint: not a decimal number: "1e3"`},
		{"a.csv", "id,name,usage30\r\n" + id1 + ",a,-0.5\r\n", `2:40: usage30: must not be negative: "-0.5"`},
		{"a.csv", "id,name,usage30\n" + id1 + ",a,1" + strings.Repeat("0", 400) + "\n", `2:40: usage30: more than 9007199254740991, which not every client could read: "1` + strings.Repeat("0", 59) + `"…`},
		{"a.csv", "id,name,usage30\n" + id1 + ",a,9007199254740991.0\n" + id2 + ",a,9007199254740991.1\n", `3:40: usage30: more than 9007199254740991, which not every client could read: "9007199254740991.1"`},
		{"a.csv", "id,name,costPrice\n" + id1 + ",a,1" + strings.Repeat("0", 1000) + "\n", `2:40: costPrice: more than 1000 digits before the point`},
		{"a.csv", "id,name,costPrice\n" + id1 + ",a,0." + strings.Repeat("0", 1001) + "\n", `2:40: costPrice: more than 1000 digits after the point`},
		{"a.csv", "id,name,description\n" + id1 + ",a,b\n" + id2 + ",a," + strings.Repeat("é", 32768) + "x\n", `3:40: description: longer than 65536 bytes`},
		{"a.csv", "id,name,type\n" + id1 + ",a,goods\n", `2:40: type: neither GOODS nor SERVICE: "goods"`},
		{"a.csv", "id,name,active\n" + id1 + ",a,yes\n", `2:40: active: neither true nor false: "yes"`},
		{"a.csv", "id,name,createdAt\n" + id1 + ",a,2026-02-30T00:00:00Z\n", `2:40: createdAt: not an instant (RFC 3339): "2026-02-30T00:00:00Z"`},
		{"a.csv", "id,name,createdAt\n" + id1 + ",a,2026-02-03T00:00:00.0001Z\n", `2:40: createdAt: finer than a millisecond: "2026-02-03T00:00:00.0001Z"`},
		{"a.csv", "id,name,preferredContactId\n" + id1 + ",a," + longName + "\n", `2:40: preferredContactId: not a UUID: "` + longName[:60] + `"…`},
		{"a.csv", "id,name\n" + id1 + ",a\n" + id2 + ",b\n" + strings.ToUpper(id1) + ",c\n", `4:1: id: a second row of this id: "` + id1 + `"`},
		// Sizes.
		{"a.csv", "id,name\n" + id1 + ",a\n" + strings.Repeat(",", maxRecord-1) + "\n", `3:1001: ` + tooMany},
		{"a.csv", "id,name\n" + id1 + ",a\n" + strings.Repeat(",", 20<<20) + "\n", `3:1: ` + tooLong},
		{"a.csv", strings.Repeat(",", 20<<20) + "\n", `1:1: ` + tooLong},
		{"a.csv", "id,name\n" + id1 + ",\"a\n" + strings.Repeat(strings.Repeat(",", 1023)+"\n", 20<<10) + "\n", `2:38: ` + tooLong},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a"}` + "\n" + strings.Repeat("[", 20<<20) + "\n", `2:1: ` + tooLong},
		// JSON Lines.
		{"a.jsonl", `{"id":"` + id1 + `","name":"a","usage30":9007199254740992}`, `1:67: usage30: more than 9007199254740991, which not every client could read: "9007199254740992"`},
		{"a.jsonl", "[]", `1:1: wanted a JSON object on each line, found an array`},
		{"a.json", "[\n{}\n]", `1:1: unexpected end of JSON input`},
		{"a.jsonl", "\n {\"id\":\"" + id1 + "\"}", `2:2: name: the key is missing`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a","colour":1}`, `1:57: colour: there is no such column`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a","n\u0061me":"b"}`, `1:57: name: given twice`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a"`, `1:55: unexpected end of JSON input`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a"} x`, `1:58: invalid character 'x' after top-level value`},
		{"a.jsonl", `{"id":"` + id1 + `" "name":"a"}`, `1:46: invalid character '"' after object key:value pair`},
		{"a.jsonl", `{"id":"` + id1 + `","name":null}`, `1:53: name: must not be null`},
		{"a.jsonl", `{"id":"` + id1 + `","name":""}`, `1:53: name: must not be empty`},
		{"a.jsonl", `{"id":"` + id1 + `","name":12}`, `1:53: name: wanted a string, found a number`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a","costPrice": 12.5}`, `1:70: costPrice: wanted a string, found a number`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a` + strings.Repeat(`\n`, 65536) + `"}`, `1:53: name: longer than 65536 bytes`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a","usage30":"12"}`, `1:67: usage30: wanted a number, found a string`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a","usage30":1e3}`, `1:67: usage30: not a decimal number: "1e3"`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a","taxable":"t"}`, `1:67: taxable: wanted true or false, found a string`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a","sku":{"a":[]}}`, `1:63: sku: wanted a string, found an object`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a \u0000"}`, `1:53: name: a NUL character`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"\ud83d\u0041"}`, `1:53: name: half a surrogate pair`},
		{"a.jsonl", `{"id":"` + id1 + `","name":"a` + "\xff" + `"}`, `1:55: not valid UTF-8`},
		{"a.jsonl", `{"id":"` + id1 + "\",\"name\":\"a\"}\n{\"name\":\"b\",\"id\":\"" + id1 + `"}`, `2:18: id: a second row of this id: "` + id1 + `"`},
		// Neither extension: the first byte that is not blank decides.
		{"a.txt", "\n {\"name\":\"a\"}", `2:2: id: the key is missing`},
		{"a.txt", "\nname\n", `2:1: id: the column is missing`},
	}
)

func badFilesChangeNothing(t *testing.T, db database) {
	mustImport(t, db, origin.Items, write(t, "good.csv", "id,name\n"+id1+",untouched\n"), 1)
	const versions = "SELECT id, xmin, xmax FROM items"
	before := query(t, db.URL, versions)
	for _, bad := range badFiles {
		file := write(t, bad.file, bad.content)
		rows, err := Import(t.Context(), db.URL, origin.Items, db.Workspace, file, nil)
		var place *RowError
		if want := file + ":" + bad.want; err == nil || err.Error() != want || !errors.As(err, &place) || place.File != file || rows != 0 {
			t.Errorf("%.200q\ngot  %.300v\nwant %.300s", bad.content, err, want)
		}
	}
	if after := query(t, db.URL, versions); !reflect.DeepEqual(before, after) {
		t.Errorf("rows before %v, after %v", before, after)
	}

	for _, file := range []string{filepath.Join(t.TempDir(), "missing.csv"), t.TempDir()} {
		if _, err := Import(t.Context(), db.URL, origin.Items, db.Workspace, file, nil); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func count(t *testing.T, db database) string {
	return query(t, db.URL, "SELECT count(*) FROM items")[0][0]
}

func lateErrorLeavesNothing(t *testing.T, db database) {
	const rows = 8_000
	file := filepath.Join(t.TempDir(), "large.csv")
	writeSampleItems(t, file, rows)
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(f, "%s,last,,,1,1,1,t,yesterday\n", id1)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Import(t.Context(), db.URL, origin.Items, db.Workspace, file, nil)
	if want := fmt.Sprintf(`%s:%d:53: createdAt: not an instant (RFC 3339): "yesterday"`, file, rows+2); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if n := count(t, db); n != "0" {
		t.Errorf("%s rows stayed", n)
	}
	log, err := os.ReadFile(db.server.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), "yesterday") {
		t.Error("the server's log tells what is in the file")
	}
}

// pipe is a named one that gives rows until it has given n of them, calls then,
// and goes on for ever or is silent from there.
func pipe(t *testing.T, n int, then func(), silent bool) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "pipe.csv")
	if err := syscall.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0) // both ends, so that neither waits for the other
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		w := bufio.NewWriter(f)
		fmt.Fprintln(w, "id,name,sku,description,costPrice,stockOnHand,usage30,trackStock,createdAt")
		for row := 0; w.Flush() == nil; row++ {
			if row == n {
				then()
				if silent {
					<-stop
					return
				}
			}
			writeSampleItem(w, row)
		}
	}()
	t.Cleanup(func() { close(stop); f.Close(); <-done })
	return file
}

// underWay is a number of rows that no buffer between a pipe and the server
// holds: when they are gone, the server has some of them.
const underWay = 5_000

func cancelLeavesNothing(t *testing.T, db database) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	file := pipe(t, underWay, cancel, false)
	if _, err := Import(ctx, db.URL, origin.Items, db.Workspace, file, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := count(t, db); n != "0" {
		t.Errorf("%s rows stayed", n)
	}
	// While the rows are written: a lock lets the statement wait for the cancel.
	blocker := open(t, db.URL)
	defer blocker.Close(context.Background())
	tx, err := blocker.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE items IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := Import(ctx, db.URL, origin.Items, db.Workspace, "testdata/items.csv", nil)
		failed <- err
	}()
	const waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'items'::regclass"
	for query(t, db.URL, waiting)[0][0] == "0" {
		if t.Context().Err() != nil {
			t.Fatal("the import never came to the table")
		}
	}
	cancelled := time.Now()
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if took := time.Since(cancelled); took >= cancelTimeout {
		t.Error("the server had to be left, after", took)
	}
	if n := query(t, db.URL, waiting)[0][0]; n != "0" {
		t.Error("the server still works on what was cancelled")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, db); n != "0" {
		t.Errorf("%s rows stayed", n)
	}
}

func silentPipeIsGivenUp(t *testing.T, db database) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	file := pipe(t, underWay, cancel, true)
	began := time.Now()
	if _, err := Import(ctx, db.URL, origin.Items, db.Workspace, file, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if time.Since(began) > cancelTimeout {
		t.Error("took", time.Since(began))
	}
}

func lostConnectionEndsIt(t *testing.T, db database) {
	for _, silent := range []bool{false, true} {
		file := pipe(t, underWay, func() {
			execute(t, db.URL, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'listedge' AND datname = current_database()")
		}, silent)
		if _, err := Import(t.Context(), db.URL, origin.Items, db.Workspace, file, nil); err == nil || !strings.HasPrefix(err.Error(), "import "+file+": ") || errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if n := count(t, db); n != "0" {
		t.Errorf("%s rows stayed", n)
	}
}

func databaseRefuses(t *testing.T, db database) {
	execute(t, db.URL, "ALTER TABLE items ADD CONSTRAINT no_tea CHECK (name <> 'Tea')")
	file := write(t, "a.csv", "id,name\n"+id1+",Chai\n"+id2+",Tea\n")
	_, err := Import(t.Context(), db.URL, origin.Items, db.Workspace, file, nil)
	if want := "import " + file + `: ERROR: new row for relation "items" violates check constraint "no_tea" (SQLSTATE 23514)`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if n := count(t, db); n != "0" {
		t.Errorf("%s rows stayed", n)
	}
}

func importStandardInput(t *testing.T, db database) {
	stdin := os.Stdin
	defer func() { os.Stdin = stdin }()
	for _, c := range []struct{ content, want string }{
		{"id,name\n" + id1 + ",Chai\n", ""},
		{"\ufeff\n\t{\"id\":\"" + id2 + "\",\"name\":\"Tea\"}\n", ""},
		{"id,name\n" + id1 + ",\n", "<stdin>:2:38: name: must not be empty"},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		os.Stdin = r
		if _, err := w.WriteString(c.content); err != nil {
			t.Fatal(err)
		}
		w.Close()
		_, err = Import(t.Context(), db.URL, origin.Items, db.Workspace, "-", nil)
		if err == nil && c.want != "" || err != nil && err.Error() != c.want {
			t.Errorf("%q: %v, want %q", c.content, err, c.want)
		}
		r.Close()
	}
	if n := count(t, db); n != "2" {
		t.Errorf("%s rows", n)
	}
}
